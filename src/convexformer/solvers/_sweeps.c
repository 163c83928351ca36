/* Sweeps of block descent over tokens: what sweeps.py asks for, compiled.

   minimise over Z   1/2 ||v||^2 + sum_k limit_k ||Z_k||,   v = y - sum_k A_k' Z_k

   for all outputs, or for each of them: as many as share tokens are a part.

   It takes the squares of v and the correlations M_k = A_k v to begin with, then changes only, e,
   either of v, or, where samples are many, of M: in samples or in coefficients. In samples tokens
   are float32, and so are sums of a few products; what these add up to is float64, as all is in
   coefficients. cycle_numpy.py says the same in NumPy, and stands in where nothing was compiled. */

#include "../_compiled.h"
#include "_sweeps.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INNER 12    /* steps to the best of one token, at most */
#define NEARLY 1e-3 /* of a move, squared: smaller steps are not worth taking */
#define NOISE 1e-8  /* of moves that were found in float32, squared */
#define SOME 1024   /* products that are summed in float32 */
#define NEAR 32768  /* floats of a token that are read again from cache, */
#define SHORTEST 64 /* and samples of it */
#define ROWS 64     /* that are transposed at a time */
#define COLUMNS 32  /* and columns: both sides of a tile stay in cache, and in few pages */

static double norm(Py_ssize_t size, const double *z)
{
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (Py_ssize_t j = 0; j < size; j++)
        square += z[j] * z[j];
    return sqrt(square);
}

static int is_used(Py_ssize_t size, const double *z)
{
    for (Py_ssize_t j = 0; j < size; j++)
        if (z[j] != 0)
            return 1;
    return 0;
}

/* Products with tokens ------------------------------------------------------------------------- */

/* out[j * by_a + l * by_x] = <A[j], x[l]> for m rows of A and c of x, all of N entries. */
VECTORISED static void products(Py_ssize_t N, Py_ssize_t m, const float *A, Py_ssize_t c,
                                const float *x, double *out, Py_ssize_t by_a, Py_ssize_t by_x)
{
    for (Py_ssize_t j = 0; j < m; j++)
        for (Py_ssize_t l = 0; l < c; l++)
            out[j * by_a + l * by_x] = 0;
    for (Py_ssize_t first = 0; first < N; first += SOME) {
        const Py_ssize_t some = N - first < SOME ? N - first : SOME;
        Py_ssize_t l = 0;
        for (; l + 2 <= c; l += 2) {
            const float *x0 = x + l * N + first, *x1 = x0 + N;
            Py_ssize_t j = 0;
            for (; j + 4 <= m; j += 4) {
                const float *a0 = A + j * N + first, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
                float s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, t0, t1, t2, t3)
                for (Py_ssize_t i = 0; i < some; i++) {
                    s0 += a0[i] * x0[i], t0 += a0[i] * x1[i];
                    s1 += a1[i] * x0[i], t1 += a1[i] * x1[i];
                    s2 += a2[i] * x0[i], t2 += a2[i] * x1[i];
                    s3 += a3[i] * x0[i], t3 += a3[i] * x1[i];
                }
                double *o = out + j * by_a + l * by_x;
                o[0] += s0, o[by_a] += s1, o[2 * by_a] += s2, o[3 * by_a] += s3;
                o += by_x;
                o[0] += t0, o[by_a] += t1, o[2 * by_a] += t2, o[3 * by_a] += t3;
            }
            for (; j < m; j++) {
                const float *a = A + j * N + first;
                float s = 0, t = 0;
#pragma omp simd reduction(+ : s, t)
                for (Py_ssize_t i = 0; i < some; i++)
                    s += a[i] * x0[i], t += a[i] * x1[i];
                out[j * by_a + l * by_x] += s, out[j * by_a + (l + 1) * by_x] += t;
            }
        }
        for (; l < c; l++) {
            const float *y = x + l * N + first;
            Py_ssize_t j = 0;
            for (; j + 8 <= m; j += 8) {
                const float *a0 = A + j * N + first, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
                const float *a4 = a3 + N, *a5 = a4 + N, *a6 = a5 + N, *a7 = a6 + N;
                float s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, s4, s5, s6, s7)
                for (Py_ssize_t i = 0; i < some; i++) {
                    s0 += a0[i] * y[i], s1 += a1[i] * y[i], s2 += a2[i] * y[i];
                    s3 += a3[i] * y[i], s4 += a4[i] * y[i], s5 += a5[i] * y[i];
                    s6 += a6[i] * y[i], s7 += a7[i] * y[i];
                }
                double *o = out + j * by_a + l * by_x;
                o[0] += s0, o[by_a] += s1, o[2 * by_a] += s2, o[3 * by_a] += s3;
                o += 4 * by_a;
                o[0] += s4, o[by_a] += s5, o[2 * by_a] += s6, o[3 * by_a] += s7;
            }
            for (; j < m; j++) {
                const float *a = A + j * N + first;
                float s = 0;
#pragma omp simd reduction(+ : s)
                for (Py_ssize_t i = 0; i < some; i++)
                    s += a[i] * y[i];
                out[j * by_a + l * by_x] += s;
            }
        }
    }
}

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
    else if (d < c)
        products(N, c, floats, d, at->A[k], r, d, 1);
    else
        products(N, d, at->A[k], c, floats, r, 1, d);
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

