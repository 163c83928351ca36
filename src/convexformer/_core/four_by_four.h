/* Products of four rows with four others, of NUMBERs. Included once for each. */

/* s[r][l] = <x[r], z[l]>, of p entries; z[l] are `by` apart. */
VECTORISED static void NAMED(multiply_four)(Py_ssize_t p, const NUMBER *const *x, const NUMBER *z,
                                           Py_ssize_t by, NUMBER s[4][4])
{
    const NUMBER *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const NUMBER *z0 = z, *z1 = z0 + by, *z2 = z1 + by, *z3 = z2 + by;
    NUMBER s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    NUMBER s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s03, s10, s11, s12, s13)                             \
    reduction(+ : s20, s21, s22, s23, s30, s31, s32, s33)
    for (Py_ssize_t j = 0; j < p; j++) {
        s00 += x0[j] * z0[j], s01 += x0[j] * z1[j], s02 += x0[j] * z2[j], s03 += x0[j] * z3[j];
        s10 += x1[j] * z0[j], s11 += x1[j] * z1[j], s12 += x1[j] * z2[j], s13 += x1[j] * z3[j];
        s20 += x2[j] * z0[j], s21 += x2[j] * z1[j], s22 += x2[j] * z2[j], s23 += x2[j] * z3[j];
        s30 += x3[j] * z0[j], s31 += x3[j] * z1[j], s32 += x3[j] * z2[j], s33 += x3[j] * z3[j];
    }
#define STORE(r) s[r][0] = s##r##0, s[r][1] = s##r##1, s[r][2] = s##r##2, s[r][3] = s##r##3;
    EACH_ROW(STORE)
#undef STORE
}
