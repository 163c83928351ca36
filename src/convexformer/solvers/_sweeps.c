/* Sweeps of block descent over tokens: what sweeps.py asks for, compiled.

   minimise over Z   1/2 ||v||^2 + sum_k limit_k ||Z_k||,   v = y - sum_k A_k' Z_k

   for all outputs, or for each of them: as many as share tokens are a part.

   Tokens A_k (d, N) are float32, and so are products within a cycle; at its end v and the
   correlations M_k = A_k v are changed in float64. cycle_numpy.py says the same in NumPy, and
   stands in where nothing was compiled. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SWEEPS 5     /* of a cycle */
#define INNER 12     /* steps to the best of one token, at most */
#define NEARLY 1e-3 /* of a move, squared: smaller steps are not worth taking */
#define NOISE 1e-8   /* of moves that were found in float32, squared */

/* Where the compiler can, one version for each kind of processor. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define VECTORISED
#endif

typedef struct {
    Py_ssize_t n, d, c, N;
    Py_ssize_t part;     /* outputs that share tokens: c or 1 */
    const float **A;     /* n tokens (d, N) */
    const double *gram;  /* (n, d, d): A_k A_k' */
    const double *step;  /* (n,): one over the largest eigenvalue of the same */
    const double *limit; /* (n,) */
    double *v;           /* (c, N) */
    double *Z, *M;       /* (n, c, d) */
} Round;

#define REAL float
#define OF(name) name##_float
#include "_sweeps_of.h"
#undef REAL
#undef OF
#define REAL double
#define OF(name) name##_double
#include "_sweeps_of.h"

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

/* From z, with correlations r there, to the minimum over token k of one part: proximal steps with
   the token's own Gram matrix. Says whether there is a move; `scratch` has room for two vectors. */
VECTORISED static int best_move(const Round *at, Py_ssize_t k, const double *z, const double *r,
                                double *move, double *scratch)
{
    const Py_ssize_t d = at->d, size = d * at->part;
    const double *G = at->gram + k * d * d, step = at->step[k], limit = step * at->limit[k];
    double *bent = scratch, *next = bent + size, moved = 0; /* bent = G move */
    memset(move, 0, size * sizeof *move);
    memset(bent, 0, size * sizeof *bent);
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
        memset(bent, 0, size * sizeof *bent);
        for (Py_ssize_t l = 0; l < size; l += d)
            for (Py_ssize_t j = 0; j < d; j++) {
                const double by = move[l + j];
#pragma omp simd
                for (Py_ssize_t i = 0; i < d; i++)
                    bent[l + i] += by * G[j * d + i];
            }
    }
    return moved > 0;
}

/* Move token k to its best, nearly, in every part where it is used, or may be if it is `new`; e is
   the change of v. */
static void visit(const Round *at, Py_ssize_t k, int new, float *e, double *scratch)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part;
    double *z = at->Z + k * one, *M = at->M + k * one, *r = scratch, *move = r + one;
    int live = 0, moves = 0;
    for (Py_ssize_t j = 0; j < one && !live; j += size)
        live = is_used(size, z + j) || (new && norm(size, M + j) > at->limit[k]);
    if (!live)
        return;
    correlate_float(at, at->A[k], e, r);
    for (Py_ssize_t j = 0; j < one; j++)
        r[j] += M[j];
    for (Py_ssize_t j = 0; j < one; j += size)
        moves |= best_move(at, k, z + j, r + j, move + j, move + one);
    if (!moves)
        return;
    for (Py_ssize_t j = 0; j < one; j++)
        z[j] += move[j];
    subtract_float(at, at->A[k], move, e);
}

/* By how much the objective of a part is higher at one point of a cycle than at another: not the
   difference of two values, which would round. */
VECTORISED static double rise(const Round *at, Py_ssize_t first, const double *Z, const float *e,
                              const double *Z1, const float *e1)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part;
    double square = 0, rest = 0;
    e += first * at->N, e1 += first * at->N;
