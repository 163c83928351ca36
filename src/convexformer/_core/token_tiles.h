/* Products of a few rows of a token with a few outputs, in float32: sums stay in registers.

   Included for NUMBERs of a token, one at a time, which the compiler makes as many as it can; and for
   int16 in Lanes of 16, of which the compiler would take 32: too many sums for the registers. */

#ifndef LANES
#define LANES 1
#define LEVEL VECTORISED static
#define Lanes float
#define LOAD(place) (*(place))
#define FLOATS(place) (*(place))
#define TOTAL(sum) (sum)
#define TOGETHER(clauses) PRAGMA(omp simd clauses)
#define TILE(name) NAMED(name)
#endif

/* s[l] = <A[r], x[l]> of four rows r of A, N entries apart, with four x, for `some` samples. */
LEVEL void TILE(four_by_four)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                          const float *const *x, float s[4][4])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
#define START(l) Lanes s##l##0 = {0}, s##l##1 = {0}, s##l##2 = {0}, s##l##3 = {0};
    EACH_ROW(START)
#undef START
    TOGETHER(reduction(+ : s00, s01, s02, s03, s10, s11, s12, s13)
                 reduction(+ : s20, s21, s22, s23, s30, s31, s32, s33))
    for (Py_ssize_t i = 0; i < some; i += LANES) {
        const Lanes r0 = LOAD(a0 + i), r1 = LOAD(a1 + i), r2 = LOAD(a2 + i), r3 = LOAD(a3 + i);
#define MULTIPLY(l)                                                                                \
    const Lanes v##l = FLOATS(x##l + i);                                                           \
    s##l##0 += r0 * v##l, s##l##1 += r1 * v##l, s##l##2 += r2 * v##l, s##l##3 += r3 * v##l;
        EACH_ROW(MULTIPLY)
#undef MULTIPLY
    }
#define STORE(l)                                                                                   \
    s[l][0] = TOTAL(s##l##0), s[l][1] = TOTAL(s##l##1);                                            \
    s[l][2] = TOTAL(s##l##2), s[l][3] = TOTAL(s##l##3);
    EACH_ROW(STORE)
#undef STORE
}

LEVEL void TILE(four_by_two)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                          const float *const *x, float s[4][4])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const float *x0 = x[0], *x1 = x[1];
    Lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, t0 = {0}, t1 = {0}, t2 = {0}, t3 = {0};
    TOGETHER(reduction(+ : s0, s1, s2, s3, t0, t1, t2, t3))
    for (Py_ssize_t i = 0; i < some; i += LANES) {
        const Lanes r0 = LOAD(a0 + i), r1 = LOAD(a1 + i), r2 = LOAD(a2 + i), r3 = LOAD(a3 + i);
        const Lanes v = FLOATS(x0 + i), w = FLOATS(x1 + i);
        s0 += r0 * v, s1 += r1 * v, s2 += r2 * v, s3 += r3 * v;
        t0 += r0 * w, t1 += r1 * w, t2 += r2 * w, t3 += r3 * w;
    }
    s[0][0] = TOTAL(s0), s[0][1] = TOTAL(s1), s[0][2] = TOTAL(s2), s[0][3] = TOTAL(s3);
    s[1][0] = TOTAL(t0), s[1][1] = TOTAL(t1), s[1][2] = TOTAL(t2), s[1][3] = TOTAL(t3);
}

