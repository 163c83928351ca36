/* Gram matrices of some columns of X, which are not gathered first. */

#include "common.h"
#include <stdint.h>
#include <stdlib.h>

enum { FROM, GROUP, CENTER, ROOT, BESIDE, PRODUCTS, WITH_BESIDE };

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

KERNEL(gram_of_columns)
{
    const int doubles = get_int(args, 1);
    Py_ssize_t rows, width, n, d, own, padded;
    Arrays of;
    int done = UNSOUND, there = 1;
    if (!get_shape(args, 0, "nnnnnn", &rows, &width, &n, &d, &own, &padded))
        return NULL;
    const Py_ssize_t panel = doubles ? 8 : 16;
    if (rows < 0 || width < 1 || n < 1 || d < 1 || n > width / d || own < 0 || own > n * d ||
        padded != (n * d + panel - 1) / panel * panel)
        return refuse_sizes();
    const Py_ssize_t sizes[] = {rows * width, n, n * d, rows, rows, padded * padded, padded};
    if (!get_arrays(args, 2, "diddddd", sizes, PRODUCTS, &of))
        return NULL;
    const int32_t *group = of.at[GROUP];
    for (Py_ssize_t k = 0; k < n; k++)
        there &= group[k] >= 0 && group[k] < width / d;
    Py_BEGIN_ALLOW_THREADS
    if (there) {
        Piece *pieces = cut(group, n, d, panel);
        const Columns X = {of.at[FROM], width, n * d, pieces, of.at[CENTER], of.at[ROOT],
                           of.at[BESIDE]};
        done = pieces != NULL && (doubles ? multiply_doubles : multiply_floats)(
                                     &X, rows, own, of.at[PRODUCTS], of.at[WITH_BESIDE]);
        free(pieces);
    }
    Py_END_ALLOW_THREADS
    return finish(&of, done, "");
}
