/* Block coordinate descent over tokens, in sweeps that end with Anderson's extrapolation.

   minimise over Z   1/2 ||v||^2 + sum_k limit_k ||Z_k||,   v = y - sum_k A_k' Z_k

   for all outputs, or for each of them: as many as share tokens are a part.

   It takes the squares of v and the correlations M_k = A_k v to begin with, then changes only, e,
   either of v, or, where samples are many, of M: in samples or in coefficients. In samples tokens
   are float32 or int16, and sums of some products float32; what these add up to is float64, as all
   is in coefficients. _numpy.py has the same in NumPy. */

#include "common.h"
#include "block_descent.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INNER 12    /* steps to the best of one token, at most */
#define NEARLY 1e-3 /* of a move, squared: smaller steps are not worth taking */
#define NOISE 1e-8  /* of moves that were found in float32, squared */
#define SOME 4096   /* products that are summed in float32, of all outputs */
#define NEAR 1024   /* samples of sums that stay in cache from row to row */
#define LINE 64     /* bytes of cache that are read at once, and of a wide register */

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

/* Where a line of cache begins, in room for as much as one more. */
static float *aligned(float *room)
{
    return (float *)(((uintptr_t)room + LINE - 1) / LINE * LINE);
}

#include "block_products.h"

/* out = G x */
static inline void bend(Py_ssize_t d, const float *G, const double *x, float *out)
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
#pragma omp simd safelen(4) reduction(+ : square)
        for (Py_ssize_t j = 0; j < size; j++) {
            next[j] = z[j] + move[j] + step * (r[j] - bent[j]);
            square += next[j] * next[j];
        }
        const double shrink = square > limit * limit ? 1 - limit / sqrt(square) : 0;
        moved = 0;
#pragma omp simd safelen(4) reduction(+ : change, moved)
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

#include "anderson.h"

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

/* Sweeps, each of which goes on from the last, and the point to which they seem to lead. Returns the
   change there. */
static double *run_sweeps(const Round *at, double *Zs, double *es, double *scratch, float *floats)
{
    const Py_ssize_t all = at->n * at->d * at->c, length = at->c * at->N, sweeps = at->sweeps;
    for (Py_ssize_t s = 1; s <= sweeps; s++) {
        double *e = es + s * length;
        memcpy(e, e - length, length * sizeof *e);
        for (Py_ssize_t k = 0; k < at->n; k++)
            visit(at, k, s == 1, e, scratch, floats);
        memcpy(Zs + s * all, at->Z, all * sizeof *Zs);
    }
    for (Py_ssize_t first = 0; first < at->c; first += at->part)
        extrapolate(at, first, Zs, es, Zs + (sweeps + 1) * all, es + (sweeps + 1) * length, scratch);
    return es + sweeps * length;
}

int run_cycle(Round *at, double *value, double *gap)
{
    const Py_ssize_t one = at->d * at->c, all = at->n * one, length = at->c * at->N;
    const Py_ssize_t points = at->sweeps + 2;
    double *Zs = calloc(points * all, sizeof *Zs);
    double *es = calloc(points * length, sizeof *es);
    double *scratch = malloc(3 * one * sizeof *scratch);
    float *room = malloc((length > one ? length : one) * sizeof *room + LINE);
    float *floats = aligned(room);
    at->live = malloc(at->c / at->part * sizeof *at->live);
    const int enough = Zs != NULL && es != NULL && scratch != NULL && room != NULL &&
                       at->live != NULL;
    if (enough) {
        memcpy(Zs, at->Z, all * sizeof *Zs);
        const double *e = run_sweeps(at, Zs, es, scratch, floats);
        update(at, Zs, e, scratch, floats);
        *value = *gap = 0;
        for (Py_ssize_t first = 0; first < at->c; first += at->part)
            measure(at, first, value, gap);
    }
    free(Zs);
    free(es);
    free(scratch);
    free(room);
    free(at->live);
    return enough;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

/* Matrices of `size` numbers, one for every token; 0, and an error, where there are others. */
static int get_matrices(PyObject *given, Py_ssize_t n, Py_ssize_t size, char type,
                        Py_buffer *views, const void **matrices)
{
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *matrix = PySequence_GetItem(given, k);
        const int found = get(matrix, views + k, type, size, 0);
        Py_XDECREF(matrix);
        if (!found) {
            release(k, views);
            return 0;
        }
        matrices[k] = views[k].buf;
    }
    return 1;
}

/* Whether tokens are int16. */
static int is_packed(PyObject *tokens)
{
    Py_buffer view;
    PyObject *first = PySequence_GetItem(tokens, 0);
    int packed = 0;
    if (first != NULL && PyObject_GetBuffer(first, &view, PyBUF_FORMAT) == 0) {
        packed = view.format[0] == 'h';
        PyBuffer_Release(&view);
    }
    Py_XDECREF(first);
    PyErr_Clear(); /* whoever reads them will say so */
    return packed;
}

/* Whether arrays have more numbers than can be counted. */
static int too_large(const Round *at)
{
    const double n = at->n, d = at->d, c = at->c, N = at->N, most = PY_SSIZE_T_MAX / 8.0;
    return fmax(n * d * fmax(N, d), (SWEEPS + 2) * c * fmax(n * d, N)) > most;
}

KERNEL(block_descent)
{
    PyObject *tokens = PyTuple_GetItem(args, 0), *grams = PyTuple_GetItem(args, 1);
    Round at;
    Arrays of;
    double value = NAN, gap = NAN;
    int done;
    if (!get_shape(args, 2, "nnnnnp", &at.n, &at.d, &at.c, &at.N, &at.part, &at.in_samples))
        return NULL;
    at.sweeps = PyTuple_Size(args) > 8 ? get_int(args, 8) : SWEEPS;
    if (at.sweeps < 1 || at.sweeps > SWEEPS)
        return PyErr_Format(PyExc_ValueError, "There must be 1 to %d sweeps.", SWEEPS);
    if (at.n < 1 || at.d < 1 || at.c < 1 || at.N < 1 || (at.part != at.c && at.part != 1) ||
        (!at.in_samples && at.N != at.n * at.d) || too_large(&at))
        return refuse_sizes();
    if (PySequence_Size(tokens) != at.n || PySequence_Size(grams) != at.n)
        return PyErr_Format(PyExc_ValueError, "There must be a matrix for every token.");
    const Py_ssize_t n = at.n, size = n * at.d * at.c;
    const Py_ssize_t sizes[] = {n, n, at.c / at.part, size, size};
    if (!get_arrays(args, 3, "ddddd", sizes, 2, &of))
        return NULL;
    at.step = of.at[0], at.limit = of.at[1], at.square = of.at[2], at.Z = of.at[3];
    at.M = of.at[4], at.packed = at.in_samples && is_packed(tokens);
    const char type = at.packed ? 'h' : at.in_samples ? 'f' : 'd';
    Py_buffer *views = malloc(2 * n * sizeof *views);
    at.A = malloc(2 * n * sizeof *at.A), at.gram = at.A + n;
    done = views != NULL && at.A != NULL;
    if (done && get_matrices(tokens, n, at.d * at.N, type, views, at.A)) {
        if (get_matrices(grams, n, at.d * at.d, 'f', views + n, at.gram)) {
            Py_BEGIN_ALLOW_THREADS
            done = run_cycle(&at, &value, &gap);
            Py_END_ALLOW_THREADS
            release(n, views + n);
        }
        release(n, views);
    }
    free(views);
    free(at.A);
    return finish(&of, done, "dd", value, gap);
}

KERNEL(wide_registers)
{
    return PyBool_FromLong(HAS_WIDE);
}
