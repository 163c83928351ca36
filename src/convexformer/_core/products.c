/* Products of X with a few columns, in one pass over X, for which large products have no time to
   prepare; or both ways in that pass: scores, what they leave, and its correlations. */

#include "common.h"
#define NUMBER double
#define NAMED(name) name##_doubles
#include "four_by_four.h"
#undef NUMBER
#undef NAMED
#include <stdlib.h>
#include <string.h>

enum { X, Z, TARGET, SAMPLE_WEIGHT, OTHER, S, V, M };

#define FEW 4       /* columns that are multiplied by rows, two at a time; */
#define LANES 16    /* more of them, so many at most, lie side by side in sums, */
#define TILE 128    /* of which so many columns of X stay in cache */
#define ROWS 8      /* of X that are multiplied while they are in cache, */
#define NARROW 512  /* and columns of these that stay there from one product to the next */
#define SUMMED 512  /* rows whose products are added up before others are: sums of many round */
#define LINE 8      /* numbers that come from memory together */
#define AHEAD 1024  /* numbers, at least, from what is read to what is fetched */

typedef struct {
    Py_ssize_t N, p, c;
    const double *X; /* (N, p) */
    double *z;       /* (FEW, p): what X is multiplied with; or (N, LANES) */
    double *sums;    /* (FEW, p): products of some rows, */
    double *total;   /* (FEW, p): and of all before them */
} Product;

/* Memory for it, from zero: 0 where that is short. */
static int reserve(Product *at)
{
    at->z = calloc((at->c > FEW ? LANES * at->N : 3 * FEW * at->p) + 1, sizeof *at->z);
    at->sums = at->z + FEW * at->p, at->total = at->sums + FEW * at->p;
    return at->z != NULL;
}

/* Rows of X from i on; those beyond the end are the last. */
static inline void take_rows(const Product *at, Py_ssize_t i, const double **x)
{
    for (int r = 0; r < ROWS; r++)
        x[r] = at->X + (i + r < at->N ? i + r : at->N - 1) * at->p;
}

/* out = by' of by (rows, c) */
static void transpose(Py_ssize_t rows, Py_ssize_t c, const double *by, double *out)
{
    for (Py_ssize_t j = 0; j < rows; j++)
        for (Py_ssize_t l = 0; l < c; l++)
            out[l * rows + j] = by[j * c + l];
}

/* Scores of rows -------------------------------------------------------------------------------- */

/* s[r][0] = <x[r], z> of four rows, while what comes later is fetched. */
static inline void score_one(Py_ssize_t p, const double *const *x, const double *z, double s[4][4])
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double *next = x0 + (ROWS * p > AHEAD ? ROWS * p : AHEAD);
    double sums[4][LINE] = {{0}};
    Py_ssize_t j = 0;
    for (; j + LINE <= p; j += LINE, next += 4 * LINE) {
        for (int r = 0; r < 4; r++)
            FETCH(next + r * LINE);
#pragma omp simd
        for (int l = 0; l < LINE; l++) {
            sums[0][l] += x0[j + l] * z[j + l];
            sums[1][l] += x1[j + l] * z[j + l];
            sums[2][l] += x2[j + l] * z[j + l];
            sums[3][l] += x3[j + l] * z[j + l];
        }
    }
    for (int r = 0; r < 4; r++) {
        s[r][0] = 0;
        for (Py_ssize_t l = j; l < p; l++)
            s[r][0] += x[r][l] * z[l];
        for (int l = 0; l < LINE; l++)
            s[r][0] += sums[r][l];
    }
}

/* s (N, c) = x z for rows x from i on. */
static inline void score_rows(const Product *at, Py_ssize_t i, const double *const *x, double *s)
{
    for (int r = 0; r < ROWS && i + r < at->N; r += 4) {
        double some[4][4];
        if (at->c == 1)
            score_one(at->p, x + r, at->z, some);
        else
            multiply_four_doubles(at->p, x + r, at->z, at->p, some);
        for (Py_ssize_t q = 0; q < 4 && i + r + q < at->N; q++)
            for (Py_ssize_t l = 0; l < at->c; l++)
                s[(i + r + q) * at->c + l] = some[q][l];
    }
}

/* Correlations with rows ------------------------------------------------------------------------ */

/* m += v x, and n += w x unless that is NULL, of eight rows x, from column `first` to `end`. */
static inline void add_rows(const double *const *x, const double *v, const double *w,
                            Py_ssize_t first, Py_ssize_t end, double *m, double *n)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double *x4 = x[4], *x5 = x[5], *x6 = x[6], *x7 = x[7];
    const double v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
    const double v4 = v[4], v5 = v[5], v6 = v[6], v7 = v[7];
