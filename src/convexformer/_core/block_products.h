/* Products with tokens, in float32 or int16, and with rows of the Gram matrix of all of them.

   Included by block_descent.c. */

#define TEXT(words) _Pragma(#words)
#define PRAGMA(words) TEXT(words)

#define NUMBER float
#define NAMED(name) name##_float
#define CHOSEN(name) name##_float
#include "token_products.h"
#undef NUMBER
#undef NAMED
#undef CHOSEN

#define NUMBER int16_t
#define NAMED(name) name##_int16
#ifdef WIDE_LANES
typedef float Wide __attribute__((vector_size(64), aligned(4), may_alias));

/* Of 16 numbers: what the compiler makes of it takes twice as long. */
WIDE static inline Wide load_wide(const int16_t *place)
{
    return (Wide)_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)place)));
}

#define LANES 16
#define LEVEL WIDE static
#define Lanes Wide
#define LOAD(place) load_wide(place)
#define FLOATS(place) (*(Wide *)(place))
#define TOTAL(sum) _mm512_reduce_add_ps(sum)
#define TOGETHER(clauses)
#define TILE(name) name##_wide
#include "token_tiles.h"
/* Rows of N numbers are read in Lanes where these fill them. */
#define CHOSEN(name) (HAS_WIDE && N % 16 == 0 ? name##_wide : name##_int16)
#else
#define CHOSEN(name) name##_int16
#endif
#include "token_products.h"
#undef NUMBER
#undef NAMED

VECTORISED static void to_floats(Py_ssize_t size, const double *x, float *floats)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < size; i++)
        floats[i] = (float)x[i];
}

/* r[l, j] = the change of correlations of token k with c of e, or, in samples, of its floats. */
static void correlate(const Round *at, Py_ssize_t k, Py_ssize_t c, const double *e,
                      const float *floats, double *r)
{
    const Py_ssize_t N = at->N, d = at->d;
    if (!at->in_samples)
        for (Py_ssize_t l = 0; l < c; l++)
            memcpy(r + l * d, e + l * N + k * d, d * sizeof *r);
    else if (at->packed)
        products_int16(N, d, at->A[k], c, floats, r, 1, d);
    else if (d < c)
        products_float(N, c, floats, d, at->A[k], r, d, 1);
    else
        products_float(N, d, at->A[k], c, floats, r, 1, d);
}

/* e[l] -= sum_j move[l, j] A[j], for c outputs */
VECTORISED static void subtract_double(const Round *at, Py_ssize_t c, const double *A,
                                       const double *move, double *e)
{
    const Py_ssize_t N = at->N, d = at->d;
    Py_ssize_t l = 0;
    for (; d < 4 && l + 4 <= c; l += 4, e += 4 * N, move += 4 * d) /* outputs share what is read */
        for (Py_ssize_t j = 0; j < d; j++) {
            const double *a = A + j * N, *m = move + j;
            const double m0 = m[0], m1 = m[d], m2 = m[2 * d], m3 = m[3 * d];
            double *e1 = e + N, *e2 = e1 + N, *e3 = e2 + N;
#pragma omp simd
            for (Py_ssize_t i = 0; i < N; i++)
                e[i] -= m0 * a[i], e1[i] -= m1 * a[i], e2[i] -= m2 * a[i], e3[i] -= m3 * a[i];
        }
    for (; l < c; l++, e += N, move += d) {
        Py_ssize_t j = 0;
        for (; j + 4 <= d; j += 4) {
            const double *a0 = A + j * N, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N, *m = move + j;
#pragma omp simd
            for (Py_ssize_t i = 0; i < N; i++)
                e[i] -= (m[0] * a0[i] + m[1] * a1[i]) + (m[2] * a2[i] + m[3] * a3[i]);
        }
        for (; j < d; j++) {
            const double *a = A + j * N;
#pragma omp simd
            for (Py_ssize_t i = 0; i < N; i++)
                e[i] -= move[j] * a[i];
        }
    }
}

/* The same in samples, four outputs that move at a time. */
static void subtract_samples(const Round *at, Py_ssize_t c, const void *A, const double *move,
                             double *e)
{
    const Py_ssize_t N = at->N, d = at->d;
    const double *moves[4];
    double *es[4];
    Py_ssize_t few = 0;
    for (Py_ssize_t l = 0; l < c; l++) {
        if (is_used(d, move + l * d)) {
            moves[few] = move + l * d;
            es[few++] = e + l * N;
        }
        if (few == 4 || (few > 0 && l == c - 1)) {
            if (at->packed)
                subtract_few_int16(N, d, A, few, moves, es);
            else
                subtract_few_float(N, d, A, few, moves, es);
            few = 0;
        }
    }
}

static void subtract(const Round *at, Py_ssize_t c, Py_ssize_t k, const double *move, double *e)
{
    if (at->in_samples)
        subtract_samples(at, c, at->A[k], move, e);
    else
        subtract_double(at, c, at->A[k], move, e);
}
