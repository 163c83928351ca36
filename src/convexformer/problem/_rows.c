/* Products with rows of X, compiled: both ways in one pass, and of rows that are mostly zero. */

#include "../_compiled.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_follow.h"

/* Gram matrices of some columns, which are not gathered first ----------------------------------- */

enum { FROM, GROUP, CENTER, ROOT, BESIDE, PRODUCTS, WITH_BESIDE, MULTIPLIED };

#define BLOCK 128 /* rows whose products are summed in the precision of numbers */
#define PITCH (BLOCK + 1) /* rows from one panel to the next, which take other places in cache */
#define TILE 4    /* columns of one panel that are multiplied with another at a time */
#define LINE 64   /* bytes that come from memory together */
#define AHEAD 4   /* rows from the one that is packed to the one that is fetched */
#define WHOLE 6   /* of a row: where a part so large is wanted, all of it is fetched, as memory is read
                     faster in order */

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
#include "_panels.h"

#define NUMBER double
#define PANEL 8
#define NAMED(function) function##_doubles
#include "_panels.h"

/* Entries of rows that are mostly zero ---------------------------------------------------------- */

enum { START, COLUMN, VALUE, WEIGHT, PLACE, Q, SUM, ARRAYS };

#define BAND (1 << 15) /* numbers of Q that stay in the cache while they are added to */

/* Q += sum_i weight_i x_i x_i' and sum += sum_i weight_i x_i, x the entries of row i that have a
   place in Q; places ascend with columns. Some rows of Q at a time, their lower half, then the
   other. 0 where memory is short. */
static int add(void **at, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t p)
{
    const int32_t *start = at[START], *column = at[COLUMN], *place = at[PLACE];
    const double *value = at[VALUE], *weight = at[WEIGHT];
    double *q = at[Q], *sum = at[SUM];
    Py_ssize_t *here = malloc((columns + 1) * sizeof *here);
    double *x = malloc((columns + 1) * sizeof *x);
    const int enough = here != NULL && x != NULL;
    const Py_ssize_t band = p > BAND ? 1 : BAND / (p + 1) + 1;
    for (Py_ssize_t first = 0; enough && first < p; first += band)
        for (Py_ssize_t i = 0; i < rows; i++) {
            Py_ssize_t n = 0;
            for (int32_t l = start[i]; l < start[i + 1]; l++) {
                const int32_t to = place[column[l]];
                if (to >= 0 && to < first + band)
                    here[n] = to, x[n++] = value[l];
            }
            for (Py_ssize_t j = n - 1; j >= 0 && here[j] >= first; j--) {
                double *row = q + here[j] * p;
                const double by = weight[i] * x[j];
                sum[here[j]] += by;
                for (Py_ssize_t k = 0; k <= j; k++)
                    row[here[k]] += by * x[k];
            }
        }
    for (Py_ssize_t j = 0; enough && j < p; j++)
        for (Py_ssize_t k = 0; k < j; k++)
            q[k * p + j] = q[j * p + k];
    free(here);
    free(x);
    return enough;
}

/* The place of the lowest bit of a word that is not zero. */
static int lowest(uint64_t word)
{
#if defined(__GNUC__)
    return __builtin_ctzll(word);
#else
    int place = 0;
    for (; !(word & 1); word >>= 1)
        place++;
    return place;
#endif
}

/* A bit for each of up to 64 numbers: whether it is not zero. */
static inline uint64_t marks(const double *x, Py_ssize_t size)
{
    uint8_t flags[64] = {0};
    uint64_t bits = 0;
    if (size == 64)
#pragma omp simd
        for (int j = 0; j < 64; j++)
            flags[j] = x[j] != 0;
    else
        for (Py_ssize_t j = 0; j < size; j++)
            flags[j] = x[j] != 0;
    for (int j = 0; j < 64; j += 8) {
        uint64_t word = 0;
        for (int k = 0; k < 8; k++)
            word |= (uint64_t)flags[j + k] << (8 * k);
        bits |= (word * UINT64_C(0x0102040810204080) >> 56) << j; /* of eight bytes a bit each */
    }
    return bits;
}

/* List the entries of some rows: where those of each end, their columns and values. Returns how many
   there are, or -1 where they, and one more, find no room. */
VECTORISED static Py_ssize_t list(void **at, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t room)
{
    const double *x = at[0];
    int32_t *end = at[1], *column = at[2];
    double *value = at[3];
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < rows; i++, x += columns) {
        if (n + columns >= room) { /* may be too many: look twice */
            Py_ssize_t more = 0;
            for (Py_ssize_t j = 0; j < columns; j++)
                more += x[j] != 0;
            if (n + more >= room)
                return -1;
        }
        const Py_ssize_t start = n;
        for (Py_ssize_t j = 0; j < columns; j += 64)
            for (uint64_t left = marks(x + j, columns - j < 64 ? columns - j : 64); left != 0;
                 left &= left - 1)
                column[n++] = (int32_t)(j + lowest(left));
        for (Py_ssize_t l = start; l < n; l++)
            value[l] = x[column[l]];
        end[i] = (int32_t)n;
    }
    return n;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

static void release(int count, Py_buffer *views)
{
    while (count > 0)
        PyBuffer_Release(views + --count);
}

/* Arrays of so many numbers of these types; those from `writable` on are written. */
static int get_all(int count, PyObject **given, Py_buffer *views, void **at, const char *types,
                   const Py_ssize_t *sizes, int writable)
{
    for (int n = 0; n < count; n++) {
        if (!get(given[n], views + n, types[n], sizes[n], n >= writable)) {
            release(n, views);
            return 0;
        }
        at[n] = views[n].buf;
    }
    return 1;
}