/* The same of `some` samples, for one output, whose e and columns of A begin there. */
VECTORISED static void subtract_some(const Round *at, Py_ssize_t some, const float *A,
                                     const double *move, double *e)
{
    const Py_ssize_t N = at->N, d = at->d;
    Py_ssize_t j = 0;
    for (; j + 8 <= d; j += 8) {
        const float *a0 = A + j * N, *a1 = a0 + N, *a2 = a1 + N, *a3 = a2 + N;
        const float *a4 = a3 + N, *a5 = a4 + N, *a6 = a5 + N, *a7 = a6 + N;
        const double *m = move + j;
        const float m0 = m[0], m1 = m[1], m2 = m[2], m3 = m[3];
        const float m4 = m[4], m5 = m[5], m6 = m[6], m7 = m[7];
#pragma omp simd
        for (Py_ssize_t i = 0; i < some; i++)
            e[i] -= ((m0 * a0[i] + m1 * a1[i]) + (m2 * a2[i] + m3 * a3[i])) +
                    ((m4 * a4[i] + m5 * a5[i]) + (m6 * a6[i] + m7 * a7[i]));
    }
    for (; j < d; j++) {
        const float *a = A + j * N, m = move[j];
#pragma omp simd
        for (Py_ssize_t i = 0; i < some; i++)
            e[i] -= m * a[i];
    }
}

/* By as many samples as let outputs find the token in cache. */
static void subtract_float(const Round *at, Py_ssize_t c, const float *A, const double *move,
                           double *e)
{
    const Py_ssize_t N = at->N, d = at->d, step = c == 1 ? N : NEAR / d + SHORTEST;
    for (Py_ssize_t first = 0; first < N; first += step) {
        const Py_ssize_t some = N - first < step ? N - first : step;
        for (Py_ssize_t l = 0; l < c; l++)
            if (is_used(d, move + l * d))
                subtract_some(at, some, A + first, move + l * d, e + l * N + first);
    }
}

static void subtract(const Round *at, Py_ssize_t c, Py_ssize_t k, const double *move, double *e)
{
    if (at->in_samples)
        subtract_float(at, c, at->A[k], move, e);
    else
        subtract_double(at, c, at->A[k], move, e);
}

/* out = G x */
VECTORISED static void bend(Py_ssize_t d, const float *G, const double *x, float *out)
{
    Py_ssize_t j = 0;
    memset(out, 0, d * sizeof *out);
    for (; j + 4 <= d; j += 4) {
        const float *g0 = G + j * d, *g1 = g0 + d, *g2 = g1 + d, *g3 = g2 + d;
        const float x0 = x[j], x1 = x[j + 1], x2 = x[j + 2], x3 = x[j + 3];
#pragma omp simd
        for (Py_ssize_t i = 0; i < d; i++)
            out[i] += (x0 * g0[i] + x1 * g1[i]) + (x2 * g2[i] + x3 * g3[i]);
    }
    for (; j < d; j++) {
        const float *g = G + j * d, by = x[j];
#pragma omp simd
        for (Py_ssize_t i = 0; i < d; i++)
            out[i] += by * g[i];
    }
}

/* Sweeps --------------------------------------------------------------------------------------- */

/* From z, with correlations r there, to the minimum over token k of one part: proximal steps with
   the token's own Gram matrix. Says whether there is a move; `next` and `bent` have its size. */
