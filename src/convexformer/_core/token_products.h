/* Products with tokens whose entries are NUMBERs, in float32. Included once for each: a token is
   read a few rows and many samples at a time, which up to four outputs share. */

#include "token_tiles.h"

VECTORISED static float NAMED(one_by_one)(Py_ssize_t some, const NUMBER *a, const float *x)
{
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (Py_ssize_t i = 0; i < some; i++)
        s += a[i] * x[i];
    return s;
}

/* out[j * by_a + l * by_x] = <A[j], x[l]> for m rows of A and c of x, all of N entries. */
static void NAMED(products)(Py_ssize_t N, Py_ssize_t m, const NUMBER *A, Py_ssize_t c,
                            const float *x, double *out, Py_ssize_t by_a, Py_ssize_t by_x)
{
    for (Py_ssize_t j = 0; j < m; j++)
        for (Py_ssize_t l = 0; l < c; l++)
            out[j * by_a + l * by_x] = 0;
    const Py_ssize_t most = SOME / (c > 2 ? 4 : c); /* of one, so that all stay in cache */
    for (Py_ssize_t first = 0; first < N; first += most) {
        const Py_ssize_t some = N - first < most ? N - first : most;
        for (Py_ssize_t l = 0; l < c; l += 4) {
            const Py_ssize_t few = c - l < 4 ? c - l : 4, rows = few == 1 ? 8 : 4;
            const float *each[4]; /* what is missing counts for nothing */
            for (Py_ssize_t q = 0; q < 4; q++)
                each[q] = x + (q < few ? l + q : l) * N + first;
            Py_ssize_t j = 0;
            for (; j + rows <= m; j += rows) {
                const NUMBER *a = A + j * N + first;
                double *o = out + j * by_a + l * by_x;
                float s[4][4];
                if (few == 1)
                    CHOSEN(eight_by_one)(N, some, a, each[0], s[0]);
                else if (few == 2)
                    CHOSEN(four_by_two)(N, some, a, each, s);
                else
                    CHOSEN(four_by_four)(N, some, a, each, s);
                for (Py_ssize_t q = 0; q < few; q++)
                    for (Py_ssize_t r = 0; r < rows; r++)
                        o[r * by_a + q * by_x] += s[q + r / 4][r % 4];
            }
            for (; j < m; j++)
                for (Py_ssize_t q = 0; q < few; q++)
                    out[j * by_a + (l + q) * by_x] +=
                        NAMED(one_by_one)(some, A + j * N + first, each[q]);
        }
    }
}

VECTORISED static void NAMED(add_one)(Py_ssize_t some, const NUMBER *a, float m, float *sum)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < some; i++)
        sum[i] += m * a[i];
}

/* e[l] -= sum_j move[l][j] A[j] for up to four outputs, of as many moves of d. */
VECTORISED static void NAMED(subtract_few)(Py_ssize_t N, Py_ssize_t d, const NUMBER *A,
                                           Py_ssize_t few, const double *const *move,
                                           double *const *e)
{
    const Py_ssize_t rows = few == 1 ? 8 : 4;
    float room[4 * NEAR + LINE / sizeof(float)], (*sum)[NEAR] = (float(*)[NEAR])aligned(room);
    for (Py_ssize_t first = 0; first < N; first += NEAR) {
        const Py_ssize_t some = N - first < NEAR ? N - first : NEAR;
        Py_ssize_t j = 0;
        memset(sum, 0, few * sizeof *sum);
        for (; j + rows <= d; j += rows) {
            const NUMBER *a = A + j * N + first;
            const double *m[4]; /* what is missing is summed for nothing */
            for (Py_ssize_t q = 0; q < 4; q++)
                m[q] = move[q < few ? q : 0] + j;
            if (few == 1)
                CHOSEN(add_eight)(N, some, a, m[0], sum[0]);
            else if (few == 2)
                CHOSEN(add_four_to_two)(N, some, a, m, sum);
            else
                CHOSEN(add_four_to_four)(N, some, a, m, sum);
        }
        for (; j < d; j++)
            for (Py_ssize_t q = 0; q < few; q++)
                NAMED(add_one)(some, A + j * N + first, (float)move[q][j], sum[q]);
        for (Py_ssize_t q = 0; q < few; q++) {
            double *target = e[q] + first;
#pragma omp simd
            for (Py_ssize_t i = 0; i < some; i++)
                target[i] -= sum[q][i];
        }
    }
}
