/* What compiled solvers share: sweeps over tokens, and what else the module has. */

#define SWEEPS 6     /* of a cycle, at most, */
#define TO_AND_FRO 8 /* and where these are not all one way */

typedef struct {
    Py_ssize_t n, d, c, N;
    Py_ssize_t part;      /* outputs that share tokens: c or 1 */
    Py_ssize_t sweeps;    /* of this cycle, up to SWEEPS */
    int in_samples;       /* else N is n * d */
    int packed;           /* whether tokens are int16 */
    const void **A;       /* n tokens (d, N), float or int16; or rows of the Gram matrix of all,
                             double */
    const void **gram;    /* n matrices (d, d): A_k A_k', float */
    const double *step;   /* (n,): one over the largest eigenvalue of the same */
    const double *limit;  /* (n,) */
    double *square;       /* (c / part,): of v */
    double *Z, *M;        /* (n, c, d) */
    double *last;         /* the last move of Z, and that of v (c, N), of sweeps to and fro; or NULL */
    Py_ssize_t *live;     /* (c / part,): where parts begin that a visit looks at */
} Round;

/* Some sweeps, extrapolations, and where they lead; 0 where memory is short. */
int run_cycle(Round *at, double *value, double *gap);

PyObject *transpose(PyObject *self, PyObject *args);
PyObject *prepare(PyObject *self, PyObject *args);
PyObject *minimise_curved(PyObject *self, PyObject *args);
