/* Newton's method for one output of a logistic loss on some tokens: what logistic.py asks for.

   minimise over Z, b   sum_i a_i log(1 + exp(-y_i f_i)) + sum_k limit_k ||Z_k||,   f = A Z + b

   Every step minimises the second-order model by sweeps (_sweeps.c), the intercept eliminated, and
   searches the objective along the move. A call takes what its arithmetic takes, where in NumPy
   calls would outweigh that. */

#include "../_compiled.h"
#include "../_elementary.h"
#include "_sweeps.h"
#include <math.h>
#include <stdlib.h>

#define STEPS 40      /* of Newton's method, at most */
#define CYCLES 60     /* of sweeps on one model, at most */
#define UNSEEN 3      /* steps by which the objective may fall too little to see */
#define RECENT 4      /* cycles by which speed is judged */
#define HALVINGS 30   /* of a move */
#define INNER_GAP 0.01 /* of the gap that a model's may have, if that is above what is wanted */
#define WANTED 0.1    /* of what is wanted that a model's may always have */
#define CANCELLED 1e-6 /* of a sum of squares: where less is left, digits are gone */
#define LANES 8       /* columns of a Gram matrix that are summed side by side */
#define ROWS 64       /* samples that are packed at a time */

typedef struct {
    Py_ssize_t N, n, d, p;  /* p = n d columns */
    const double *A;        /* (N, p), or NULL, then entries: */
    int32_t *start;         /* (N + 1,) */
    int32_t *column;
    double *value;
} Columns;

typedef struct {
    const Columns *X;
    const double *y, *a; /* (N,): targets and weights */
    const double *limit; /* (n,) */
    int intercept;
    double *f, *turn, *V, *H;     /* (N,): scores, their move, minus the slope, curvature */
    double *Z, *to, *M, *q;       /* (p,): coefficients, where the model has them, X'V, X'H */
    double *Q, *unit, *limits, *step, *block, *packed;
    float *gram;
    const void **rows; /* of Q, and of gram, by token */
    double loss, penalty, slope, bend; /* the latter of the intercept */
} Newton;

/* Products --------------------------------------------------------------------------------------*/

VECTORISED static void predict(const Columns *X, const double *z, double *f)
{
    for (Py_ssize_t i = 0; i < X->N; i++) {
        double sum = 0;
        if (X->A != NULL) {
            const double *x = X->A + i * X->p;
#pragma omp simd reduction(+ : sum)
            for (Py_ssize_t j = 0; j < X->p; j++)
                sum += x[j] * z[j];
        } else
            for (int32_t l = X->start[i]; l < X->start[i + 1]; l++)
                sum += X->value[l] * z[X->column[l]];
        f[i] = sum;
    }
}

/* M = X'V and q = X'H */
VECTORISED static void correlate(const Columns *X, const double *V, const double *H, double *M,
                                 double *q)
{
    memset(M, 0, X->p * sizeof *M);
    memset(q, 0, X->p * sizeof *q);
    for (Py_ssize_t i = 0; i < X->N; i++)
        if (X->A != NULL) {
            const double *x = X->A + i * X->p, v = V[i], h = H[i];
#pragma omp simd
            for (Py_ssize_t j = 0; j < X->p; j++)
                M[j] += v * x[j], q[j] += h * x[j];
        } else
            for (int32_t l = X->start[i]; l < X->start[i + 1]; l++) {
                M[X->column[l]] += V[i] * X->value[l];
                q[X->column[l]] += H[i] * X->value[l];
            }
}

/* Q[j, k] += sum_i scaled[i, j] x[i, k] of packed rows of `width`, for four j and some k. */
VECTORISED static void add_tile(Py_ssize_t rows, Py_ssize_t width, const double *scaled,
                                const double *x, double *Q)
{
    double sums[4][LANES] = {{0}};
    for (Py_ssize_t i = 0; i < rows; i++, x += width, scaled += width)
        for (int j = 0; j < 4; j++)
#pragma omp simd
            for (int k = 0; k < LANES; k++)
                sums[j][k] += scaled[j] * x[k];
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < LANES; k++)
            Q[j * width + k] += sums[j][k];
}

