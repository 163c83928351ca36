/* Columns of some tokens, dense or by their entries, and products with them. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8 /* columns of a Gram matrix that are summed side by side */
#define ROWS 64 /* samples that are packed at a time */

typedef struct {
    Py_ssize_t N, n, d, p; /* p = n d columns */
    const double *A;       /* (N, p), or NULL, then entries: */
    int32_t *start;        /* (N + 1,) */
    int32_t *column;
    double *value;
} Columns;

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

/* M (count, p) = X'V for some rows of V (count, N) */
VECTORISED static void correlate(const Columns *X, Py_ssize_t count, const double *V, double *M)
{
    memset(M, 0, count * X->p * sizeof *M);
    for (Py_ssize_t i = 0; i < X->N; i++)
        for (Py_ssize_t r = 0; r < count; r++) {
            const double v = V[r * X->N + i];
            double *m = M + r * X->p;
            if (X->A != NULL) {
                const double *x = X->A + i * X->p;
#pragma omp simd
                for (Py_ssize_t j = 0; j < X->p; j++)
                    m[j] += v * x[j];
            } else
                for (int32_t l = X->start[i]; l < X->start[i + 1]; l++)
                    m[X->column[l]] += v * X->value[l];
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

static Py_ssize_t padded(Py_ssize_t p)
{
    return (p + LANES - 1) / LANES * LANES;
}

/* The lower half of X' diag(w) X in G, whose rows are padded, as are those of `packed`. */
static void weighted_gram(const Columns *X, const double *w, double *packed, double *G)
{
    const Py_ssize_t width = padded(X->p);
    double *x = packed, *scaled = packed + ROWS * width;
    memset(G, 0, width * width * sizeof *G);
    for (Py_ssize_t i = 0; i < X->N && X->A == NULL; i++)
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++) {
            const double by = w[i] * X->value[l];
            double *row = G + X->column[l] * width;
            for (int32_t m = X->start[i]; m <= l; m++)
                row[X->column[m]] += by * X->value[m];
        }
    for (Py_ssize_t first = 0; first < X->N && X->A != NULL; first += ROWS) {
        const Py_ssize_t rows = X->N - first < ROWS ? X->N - first : ROWS;
        for (Py_ssize_t i = 0; i < rows; i++)
            for (Py_ssize_t j = 0; j < X->p; j++) {
                x[i * width + j] = X->A[(first + i) * X->p + j];
                scaled[i * width + j] = w[first + i] * x[i * width + j];
            }
        for (Py_ssize_t j = 0; j < X->p; j += 4)
            for (Py_ssize_t k = 0; k <= j; k += LANES)
                add_tile(rows, width, scaled + j, x + k, G + j * width + k);
    }
}

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
