/* Products of X with a few columns, compiled: four at a time, in one pass over X, for which large
   products have no time to prepare. */

#include "../_compiled.h"
#include <stdlib.h>
#include <string.h>

#define WIDE 512 /* columns of X whose sums stay in cache, */
#define LONG 128 /* from one of so many rows to the next */

typedef struct {
    Py_ssize_t N, p, c;
    const double *X;  /* (N, p) */
    const double *by; /* (p, c), or (N, c) */
    double *out;      /* (N, c), or (p, c) */
    double *room;     /* 4 columns of p */
} Few;

/* s[r][l] = <x[r], z[l]>, of p entries. */
VECTORISED static void score_rows(Py_ssize_t p, const double *const *x, const double *z,
                                  double s[4][4])
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double *z0 = z, *z1 = z0 + p, *z2 = z1 + p, *z3 = z2 + p;
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

/* m[l] += sum_r v[r][l] x[r], of `wide` entries. */
VECTORISED static void add_rows(Py_ssize_t wide, const double *const *x, double v[4][4], double *m,
                                Py_ssize_t p)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double a0 = v[0][0], a1 = v[1][0], a2 = v[2][0], a3 = v[3][0];
    const double b0 = v[0][1], b1 = v[1][1], b2 = v[2][1], b3 = v[3][1];
    const double c0 = v[0][2], c1 = v[1][2], c2 = v[2][2], c3 = v[3][2];
    const double d0 = v[0][3], d1 = v[1][3], d2 = v[2][3], d3 = v[3][3];
    double *m1 = m + p, *m2 = m1 + p, *m3 = m2 + p;
#pragma omp simd
    for (Py_ssize_t j = 0; j < wide; j++) {
        m[j] += (a0 * x0[j] + a1 * x1[j]) + (a2 * x2[j] + a3 * x3[j]);
        m1[j] += (b0 * x0[j] + b1 * x1[j]) + (b2 * x2[j] + b3 * x3[j]);
        m2[j] += (c0 * x0[j] + c1 * x1[j]) + (c2 * x2[j] + c3 * x3[j]);
        m3[j] += (d0 * x0[j] + d1 * x1[j]) + (d2 * x2[j] + d3 * x3[j]);
    }
}

/* Rows from i on, four of them; those beyond the end are the last. */
static void take_rows(const Few *at, Py_ssize_t i, const double **x)
{
    for (Py_ssize_t r = 0; r < 4; r++)
        x[r] = at->X + (i + r < at->N ? i + r : at->N - 1) * at->p;
}

/* Columns l to l + few of `out` = X by. */
static void score(const Few *at, Py_ssize_t l, Py_ssize_t few)
{
    const double *x[4];
    double s[4][4];
    memset(at->room, 0, 4 * at->p * sizeof *at->room);
    for (Py_ssize_t j = 0; j < at->p; j++)
        for (Py_ssize_t q = 0; q < few; q++)
            at->room[q * at->p + j] = at->by[j * at->c + l + q];
    for (Py_ssize_t i = 0; i < at->N; i += 4) {
        take_rows(at, i, x);
        score_rows(at->p, x, at->room, s);
        for (Py_ssize_t r = 0; r < 4 && i + r < at->N; r++)
            memcpy(at->out + (i + r) * at->c + l, s[r], few * sizeof *at->out);
    }
}

/* The same of `out` = X' by. */
static void correlate(const Few *at, Py_ssize_t l, Py_ssize_t few)
{
    const double *x[4];
    memset(at->room, 0, 4 * at->p * sizeof *at->room);
    for (Py_ssize_t first = 0; first < at->N; first += LONG)
        for (Py_ssize_t j = 0; j < at->p; j += WIDE) {
            const Py_ssize_t wide = at->p - j < WIDE ? at->p - j : WIDE;
            for (Py_ssize_t i = first; i < first + LONG && i < at->N; i += 4) {
                double v[4][4] = {{0}};
                take_rows(at, i, x);
                for (Py_ssize_t r = 0; r < 4; r++) {
                    x[r] += j;
                    if (i + r < at->N)
                        memcpy(v[r], at->by + (i + r) * at->c + l, few * sizeof *v[r]);
                }
                add_rows(wide, x, v, at->room + j, at->p);
            }
        }
    for (Py_ssize_t j = 0; j < at->p; j++)
        for (Py_ssize_t q = 0; q < few; q++)
            at->out[j * at->c + l + q] = at->room[q * at->p + j];
}

static PyObject *multiply(PyObject *self, PyObject *args)
{
    PyObject *given[3];
    Py_buffer views[3];
    Few at;
    int n_views = 0, transposed;
    if (!PyArg_ParseTuple(args, "(nnn)pOOO", &at.N, &at.p, &at.c, &transposed, given, given + 1,
                          given + 2))
        return NULL;
    const double longest = at.N > at.p ? at.N : at.p, most = at.p > at.c ? at.p : at.c;
    if (at.N < 1 || at.p < 1 || at.c < 1 || 4 * longest * most > PY_SSIZE_T_MAX / 8.0)
        return PyErr_Format(PyExc_ValueError, "Sizes must be positive, and fit.");
    const Py_ssize_t N = at.N * at.c, p = at.p * at.c;
    const Py_ssize_t sizes[3] = {at.N * at.p, transposed ? N : p, transposed ? p : N};
    at.room = malloc(4 * at.p * sizeof *at.room);
    if (at.room == NULL)
        return PyErr_NoMemory();
    for (; n_views < 3; n_views++)
        if (!get(given[n_views], views + n_views, 'd', sizes[n_views], n_views == 2))
            goto end;
    at.X = views[0].buf, at.by = views[1].buf, at.out = views[2].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t l = 0; l < at.c; l += 4)
        (transposed ? correlate : score)(&at, l, at.c - l < 4 ? at.c - l : 4);
    Py_END_ALLOW_THREADS
end:
    free(at.room);
    while (n_views > 0)
        PyBuffer_Release(views + --n_views);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"multiply", multiply, METH_VARARGS,
     "multiply((N, p, c), transposed, X, by, out)\n\n"
     "out (N, c) = X by of X (N, p) and by (p, c), or, transposed, out (p, c) = X' by."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_few", "Products of X with a few columns.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__few(void)
{
    return PyModuleDef_Init(&module);
}