/* Lower half of X' diag(H) X in Q (width, width), by tiles; `packed` has room for 2 ROWS rows. */
static void dense_gram(const Columns *X, const double *H, Py_ssize_t width, double *packed,
                       double *Q)
{
    double *x = packed, *scaled = packed + ROWS * width;
    for (Py_ssize_t first = 0; first < X->N; first += ROWS) {
        const Py_ssize_t rows = X->N - first < ROWS ? X->N - first : ROWS;
        for (Py_ssize_t i = 0; i < rows; i++)
            for (Py_ssize_t j = 0; j < X->p; j++) {
                x[i * width + j] = X->A[(first + i) * X->p + j];
                scaled[i * width + j] = H[first + i] * x[i * width + j];
            }
        for (Py_ssize_t j = 0; j < X->p; j += 4)
            for (Py_ssize_t k = 0; k <= j; k += LANES)
                add_tile(rows, width, scaled + j, x + k, Q + j * width + k);
    }
}

static void sparse_gram(const Columns *X, const double *H, Py_ssize_t width, double *Q)
{
    for (Py_ssize_t i = 0; i < X->N; i++)
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++) {
            const double by = H[i] * X->value[l];
            double *row = Q + X->column[l] * width;
            for (int32_t m = X->start[i]; m <= l; m++)
                row[X->column[m]] += by * X->value[m];
        }
}

static Py_ssize_t width_of(Py_ssize_t p)
{
    return (p + LANES - 1) / LANES * LANES;
}

/* The loss --------------------------------------------------------------------------------------*/

/* The weighted loss at scores f + t turn; minus its slope and its curvature where V is given. */
VECTORISED static double expand(const Newton *at, double t, double *V, double *H)
{
    const double *f = at->f, *turn = at->turn, *y = at->y, *a = at->a;
    double loss = 0;
#pragma omp simd reduction(+ : loss)
    for (Py_ssize_t i = 0; i < at->X->N; i++) {
        const double score = f[i] + t * turn[i], margin = y[i] * score;
        const double small = exp_below(-fabs(score)), share = 1 / (1 + small);
        loss += a[i] * ((margin < 0 ? -margin : 0) + log1p_near(small));
        V[i] = a[i] * y[i] * (margin > 0 ? small : 1) * share;
        H[i] = a[i] * small * share * share;
    }
    return loss;
}

static double length(Py_ssize_t size, const double *z)
{
    double square = 0;
    for (Py_ssize_t j = 0; j < size; j++)
        square += z[j] * z[j];
    return sqrt(square);
}

static double penalty(const Newton *at, double t)
{
    const Py_ssize_t d = at->X->d;
    double sum = 0;
    for (Py_ssize_t k = 0; k < at->X->n; k++) {
        double square = 0;
        for (Py_ssize_t j = k * d; j < (k + 1) * d; j++) {
            const double z = at->Z[j] + t * (at->to[j] - at->Z[j]);
            square += z * z;
        }
        sum += at->limit[k] * sqrt(square);
    }
    return sum;
}

/* Correlations once the intercept is at its best, to first order; and the gap there. */
static double gap(Newton *at)
{
    const Columns *X = at->X;
    double inner = 0, scale = 1;
    correlate(X, at->V, at->H, at->M, at->q);
    at->slope = at->bend = 0;
    for (Py_ssize_t i = 0; i < X->N && at->intercept; i++)
        at->slope += at->V[i], at->bend += at->H[i];
    for (Py_ssize_t j = 0; j < X->p && at->bend > 0; j++)
        at->M[j] -= at->q[j] * (at->slope / at->bend);
    for (Py_ssize_t k = 0; k < X->n; k++) {
        const double size = length(X->d, at->M + k * X->d);
        scale = size > at->limit[k] && at->limit[k] / size < scale ? at->limit[k] / size : scale;
    }
    for (Py_ssize_t j = 0; j < X->p; j++)
        inner += at->Z[j] * at->M[j];
    const double left = at->bend > 0 ? 0.5 * at->slope * at->slope / at->bend : 0;
    return at->penalty - scale * inner + (1 - scale) * (1 - scale) * at->loss + left;
}

/* Models ----------------------------------------------------------------------------------------*/

/* About the largest eigenvalue of a positive (d, d) matrix, or a little more: the eighth root of what
   the eighth powers of all sum to. `block` has room for two such matrices. */