VECTORISED static int best_move(const Round *at, Py_ssize_t k, const double *z, const double *r,
                                double *move, double *next, float *bent)
{
    const Py_ssize_t d = at->d, size = d * at->part;
    const double step = at->step[k], limit = step * at->limit[k];
    double moved = 0;
    memset(move, 0, size * sizeof *move);
    memset(bent, 0, size * sizeof *bent); /* G move */
    for (int inner = 0; inner < INNER; inner++) {
        double square = 0, change = 0;
#pragma omp simd reduction(+ : square)
        for (Py_ssize_t j = 0; j < size; j++) {
            next[j] = z[j] + move[j] + step * (r[j] - bent[j]);
            square += next[j] * next[j];
        }
        const double shrink = square > limit * limit ? 1 - limit / sqrt(square) : 0;
        moved = 0;
#pragma omp simd reduction(+ : change, moved)
        for (Py_ssize_t j = 0; j < size; j++) {
            const double to = shrink * next[j] - z[j];
            change += (to - move[j]) * (to - move[j]);
            moved += to * to;
            move[j] = to;
        }
        if (d == 1 || change <= NEARLY * moved)
            break;
        for (Py_ssize_t l = 0; l < size; l += d)
            bend(d, at->gram[k], move + l, bent + l);
    }
    return moved > 0;
}

/* Whether token k is used in a part, or may be if it is `new`. */
static int may_move(const Round *at, Py_ssize_t k, int new, const double *z, const double *M)
{
    const Py_ssize_t size = at->d * at->part;
    return is_used(size, z) || (new && norm(size, M) > at->limit[k]);
}

/* Move token k to its best, nearly, in every part where it is used, or may be if it is `new`;
   other parts are not looked at. */
static void visit(const Round *at, Py_ssize_t k, int new, double *e, double *scratch, float *floats)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part, length = at->part * at->N;
    double *z = at->Z + k * one, *M = at->M + k * one, *r = scratch, *move = r + one;
    Py_ssize_t live = 0;
    int moves = 0;
    for (Py_ssize_t j = 0; j < one; j += size) {
        if (!may_move(at, k, new, z + j, M + j))
            continue;
        if (at->in_samples)
            to_floats(length, e + j / size * length, floats + live * length);
        else
            correlate(at, k, at->part, e + j / size * length, NULL, r + live * size);
        at->live[live++] = j;
    }
    if (live == 0)
        return;
    if (at->in_samples)
        correlate(at, k, live * at->part, NULL, floats, r);
    memset(move, 0, one * sizeof *move);
    for (Py_ssize_t p = 0; p < live; p++, r += size) {
        const Py_ssize_t j = at->live[p];
        for (Py_ssize_t i = 0; i < size; i++)
            r[i] += M[j + i];
        moves |= best_move(at, k, z + j, r, move + j, move + one, floats);
    }
    if (!moves)
        return;
    for (Py_ssize_t j = 0; j < one; j++)
        z[j] += move[j];
    subtract(at, at->c, k, move, e);
}

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
static int shares(const Round *at, Py_ssize_t first, const double *Zs, double *share)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part, all = at->n * one;
    double C[SWEEPS][SWEEPS], trace = 0, total = 0;
    for (int s = 0; s < at->sweeps; s++)
        for (int t = 0; t <= s; t++) {
            double dot = 0;
            for (Py_ssize_t k = 0; k < at->n; k++) {
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

/* Bring M and the squares of v up to date for Z, which was `before` when they were; e is what
   changed since. */
static void update(const Round *at, const double *before, const double *e, double *scratch,
                   float *floats)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part;
    if (at->in_samples)
        to_floats(at->c * at->N, e, floats);
    for (Py_ssize_t k = 0; k < at->n; k++) {
        correlate(at, k, at->c, e, floats, scratch);
        for (Py_ssize_t j = 0; j < one; j++) {
            const double move = at->Z[k * one + j] - before[k * one + j];
            double *M = at->M + k * one + j;
            at->square[j / size] -= move * (2 * *M + scratch[j]);
            *M += scratch[j];
        }
    }
    for (Py_ssize_t j = 0; j < at->c / at->part; j++)
        at->square[j] = fmax(at->square[j], 0);
}

/* Add the objective of a part and its gap. */
static void measure(const Round *at, Py_ssize_t first, double *value, double *gap)
{
    const Py_ssize_t size = at->d * at->part;
    const double square = at->square[first / at->part];
    double inner = 0, penalty = 0, scale = INFINITY;
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = (k * at->c + first) * at->d;
        const double *z = at->Z + here, *M = at->M + here, limit = at->limit[k];
        for (Py_ssize_t j = 0; j < size; j++)
            inner += z[j] * M[j];
        penalty += limit * norm(size, z);
        scale = fmin(scale, limit / fmax(norm(size, M), 1e-9 * limit));
    }
    if (square > 0) /* the best place on the ray of the dual point, if it is in the norm ball */
        scale = fmin(scale, fmax(0, 1 + inner / square));
    *value += 0.5 * square + penalty;
    *gap += 0.5 * (1 - scale) * (1 - scale) * square + penalty - scale * inner;
}