#pragma omp simd reduction(+ : square)
    for (Py_ssize_t i = 0; i < at->part * at->N; i++)
        square += (double)(e1[i] - e[i]) * (e1[i] + e[i]);
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = k * one + first * at->d;
        const double *z = Z + here, *z1 = Z1 + here, *M = at->M + here;
        double slope = 0, change = 0;
        for (Py_ssize_t j = 0; j < size; j++) {
            slope += (z1[j] - z[j]) * M[j];
            change += (z1[j] - z[j]) * (z1[j] + z[j]);
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
    for (int s = 0; s < SWEEPS; s++)
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
    for (int s = 0; s < SWEEPS; s++)
        trace += C[s][s];
    for (int s = 0; s < SWEEPS; s++) { /* C = L L', then L L' share = 1 */
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
    for (int s = SWEEPS - 1; s >= 0; s--) {
        for (int u = s + 1; u < SWEEPS; u++)
            share[s] -= C[u][s] * share[u];
        share[s] /= C[s][s];
        total += share[s];
    }
    for (int s = 0; s < SWEEPS; s++)
        share[s] /= total;
    return isfinite(total) && total != 0;
}

/* A part to the affine combination of its trail's points whose moves cancel best, if that is
   better; a token that was let go stays so. Z and e are zero. */
static void extrapolate(const Round *at, Py_ssize_t first, const double *Zs, const float *es,
                        double *Z, float *e, double *scratch)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part, all = at->n * one;
    const Py_ssize_t length = at->c * at->N;
    double share[SWEEPS];
    Round part = *at;
    part.c = at->part;
    if (!shares(at, first, Zs, share))
        return;
    for (int s = 0; s < SWEEPS; s++) {
        const double *Z_s = Zs + (s + 1) * all;
        const float *e_s = es + (s + 1) * length, by = (float)share[s];
        for (Py_ssize_t k = 0; k < at->n; k++)
            for (Py_ssize_t j = k * one + first * at->d; j < k * one + first * at->d + size; j++)
                Z[j] += share[s] * Z_s[j];
        for (Py_ssize_t i = first * at->N; i < (first + at->part) * at->N; i++)
            e[i] += by * e_s[i];
    }
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = k * one + first * at->d;
        if (is_used(size, at->Z + here) || !is_used(size, Z + here))
            continue;
        for (Py_ssize_t j = 0; j < size; j++)
            scratch[j] = -Z[here + j];
        subtract_float(&part, at->A[k], scratch, e + first * at->N);
        memset(Z + here, 0, size * sizeof *Z);
    }
    if (rise(at, first, at->Z, es + SWEEPS * length, Z, e) < 0)
        for (Py_ssize_t k = 0; k < at->n; k++) {
            const Py_ssize_t here = k * one + first * at->d;
            memcpy(at->Z + here, Z + here, size * sizeof *Z);
        }
}

/* Bring v and M up to date for Z, which was `before` when they were: what is in float64 of them
   stays so, as they only change. dv is zero. */
static void update(const Round *at, double *before, double *dv, double *scratch)
{
    const Py_ssize_t one = at->d * at->c;
    for (Py_ssize_t k = 0; k < at->n; k++) {
        double *move = before + k * one;
        for (Py_ssize_t j = 0; j < one; j++)
            move[j] = at->Z[k * one + j] - move[j];
        if (is_used(one, move))
            subtract_double(at, at->A[k], move, dv);
    }
    for (Py_ssize_t i = 0; i < at->c * at->N; i++)
        at->v[i] += dv[i];
    for (Py_ssize_t k = 0; k < at->n; k++) {
        correlate_double(at, at->A[k], dv, scratch);
        for (Py_ssize_t j = 0; j < one; j++)
            at->M[k * one + j] += scratch[j];
    }
}