static double largest(Py_ssize_t d, const float *G, double *block)
{
    double trace = 0, sum = 0, *square = block, *next = block + d * d;
    for (Py_ssize_t j = 0; j < d; j++)
        trace += G[j * d + j];
    if (d == 1 || !(trace > 0))
        return trace;
    for (Py_ssize_t j = 0; j < d * d; j++)
        square[j] = G[j] / trace;
    for (int power = 0; power < 2; power++) {
        memset(next, 0, d * d * sizeof *next);
        for (Py_ssize_t i = 0; i < d; i++)
            for (Py_ssize_t j = 0; j < d; j++)
#pragma omp simd
                for (Py_ssize_t k = 0; k < d; k++)
                    next[i * d + k] += square[i * d + j] * square[j * d + k];
        memcpy(square, next, d * d * sizeof *next);
    }
    for (Py_ssize_t j = 0; j < d * d; j++)
        sum += square[j] * square[j];
    return trace * pow(sum, 0.125);
}

/* The Hessian, the intercept eliminated, in units of its tokens; 0 where that loses digits. */
static int model(Newton *at)
{
    const Columns *X = at->X;
    const Py_ssize_t p = X->p, d = X->d, width = width_of(p);
    double *Q = at->Q;
    memset(Q, 0, width * width * sizeof *Q);
    if (X->A != NULL)
        dense_gram(X, at->H, width, at->packed, Q);
    else
        sparse_gram(X, at->H, width, Q);
    for (Py_ssize_t k = 0; k < X->n; k++) {
        double trace = 0;
        for (Py_ssize_t j = k * d; j < (k + 1) * d; j++) {
            const double whole = Q[j * width + j];
            const double rest = at->bend > 0 ? whole - at->q[j] * at->q[j] / at->bend : whole;
            if (rest < CANCELLED * whole)
                return 0;
            trace += rest;
        }
        at->unit[k] = trace > 0 ? sqrt(trace / d) : 1;
    }
    for (Py_ssize_t j = 0; j < p; j++) /* both halves, and rows of p: each is later in `at->Q` */
        for (Py_ssize_t k = 0; k <= j; k++) {
            const double by = at->bend > 0 ? at->q[j] * at->q[k] / at->bend : 0;
            const double whole = Q[j * width + k];
            Q[j * width + k] = (whole - by) / (at->unit[j / d] * at->unit[k / d]);
        }
    for (Py_ssize_t j = 0; j < p; j++)
        for (Py_ssize_t k = j + 1; k < p; k++)
            Q[j * width + k] = Q[k * width + j];
    for (Py_ssize_t j = 1; j < p; j++)
        memmove(Q + j * p, Q + j * width, p * sizeof *Q);
    for (Py_ssize_t k = 0; k < X->n; k++) {
        float *G = at->gram + k * d * d;
        for (Py_ssize_t i = 0; i < d; i++)
            for (Py_ssize_t j = 0; j < d; j++)
                G[i * d + j] = (float)Q[(k * d + i) * p + k * d + j];
        const double size = largest(d, G, at->block);
        at->step[k] = 1 / (size > 1e-30 ? size : 1e-30);
        at->rows[k] = Q + k * d * p;
        at->rows[X->n + k] = G;
    }
    return 1;
}

/* at->to = about the minimiser of the model, its gap below `target`; 1, 0 where sweeps are slow, -1
   where memory is short. In units of tokens, and of the largest limit. */
static int minimise_model(Newton *at, double target)
{
    const Columns *X = at->X;
    double size = 0, value, left, square;
    for (Py_ssize_t k = 0; k < X->n; k++) {
        at->limits[k] = at->limit[k] / at->unit[k];
        size = at->limits[k] > size ? at->limits[k] : size;
    }
    size = size > 0 ? size : 1;
    for (Py_ssize_t j = 0; j < X->p; j++) {
        at->to[j] = at->Z[j] * at->unit[j / X->d] / size;
        at->M[j] /= at->unit[j / X->d] * size;
    }
    for (Py_ssize_t k = 0; k < X->n; k++)
        at->limits[k] /= size;
    square = 2 * at->loss / (size * size);
    const Round round = {X->n,      X->d,       1,       X->p,   1,     0, at->rows,
                         at->rows + X->n, at->step, at->limits, &square, at->to, at->M};
    double gaps[CYCLES];
    int found = 0, slow = 0;
    for (int cycles = 0; cycles < CYCLES && !found && !slow; cycles++) {
        if (!run_cycle(&round, &value, &left))
            return -1;
        gaps[cycles] = left * size * size;
        found = gaps[cycles] <= target;
        if (cycles >= RECENT) { /* as it fell of late, is there an end in sight? */
            const double fall = pow(gaps[cycles] / gaps[cycles - RECENT], 1.0 / RECENT);
            slow = !(gaps[cycles] * pow(fall, CYCLES) <= target);
        }
    }
    for (Py_ssize_t j = 0; j < X->p; j++)
        at->to[j] *= size / at->unit[j / X->d];
    return found;
}