/* s[r] = <A[r], x> of eight rows. */
LEVEL void TILE(eight_by_one)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                          const float *x, float *s)
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const NUMBER *a4 = a3 + N, *a5 = a4 + N, *a6 = a5 + N, *a7 = a6 + N;
    Lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    TOGETHER(reduction(+ : s0, s1, s2, s3, s4, s5, s6, s7))
    for (Py_ssize_t i = 0; i < some; i += LANES) {
        const Lanes v = FLOATS(x + i);
        s0 += LOAD(a0 + i) * v, s1 += LOAD(a1 + i) * v;
        s2 += LOAD(a2 + i) * v, s3 += LOAD(a3 + i) * v;
        s4 += LOAD(a4 + i) * v, s5 += LOAD(a5 + i) * v;
        s6 += LOAD(a6 + i) * v, s7 += LOAD(a7 + i) * v;
    }
    s[0] = TOTAL(s0), s[1] = TOTAL(s1), s[2] = TOTAL(s2), s[3] = TOTAL(s3);
    s[4] = TOTAL(s4), s[5] = TOTAL(s5), s[6] = TOTAL(s6), s[7] = TOTAL(s7);
}

/* sum[l] += sum_r move[l][r] A[r] of four rows of A, for four outputs. */
LEVEL void TILE(add_four_to_four)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                          const double *const *move, float (*sum)[NEAR])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
#define TAKE(l)                                                                                    \
    const float m##l##0 = (float)move[l][0], m##l##1 = (float)move[l][1];                          \
    const float m##l##2 = (float)move[l][2], m##l##3 = (float)move[l][3];
    EACH_ROW(TAKE)
#undef TAKE
    TOGETHER()
    for (Py_ssize_t i = 0; i < some; i += LANES) {
        const Lanes r0 = LOAD(a0 + i), r1 = LOAD(a1 + i), r2 = LOAD(a2 + i), r3 = LOAD(a3 + i);
#define ADD(l) FLOATS(sum[l] + i) += (m##l##0 * r0 + m##l##1 * r1) + (m##l##2 * r2 + m##l##3 * r3);
        EACH_ROW(ADD)
#undef ADD
    }
}

LEVEL void TILE(add_four_to_two)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A,
                                         const double *const *move, float (*sum)[NEAR])
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const double *m = move[0], *n = move[1];
    const float m0 = (float)m[0], m1 = (float)m[1], m2 = (float)m[2], m3 = (float)m[3];
    const float n0 = (float)n[0], n1 = (float)n[1], n2 = (float)n[2], n3 = (float)n[3];
    float *s = sum[0], *t = sum[1];
    TOGETHER()
    for (Py_ssize_t i = 0; i < some; i += LANES) {
        const Lanes r0 = LOAD(a0 + i), r1 = LOAD(a1 + i), r2 = LOAD(a2 + i), r3 = LOAD(a3 + i);
        FLOATS(s + i) += (m0 * r0 + m1 * r1) + (m2 * r2 + m3 * r3);
        FLOATS(t + i) += (n0 * r0 + n1 * r1) + (n2 * r2 + n3 * r3);
    }
}

/* Eight rows, for one output. */
LEVEL void TILE(add_eight)(Py_ssize_t N, Py_ssize_t some, const NUMBER *A, const double *m,
                                   float *sum)
{
    const NUMBER *a0 = A, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
    const NUMBER *a4 = a3 + N, *a5 = a4 + N, *a6 = a5 + N, *a7 = a6 + N;
    const float m0 = (float)m[0], m1 = (float)m[1], m2 = (float)m[2], m3 = (float)m[3];
    const float m4 = (float)m[4], m5 = (float)m[5], m6 = (float)m[6], m7 = (float)m[7];
    TOGETHER()
    for (Py_ssize_t i = 0; i < some; i += LANES)
        FLOATS(sum + i) += ((m0 * LOAD(a0 + i) + m1 * LOAD(a1 + i)) + (m2 * LOAD(a2 + i) + m3 * LOAD(a3 + i))) +
                  ((m4 * LOAD(a4 + i) + m5 * LOAD(a5 + i)) + (m6 * LOAD(a6 + i) + m7 * LOAD(a7 + i)));
}

#undef LANES
#undef LEVEL
#undef Lanes
#undef LOAD
#undef FLOATS
#undef TOTAL
#undef TOGETHER
#undef TILE