int run_cycle(Round *at, double *value, double *gap)
{
    const Py_ssize_t one = at->d * at->c, all = at->n * one, length = at->c * at->N;
    const Py_ssize_t sweeps = at->sweeps;
    double *Zs = calloc((sweeps + 2) * all, sizeof *Zs);
    double *es = calloc((sweeps + 2) * length, sizeof *es);
    double *scratch = malloc(3 * one * sizeof *scratch);
    float *floats = malloc((length > one ? length : one) * sizeof *floats);
    at->live = malloc(at->c / at->part * sizeof *at->live);
    const int enough = Zs != NULL && es != NULL && scratch != NULL && floats != NULL &&
                       at->live != NULL;
    if (enough) {
        memcpy(Zs, at->Z, all * sizeof *Zs);
        for (Py_ssize_t s = 1; s <= sweeps; s++) {
            double *e = es + s * length;
            memcpy(e, e - length, length * sizeof *e);
            for (Py_ssize_t k = 0; k < at->n; k++)
                visit(at, k, s == 1, e, scratch, floats);
            memcpy(Zs + s * all, at->Z, all * sizeof *Zs);
        }
        for (Py_ssize_t first = 0; first < at->c; first += at->part)
            extrapolate(at, first, Zs, es, Zs + (sweeps + 1) * all, es + (sweeps + 1) * length,
                        scratch);
        update(at, Zs, es + sweeps * length, scratch, floats);
        *value = *gap = 0;
        for (Py_ssize_t first = 0; first < at->c; first += at->part)
            measure(at, first, value, gap);
    }
    free(Zs);
    free(es);
    free(scratch);
    free(floats);
    free(at->live);
    return enough;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

#define ARRAYS 5 /* besides tokens and their Gram matrices */

/* n matrices of `size` numbers, in one array or a tuple of n; says how many views that takes, or
   -1, and then leaves none. */
static Py_ssize_t get_all(PyObject *given, Py_ssize_t n, Py_ssize_t size, char type,
                          Py_buffer *views, const void **matrices)
{
    Py_ssize_t n_views = 0;
    if (!PyTuple_Check(given)) {
        if (!get(given, views, type, n * size, 0))
            return -1;
        const char *start = views->buf;
        for (Py_ssize_t k = 0; k < n; k++)
            matrices[k] = start + k * size * views->itemsize;
        return 1;
    }
    if (PyTuple_Size(given) != n) {
        PyErr_SetString(PyExc_ValueError, "There must be a matrix for every token.");
        return -1;
    }
    for (; n_views < n; n_views++) {
        if (!get(PyTuple_GetItem(given, n_views), views + n_views, type, size, 0))
            break;
        matrices[n_views] = views[n_views].buf;
    }
    if (n_views == n)
        return n;
    while (n_views > 0)
        PyBuffer_Release(views + --n_views);
    return -1;
}

/* Whether arrays have more numbers than can be counted. */
static int too_large(const Round *at)
{
    const double n = at->n, d = at->d, c = at->c, N = at->N, most = PY_SSIZE_T_MAX / 8.0;
    return fmax(n * d * fmax(N, d), (SWEEPS + 2) * c * fmax(n * d, N)) > most;
}

static PyObject *cycle(PyObject *self, PyObject *args)
{
    PyObject *tokens, *grams, *given[ARRAYS];
    Round at = {.sweeps = SWEEPS};
    if (!PyArg_ParseTuple(args, "OO(nnnnnp)OOOOO|n", &tokens, &grams, &at.n, &at.d, &at.c, &at.N,
                          &at.part, &at.in_samples, given, given + 1, given + 2, given + 3,
                          given + 4, &at.sweeps))
        return NULL;
    if (at.sweeps < 1 || at.sweeps > SWEEPS)
        return PyErr_Format(PyExc_ValueError, "There must be 1 to %d sweeps.", SWEEPS);
    if (at.n < 1 || at.d < 1 || at.c < 1 || at.N < 1 || (at.part != at.c && at.part != 1) ||
        (!at.in_samples && at.N != at.n * at.d) || too_large(&at))
        return PyErr_Format(PyExc_ValueError, "Sizes must be positive, and fit.");
    const Py_ssize_t size = at.n * at.d * at.c;
    const Py_ssize_t sizes[ARRAYS] = {at.n, at.n, at.c / at.part, size, size};
    Py_buffer views[ARRAYS], *matrices = malloc(2 * at.n * sizeof *matrices);
    Py_ssize_t n_views = 0, n_matrices = 0, more;
    double value = NAN, gap = NAN;
    int done = 0;
    at.A = malloc(2 * at.n * sizeof *at.A);
    if (matrices == NULL || at.A == NULL)
        goto end;
    at.gram = at.A + at.n;
    more = get_all(tokens, at.n, at.d * at.N, at.in_samples ? 'f' : 'd', matrices, at.A);
    if (more < 0)
        goto end;
    n_matrices = more;
    more = get_all(grams, at.n, at.d * at.d, 'f', matrices + n_matrices, at.gram);
    if (more < 0)
        goto end;
    n_matrices += more;
    for (; n_views < ARRAYS; n_views++)
        if (!get(given[n_views], views + n_views, 'd', sizes[n_views], n_views >= 2))
            goto end;
    at.step = views[0].buf, at.limit = views[1].buf;
    at.square = views[2].buf, at.Z = views[3].buf, at.M = views[4].buf;
    Py_BEGIN_ALLOW_THREADS
    done = run_cycle(&at, &value, &gap);
    Py_END_ALLOW_THREADS
end:
    while (n_matrices > 0)
        PyBuffer_Release(matrices + --n_matrices);
    while (n_views > 0)
        PyBuffer_Release(views + --n_views);
    free(matrices);
    free(at.A);
    if (!done)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return Py_BuildValue("dd", value, gap);
}

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
            for (m = 0; m < few; m++)
                for (Py_ssize_t l = 0; l < some; l++)
                    at->A[(j + m) * at->N + at->first + i + l] = rows[l][m];
        }
    }
}

