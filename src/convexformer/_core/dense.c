/* Products with rows of X, compiled: both ways in one pass, and Gram matrices of some columns. */

#include "common.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER double
#define NAMED(name) name##_doubles
#include "four_by_four.h"
#undef NUMBER
#undef NAMED
#include "follow.h"

/* Gram matrices of some columns, which are not gathered first ----------------------------------- */

enum { FROM, GROUP, CENTER, ROOT, BESIDE, PRODUCTS, WITH_BESIDE, MULTIPLIED };

#define BLOCK 128 /* rows whose products are summed in the precision of numbers */
#define PITCH (BLOCK + 1) /* rows from one panel to the next, which take other places in cache */
#define TILE 4    /* columns of one panel that are multiplied with another at a time */
#define LINE 64   /* bytes that come from memory together */
#define AHEAD 4   /* rows from the one that is packed to the one that is fetched */

typedef struct {
    Py_ssize_t from, at; /* column of X, and of those that are multiplied */
    Py_ssize_t to;       /* place in panels */
    Py_ssize_t size;     /* 0 after the last */
} Piece;

typedef struct {
    const double *x; /* rows of `width` numbers */
    Py_ssize_t width, p;
    const Piece *pieces;  /* of p columns */
    const double *center; /* (p,), what is taken off them */
    const double *root;   /* of the weight of each row */
    const double *beside; /* one more column */
} Columns;

/* n groups of d columns, cut where panels end; NULL where memory is short. */
static Piece *cut(const int32_t *group, Py_ssize_t n, Py_ssize_t d, Py_ssize_t panel)
{
    Piece *pieces = malloc((n * (d / panel + 2) + 1) * sizeof *pieces), *piece = pieces;
    if (pieces == NULL)
        return NULL;
    for (Py_ssize_t k = 0; k < n; k++)
        for (Py_ssize_t j = 0; j < d; j += piece++->size) {
            const Py_ssize_t at = k * d + j, off = at % panel, room = panel - off;
            *piece = (Piece){group[k] * d + j, at, (at - off) * PITCH + off,
                             d - j < room ? d - j : room};
        }
    *piece = (Piece){0, 0, 0, 0};
    return pieces;
}

#define NUMBER float
#define PANEL 16
#define NAMED(function) function##_floats
#include "gram_panels.h"

#define NUMBER double
#define PANEL 8
#define NAMED(function) function##_doubles
#include "gram_panels.h"

/* Arrays of Python ---------------------------------------------------------------------------- */

KERNEL(predict_and_correlate)
{
    PyObject *given[FOLLOWED];
    Py_ssize_t rows, p, c, others;
    if (!PyArg_ParseTuple(args, "(nnnn)OOOOOOOO", &rows, &p, &c, &others, FOUR(given), given + 4, given + 5, given + 6, given + 7))
        return NULL;
    if (rows < 0 || p < 0 || c < 1 || c > OUTPUTS || others < 0 || others > (c == 1))
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[FOLLOWED] = {
        rows * p, p * c, rows * c, rows, others * rows, rows * c, rows * c, (c + others) * p,
    };
    Py_buffer views[FOLLOWED];
    void *at[FOLLOWED];
    if (!get_arrays(FOLLOWED, given, views, at, "dddddddd", sizes, S))
        return NULL;
    double *room = malloc((2 * OUTPUTS * p + 1) * sizeof *room);
    const int enough = room != NULL;
    if (enough) {
        Py_BEGIN_ALLOW_THREADS
        if (c == 1)
            follow_rows(at, rows, p, (int)others, room);
        else
            follow_outputs(at, rows, p, c, room);
        Py_END_ALLOW_THREADS
        free(room);
    }
    release(FOLLOWED, views);
    if (!enough)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

KERNEL(gram_of_columns)
{
    PyObject *given[MULTIPLIED];
    Py_ssize_t rows, width, n, d, own, padded;
    int doubles, done = 0, there = 1;
    if (!PyArg_ParseTuple(args, "(nnnnnn)iOOOOOOO", &rows, &width, &n, &d, &own, &padded, &doubles,
                          FOUR(given), given + 4, given + 5, given + 6))
        return NULL;
    const Py_ssize_t panel = doubles ? 8 : 16;
    if (rows < 0 || width < 1 || n < 1 || d < 1 || n > width / d || own < 0 || own > n * d ||
        padded != (n * d + panel - 1) / panel * panel)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[MULTIPLIED] = {
        rows * width, n, n * d, rows, rows, padded * padded, padded,
    };
    Py_buffer views[MULTIPLIED];
    void *at[MULTIPLIED];
    if (!get_arrays(MULTIPLIED, given, views, at, "diddddd", sizes, PRODUCTS))
        return NULL;
    const int32_t *group = at[GROUP];
    for (Py_ssize_t k = 0; k < n; k++)
        there &= group[k] >= 0 && group[k] < width / d;
    if (!there)
        PyErr_SetString(PyExc_ValueError, "Groups are out of range.");
    else {
        Piece *pieces = cut(group, n, d, panel);
        const Columns of = {at[FROM], width, n * d, pieces, at[CENTER], at[ROOT], at[BESIDE]};
        Py_BEGIN_ALLOW_THREADS
        done = pieces != NULL && (doubles ? multiply_doubles : multiply_floats)(
                                     &of, rows, own, at[PRODUCTS], at[WITH_BESIDE]);
        Py_END_ALLOW_THREADS
        free(pieces);
        if (!done)
            PyErr_NoMemory();
    }
    release(MULTIPLIED, views);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}
