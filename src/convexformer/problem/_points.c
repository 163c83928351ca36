/* What a squared loss is at some scores, and lengths of cells: many short steps of NumPy in one.

   points.py says the same in NumPy, and stands in where nothing was compiled. */

#include "../_compiled.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16 /* sums of which one is made up, so that none waits for the last */

/* A squared loss ------------------------------------------------------------------------------- */

enum { S, Y, WEIGHT, F, V, SUMS, GIVEN };
enum { INTERCEPT, LOSS, TOP, BOTTOM, KINDS }; /* of sums over samples, c of each */

typedef struct {
    Py_ssize_t rows, c, lanes; /* the latter a multiple of c */
    double *weight;            /* of every entry */
    double *step, *slope;      /* (lanes,), of the intercept */
    double *sums[KINDS];       /* (lanes,) */
} Scratch;

/* Sums of lanes that belong to the same output, over a total, in all of these lanes. */
static void gather(const Scratch *at, double *sums, double total)
{
    for (Py_ssize_t l = at->c; l < at->lanes; l++)
        sums[l % at->c] += sums[l];
    for (Py_ssize_t l = 0; l < at->lanes; l++)
        sums[l] = l < at->c ? sums[l] / total : sums[l - at->c];
}

/* The step that takes the slope to zero, from which it is then summed anew. */
static void take_step(const Scratch *at, double total)
{
    gather(at, at->slope, total);
    memcpy(at->step, at->slope, at->lanes * sizeof *at->step);
    memset(at->slope, 0, at->lanes * sizeof *at->slope);
}

/* Steps of passes over samples: some entries, in as many lanes. */

static inline void add_slope(Py_ssize_t some, const double *a, const double *y, const double *s,
                             double *slope)
{
#pragma omp simd
    for (Py_ssize_t l = 0; l < some; l++)
        slope[l] += a[l] > 0 ? a[l] * (y[l] - s[l]) : 0;
}

static inline void leave(Py_ssize_t some, const double *a, const double *y, const double *s,
                         const double *step, double *f, double *left, double *slope, double *loss)
{
#pragma omp simd
    for (Py_ssize_t l = 0; l < some; l++) {
        f[l] = s[l] + step[l];
        left[l] = a[l] > 0 ? y[l] - f[l] : 0;
        slope[l] += a[l] * left[l];
        loss[l] += 0.5 * a[l] * left[l] * left[l];
    }
}

static inline void balance(Py_ssize_t some, const double *a, const double *step, double *left,
                           double *slope)
{
#pragma omp simd
    for (Py_ssize_t l = 0; l < some; l++) {
        left[l] -= step[l];
        slope[l] += a[l] * left[l];
    }
}

static inline void weigh(Py_ssize_t some, const double *a, const double *y, const double *step,
                         double *v, double *top, double *bottom)
{
#pragma omp simd
    for (Py_ssize_t l = 0; l < some; l++) {
        const double left = v[l] - step[l];
        v[l] = a[l] * left;
        top[l] += v[l] * y[l];
        bottom[l] += v[l] * left;
    }
}

/* A pass: as a rule there are LANES entries at a time, which the compiler should know. */
#define PASS(function, ...)                                                                        \
    for (Py_ssize_t j = 0; j < size; j += lanes) {                                                 \
        const Py_ssize_t some = size - j < lanes ? size - j : lanes;                               \
        if (some == LANES)                                                                         \
            function(LANES, __VA_ARGS__);                                                          \
        else                                                                                       \
            function(some, __VA_ARGS__);                                                           \
    }

/* Scores F = S + b at the best intercept b, the loss there, what is left, V = weight (Y - F), which
   sums to zero, its products with Y, and its squares over weights. All over a `total` weight, which
   is 0 without an intercept. */
VECTORISED static void settle(const Scratch *at, void **given, double total)
{
    const Py_ssize_t size = at->rows * at->c, lanes = at->lanes;
    const double *s = given[S], *y = given[Y], *a = at->weight;
    double *f = given[F], *v = given[V], *step = at->step, *slope = at->slope;
    double *loss = at->sums[LOSS], *top = at->sums[TOP], *bottom = at->sums[BOTTOM];
    if (total > 0) {
        PASS(add_slope, a + j, y + j, s + j, slope)
        take_step(at, total);
        memcpy(at->sums[INTERCEPT], step, lanes * sizeof *step);
    }
    PASS(leave, a + j, y + j, s + j, step, f + j, v + j, slope, loss)
    if (total > 0) { /* twice, for the rounding of the first step */
        take_step(at, total);
        PASS(balance, a + j, step, v + j, slope)
        take_step(at, total);
    }
    PASS(weigh, a + j, y + j, step, v + j, top, bottom)
    for (int kind = LOSS; kind < KINDS; kind++)
        gather(at, at->sums[kind], 1);
}

