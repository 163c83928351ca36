/* Tokens made ready for sweeps: read by columns, packed, with Gram matrices of their own. */

#include "common.h"
#include "block_descent.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 64          /* that are transposed at a time */
#define COLUMNS 32       /* and columns: both sides of a tile stay in cache, and in few pages */
#define LARGEST 32767.f  /* entry of a token that is int16 */
#define SMALLEST 1e-30f  /* largest entry of one that is not as good as zero */
#define COARSE 1023.f    /* largest entry of one whose Gram matrix is formed, */
#define FITTING 2048     /* products of two that fit an int32 together, */
#define FEWEST_DIGITS 16 /* and the mean square that it must have for digits */

/* Tokens as rows ------------------------------------------------------------------------------ */

typedef struct {
    Py_ssize_t rows, width, n, d, first, N;
    const double *X;      /* (rows, width) */
    const int32_t *group; /* (n,) */
    const double *center; /* (n, d) */
    const double *factor; /* (n,) */
    const double *root;   /* (rows,) */
    float *A;             /* (n, d, N) */
} Transpose;

/* A[k, j, first + i] = factor[k] root[i] (X[i, group[k] d + j] - center[k, j]), by tiles. */
VECTORISED static void transpose_groups(const Transpose *at)
{
    const Py_ssize_t d = at->d, all = at->n * d;
    float rows[ROWS][COLUMNS];
    for (Py_ssize_t i = 0; i < at->rows; i += ROWS) {
        const Py_ssize_t some = at->rows - i < ROWS ? at->rows - i : ROWS;
        for (Py_ssize_t j = 0; j < all; j += COLUMNS) {
            const Py_ssize_t few = all - j < COLUMNS ? all - j : COLUMNS;
            Py_ssize_t m = 0;
            while (m < few) { /* what a token has of these columns lies together */
                const Py_ssize_t k = (j + m) / d, next = (k + 1) * d - j;
                const Py_ssize_t end = next < few ? next : few;
                const Py_ssize_t from = (at->group[k] - k) * d + j;
                const double *center = at->center + j;
                for (Py_ssize_t l = 0; l < some; l++) {
                    const double *x = at->X + (i + l) * at->width;
                    const double factor = at->factor[k] * at->root[i + l];
#pragma omp simd
                    for (Py_ssize_t o = m; o < end; o++)
                        rows[l][o] = (float)((x[from + o] - center[o]) * factor);
                }
                m = end;
            }
            float *A = at->A + j * at->N + at->first + i;
            for (Py_ssize_t o = 0; o < few; o++)
                for (Py_ssize_t l = 0; l < some; l++)
                    A[o * at->N + l] = rows[l][o];
        }
    }
}

KERNEL(transpose_tokens)
{
    Transpose at;
    Arrays of;
    int sound = 1;
    if (!get_shape(args, 6, "nnnnnn", &at.rows, &at.width, &at.n, &at.d, &at.first, &at.N))
        return NULL;
    if (at.rows < 0 || at.width < 0 || at.n < 0 || at.d < 1 || at.first < 0 ||
        at.rows > at.N - at.first ||
        fmax((double)at.n * at.d * at.N, (double)at.rows * at.width) > PY_SSIZE_T_MAX / 8.0)
        return refuse_sizes();
    const Py_ssize_t all = at.n * at.d;
    const Py_ssize_t sizes[] = {at.rows * at.width, at.n, all, at.n, at.rows, all * at.N};
    if (!get_arrays(args, 0, "didddf", sizes, 5, &of))
        return NULL;
    at.X = of.at[0], at.group = of.at[1], at.center = of.at[2];
    at.factor = of.at[3], at.root = of.at[4], at.A = of.at[5];
    for (Py_ssize_t k = 0; k < at.n; k++)
        sound &= at.group[k] >= 0 && at.group[k] < at.width / at.d;
    Py_BEGIN_ALLOW_THREADS
    if (sound)
        transpose_groups(&at);
    Py_END_ALLOW_THREADS
    return finish(&of, sound ? DONE : UNSOUND, "");
}

/* Packed, and their Gram matrices ------------------------------------------------------------- */

VECTORISED static float largest(Py_ssize_t size, const float *a)
{
    float top = 0;
#pragma omp simd reduction(max : top)
    for (Py_ssize_t i = 0; i < size; i++)
        top = fabsf(a[i]) > top ? fabsf(a[i]) : top;
    return top;
}

/* To whole numbers: those nearest to factor a. */
VECTORISED static void to_integers(Py_ssize_t size, const float *a, float factor, int16_t *integers)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < size; i++) {
        const float scaled = factor * a[i];
        integers[i] = (int16_t)(scaled + (scaled < 0 ? -0.5f : 0.5f));
    }
}

/* G[r, l] += <A[r], B[l]> of four rows each, for a few samples. What is left to the compiler, not
   to a pragma, becomes products of pairs. */
