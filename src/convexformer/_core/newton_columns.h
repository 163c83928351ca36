/* Columns of some tokens, dense or by their entries, and products with them. */

#include "entries.h"
#include <stdlib.h>
#include <string.h>

#define TILE 4         /* columns that are multiplied together */
#define LINE 8         /* numbers that are read together */
#define ORDINARY 1e12  /* largest entry, or its inverse, whose square fits float32 */
#define NEAR (1 << 13) /* lines that stay in cache while they are multiplied with each other */

typedef struct {
    Py_ssize_t N, n, d, p;  /* p = n d columns */
    Py_ssize_t width;       /* p, up to a whole tile */
    Py_ssize_t pitch;       /* from one column to the next */
    double *A;              /* (width, pitch), zero beyond p, and a tile more; or NULL, then entries: */
    float *floats;          /* the same, if it fits float32, for products of which few digits count */
    Entries entries;        /* whose rows are as wide */
    double *room;           /* what A lies in */
} Columns;

/* f = X z; z has a whole width, of which tiles that are zero are passed over. */
VECTORISED static void predict(const Columns *X, const double *z, double *f)
{
    const Py_ssize_t N = X->N;
    if (X->A == NULL) {
        predict_by_entries(&X->entries, 1, z, f);
        return;
    }
    memset(f, 0, N * sizeof *f);
    for (Py_ssize_t j = 0; j < X->width; j += TILE) {
        const double *a0 = X->A + j * X->pitch, *a1 = a0 + X->pitch;
        const double *a2 = a1 + X->pitch, *a3 = a2 + X->pitch;
        const double z0 = z[j], z1 = z[j + 1], z2 = z[j + 2], z3 = z[j + 3];
        if (z0 == 0 && z1 == 0 && z2 == 0 && z3 == 0)
            continue;
#pragma omp simd
        for (Py_ssize_t i = 0; i < N; i++)
            f[i] += (z0 * a0[i] + z1 * a1[i]) + (z2 * a2[i] + z3 * a3[i]);
    }
}

/* Samples that are multiplied at a time. */
static Py_ssize_t rows_of(const Columns *X)
{
    const Py_ssize_t most = (NEAR / X->width + 1) * LINE;
    return X->N < most ? X->N : most;
}

/* out[r, k] += <a[r], X_k> over some samples from `first` on, for all r of a tile and k up to `end`,
   and perhaps a few more. */
static void add_products(const Columns *X, Py_ssize_t first, Py_ssize_t rows, const double *const *a,
                         Py_ssize_t end, double *out)
{
    double s[TILE][TILE];
    for (Py_ssize_t k = 0; k < end; k += TILE) {
        multiply_four_doubles(rows, a, X->A + k * X->pitch + first, X->pitch, s);
        for (int r = 0; r < TILE; r++)
            for (int l = 0; l < TILE; l++)
                out[r * X->width + k + l] += s[r][l];
    }
}

/* M = X'V for some rows of V (count, N); M has room for whole tiles. */
static void correlate(const Columns *X, Py_ssize_t count, const double *V, double *M)
{
    memset(M, 0, (count + TILE) * X->width * sizeof *M);
    if (X->A == NULL) {
        correlate_by_entries(&X->entries, count, V, M);
        return;
    }
    for (Py_ssize_t first = 0, most = rows_of(X); first < X->N; first += most)
        for (Py_ssize_t r = 0; r < count; r += TILE) {
            const double *a[TILE];
            for (int j = 0; j < TILE; j++) /* the last one again, where there are no more */
                a[j] = V + (r + j < count ? r + j : count - 1) * X->N + first;
            add_products(X, first, X->N - first < most ? X->N - first : most, a, X->p,
                         M + r * X->width);
        }
}

/* to = a part of w times x, for rows from `first` on. */
#define SCALE(NUMBER, columns)                                                                     \
    const NUMBER *x = columns + (j + r) * X->pitch + first;                                        \
    NUMBER *to = columns + (width + r) * X->pitch;                                                 \
    a[r] = to;                                                                                     \
    _Pragma("omp simd") for (Py_ssize_t i = 0; i < rows; i++) to[i] = (NUMBER)w[first + i] * x[i];

/* G[j, k] += <w X_j, X_k> over some samples, for a tile of j and k up to these. */
VECTORISED static void add_tile(const Columns *X, Py_ssize_t first, Py_ssize_t rows, Py_ssize_t j,
                                const double *w, double *G)
{
    const Py_ssize_t width = X->width;
    if (X->floats == NULL) {
        const double *a[TILE];
        for (int r = 0; r < TILE; r++) {
            SCALE(double, X->A)
        }
        add_products(X, first, rows, a, j + 1, G + j * width);
        return;
    }
    const float *a[TILE];
    float s[TILE][TILE];
    for (int r = 0; r < TILE; r++) {
        SCALE(float, X->floats)
    }
    for (Py_ssize_t k = 0; k <= j; k += TILE) {
        multiply_four_floats(rows, a, X->floats + k * X->pitch + first, X->pitch, s);
        for (int r = 0; r < TILE; r++)
            for (int l = 0; l < TILE; l++)
                G[(j + r) * width + k + l] += s[r][l];
    }
}

