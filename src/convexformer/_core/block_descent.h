/* Block coordinate descent: for other kernels too. */

#define SWEEPS 6 /* of a cycle, at most */

typedef struct {
    Py_ssize_t n, d, c, N;
    Py_ssize_t part;      /* outputs that share tokens: c or 1 */
    Py_ssize_t sweeps;    /* of this cycle, up to SWEEPS */
    int in_samples;       /* else N is n * d */
    int packed;           /* whether tokens are int16 */
    const void **A;       /* n tokens (d, N), float or int16; or rows of a Gram matrix, double */
    const void **gram;    /* n matrices (d, d): A_k A_k', float */
    const double *step;   /* (n,): one over the largest eigenvalue of the same */
    const double *limit;  /* (n,) */
    double *square;       /* (c / part,): of v */
    double *Z, *M;        /* (n, c, d) */
    Py_ssize_t *live;     /* (c / part,): where parts begin that a visit looks at */
} Round;

/* Some sweeps, extrapolations, and where they lead; 0 where memory is short. */
int run_cycle(Round *at, double *value, double *gap);