static PyObject *follow(PyObject *self, PyObject *args)
{
    PyObject *given[FOLLOWED];
    Py_ssize_t rows, p, others;
    if (!PyArg_ParseTuple(args, "(nnn)OOOOOOOO", &rows, &p, &others, given, given + 1, given + 2,
                          given + 3, given + 4, given + 5, given + 6, given + 7))
        return NULL;
    if (rows < 0 || p < 0 || others < 0 || others > 1)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[FOLLOWED] = {
        rows * p, p, rows, rows, others * rows, rows, rows, (1 + others) * p,
    };
    Py_buffer views[FOLLOWED];
    void *at[FOLLOWED];
    if (!get_all(FOLLOWED, given, views, at, "dddddddd", sizes, S))
        return NULL;
    double *m = malloc((2 * p + 1) * sizeof *m);
    const int enough = m != NULL;
    if (enough) {
        Py_BEGIN_ALLOW_THREADS
        follow_rows(at, rows, p, (int)others, m);
        Py_END_ALLOW_THREADS
        free(m);
    }
    release(FOLLOWED, views);
    if (!enough)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *multiply(PyObject *self, PyObject *args)
{
    PyObject *given[MULTIPLIED];
    Py_ssize_t rows, width, n, d, own, padded;
    int doubles, done = 0, there = 1;
    if (!PyArg_ParseTuple(args, "(nnnnnn)iOOOOOOO", &rows, &width, &n, &d, &own, &padded, &doubles,
                          given, given + 1, given + 2, given + 3, given + 4, given + 5, given + 6))
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
    if (!get_all(MULTIPLIED, given, views, at, "diddddd", sizes, PRODUCTS))
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

static PyObject *entries(PyObject *self, PyObject *args)
{
    PyObject *given[4];
    Py_ssize_t rows, columns, room, found;
    if (!PyArg_ParseTuple(args, "(nnn)OOOO", &rows, &columns, &room, given, given + 1, given + 2,
                          given + 3))
        return NULL;
    if (rows < 0 || columns < 1 || room < 1 || room > INT32_MAX || columns > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[4] = {rows * columns, rows, room, room};
    Py_buffer views[4];
    void *at[4];
    if (!get_all(4, given, views, at, "diid", sizes, 1))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    found = list(at, rows, columns, room);
    Py_END_ALLOW_THREADS
    release(4, views);
    return PyLong_FromSsize_t(found);
}

/* Whether rows begin where others end, and columns and places are there. */
static int is_sound(void **at, Py_ssize_t rows, Py_ssize_t entries, Py_ssize_t columns,
                    Py_ssize_t p)
{
    const int32_t *start = at[START], *column = at[COLUMN], *place = at[PLACE];
    int sound = start[0] == 0 && start[rows] == entries;
    for (Py_ssize_t i = 0; i < rows; i++)
        sound &= start[i] <= start[i + 1] && start[i + 1] - start[i] <= columns;
    for (Py_ssize_t l = 0; l < entries; l++)
        sound &= column[l] >= 0 && column[l] < columns;
    for (Py_ssize_t j = 0; j < columns; j++)
        sound &= place[j] < p;
    return sound;
}

static PyObject *gram(PyObject *self, PyObject *args)
{
    PyObject *given[ARRAYS];
    Py_ssize_t rows, entries, columns, p;
    if (!PyArg_ParseTuple(args, "(nnnn)OOOOOOO", &rows, &entries, &columns, &p, given, given + 1,
                          given + 2, given + 3, given + 4, given + 5, given + 6))
        return NULL;
    const Py_ssize_t sizes[ARRAYS] = {rows + 1, entries, entries, rows, columns, p * p, p};
    Py_buffer views[ARRAYS];
    void *at[ARRAYS];
    int done = 0;
    if (!get_all(ARRAYS, given, views, at, "iiddidd", sizes, Q))
        return NULL;
    if (!is_sound(at, rows, entries, columns, p))
        PyErr_SetString(PyExc_ValueError, "Rows, columns or places are out of range.");
    else {
        Py_BEGIN_ALLOW_THREADS
        done = add(at, rows, columns, p);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    release(ARRAYS, views);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"follow", follow, METH_VARARGS,
     "follow((rows, p, others), X, z, target, weight, other, s, v, M)\n\n"
     "s = X z, v = weight (target - s) and M += (v, other)' X, in one pass over narrow rows; there\n"
     "is an other (1), or none (0)."},
    {"multiply", multiply, METH_VARARGS,
     "multiply((rows, width, n, d, own, padded), doubles, X, group, center, root, beside, Q, q)\n\n"
     "Q (padded, padded) = B' A and q (padded,) = B' beside, from zero, for A the columns of n\n"
     "groups of X less `center`, B the first `own` of them, and all times `root`. In float32, or\n"
     "doubles; padded are columns up to a multiple of 16, or 8, and what there is beside A and B in\n"
     "Q and q means nothing."},
    {"entries", entries, METH_VARARGS,
     "entries((rows, columns, room), X, end, column, value) -> how many\n\n"
     "List what is not zero: where those of each row end, their columns and values; -1 without\n"
     "room for them, and one more."},
    {"gram", gram, METH_VARARGS,
     "gram((rows, entries, columns, p), start, column, value, weight, place, Q, sum)\n\n"
     "Q (p, p) = X' diag(weight) X and sum (p,) = X' weight, from zero, of columns that have a\n"
     "place in them."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rows", "Products with rows of X, compiled.", 0, methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void)
{
    return PyModuleDef_Init(&module);
}