VECTORISED static void add_tile(Py_ssize_t N, Py_ssize_t few, const int16_t *A, const int16_t *B,
                                Py_ssize_t d, float *G)
{
    const int16_t *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const int16_t *b0 = B, *b1 = b0 + N, *b2 = b1 + N, *b3 = b2 + N;
    int32_t s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    int32_t s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
    for (Py_ssize_t i = 0; i < few; i++) {
        s00 += a0[i] * b0[i], s01 += a0[i] * b1[i], s02 += a0[i] * b2[i], s03 += a0[i] * b3[i];
        s10 += a1[i] * b0[i], s11 += a1[i] * b1[i], s12 += a1[i] * b2[i], s13 += a1[i] * b3[i];
        s20 += a2[i] * b0[i], s21 += a2[i] * b1[i], s22 += a2[i] * b2[i], s23 += a2[i] * b3[i];
        s30 += a3[i] * b0[i], s31 += a3[i] * b1[i], s32 += a3[i] * b2[i], s33 += a3[i] * b3[i];
    }
    G[0] += s00, G[1] += s01, G[2] += s02, G[3] += s03, G += d;
    G[0] += s10, G[1] += s11, G[2] += s12, G[3] += s13, G += d;
    G[0] += s20, G[1] += s21, G[2] += s22, G[3] += s23, G += d;
    G[0] += s30, G[1] += s31, G[2] += s32, G[3] += s33;
}

VECTORISED static int32_t dot_integers(Py_ssize_t few, const int16_t *a, const int16_t *b)
{
    int32_t s = 0;
    for (Py_ssize_t i = 0; i < few; i++)
        s += a[i] * b[i];
    return s;
}

/* G = A A' of d rows of integers up to COARSE, of which the sums of FITTING products fit. */
static void gram_of_integers(Py_ssize_t N, Py_ssize_t d, const int16_t *A, float *G)
{
    memset(G, 0, d * d * sizeof *G);
    for (Py_ssize_t first = 0; first < N; first += FITTING) {
        const Py_ssize_t few = N - first < FITTING ? N - first : FITTING;
        const int16_t *a = A + first;
        Py_ssize_t j = 0;
        for (; j + 4 <= d; j += 4)
            for (Py_ssize_t l = 0; l <= j; l += 4)
                add_tile(N, few, a + j * N, a + l * N, d, G + j * d + l);
        for (; j < d; j++)
            for (Py_ssize_t l = 0; l <= j; l++)
                G[j * d + l] += dot_integers(few, a + j * N, a + l * N);
    }
    for (Py_ssize_t j = 0; j < d; j++)
        for (Py_ssize_t l = j + 1; l < d; l++)
            G[j * d + l] = G[l * d + j];
}

VECTORISED static void gram_of_floats(Py_ssize_t N, Py_ssize_t d, const float *A, float *G)
{
    for (Py_ssize_t j = 0; j < d; j++)
        for (Py_ssize_t l = 0; l <= j; l++) {
            const float *a = A + j * N, *b = A + l * N;
            float s = 0;
#pragma omp simd reduction(+ : s)
            for (Py_ssize_t i = 0; i < N; i++)
                s += a[i] * b[i];
            G[j * d + l] = G[l * d + j] = s;
        }
}

/* A token (d, N): over a unit in which its largest entry is LARGEST, if it is to be packed; and the
   Gram matrix of what it then is, of entries of some digits: these are for moves to come near the
   best ones. The unit is 0, and so is the matrix, where entries do not fit. */
static void prepare_token(Py_ssize_t N, Py_ssize_t d, const float *a, int16_t *packed, double *unit,
                          int16_t *coarse, float *G)
{
    const float top = largest(d * N, a);
    const int fits = top > SMALLEST && top < 1 / SMALLEST;
    const double own = packed == NULL ? 1 : fits ? top / LARGEST : 0;
    double scale = top / (COARSE * own), trace = 0;
    *unit *= own;
    if (packed != NULL)
        to_integers(d * N, a, fits ? 1 / own : 0, packed);
    if (!fits) {
        memset(G, 0, d * d * sizeof *G);
        return;
    }
    to_integers(d * N, a, COARSE / top, coarse);
    gram_of_integers(N, d, coarse, G);
    for (Py_ssize_t j = 0; j < d; j++)
        trace += G[j * (d + 1)];
    if (trace < FEWEST_DIGITS * d * N) { /* a few large entries leave others none */
        scale = 1 / own;
        gram_of_floats(N, d, a, G);
    }
    for (Py_ssize_t j = 0; j < d * d; j++)
        G[j] *= scale * scale;
}

KERNEL(prepare_tokens)
{
    Py_ssize_t n, d, N;
    Arrays of;
    if (!get_shape(args, 4, "nnn", &n, &d, &N))
        return NULL;
    if (n < 0 || d < 1 || N < 1 || (double)n * d * fmax(d, N) > PY_SSIZE_T_MAX / 8.0)
        return refuse_sizes();
    const int packs = PyTuple_GetItem(args, 3) != Py_None;
    const Py_ssize_t sizes[] = {n * d * N, n * d * d, n, n * d * N};
    if (!get_arrays(args, 0, packs ? "ffdh" : "ffd", sizes, 1, &of))
        return NULL;
    const float *A = of.at[0];
    float *G = of.at[1];
    double *unit = of.at[2];
    int16_t *packed = packs ? of.at[3] : NULL, *coarse = malloc(d * N * sizeof *coarse);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t k = 0; k < n && coarse != NULL; k++)
        prepare_token(N, d, A + k * d * N, packs ? packed + k * d * N : NULL, unit + k, coarse,
                      G + k * d * d);
    Py_END_ALLOW_THREADS
    free(coarse);
    return finish(&of, coarse != NULL ? DONE : NO_MEMORY, "");
}
