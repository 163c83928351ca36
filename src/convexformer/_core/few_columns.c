/* Products of X with a few columns, compiled: in one pass over X, for which large products have no
   time to prepare. */

#include "common.h"
#define NUMBER double
#define NAMED(name) name##_doubles
#include "four_by_four.h"
#undef NUMBER
#undef NAMED
#include <stdlib.h>
#include <string.h>

#define NARROW 512 /* columns of eight rows that stay in cache from one product to the next */
#define PAIRS 4    /* outputs up to which two at a time are the quickest */
#define LANES 16   /* outputs at most, side by side in sums, */
#define TILE 128   /* of which so many columns stay in cache, */
#define ROWS 512   /* and so many rows are added up before others are: sums of many round */

typedef struct {
    Py_ssize_t N, p, c;
    const double *X;  /* (N, p) */
    const double *by; /* (p, c), or (N, c) */
    double *out;      /* (N, c), or (p, c) */
    double *room;     /* 4 columns of p, or outputs side by side */
} Few;

/* m += v x and n += w x of eight rows x, from column `first` to `end`: they share what is read. */
VECTORISED static void add_rows(const double *const *x, const double *v, const double *w,
                                Py_ssize_t first, Py_ssize_t end, double *m, double *n)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double *x4 = x[4], *x5 = x[5], *x6 = x[6], *x7 = x[7];
    const double v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
    const double v4 = v[4], v5 = v[5], v6 = v[6], v7 = v[7];
    const double w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    const double w4 = w[4], w5 = w[5], w6 = w[6], w7 = w[7];
#pragma omp simd
    for (Py_ssize_t j = first; j < end; j++) {
        m[j] += ((v0 * x0[j] + v1 * x1[j]) + (v2 * x2[j] + v3 * x3[j])) +
                ((v4 * x4[j] + v5 * x5[j]) + (v6 * x6[j] + v7 * x7[j]));
        n[j] += ((w0 * x0[j] + w1 * x1[j]) + (w2 * x2[j] + w3 * x3[j])) +
                ((w4 * x4[j] + w5 * x5[j]) + (w6 * x6[j] + w7 * x7[j]));
    }
}

/* Rows from i on, so many of them; those beyond the end are the last. */
static void take_rows(const Few *at, Py_ssize_t i, int rows, const double **x)
{
    for (int r = 0; r < rows; r++)
        x[r] = at->X + (i + r < at->N ? i + r : at->N - 1) * at->p;
}

/* Columns l to l + few of `out` = X by. */
static void score(const Few *at, Py_ssize_t l, Py_ssize_t few)
{
    const double *x[4];
    double s[4][4];
    memset(at->room, 0, 4 * at->p * sizeof *at->room);
    for (Py_ssize_t j = 0; j < at->p; j++)
        for (Py_ssize_t q = 0; q < few; q++)
            at->room[q * at->p + j] = at->by[j * at->c + l + q];
    for (Py_ssize_t i = 0; i < at->N; i += 4) {
        take_rows(at, i, 4, x);
        multiply_four_doubles(at->p, x, at->room, at->p, s);
        for (Py_ssize_t r = 0; r < 4 && i + r < at->N; r++)
            memcpy(at->out + (i + r) * at->c + l, s[r], few * sizeof *at->out);
    }
}

/* out = X' by for up to PAIRS outputs, two at a time. */
static void correlate_pairs(const Few *at)
{
    const Py_ssize_t N = at->N, p = at->p, c = at->c;
    const double *x[8];
    memset(at->room, 0, PAIRS * p * sizeof *at->room);
    for (Py_ssize_t i = 0; i < N; i += 8) {
        take_rows(at, i, 8, x);
        for (Py_ssize_t first = 0; first < p; first += NARROW)
            for (Py_ssize_t l = 0; l < c; l += 2) {
                double v[8] = {0}, w[8] = {0}; /* what there is not counts for nothing */
                for (Py_ssize_t r = 0; r < 8 && i + r < N; r++) {
                    v[r] = at->by[(i + r) * c + l];
                    w[r] = l + 1 < c ? at->by[(i + r) * c + l + 1] : 0;
                }
                add_rows(x, v, w, first, p - first < NARROW ? p : first + NARROW,
                         at->room + l * p, at->room + (l + 1) * p);
            }
    }
    for (Py_ssize_t j = 0; j < p; j++)
        for (Py_ssize_t l = 0; l < c; l++)
            at->out[j * c + l] = at->room[l * p + j];
}