/* The lower half of X' diag(w) X in G (width, width). */
static void weighted_gram(const Columns *X, const double *w, double *G)
{
    const Py_ssize_t N = X->N, width = X->width, most = rows_of(X);
    memset(G, 0, width * width * sizeof *G);
    const Entries *of = &X->entries;
    for (Py_ssize_t i = 0; i < N && X->A == NULL; i++)
        for (int32_t l = of->start[i]; l < of->start[i + 1]; l++) {
            const double by = w[i] * of->value[l];
            double *row = G + of->column[l] * width;
            for (int32_t m = of->start[i]; m <= l; m++)
                row[of->column[m]] += by * of->value[m];
        }
    for (Py_ssize_t first = 0; first < N && X->A != NULL; first += most)
        for (Py_ssize_t j = 0; j < width; j += TILE)
            add_tile(X, first, N - first < most ? N - first : most, j, w, G);
}

/* Columns in float32, unless numbers do not fit. */
VECTORISED static void round_columns(Columns *X)
{
    const Py_ssize_t size = X->width * X->pitch;
    double largest = 0;
    for (Py_ssize_t j = 0; j < X->p; j++)
#pragma omp simd reduction(max : largest)
        for (Py_ssize_t i = 0; i < X->N; i++) {
            const double x = X->A[j * X->pitch + i];
            X->floats[j * X->pitch + i] = (float)x;
            largest = fabs(x) > largest ? fabs(x) : largest;
        }
    memset(X->floats + X->p * X->pitch, 0, (size - X->p * X->pitch) * sizeof *X->floats);
    if (!(largest > 1 / ORDINARY && largest < ORDINARY))
        X->floats = NULL;
}

/* Which columns are taken ---------------------------------------------------------------------- */

#define FEW 64 /* rows that stay in cache from column to column */

/* A = columns of X (N, width) that have a place, less their means; `from` says where these are. */
static void gather(const Columns *to, Py_ssize_t width, const double *X, const Py_ssize_t *from,
                   const double *center)
{
    const Py_ssize_t N = to->N;
    for (Py_ssize_t first = 0; first < N; first += FEW)
        for (Py_ssize_t j = 0; j < to->p; j++) {
            const double *x = X + first * width + from[j], mean = center[j];
            double *a = to->A + j * to->pitch + first;
            for (Py_ssize_t i = 0; i < FEW && first + i < N; i++)
                a[i] = x[i * width] - mean;
        }
    memset(to->A + to->p * to->pitch, 0, (to->width - to->p) * to->pitch * sizeof *to->A);
}

/* Columns of X (N, width) that have a place, less their means: 0 where memory is short, -1 where a
   place is taken twice, or not at all. */
static int take(Py_ssize_t width, const double *X, const int32_t *place, const double *center,
                Columns *to)
{
    Py_ssize_t *from = malloc(to->p * sizeof *from), taken = 0;
    int sound = 1;
    to->pitch = ((to->N + LINE - 1) / LINE | 1) * LINE; /* columns begin in different places of cache */
    const Py_ssize_t size = (to->width + TILE) * to->pitch; /* and the same in float32 */
    to->room = malloc((size + (size + 1) / 2 + LINE) * sizeof *to->room);
    if (to->room == NULL || from == NULL) {
        free(from);
        return 0;
    }
    to->A = to->room + (LINE - (uintptr_t)to->room / sizeof *to->A % LINE) % LINE;
    to->floats = (float *)(to->A + size);
    for (Py_ssize_t j = 0; j < to->p; j++)
        from[j] = -1;
    for (Py_ssize_t j = 0; j < width && sound; j++)
        if (place[j] >= 0) {
            sound = place[j] < to->p && from[place[j]] < 0;
            if (sound)
                from[place[j]] = j, taken++;
        }
    sound &= taken == to->p;
    if (sound)
        gather(to, width, X, from, center);
    if (sound)
        round_columns(to);
    free(from);
    return sound ? 1 : -1;
}

/* Entries of X whose columns have a place among those of `to`: 0 where memory is short, -1 where
   entries are not within their rows, or columns. */
static int choose(const Entries *X, Py_ssize_t count, const int32_t *place, Columns *to)
{
    int32_t n = 0, sound = is_sound(X, count);
    for (Py_ssize_t j = 0; j < X->columns; j++)
        sound &= place[j] < to->p;
    if (!sound)
        return UNSOUND;
    Entries *of = &to->entries;
    of->rows = to->N, of->columns = to->width;
    of->start = malloc((to->N + 1) * sizeof *of->start);
    of->column = malloc((count + 1) * sizeof *of->column);
    of->value = malloc((count + 1) * sizeof *of->value);
    if (of->start == NULL || of->column == NULL || of->value == NULL)
        return NO_MEMORY;
    for (Py_ssize_t i = 0; i < to->N; i++) {
        of->start[i] = n;
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++) {
            const int32_t here = place[X->column[l]];
            of->column[n] = here, of->value[n] = X->value[l];
            n += here >= 0;
        }
    }
    of->start[to->N] = n;
    return DONE;
}
