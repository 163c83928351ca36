/* Products of a token A (d, N) with c vectors of REAL; included by _sweeps.c once for each type. */

/* out[l, j] = <A[j], x[l]>, four channels at a time, or four vectors where channels are few */
VECTORISED static void OF(correlate)(const Round *at, const float *A, const REAL *x, double *out)
{
    const Py_ssize_t N = at->N, d = at->d, c = at->c;
    const int by_vector = d < 4 && c >= 4;
    const Py_ssize_t wide = by_vector ? c : d, narrow = by_vector ? d : c;
    const Py_ssize_t one = by_vector ? d : 1, other = by_vector ? 1 : d; /* strides of `out` */
    for (Py_ssize_t l = 0; l < narrow; l++) {
        Py_ssize_t j = 0;
        for (; j + 4 <= wide; j += 4) {
            REAL s = 0, t = 0, u = 0, v = 0;
            if (by_vector) {
                const float *a = A + l * N;
                const REAL *p = x + j * N, *q = p + N, *f = q + N, *g = f + N;
#pragma omp simd reduction(+ : s, t, u, v)
                for (Py_ssize_t i = 0; i < N; i++) {
                    s += p[i] * a[i];
                    t += q[i] * a[i];
                    u += f[i] * a[i];
                    v += g[i] * a[i];
                }
            } else {
                const REAL *y = x + l * N;
                const float *a = A + j * N, *b = a + N, *f = b + N, *g = f + N;
#pragma omp simd reduction(+ : s, t, u, v)
                for (Py_ssize_t i = 0; i < N; i++) {
                    s += a[i] * y[i];
                    t += b[i] * y[i];
                    u += f[i] * y[i];
                    v += g[i] * y[i];
                }
            }
            out[j * one + l * other] = s;
            out[(j + 1) * one + l * other] = t;
            out[(j + 2) * one + l * other] = u;
            out[(j + 3) * one + l * other] = v;
        }
        for (; j < wide; j++) {
            const float *a = A + (by_vector ? l : j) * N;
            const REAL *y = x + (by_vector ? j : l) * N;
            REAL s = 0;
#pragma omp simd reduction(+ : s)
            for (Py_ssize_t i = 0; i < N; i++)
                s += a[i] * y[i];
            out[j * one + l * other] = s;
        }
    }
}

/* x[l] -= sum_j move[l, j] A[j] */
VECTORISED static void OF(subtract)(const Round *at, const float *A, const double *move, REAL *x)
{
    const Py_ssize_t N = at->N, d = at->d;
    for (Py_ssize_t l = 0; l < at->c; l++, x += N, move += d) {
        Py_ssize_t j = 0;
        for (; j + 4 <= d; j += 4) {
            const float *a = A + j * N, *b = a + N, *f = b + N, *g = f + N;
            const REAL s = (REAL)move[j], t = (REAL)move[j + 1];
            const REAL u = (REAL)move[j + 2], v = (REAL)move[j + 3];
#pragma omp simd
            for (Py_ssize_t i = 0; i < N; i++)
                x[i] -= (s * a[i] + t * b[i]) + (u * f[i] + v * g[i]);
        }
        for (; j < d; j++) {
            const float *a = A + j * N;
            const REAL s = (REAL)move[j];
#pragma omp simd
            for (Py_ssize_t i = 0; i < N; i++)
                x[i] -= s * a[i];
        }
    }
}
