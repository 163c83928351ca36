/* A logistic loss, or a softmax, and a penalty of some tokens: values, slopes, and the gap.

   Included by newton.c, which says what is minimised and how things are ordered. */

typedef struct {
    Columns *X;
    Py_ssize_t c, pairs, size;  /* outputs, pairs of two (of the one with itself), coefficients */
    Py_ssize_t blocks, width;   /* of the penalty, and coefficients of one */
    const double *limit;        /* (blocks,) */
    const double *center;       /* (p,): means of columns */
    int intercept, is_flat;     /* the latter: whether all samples score the same */
    const double *y, *a;        /* (c, N): targets, (N,): weights */
    double *f, *turn, *trial;   /* (c, N): scores, their move, and those that are tried */
    double *V, *W, *P, *value;  /* (c, N): minus the slope; curvature of pairs; probabilities; loss */
    double *Z, *to, *move, *M;  /* (size,): coefficients, where the model has them, correlations */
    double *sums, *T, *part;    /* X'V and X'W; (c, size): what intercepts take; (p,) */
    double *slope, *bend;       /* of intercepts: L^-1 slopes, and L, their curvature's factor */
    double *Q, *G;              /* (size, size): the Hessian; and of one pair of outputs */
    double *unit, *limits, *step, *block;
    float *gram;
    const void **rows;          /* of Q, and of gram, by block */
    Py_ssize_t *first;          /* (p,): where coefficients have a column of the first output */
    double loss, penalty;
    double end;                 /* when to stop, on the clock of `now` */
} Newton;

typedef struct {
    Py_ssize_t l, m; /* of one output both are that, else l > m */
} Pair;

static Pair pair(const Newton *at, Py_ssize_t both)
{
    Pair of = {at->c > 1, 0};
    for (of.m = both; of.m >= of.l && of.l > 0; of.l++)
        of.m -= of.l;
    return of;
}

/* Where coefficients have column j of output l. */
static Py_ssize_t place(const Newton *at, Py_ssize_t j, Py_ssize_t l)
{
    return at->first[j] + l * at->X->d;
}

/* The weighted loss at scores f + t turn, there with minus its slope and its probabilities. */
VECTORISED static double expand(Newton *at, double t)
{
    const Py_ssize_t N = at->X->N, c = at->c;
    const double *a = at->a, *f = at->f, *turn = at->turn, *value = at->value;
    double loss = 0, *trial = at->trial;
#pragma omp simd
    for (Py_ssize_t i = 0; i < c * N; i++)
        trial[i] = f[i] + t * turn[i];
    if (c == 1)
        expand_logistic(N, trial, at->y, at->value, at->V, at->P);
    else
        expand_all_softmax(N, c, trial, at->y, at->value, at->V, at->P);
#pragma omp simd reduction(+ : loss)
    for (Py_ssize_t i = 0; i < N; i++)
        loss += a[i] > 0 ? a[i] * value[i] : 0;
    for (Py_ssize_t l = 0; l < c; l++) {
        double *v = at->V + l * N;
#pragma omp simd
        for (Py_ssize_t i = 0; i < N; i++)
            v[i] *= a[i];
    }
    return loss;
}

/* Minus the curvature of pairs of outputs: with its own, those of an output sum to zero. */
VECTORISED static void curve(const Newton *at)
{
    const Py_ssize_t N = at->X->N;
    const int two = at->c > 1;
    for (Py_ssize_t both = 0; both < at->pairs; both++) {
        const Pair of = pair(at, both);
        const double *a = at->a, *p = at->P + of.l * N, *q = at->P + of.m * N;
        double *w = at->W + both * N;
#pragma omp simd
        for (Py_ssize_t i = 0; i < N; i++)
            w[i] = a[i] * p[i] * (two ? q[i] : 1);
    }
}

static double length(Py_ssize_t size, const double *z)
{
    double square = 0;
    for (Py_ssize_t j = 0; j < size; j++)
        square += z[j] * z[j];
    return sqrt(square);
}