/* Add the objective of a part and its gap. */
static void measure(const Round *at, Py_ssize_t first, double *value, double *gap)
{
    const Py_ssize_t size = at->d * at->part;
    double inner = 0, penalty = 0, scale = INFINITY;
    double square = norm(at->part * at->N, at->v + first * at->N);
    square *= square;
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

/* Some sweeps, extrapolations, and where they lead; 0 where memory is short. */
static int run(const Round *at, double *value, double *gap)
{
    const Py_ssize_t one = at->d * at->c, all = at->n * one, length = at->c * at->N;
    double *Zs = calloc((SWEEPS + 2) * all, sizeof *Zs);
    double *scratch = malloc(4 * one * sizeof *scratch);
    float *es = calloc((SWEEPS + 2) * length, sizeof *es);
    double *dv = calloc(length, sizeof *dv);
    const int enough = Zs != NULL && scratch != NULL && es != NULL && dv != NULL;
    if (enough) {
        memcpy(Zs, at->Z, all * sizeof *Zs);
        for (int s = 1; s <= SWEEPS; s++) {
            float *e = es + s * length;
            memcpy(e, e - length, length * sizeof *e);
            for (Py_ssize_t k = 0; k < at->n; k++)
                visit(at, k, s == 1, e, scratch);
            memcpy(Zs + s * all, at->Z, all * sizeof *Zs);
        }
        for (Py_ssize_t first = 0; first < at->c; first += at->part)
            extrapolate(at, first, Zs, es, Zs + (SWEEPS + 1) * all, es + (SWEEPS + 1) * length,
                        scratch);
        update(at, Zs, dv, scratch);
        *value = *gap = 0;
        for (Py_ssize_t first = 0; first < at->c; first += at->part)
            measure(at, first, value, gap);
    }
    free(Zs);
    free(scratch);
    free(es);
    free(dv);
    return enough;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

#define ARRAYS 6 /* besides tokens */

/* A contiguous array of `size` numbers of a type. */
static int get(PyObject *array, Py_buffer *view, char type, Py_ssize_t size, int writable)
{
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (array == NULL || PyObject_GetBuffer(array, view, flags) < 0)
        return 0;
    const Py_ssize_t found = view->len / view->itemsize;
    if (view->format[0] == type && view->format[1] == 0 && found == size)
        return 1;
    PyErr_Format(PyExc_ValueError, "An array of %zd numbers of type %c was expected, got %zd of %s.",
                 size, type, found, view->format);
    PyBuffer_Release(view);
    return 0;
}

static PyObject *cycle(PyObject *self, PyObject *args)
{
    PyObject *tokens, *given[ARRAYS];
    Round at;
    if (!PyArg_ParseTuple(args, "O!(nnnnn)OOOOOO", &PyTuple_Type, &tokens, &at.n, &at.d, &at.c,
                          &at.N, &at.part, given, given + 1, given + 2, given + 3, given + 4, given + 5))
        return NULL;
    if (PyTuple_Size(tokens) != at.n || at.n < 1 || at.d < 1 || at.c < 1 || at.N < 1 ||
        (at.part != at.c && at.part != 1))
        return PyErr_Format(PyExc_ValueError, "Sizes must be positive, and tokens as many.");
    const Py_ssize_t size = at.n * at.d * at.c;
    const Py_ssize_t sizes[ARRAYS] = {at.n * at.d * at.d, at.n, at.n, at.c * at.N, size, size};
    Py_buffer views[ARRAYS], *columns = malloc(at.n * sizeof *columns);
    Py_ssize_t n_views = 0, n_columns = 0;
    double value = NAN, gap = NAN;
    int done = 0;
    at.A = malloc(at.n * sizeof *at.A);
    if (columns == NULL || at.A == NULL)
        goto end;
    for (; n_columns < at.n; n_columns++) {
        PyObject *token = PyTuple_GetItem(tokens, n_columns);
        if (!get(token, columns + n_columns, 'f', at.d * at.N, 0))
            goto end;
        at.A[n_columns] = columns[n_columns].buf;
    }
    for (; n_views < ARRAYS; n_views++)
        if (!get(given[n_views], views + n_views, 'd', sizes[n_views], n_views >= 3))
            goto end;
    at.gram = views[0].buf, at.step = views[1].buf, at.limit = views[2].buf;
    at.v = views[3].buf, at.Z = views[4].buf, at.M = views[5].buf;
    Py_BEGIN_ALLOW_THREADS
    done = run(&at, &value, &gap);
    Py_END_ALLOW_THREADS
end:
    while (n_columns > 0)
        PyBuffer_Release(columns + --n_columns);
    while (n_views > 0)
        PyBuffer_Release(views + --n_views);
    free(columns);
    free(at.A);
    if (!done)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return Py_BuildValue("dd", value, gap);
}

static PyMethodDef methods[] = {
    {"cycle", cycle, METH_VARARGS,
     "cycle(tokens, (n, d, c, N, part), gram, step, limit, v, Z, M) -> (value, gap)\n\n"
     "Some sweeps over the tokens, Anderson's extrapolation, and the gap; v, Z, M in place."},
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