/* Move towards at->to as far as the objective falls as promised: 1, or 2 where that is too little to
   see, else 0. V and H, slopes and curvatures here, are those there afterwards. */
static int search(Newton *at, double *b)
{
    const Columns *X = at->X;
    double lift = at->bend > 0 ? at->slope / at->bend : 0, promise = 0, t = 1;
    for (Py_ssize_t j = 0; j < X->p; j++) {
        at->M[j] = at->to[j] - at->Z[j];
        lift -= at->bend > 0 ? at->q[j] * at->M[j] / at->bend : 0;
    }
    predict(X, at->M, at->turn);
    for (Py_ssize_t i = 0; i < X->N; i++) {
        at->turn[i] += lift;
        promise -= at->V[i] * at->turn[i];
    }
    const double start = at->loss + at->penalty, slack = 1e-14 * start;
    promise += penalty(at, 1) - at->penalty;
    if (!(promise <= slack))
        return 0;
    for (int halvings = 0; halvings < HALVINGS; halvings++, t *= 0.5) {
        const double loss = expand(at, t, at->V, at->H), weight = penalty(at, t);
        if (loss + weight > start + 1e-4 * t * promise + slack)
            continue;
        for (Py_ssize_t i = 0; i < X->N; i++)
            at->f[i] += t * at->turn[i];
        for (Py_ssize_t j = 0; j < X->p; j++)
            at->Z[j] = t == 1 ? at->to[j] : at->Z[j] + t * at->M[j];
        at->loss = loss, at->penalty = weight, *b += t * lift;
        return promise < -slack ? 1 : 2;
    }
    return 0;
}

/* Steps until the gap is below `goal` of the objective: 1, 0 where these end before, -1 where memory
   is short. `left` is the gap, over the objective. */
static int iterate(Newton *at, double goal, double *b, double *left)
{
    memset(at->turn, 0, at->X->N * sizeof *at->turn);
    memcpy(at->to, at->Z, at->X->p * sizeof *at->to);
    at->loss = expand(at, 0, at->V, at->H);
    at->penalty = penalty(at, 0);
    for (int steps = 0, unseen = 0; steps < STEPS && unseen < UNSEEN; steps++) {
        const double worth = at->loss + at->penalty, above = gap(at), wanted = goal * worth;
        *left = worth > 0 ? above / worth : 0;
        if (above <= wanted)
            return 1;
        const double target = WANTED * wanted > INNER_GAP * above ? WANTED * wanted
                                                                  : INNER_GAP * above;
        const int found = model(at) ? minimise_model(at, target) : 0;
        const int moved = found > 0 ? search(at, b) : 0;
        if (!moved)
            return found < 0 ? -1 : 0;
        unseen += moved == 2;
    }
    return 0;
}

