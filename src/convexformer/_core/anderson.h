/* Anderson's extrapolation of a cycle's sweeps. */

/* By how much the objective of a part is higher at one point of a cycle than at another: not the
   difference of two values, which would round. */
VECTORISED static double rise(const Round *at, Py_ssize_t first, const double *Z, const double *e,
                              const double *Z1, const double *e1)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part;
    double square = 0, rest = 0;
    e += first * at->N, e1 += first * at->N;
    if (at->in_samples)
#pragma omp simd reduction(+ : square)
        for (Py_ssize_t i = 0; i < at->part * at->N; i++)
            square += (e1[i] - e[i]) * (e1[i] + e[i]);
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = k * one + first * at->d;
        const double *z = Z + here, *z1 = Z1 + here, *M = at->M + here;
        double slope = 0, change = 0;
        for (Py_ssize_t j = 0; j < size; j++) {
            slope += (z1[j] - z[j]) * M[j];
            change += (z1[j] - z[j]) * (z1[j] + z[j]);
        }
        if (!at->in_samples)
            for (Py_ssize_t l = 0; l < at->part; l++)
                for (Py_ssize_t j = 0; j < at->d; j++) {
                    const Py_ssize_t i = l * at->N + k * at->d + j;
                    square -= (z1[l * at->d + j] - z[l * at->d + j]) * (e1[i] + e[i]);
                }
        rest -= slope;
        if (change != 0)
            rest += at->limit[k] * change / (norm(size, z) + norm(size, z1));
    }
    return 0.5 * square + rest;
}

/* Shares, which sum to 1, with which a part's moves on a trail cancel best; 0 if there are none. */
VECTORISED static int shares(const Round *at, Py_ssize_t first, const double *Zs, double *share)
{
    const Py_ssize_t one = at->d * at->c, all = at->n * one;
    const int whole = at->part == at->c; /* then what tokens have of it lies in one piece */
    const Py_ssize_t pieces = whole ? 1 : at->n, size = whole ? all : at->d * at->part;
    double C[SWEEPS][SWEEPS], trace = 0, total = 0;
    for (int s = 0; s < at->sweeps; s++)
        for (int t = 0; t <= s; t++) {
            double dot = 0;
            for (Py_ssize_t k = 0; k < pieces; k++) {
                const double *a = Zs + s * all + k * one + first * at->d, *b = a + (t - s) * all;
#pragma omp simd reduction(+ : dot)
                for (Py_ssize_t j = 0; j < size; j++)
                    dot += (a[j + all] - a[j]) * (b[j + all] - b[j]);
            }
            C[s][t] = dot;
        }
    for (int s = 0; s < at->sweeps; s++)
        trace += C[s][s];
    for (int s = 0; s < at->sweeps; s++) { /* C = L L', then L L' share = 1 */
        C[s][s] += NOISE * trace + 1e-300;
        for (int t = 0; t <= s; t++) {
            for (int u = 0; u < t; u++)
                C[s][t] -= C[s][u] * C[t][u];
            if (s == t && !(C[s][s] > 0))
                return 0;
            C[s][t] = s == t ? sqrt(C[s][s]) : C[s][t] / C[t][t];
        }
        share[s] = 1;
        for (int u = 0; u < s; u++)
            share[s] -= C[s][u] * share[u];
        share[s] /= C[s][s];
    }
    for (int s = (int)at->sweeps - 1; s >= 0; s--) {
        for (int u = s + 1; u < at->sweeps; u++)
            share[s] -= C[u][s] * share[u];
        share[s] /= C[s][s];
        total += share[s];
    }
    for (int s = 0; s < at->sweeps; s++)
        share[s] /= total;
    return isfinite(total) && total != 0;
}

/* A part to the affine combination of its trail's points whose moves cancel best, if that is
   better; a token that was let go stays so. Z and e are zero. */
static void extrapolate(const Round *at, Py_ssize_t first, const double *Zs, double *es,
                        double *Z, double *e, double *scratch)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part, all = at->n * one;
    const Py_ssize_t length = at->c * at->N, start = first * at->N, end = start + at->part * at->N;
    double share[SWEEPS], *last = es + at->sweeps * length;
    if (!shares(at, first, Zs, share))
        return;
    for (int s = 0; s < at->sweeps; s++) {
        const double *Z_s = Zs + (s + 1) * all, *e_s = es + (s + 1) * length;
        for (Py_ssize_t k = 0; k < at->n; k++)
            for (Py_ssize_t j = k * one + first * at->d; j < k * one + first * at->d + size; j++)
                Z[j] += share[s] * Z_s[j];
        for (Py_ssize_t i = start; i < end; i++)
            e[i] += share[s] * e_s[i];
    }
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = k * one + first * at->d;
        if (is_used(size, at->Z + here) || !is_used(size, Z + here))
            continue;
        for (Py_ssize_t j = 0; j < size; j++)
            scratch[j] = -Z[here + j];
        subtract(at, at->part, k, scratch, e + start);
        memset(Z + here, 0, size * sizeof *Z);
    }
    if (rise(at, first, at->Z, last, Z, e) < 0) {
        for (Py_ssize_t k = 0; k < at->n; k++) {
            const Py_ssize_t here = k * one + first * at->d;
            memcpy(at->Z + here, Z + here, size * sizeof *Z);
        }
        memcpy(last + start, e + start, (end - start) * sizeof *e);
    }
}