#define TIMES(v)                                                                                   \
    (((v##0 * x0[j] + v##1 * x1[j]) + (v##2 * x2[j] + v##3 * x3[j])) +                             \
     ((v##4 * x4[j] + v##5 * x5[j]) + (v##6 * x6[j] + v##7 * x7[j])))
    if (w == NULL) {
#pragma omp simd
        for (Py_ssize_t j = first; j < end; j++)
            m[j] += TIMES(v);
        return;
    }
    const double w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    const double w4 = w[4], w5 = w[5], w6 = w[6], w7 = w[7];
#pragma omp simd
    for (Py_ssize_t j = first; j < end; j++) { /* both share what is read */
        m[j] += TIMES(v);
        n[j] += TIMES(w);
    }
#undef TIMES
}

/* sums += v' x for rows x from i on and c columns v; total += sums after some rows. */
static inline void add_products(const Product *at, Py_ssize_t i, Py_ssize_t c,
                                const double *const *x, double (*v)[ROWS])
{
    const Py_ssize_t p = at->p;
    if (i % SUMMED == 0)
        memset(at->sums, 0, c * p * sizeof *at->sums);
    for (Py_ssize_t first = 0; first < p; first += NARROW)
        for (Py_ssize_t l = 0; l < c; l += 2)
            add_rows(x, v[l], l + 1 < c ? v[l + 1] : NULL, first,
                     p - first < NARROW ? p : first + NARROW, at->sums + l * p,
                     at->sums + (l + 1) * p);
    if (i % SUMMED == SUMMED - ROWS || i + ROWS >= at->N)
        for (Py_ssize_t j = 0; j < c * p; j++)
            at->total[j] += at->sums[j];
}

/* m (columns, lanes) += x' v for x (rows, columns), `width` apart, and v (rows, lanes). Sums are read
   and written once for four rows. */
static inline void add_lanes(Py_ssize_t rows, Py_ssize_t columns, const double *x,
                             Py_ssize_t width, const int lanes, const double *v, double *m)
{
    Py_ssize_t i = 0;
    for (; i + 4 <= rows; i += 4, x += 4 * width, v += 4 * lanes)
        for (Py_ssize_t j = 0; j < columns; j++) {
            const double a = x[j], b = x[width + j], c = x[2 * width + j], d = x[3 * width + j];
            double *sum = m + j * lanes;
#pragma omp simd
            for (int l = 0; l < lanes; l++)
                sum[l] += a * v[l] + b * v[lanes + l] + c * v[2 * lanes + l] + d * v[3 * lanes + l];
        }
    for (; i < rows; i++, x += width, v += lanes)
        for (Py_ssize_t j = 0; j < columns; j++)
#pragma omp simd
            for (int l = 0; l < lanes; l++)
                m[j * lanes + l] += x[j] * v[l];
}

/* out (p, c) = X' by for more than FEW columns, which lie side by side in `z`. */
VECTORISED static void correlate_lanes(const Product *at, const double *by, double *out)
{
    const Py_ssize_t N = at->N, p = at->p, c = at->c;
    const int lanes = c <= LANES / 2 ? LANES / 2 : LANES;
    double m[TILE * LANES], *v = at->z;
    for (Py_ssize_t i = 0; i < N; i++)
        memcpy(v + i * lanes, by + i * c, c * sizeof *v);
    memset(out, 0, p * c * sizeof *out);
    for (Py_ssize_t first = 0; first < p; first += TILE) {
        const Py_ssize_t columns = p - first < TILE ? p - first : TILE;
        for (Py_ssize_t i = 0; i < N; i += SUMMED) {
            const Py_ssize_t some = N - i < SUMMED ? N - i : SUMMED;
            const double *x = at->X + i * p + first;
            memset(m, 0, sizeof m);
            if (lanes == LANES)
                add_lanes(some, columns, x, p, LANES, v + i * LANES, m);
            else
                add_lanes(some, columns, x, p, LANES / 2, v + i * LANES / 2, m);
            for (Py_ssize_t j = 0; j < columns; j++)
                for (Py_ssize_t l = 0; l < c; l++)
                    out[(first + j) * c + l] += m[j * lanes + l];
        }
    }
}

/* Products --------------------------------------------------------------------------------------- */

/* out (N, c) = X by */
VECTORISED static void predict(const Product *at, const double *by, double *out)
{
    const double *x[ROWS];
    transpose(at->p, at->c, by, at->z);
    for (Py_ssize_t i = 0; i < at->N; i += ROWS) {
        take_rows(at, i, x);
        score_rows(at, i, x, out);
    }
}

/* out (p, c) = X' by */
VECTORISED static void correlate(const Product *at, const double *by, double *out)
{
    const double *x[ROWS];
    if (at->c > FEW) {
        correlate_lanes(at, by, out);
        return;
    }
    for (Py_ssize_t i = 0; i < at->N; i += ROWS) {
        double v[FEW][ROWS] = {{0}}; /* what there is not counts for nothing */
        for (Py_ssize_t r = 0; r < ROWS && i + r < at->N; r++)
            for (Py_ssize_t l = 0; l < at->c; l++)
                v[l][r] = by[(i + r) * at->c + l];
        take_rows(at, i, x);
        add_products(at, i, at->c, x, v);
    }
    transpose(at->c, at->p, at->total, out);
}

/* s = X z, v = weight (target - s) and m += (v, other)' X, if there is an other. */
VECTORISED static void follow(const Product *at, void **of, Py_ssize_t others)
{
    const Py_ssize_t N = at->N, c = at->c;
    const double *target = of[TARGET], *weight = of[SAMPLE_WEIGHT], *other = of[OTHER];
    const double *x[ROWS];
    double *s = of[S], *left = of[V], *m = of[M];
    transpose(at->p, c, of[Z], at->z);
    for (Py_ssize_t i = 0; i < N; i += ROWS) {
        double v[FEW][ROWS] = {{0}}; /* those beyond the last row count for nothing */
        take_rows(at, i, x);
        score_rows(at, i, x, s);
        for (Py_ssize_t r = 0; r < ROWS && i + r < N; r++) {
            for (Py_ssize_t l = 0; l < c; l++) {
                const Py_ssize_t here = (i + r) * c + l;
                left[here] = v[l][r] = weight[i + r] * (target[here] - s[here]);
            }
            if (others)
                v[c][r] = other[i + r];
        }
        add_products(at, i, c + others, x, v);
    }
    for (Py_ssize_t j = 0; j < (c + others) * at->p; j++)
        m[j] += at->total[j];
}

/* Arrays of Python ---------------------------------------------------------------------------- */

KERNEL(few_columns_product)
{
    const int transposed = get_int(args, 1);
    Product at;
    Arrays of;
    if (!get_shape(args, 0, "nnn", &at.N, &at.p, &at.c))
        return NULL;
    const double longest = at.N > at.p ? at.N : at.p, most = at.p > LANES ? at.p : LANES;
    if (at.N < 1 || at.p < 1 || at.c < 1 || at.c > (transposed ? LANES : FEW) ||
        LANES * longest * most > PY_SSIZE_T_MAX / 8.0)
        return refuse_sizes();
    const Py_ssize_t N = at.N * at.c, p = at.p * at.c;
    const Py_ssize_t sizes[] = {at.N * at.p, transposed ? N : p, transposed ? p : N};
    if (!get_arrays(args, 2, "ddd", sizes, 2, &of))
        return NULL;
    at.X = of.at[0];
    const int enough = reserve(&at);
    Py_BEGIN_ALLOW_THREADS
    if (enough)
        (transposed ? correlate : predict)(&at, of.at[1], of.at[2]);
    Py_END_ALLOW_THREADS
    free(at.z);
    return finish(&of, enough ? DONE : NO_MEMORY, "");
}

KERNEL(predict_and_correlate)
{
    Py_ssize_t others;
    Product at;
    Arrays of;
    if (!get_shape(args, 0, "nnnn", &at.N, &at.p, &at.c, &others))
        return NULL;
    if (at.N < 0 || at.p < 0 || at.c < 1 || at.c > FEW || others < 0 || others > (at.c == 1))
        return refuse_sizes();
    const Py_ssize_t N = at.N, p = at.p, c = at.c;
    const Py_ssize_t sizes[] = {N * p, p * c, N * c, N, others * N, N * c, N * c, (c + others) * p};
    if (!get_arrays(args, 1, "dddddddd", sizes, S, &of))
        return NULL;
    at.X = of.at[X];
    const int enough = reserve(&at);
    Py_BEGIN_ALLOW_THREADS
    if (enough)
        follow(&at, of.at, others);
    Py_END_ALLOW_THREADS
    free(at.z);
    return finish(&of, enough ? DONE : NO_MEMORY, "");
}
