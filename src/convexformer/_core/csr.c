/* Rows that are mostly zero by their entries, compiled: what problem/tokens.py asks for. */

#include "common.h"
#include "entries.h"
#include <stdlib.h>

enum { START, COLUMN, VALUE, WEIGHT, PLACE, Q, SUM };

#define BAND (1 << 15) /* numbers of Q that stay in the cache while they are added to */

/* Q += sum_i weight_i x_i x_i' and sum += sum_i weight_i x_i, x the entries of row i that have a
   place in Q; places ascend with columns. Some rows of Q at a time, their lower half, then the
   other. 0 where memory is short. */
static int add(const Entries *X, void **at, Py_ssize_t p)
{
    const int32_t *start = X->start, *column = X->column, *place = at[PLACE];
    const double *value = X->value, *weight = at[WEIGHT];
    double *q = at[Q], *sum = at[SUM];
    Py_ssize_t *here = malloc((X->columns + 1) * sizeof *here);
    double *x = malloc((X->columns + 1) * sizeof *x);
    const int enough = here != NULL && x != NULL;
    const Py_ssize_t band = p > BAND ? 1 : BAND / (p + 1) + 1;
    for (Py_ssize_t first = 0; enough && first < p; first += band)
        for (Py_ssize_t i = 0; i < X->rows; i++) {
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
static inline int lowest(uint64_t word)
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

/* List the entries of some rows: where those of each end, their columns and values. Returns how many
   there are, or -1 where they, and one more, find no room. */
VECTORISED static Py_ssize_t list(void **at, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t room)
{
    const double *x = at[0];
    int32_t *end = at[1], *column = at[2];
    double *value = at[3];
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < rows; i++, x += columns) {
        for (Py_ssize_t first = 0; first < columns; first += 64) {
            const Py_ssize_t some = columns - first < 64 ? columns - first : 64;
            uint64_t left = 0; /* a bit for each of them */
#pragma omp simd reduction(| : left)
            for (Py_ssize_t j = 0; j < some; j++)
                left |= (uint64_t)(x[first + j] != 0) << j;
            for (; left != 0; left &= left - 1, n++) {
                if (n + 1 >= room)
                    return -1;
                column[n] = (int32_t)first + lowest(left);
                value[n] = x[column[n]];
            }
        }
        end[i] = (int32_t)n;
    }
    return n;
}

/* Arrays of Python ---------------------------------------------------------------------------- */

KERNEL(csr_entries)
{
    Py_ssize_t rows, columns, room, found;
    Arrays of;
    if (!get_shape(args, 0, "nnn", &rows, &columns, &room))
        return NULL;
    if (rows < 0 || columns < 1 || room < 1 || room > INT32_MAX || columns > INT32_MAX)
        return refuse_sizes();
    const Py_ssize_t sizes[] = {rows * columns, rows, room, room};
    if (!get_arrays(args, 1, "diid", sizes, 1, &of))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    found = list(of.at, rows, columns, room);
    Py_END_ALLOW_THREADS
    return finish(&of, DONE, "n", found);
}

/* A product with c columns of numbers, to as many. */
static PyObject *multiply(PyObject *args, int transposed)
{
    Py_ssize_t rows, entries, columns, c;
    Arrays of;
    int sound;
    if (!get_shape(args, 0, "nnnn", &rows, &entries, &columns, &c))
        return NULL;
    if (rows < 0 || entries < 0 || columns < 0 || c < 0)
        return refuse_sizes();
    const Py_ssize_t sizes[] = {rows + 1, entries, entries, c * (transposed ? rows : columns),
                                c * (transposed ? columns : rows)};
    if (!get_arrays(args, 1, "iiddd", sizes, 4, &of))
        return NULL;
    const Entries X = {rows, columns, of.at[START], of.at[COLUMN], of.at[VALUE]};
    Py_BEGIN_ALLOW_THREADS
    sound = is_sound(&X, entries);
    if (sound)
        (transposed ? correlate_by_entries : predict_by_entries)(&X, c, of.at[3], of.at[4]);
    Py_END_ALLOW_THREADS
    return finish(&of, sound ? DONE : UNSOUND, "");
}

KERNEL(csr_predict) { return multiply(args, 0); }
KERNEL(csr_correlate) { return multiply(args, 1); }

KERNEL(csr_gram)
{
    Py_ssize_t rows, entries, columns, p;
    Arrays of;
    int done;
    if (!get_shape(args, 0, "nnnn", &rows, &entries, &columns, &p))
        return NULL;
    if (rows < 0 || entries < 0 || columns < 0 || p < 0)
        return refuse_sizes();
    const Py_ssize_t sizes[] = {rows + 1, entries, entries, rows, columns, p * p, p};
    if (!get_arrays(args, 1, "iiddidd", sizes, Q, &of))
        return NULL;
    const Entries X = {rows, columns, of.at[START], of.at[COLUMN], of.at[VALUE]};
    const int32_t *place = of.at[PLACE];
    Py_BEGIN_ALLOW_THREADS
    int sound = is_sound(&X, entries);
    for (Py_ssize_t j = 0; j < columns; j++)
        sound &= place[j] < p;
    done = sound ? add(&X, of.at, p) : UNSOUND;
    Py_END_ALLOW_THREADS
    return finish(&of, done, "");
}