/* Of Z + t move. */
static double penalty(const Newton *at, double t)
{
    double sum = 0;
    for (Py_ssize_t e = 0; e < at->blocks; e++) {
        double square = 0;
        for (Py_ssize_t j = e * at->width; j < (e + 1) * at->width; j++)
            square += (at->Z[j] + t * at->move[j]) * (at->Z[j] + t * at->move[j]);
        sum += at->limit[e] * sqrt(square);
    }
    return sum;
}

/* Intercepts ----------------------------------------------------------------------------------- */

/* Slopes and curvature of intercepts, the latter factorised, and what they take from correlations
   and Hessian, from X'W; 0 where there is no curvature. */
static int prepare_intercepts(Newton *at, const double *S)
{
    const Py_ssize_t N = at->X->N, c = at->c, size = at->size;
    memset(at->bend, 0, c * c * sizeof *at->bend);
    memset(at->T, 0, c * size * sizeof *at->T);
    for (Py_ssize_t both = 0; both < at->pairs; both++, S += at->X->width) {
        const Pair of = pair(at, both);
        double *T = at->T + of.l * size, *U = at->T + of.m * size;
        const double total = sum(N, at->W + both * N);
        at->bend[of.l * c + of.l] += total;
        for (Py_ssize_t j = 0; j < at->X->p; j++)
            T[place(at, j, of.l)] += S[j];
        if (of.l == of.m)
            continue;
        at->bend[of.m * c + of.m] += total;
        at->bend[of.l * c + of.m] = -total;
        for (Py_ssize_t j = 0; j < at->X->p; j++) {
            U[place(at, j, of.m)] += S[j];
            T[place(at, j, of.m)] = U[place(at, j, of.l)] = -S[j];
        }
    }
    if (!factorise(c, at->bend))
        return 0;
    for (Py_ssize_t j = 0; j < size; j++)
        solve(c, at->bend, at->T + j, size);
    for (Py_ssize_t l = 0; l < c; l++)
        at->slope[l] = sum(N, at->V + l * N);
    solve(c, at->bend, at->slope, 1);
    return 1;
}

/* Correlations once intercepts are at their best, to first order, and the gap there; infinite where
   they have no curvature. */
static double gap(Newton *at)
{
    const Columns *X = at->X;
    const Py_ssize_t c = at->c, known = c > 1 ? c - 1 : 1; /* slopes of outputs sum to zero */
    double inner = 0, scale = 1, left = 0;
    curve(at);
    correlate(X, known + (at->intercept ? at->pairs : 0), at->V + (c - known) * X->N, at->sums);
    if (at->intercept && !prepare_intercepts(at, at->sums + known * X->width))
        return INFINITY;
    for (Py_ssize_t j = 0; j < X->p; j++) {
        double others = 0;
        for (Py_ssize_t l = c - 1; l >= c - known; l--) {
            const double m = at->sums[(l - c + known) * X->width + j];
            at->M[place(at, j, l)] = m;
            others += m;
        }
        if (c > 1)
            at->M[place(at, j, 0)] = -others;
    }
    for (Py_ssize_t l = 0; l < c && at->intercept; l++) {
        left += 0.5 * at->slope[l] * at->slope[l];
        for (Py_ssize_t j = 0; j < at->size; j++)
            at->M[j] -= at->T[l * at->size + j] * at->slope[l];
    }
    for (Py_ssize_t j = 0; j < at->size; j++)
        inner += at->Z[j] * at->M[j];
    for (Py_ssize_t e = 0; e < at->blocks; e++) {
        const double norm = length(at->width, at->M + e * at->width), limit = at->limit[e];
        scale = norm > limit && limit / norm < scale ? limit / norm : scale;
    }
    return at->penalty - scale * inner + (1 - scale) * (1 - scale) * at->loss + left;
}
