/* Losses with exponentials, compiled: what losses.py says of them in NumPy, in one pass. */

#include "../_compiled.h"
#include "../_losses.h"

#define TINY 0x1p-1022 /* the smallest normal number: what log is taken of instead of zero */

/* Entropy of q = y v and 1 - q, from the smaller of them. */
VECTORISED static void dual_logistic(Py_ssize_t size, const double *V, const double *Y,
                                     double *value)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < size; i++) {
        const double q = Y[i] * V[i], s = q < 0.5 ? q : 1 - q;
        value[i] = -s * log_of(s > TINY ? s : TINY) - (1 - s) * log1p_near(-s);
    }
}

/* Entropy of q = y - v over classes; near 1 from 1 - q, which is v. */
VECTORISED static void dual_softmax(Py_ssize_t rows, Py_ssize_t c, const double *V, const double *Y,
                                    double *value)
{
    for (Py_ssize_t i = 0; i < rows; i++)
        value[i] = 0;
    for (Py_ssize_t l = 0; l < c; l++) {
        const double *v = V + l * rows, *y = Y + l * rows;
#pragma omp simd
        for (Py_ssize_t i = 0; i < rows; i++) {
            const double q = y[i] - v[i] < 0 ? 0 : y[i] - v[i];
            const int near = y[i] == 1 && v[i] < 0.5;
            const double away = near ? v[i] : 0;
            value[i] -= q * (near ? log1p_near(-away) : log_of(q > TINY ? q : TINY));
        }
    }
}

/* Arrays of Python ---------------------------------------------------------------------------- */

enum { EXPAND_LOGISTIC, DUAL_LOGISTIC, EXPAND_SOFTMAX, DUAL_SOFTMAX };

static void compute(int what, Py_ssize_t rows, Py_ssize_t c, double **at)
{
    if (what == EXPAND_LOGISTIC)
        expand_logistic(rows * c, at[0], at[1], at[2], at[3], at[4]);
    if (what == DUAL_LOGISTIC)
        dual_logistic(rows * c, at[0], at[1], at[2]);
    if (what == EXPAND_SOFTMAX)
        expand_all_softmax(rows, c, at[0], at[1], at[2], at[3], at[4]);
    if (what == DUAL_SOFTMAX)
        dual_softmax(rows, c, at[0], at[1], at[2]);
}

/* Two arrays that are read, then a value for every entry, or row, and two more where there are. */
static PyObject *call(PyObject *args, int what)
{
    const int joint = what >= EXPAND_SOFTMAX, count = what % 2 ? 3 : 5;
    Py_ssize_t rows, c;
    PyObject *given[5];
    Py_buffer views[5];
    double *at[5];
    int n = 0;
    if (!PyArg_ParseTuple(args, count == 3 ? "(nn)OOO" : "(nn)OOOOO", &rows, &c, given, given + 1,
                          given + 2, given + 3, given + 4))
        return NULL;
    if (rows < 0 || c < 1)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    for (; n < count; n++) {
        if (!get(given[n], views + n, 'd', n == 2 && joint ? rows : rows * c, n >= 2))
            break;
        at[n] = views[n].buf;
    }
    if (n == count) {
        Py_BEGIN_ALLOW_THREADS
        compute(what, rows, c, at);
        Py_END_ALLOW_THREADS
    }
    while (n > 0)
        PyBuffer_Release(views + --n);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *logistic(PyObject *self, PyObject *args) { return call(args, EXPAND_LOGISTIC); }
static PyObject *logistic_dual(PyObject *self, PyObject *args) { return call(args, DUAL_LOGISTIC); }
static PyObject *softmax(PyObject *self, PyObject *args) { return call(args, EXPAND_SOFTMAX); }
static PyObject *softmax_dual(PyObject *self, PyObject *args) { return call(args, DUAL_SOFTMAX); }

static PyMethodDef methods[] = {
    {"logistic", logistic, METH_VARARGS,
     "logistic((rows, c), F, Y, value, V, H)\n\nLoss, minus its slope, and its curvature."},
    {"logistic_dual", logistic_dual, METH_VARARGS,
     "logistic_dual((rows, c), V, Y, value)\n\nMinus the conjugate at -V."},
    {"softmax", softmax, METH_VARARGS,
     "softmax((rows, c), F, Y, value, V, P)\n\nLoss, minus its slopes, and probabilities; arrays\n"
     "are (c, rows), value (rows,)."},
    {"softmax_dual", softmax_dual, METH_VARARGS,
     "softmax_dual((rows, c), V, Y, value)\n\nMinus the conjugate at -V."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_losses", "Losses with exponentials, compiled.", 0, methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__losses(void)
{
    return PyModuleDef_Init(&module);
}