/* With scratch: weights of all entries where there are several outputs, and sums. */
static int settle_all(Py_ssize_t rows, Py_ssize_t c, void **given, int intercept)
{
    const Py_ssize_t lanes = c < LANES ? LANES / c * c : c, more = c > 1 ? rows * c : 0;
    const double *weight = given[WEIGHT];
    double *scratch = calloc((KINDS + 2) * lanes + more, sizeof *scratch), *sums = given[SUMS];
    double total = 0;
    if (scratch == NULL)
        return 0;
    Scratch at = {rows, c, lanes, given[WEIGHT], scratch, scratch + lanes, {NULL}};
    for (int kind = 0; kind < KINDS; kind++)
        at.sums[kind] = scratch + (2 + kind) * lanes;
    if (c > 1)
        at.weight = scratch + (2 + KINDS) * lanes;
    for (Py_ssize_t i = 0; i < rows; i++) {
        total += weight[i];
        for (Py_ssize_t l = 0; l < c && c > 1; l++)
            at.weight[i * c + l] = weight[i];
    }
    settle(&at, given, intercept ? total : 0);
    for (int kind = 0; kind < KINDS; kind++)
        memcpy(sums + kind * c, at.sums[kind], c * sizeof *sums);
    free(scratch);
    return 1;
}

/* Lengths -------------------------------------------------------------------------------------- */

/* Of `size` numbers, `by` apart, whose squares leave the range. */
static double careful(Py_ssize_t size, Py_ssize_t by, const double *z)
{
    double most = 0, square = 0;
    for (Py_ssize_t j = 0; j < size; j++)
        most = fabs(z[j * by]) > most || isnan(z[j * by]) ? fabs(z[j * by]) : most;
    if (most == 0)
        return 0;
    for (Py_ssize_t j = 0; j < size; j++)
        square += (z[j * by] / most) * (z[j * by] / most);
    return most * sqrt(square);
}

/* Of n cells of `size` numbers each, c of them side by side; returns their sum. */
VECTORISED static double lengths(Py_ssize_t n, Py_ssize_t size, Py_ssize_t c, const double *z,
                                 double *out)
{
    double total = 0;
    for (Py_ssize_t k = 0; k < n; k++, z += size * c, out += c) {
        if (c == 1) {
            double square = 0;
#pragma omp simd reduction(+ : square)
            for (Py_ssize_t j = 0; j < size; j++)
                square += z[j] * z[j];
            out[0] = square;
        } else {
            memset(out, 0, c * sizeof *out);
            for (Py_ssize_t j = 0; j < size; j++)
#pragma omp simd
                for (Py_ssize_t l = 0; l < c; l++)
                    out[l] += z[j * c + l] * z[j * c + l];
        }
        for (Py_ssize_t l = 0; l < c; l++) {
            const int fits = out[l] > 1e-280 && out[l] < 1e280;
            out[l] = fits ? sqrt(out[l]) : careful(size, c, z + l);
            total += out[l];
        }
    }
    return total;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

static PyObject *squared(PyObject *self, PyObject *args)
{
    PyObject *objects[GIVEN];
    Py_ssize_t rows, c;
    Py_buffer views[GIVEN];
    void *given[GIVEN];
    int intercept, done;
    if (!PyArg_ParseTuple(args, "(nn)pOOOOOO", &rows, &c, &intercept, objects, objects + 1,
                          objects + 2, objects + 3, objects + 4, objects + 5))
        return NULL;
    if (rows < 0 || c < 1 || (double)rows * c > PY_SSIZE_T_MAX / 16.0)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t all = rows * c, sizes[GIVEN] = {all, all, rows, all, all, KINDS * c};
    if (!get_arrays(GIVEN, objects, views, given, "dddddd", sizes, F))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = settle_all(rows, c, given, intercept);
    Py_END_ALLOW_THREADS
    release(GIVEN, views);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *norms(PyObject *self, PyObject *args)
{
    PyObject *objects[2];
    Py_ssize_t n, size, c;
    Py_buffer views[2];
    void *given[2];
    double total;
    if (!PyArg_ParseTuple(args, "(nnn)OO", &n, &size, &c, objects, objects + 1))
        return NULL;
    if (n < 0 || size < 0 || c < 0 || (double)n * size * c > PY_SSIZE_T_MAX / 16.0)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[2] = {n * size * c, n * c};
    if (!get_arrays(2, objects, views, given, "dd", sizes, 1))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    total = lengths(n, size, c, given[0], given[1]);
    Py_END_ALLOW_THREADS
    release(2, views);
    return PyFloat_FromDouble(total);
}

static PyMethodDef methods[] = {
    {"squared", squared, METH_VARARGS,
     "squared((rows, c), intercept, S, Y, weight, F, V, sums)\n\n"
     "Scores F = S + b, where b is the best intercept, or 0; V = weight (Y - F), which sums to zero\n"
     "with an intercept; and, (4, c), b, the loss, and sums of V Y and of squares of V over\n"
     "weights."},
    {"norms", norms, METH_VARARGS,
     "norms((n, size, c), Z, out) -> total\n\n"
     "Euclidean norms (n, c) of Z (n, size, c), whatever its range, and their sum."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_points", "A squared loss at some scores, and norms.", 0, methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__points(void)
{
    return PyModuleDef_Init(&module);
}
