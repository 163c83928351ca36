/* Products with tokens whose entries are NUMBERs, in float32. Included once for each: a token is
   read a few rows and many samples at a time, which up to four outputs share. */

#define EACH_ROW(OF) OF(0) OF(1) OF(2) OF(3)

/* s[l] = <A[r], x[l]> of four rows r of A, N entries apart, with four x, for `some` samples. */
VECTORISED static void NAMED(four_by_four)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                           const float *const *x, float s[4][4])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    float s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    float s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s03, s10, s11, s12, s13)                             \
    reduction(+ : s20, s21, s22, s23, s30, s31, s32, s33)
    for (Py_ssize_t i = 0; i < some; i++) {
#define MULTIPLY(l)                                                                                \
    s##l##0 += a0[i] * x##l[i], s##l##1 += a1[i] * x##l[i];                                        \
    s##l##2 += a2[i] * x##l[i], s##l##3 += a3[i] * x##l[i];
        EACH_ROW(MULTIPLY)
#undef MULTIPLY
    }
#define STORE(l) s[l][0] = s##l##0, s[l][1] = s##l##1, s[l][2] = s##l##2, s[l][3] = s##l##3;
    EACH_ROW(STORE)
#undef STORE
}

VECTORISED static void NAMED(four_by_two)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                          const float *const *x, float s[4][4])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const float *x0 = x[0], *x1 = x[1];
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, t0, t1, t2, t3)
    for (Py_ssize_t i = 0; i < some; i++) {
        s0 += a0[i] * x0[i], t0 += a0[i] * x1[i];
        s1 += a1[i] * x0[i], t1 += a1[i] * x1[i];
        s2 += a2[i] * x0[i], t2 += a2[i] * x1[i];
        s3 += a3[i] * x0[i], t3 += a3[i] * x1[i];
    }
    s[0][0] = s0, s[0][1] = s1, s[0][2] = s2, s[0][3] = s3;
    s[1][0] = t0, s[1][1] = t1, s[1][2] = t2, s[1][3] = t3;
}

/* s[r] = <A[r], x> of eight rows. */
VECTORISED static void NAMED(eight_by_one)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                           const float *x, float *s)
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const NUMBER *a4 = a3 + N, *a5 = a4 + N, *a6 = a5 + N, *a7 = a6 + N;
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, s4, s5, s6, s7)
    for (Py_ssize_t i = 0; i < some; i++) {
        s0 += a0[i] * x[i], s1 += a1[i] * x[i], s2 += a2[i] * x[i], s3 += a3[i] * x[i];
        s4 += a4[i] * x[i], s5 += a5[i] * x[i], s6 += a6[i] * x[i], s7 += a7[i] * x[i];
    }
    s[0] = s0, s[1] = s1, s[2] = s2, s[3] = s3, s[4] = s4, s[5] = s5, s[6] = s6, s[7] = s7;
}

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
                    NAMED(eight_by_one)(N, some, a, each[0], s[0]);
                else if (few == 2)
                    NAMED(four_by_two)(N, some, a, each, s);
                else
                    NAMED(four_by_four)(N, some, a, each, s);
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

/* sum[l] += sum_r move[l][r] A[r] of four rows of A, for four outputs. */
VECTORISED static void NAMED(add_four_to_four)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                               const double *const *move, float (*sum)[NEAR])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
#define TAKE(l)                                                                                    \
    const float m##l##0 = move[l][0], m##l##1 = move[l][1];                                        \
    const float m##l##2 = move[l][2], m##l##3 = move[l][3];
    EACH_ROW(TAKE)
#undef TAKE
#pragma omp simd
    for (Py_ssize_t i = 0; i < some; i++) {
#define ADD(l)                                                                                     \
    sum[l][i] += (m##l##0 * a0[i] + m##l##1 * a1[i]) + (m##l##2 * a2[i] + m##l##3 * a3[i]);
        EACH_ROW(ADD)
#undef ADD
    }
}

VECTORISED static void NAMED(add_four_to_two)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                              const double *const *move, float (*sum)[NEAR])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const float m0 = move[0][0], m1 = move[0][1], m2 = move[0][2], m3 = move[0][3];
    const float n0 = move[1][0], n1 = move[1][1], n2 = move[1][2], n3 = move[1][3];
    float *s = sum[0], *t = sum[1];
#pragma omp simd
    for (Py_ssize_t i = 0; i < some; i++) {
        s[i] += (m0 * a0[i] + m1 * a1[i]) + (m2 * a2[i] + m3 * a3[i]);
        t[i] += (n0 * a0[i] + n1 * a1[i]) + (n2 * a2[i] + n3 * a3[i]);
    }
}

/* Eight rows, for one output. */
VECTORISED static void NAMED(add_eight)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                        const double *m, float *sum)
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const NUMBER *a4 = a3 + N, *a5 = a4 + N, *a6 = a5 + N, *a7 = a6 + N;
    const float m0 = m[0], m1 = m[1], m2 = m[2], m3 = m[3];
    const float m4 = m[4], m5 = m[5], m6 = m[6], m7 = m[7];
#pragma omp simd
    for (Py_ssize_t i = 0; i < some; i++)
        sum[i] += ((m0 * a0[i] + m1 * a1[i]) + (m2 * a2[i] + m3 * a3[i])) +
                  ((m4 * a4[i] + m5 * a5[i]) + (m6 * a6[i] + m7 * a7[i]));
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
                NAMED(add_eight)(N, some, a, m[0], sum[0]);
            else if (few == 2)
                NAMED(add_four_to_two)(N, some, a, m, sum);
            else
                NAMED(add_four_to_four)(N, some, a, m, sum);
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

#undef EACH_ROW