static PyObject *transpose(PyObject *self, PyObject *args)
{
    enum { GIVEN = 6 };
    PyObject *given[GIVEN];
    Py_buffer views[GIVEN];
    Transpose at;
    int n_views = 0, sound = 1;
    if (!PyArg_ParseTuple(args, "OOOOOO(nnnnnn)", given, given + 1, given + 2, given + 3, given + 4,
                          given + 5, &at.rows, &at.width, &at.n, &at.d, &at.first, &at.N))
        return NULL;
    if (at.rows < 0 || at.width < 0 || at.n < 0 || at.d < 1 || at.first < 0 ||
        at.rows > at.N - at.first)
        return PyErr_Format(PyExc_ValueError, "Rows must be within the array.");
    if ((double)at.n * at.d * at.N > PY_SSIZE_T_MAX / 8.0 ||
        (double)at.rows * at.width > PY_SSIZE_T_MAX / 8.0)
        return PyErr_Format(PyExc_ValueError, "Sizes must fit.");
    const Py_ssize_t sizes[GIVEN] = {at.rows * at.width, at.n,    at.n * at.d,
                                     at.n,               at.rows, at.n * at.d * at.N};
    for (; n_views < GIVEN; n_views++)
        if (!get(given[n_views], views + n_views, "didddf"[n_views], sizes[n_views], n_views == 5))
            goto end;
    at.X = views[0].buf, at.group = views[1].buf, at.center = views[2].buf;
    at.factor = views[3].buf, at.root = views[4].buf, at.A = views[5].buf;
    for (Py_ssize_t k = 0; k < at.n; k++)
        sound &= at.group[k] >= 0 && at.group[k] < at.width / at.d;
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        transpose_groups(&at);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "Groups must be within the rows.");
end:
    while (n_views > 0)
        PyBuffer_Release(views + --n_views);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"cycle", cycle, METH_VARARGS,
     "cycle(tokens, grams, (n, d, c, N, part, in_samples), step, limit, square, Z, M, sweeps=5)\n"
     "-> (value, gap)\n\n"
     "Some sweeps over the tokens, Anderson's extrapolation, and the gap; square, Z, M in place."},
    {"transpose", transpose, METH_VARARGS,
     "transpose(X, groups, center, factor, root, A, (rows, width, n, d, first, N))\n\n"
     "Columns of n groups of d less their center, times a factor of each and the root of weights,\n"
     "as rows of A, from `first` on; float64 becomes float32."},
    {"minimise_curved", minimise_curved, METH_VARARGS,
     "minimise_curved((N, n, d, c, blocks, entries, width), start, column, X, place, center, Y,\n"
     "weight, limit, F, Z, b, intercept, goal) -> (done, gap)\n\n"
     "Newton's method for a logistic loss (c = 1) or a softmax, from Z with scores F. In place are Z\n"
     "and b, to which moves of the intercepts are added. X is dense where entries is -1; those of\n"
     "its columns count that have a place, less their center."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_sweeps", "Sweeps of block descent, compiled.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sweeps(void)
{
    return PyModuleDef_Init(&module);
}
