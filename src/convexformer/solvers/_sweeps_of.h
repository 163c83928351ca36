/* Products of a token A (d, N) with c vectors of REAL; included by _sweeps.c once for each type. */

/* out[l, j] = <A[j], x[l]> */
VECTORISED static void OF(correlate)(const Round *at, const float *A, const REAL *x, double *out)
{
    const Py_ssize_t N = at->N, d = at->d;
    for (Py_ssize_t l = 0; l < at->c; l++, x += N, out += d) {
        Py_ssize_t j = 0;
        for (; j + 4 <= d; j += 4) {
            const float *a = A + j * N, *b = a + N, *f = b + N, *g = f + N;
            REAL s = 0, t = 0, u = 0, v = 0;
#pragma omp simd reduction(+ : s, t, u, v)
            for (Py_ssize_t i = 0; i < N; i++) {
                s += a[i] * x[i];
                t += b[i] * x[i];
                u += f[i] * x[i];
                v += g[i] * x[i];
            }
            out[j] = s;
            out[j + 1] = t;
            out[j + 2] = u;
            out[j + 3] = v;
        }
        for (; j < d; j++) {
            const float *a = A + j * N;
            REAL s = 0;
#pragma omp simd reduction(+ : s)
            for (Py_ssize_t i = 0; i < N; i++)
                s += a[i] * x[i];
            out[j] = s;
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
