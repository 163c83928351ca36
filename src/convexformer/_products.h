/* Products of four rows with four others: for compiled modules of problems and of solvers. */

/* s[r][l] = <x[r], z[l]>, of p entries; z[l] are `by` apart. */
VECTORISED static void multiply_any(Py_ssize_t p, const double *const *x, const double *z,
                                    Py_ssize_t by, double s[4][4])
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double *z0 = z, *z1 = z0 + by, *z2 = z1 + by, *z3 = z2 + by;
    double s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    double s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s03, s10, s11, s12, s13)                             \
    reduction(+ : s20, s21, s22, s23, s30, s31, s32, s33)
    for (Py_ssize_t j = 0; j < p; j++) {
        s00 += x0[j] * z0[j], s01 += x0[j] * z1[j], s02 += x0[j] * z2[j], s03 += x0[j] * z3[j];
        s10 += x1[j] * z0[j], s11 += x1[j] * z1[j], s12 += x1[j] * z2[j], s13 += x1[j] * z3[j];
        s20 += x2[j] * z0[j], s21 += x2[j] * z1[j], s22 += x2[j] * z2[j], s23 += x2[j] * z3[j];
        s30 += x3[j] * z0[j], s31 += x3[j] * z1[j], s32 += x3[j] * z2[j], s33 += x3[j] * z3[j];
    }
    s[0][0] = s00, s[0][1] = s01, s[0][2] = s02, s[0][3] = s03;
    s[1][0] = s10, s[1][1] = s11, s[1][2] = s12, s[1][3] = s13;
    s[2][0] = s20, s[2][1] = s21, s[2][2] = s22, s[2][3] = s23;
    s[3][0] = s30, s[3][1] = s31, s[3][2] = s32, s[3][3] = s33;
}

#ifdef HAS_LANES
/* The same in wide registers; sums have names, as an array of them would be stored again and again. */
WIDE static void multiply_wide(Py_ssize_t p, const double *const *x, const double *z, Py_ssize_t by,
                               double s[4][4])
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double *z0 = z, *z1 = z0 + by, *z2 = z1 + by, *z3 = z2 + by;
#define EACH_ROW(OF) OF(0) OF(1) OF(2) OF(3)
#define START(r)                                                                                   \
    __m512d s##r##0 = _mm512_setzero_pd(), s##r##1 = s##r##0, s##r##2 = s##r##0, s##r##3 = s##r##0;
    EACH_ROW(START)
#undef START
    for (Py_ssize_t j = 0; j < p; j += 8) {
        const __mmask8 there = (__mmask8)(p - j < 8 ? (1 << (p - j)) - 1 : 0xff);
        const __m512d b0 = _mm512_maskz_loadu_pd(there, z0 + j);
        const __m512d b1 = _mm512_maskz_loadu_pd(there, z1 + j);
        const __m512d b2 = _mm512_maskz_loadu_pd(there, z2 + j);
        const __m512d b3 = _mm512_maskz_loadu_pd(there, z3 + j);
#define MULTIPLY(r)                                                                                \
    const __m512d a##r = _mm512_maskz_loadu_pd(there, x##r + j);                                   \
    s##r##0 += a##r * b0, s##r##1 += a##r * b1, s##r##2 += a##r * b2, s##r##3 += a##r * b3;
        EACH_ROW(MULTIPLY)
#undef MULTIPLY
    }
#define STORE(r)                                                                                   \
    s[r][0] = _mm512_reduce_add_pd(s##r##0), s[r][1] = _mm512_reduce_add_pd(s##r##1);              \
    s[r][2] = _mm512_reduce_add_pd(s##r##2), s[r][3] = _mm512_reduce_add_pd(s##r##3);
    EACH_ROW(STORE)
#undef STORE
#undef EACH_ROW
}
#else
#define multiply_wide multiply_any
#endif

static inline void multiply_four(Py_ssize_t p, const double *const *x, const double *z,
                                 Py_ssize_t by, double s[4][4])
{
    if (HAS_WIDE)
        multiply_wide(p, x, z, by, s);
    else
        multiply_any(p, x, z, by, s);
}