/* m (columns, lanes) += x' v for x (rows, columns), `width` apart, and v (rows, lanes). Sums are read
   and written once for four rows. */
static inline void add_products(Py_ssize_t rows, Py_ssize_t columns, const double *x,
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

/* out = X' by for up to LANES outputs, which lie side by side in `room`, `lanes` apart. */
VECTORISED static void correlate_lanes(const Few *at, int lanes)
{
    const Py_ssize_t N = at->N, p = at->p, c = at->c;
    double m[TILE * LANES], *v = at->room;
    memset(v, 0, N * lanes * sizeof *v);
    for (Py_ssize_t i = 0; i < N; i++)
        memcpy(v + i * lanes, at->by + i * c, c * sizeof *v);
    memset(at->out, 0, p * c * sizeof *at->out);
    for (Py_ssize_t first = 0; first < p; first += TILE) {
        const Py_ssize_t columns = p - first < TILE ? p - first : TILE;
        for (Py_ssize_t i = 0; i < N; i += ROWS) {
            const Py_ssize_t some = N - i < ROWS ? N - i : ROWS;
            const double *x = at->X + i * p + first;
            memset(m, 0, sizeof m);
            if (lanes == LANES)
                add_products(some, columns, x, p, LANES, v + i * LANES, m);
            else
                add_products(some, columns, x, p, LANES / 2, v + i * LANES / 2, m);
            for (Py_ssize_t j = 0; j < columns; j++)
                for (Py_ssize_t l = 0; l < c; l++)
                    at->out[(first + j) * c + l] += m[j * lanes + l];
        }
    }
}

static void run(const Few *at, int transposed, int lanes)
{
    if (!transposed)
        for (Py_ssize_t l = 0; l < at->c; l += 4)
            score(at, l, at->c - l < 4 ? at->c - l : 4);
    else if (at->c <= PAIRS)
        correlate_pairs(at);
    else
        correlate_lanes(at, lanes);
}

KERNEL(few_columns_product)
{
    PyObject *given[3];
    Py_buffer views[3];
    void *arrays[3];
    Few at;
    int transposed;
    if (!PyArg_ParseTuple(args, "(nnn)pOOO", &at.N, &at.p, &at.c, &transposed, given, given + 1,
                          given + 2))
        return NULL;
    const double longest = at.N > at.p ? at.N : at.p, most = at.p > at.c ? at.p : at.c;
    if (at.N < 1 || at.p < 1 || at.c < 1 || at.c > LANES ||
        LANES * longest * most > PY_SSIZE_T_MAX / 8.0)
        return PyErr_Format(PyExc_ValueError, "Sizes must be positive, and fit.");
    const int lanes = at.c <= LANES / 2 ? LANES / 2 : LANES;
    const Py_ssize_t N = at.N * at.c, p = at.p * at.c;
    const Py_ssize_t sizes[3] = {at.N * at.p, transposed ? N : p, transposed ? p : N};
    if (!get_arrays(3, given, views, arrays, "ddd", sizes, 2))
        return NULL;
    at.X = arrays[0], at.by = arrays[1], at.out = arrays[2];
    at.room = malloc((4 * at.p + at.N * lanes) * sizeof *at.room);
    const int enough = at.room != NULL;
    if (enough) {
        Py_BEGIN_ALLOW_THREADS
        run(&at, transposed, lanes);
        Py_END_ALLOW_THREADS
        free(at.room);
    }
    release(3, views);
    if (!enough)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}