/* Memory for all of it: one piece of numbers, which the caller frees with its pointers. */
static int reserve(Newton *at, double **numbers, float **floats)
{
    const Py_ssize_t N = at->X->N, n = at->X->n, d = at->X->d, p = at->X->p, width = width_of(p);
    const Py_ssize_t packed = at->X->A != NULL ? 2 * ROWS * width : 0;
    double *next = calloc(3 * N + 3 * p + width * width + 3 * n + 2 * d * d + packed, sizeof *next);
    *numbers = next;
    *floats = at->gram = malloc(n * d * d * sizeof *at->gram);
    at->rows = malloc(2 * n * sizeof *at->rows);
    if (next == NULL || at->gram == NULL || at->rows == NULL)
        return 0;
    at->turn = next, at->V = at->turn + N, at->H = at->V + N;
    at->to = at->H + N, at->M = at->to + p, at->q = at->M + p;
    at->Q = at->q + p, at->unit = at->Q + width * width, at->limits = at->unit + n;
    at->step = at->limits + n, at->block = at->step + n, at->packed = at->block + 2 * d * d;
    return 1;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

enum { START, COLUMN, VALUE, PLACE, Y, A, LIMIT, F, Z, ARRAYS };

/* Entries of X whose columns have a place among those of `to`: 0 where memory is short, -1 where
   entries are not within their rows, or columns. */
static int choose(Py_ssize_t entries, Py_ssize_t width, const int32_t *start, const int32_t *column,
                  const double *value, const int32_t *place, Columns *to)
{
    int32_t n = 0;
    to->start = malloc((to->N + 1) * sizeof *to->start);
    to->column = malloc((entries + 1) * sizeof *to->column);
    to->value = malloc((entries + 1) * sizeof *to->value);
    if (to->start == NULL || to->column == NULL || to->value == NULL)
        return 0;
    int sound = start[0] == 0 && start[to->N] == entries;
    for (Py_ssize_t j = 0; j < width; j++)
        sound &= place[j] < to->p;
    for (Py_ssize_t i = 0; i < to->N && sound; i++) {
        sound = start[i] <= start[i + 1] && start[i + 1] <= entries;
        to->start[i] = n;
        for (int32_t l = start[i]; l < start[i + 1] && sound; l++) {
            sound = column[l] >= 0 && column[l] < width;
            const int32_t here = sound ? place[column[l]] : -1;
            to->column[n] = here, to->value[n] = value[l];
            n += here >= 0;
        }
    }
    to->start[to->N] = n;
    return sound ? 1 : -1;
}

PyObject *minimise_logistic(PyObject *self, PyObject *args)
{
    PyObject *given[ARRAYS];
    Py_ssize_t entries, width;
    Columns X = {0};
    Newton at = {&X};
    double goal, b = 0, left = NAN;
    if (!PyArg_ParseTuple(args, "(nnnnn)OOOOOOOOOpd", &X.N, &X.n, &X.d, &entries, &width, given,
                          given + 1, given + 2, given + 3, given + 4, given + 5, given + 6,
                          given + 7, given + 8, &at.intercept, &goal))
        return NULL;
    if (X.N < 1 || X.n < 1 || X.d < 1 || entries > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    X.p = X.n * X.d;
    const int dense = entries < 0;
    const Py_ssize_t sizes[ARRAYS] = {dense ? 0 : X.N + 1, dense ? 0 : entries,
                                      dense ? X.N * X.p : entries, dense ? 0 : width,
                                      X.N, X.N, X.n, X.N, X.p};
    Py_buffer views[ARRAYS];
    double *numbers = NULL;
    float *floats = NULL;
    int n_views = 0, done = -1, sound = 1;
    for (; n_views < ARRAYS; n_views++)
        if (!get(given[n_views], views + n_views, "iididdddd"[n_views], sizes[n_views],
                 n_views >= F))
            goto end;
    X.A = dense ? views[VALUE].buf : NULL;
    at.y = views[Y].buf, at.a = views[A].buf, at.limit = views[LIMIT].buf;
    at.f = views[F].buf, at.Z = views[Z].buf;
    if (!dense)
        sound = choose(entries, width, views[START].buf, views[COLUMN].buf, views[VALUE].buf,
                       views[PLACE].buf, &X);
    if (sound > 0 && reserve(&at, &numbers, &floats)) {
        Py_BEGIN_ALLOW_THREADS
        done = iterate(&at, goal, &b, &left);
        Py_END_ALLOW_THREADS
    }
    free(numbers);
    free(floats);
    free(at.rows);
    free(X.start);
    free(X.column);
    free(X.value);
    if (sound < 0)
        PyErr_SetString(PyExc_ValueError, "Rows, columns or places are out of range.");
    else if (done < 0)
        PyErr_NoMemory();
end:
    while (n_views > 0)
        PyBuffer_Release(views + --n_views);
    if (PyErr_Occurred())
        return NULL;
    return Py_BuildValue("idd", done, b, left);
}
