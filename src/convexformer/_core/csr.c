/* Rows that are mostly zero by their entries, compiled: what problem/tokens.py asks for. */

#include "common.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { START, COLUMN, VALUE, WEIGHT, PLACE, Q, SUM, ARRAYS };

#define FLAGS 4096 /* numbers that are looked at together, if they are more than a row */
#define SPARE 3
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

/* Times eight bytes that are 0 or 1, has a bit of each in the highest byte. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define COLLECT UINT64_C(0x8040201008040201)
#else
#define COLLECT UINT64_C(0x0102040810204080)
#endif

/* A bit for each of 64 flags. */
static inline uint64_t packed(const uint8_t *flags)
{
    uint64_t bits = 0, word;
    for (int j = 0; j < 64; j += 8) {
        memcpy(&word, flags + j, sizeof word);
        bits |= (word * COLLECT >> 56) << j;
    }
    return bits;
}

static inline int number(uint64_t word)
{
#if defined(__GNUC__)
    return __builtin_popcountll(word);
#else
    int bits = 0;
    for (; word != 0; word &= word - 1)
        bits++;
    return bits;
#endif
}

/* Write the places of bits, four at a time so that their number is seldom guessed wrong: up to SPARE
   beyond the last mean nothing. Returns how many there are. */
static inline int write_places(uint64_t left, Py_ssize_t first, int32_t *places)
{
    const int count = number(left);
    for (int l = 0; l < count; l += 1 + SPARE)
        for (int k = 0; k <= SPARE; k++, left &= left - 1)
            places[l + k] = (int32_t)first + lowest(left | UINT64_C(1) << 63);
    return count;
}

/* List the entries of some rows: where those of each end, their columns and values. Returns how many
   there are, or -1 where they, and one more, find no room; after that SPARE more are written to.
   `flags` has room for those of `together` rows, and 64. */
VECTORISED static Py_ssize_t list(void **at, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t room,
                                  Py_ssize_t together, uint8_t *flags)
{
    const double *x = at[0];
    int32_t *end = at[1], *column = at[2];
    double *value = at[3];
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0, next; i < rows; i = next) {
        const uint8_t *mine = flags;
        next = rows - i < together ? rows : i + together;
#pragma omp simd
        for (Py_ssize_t j = 0; j < (next - i) * columns; j++)
            flags[j] = x[j] != 0;
        for (Py_ssize_t r = i; r < next; r++, x += columns, mine += columns) {
            const Py_ssize_t start = n;
            if (n + columns >= room) { /* may be too many: look twice */
                Py_ssize_t more = 0;
                for (Py_ssize_t j = 0; j < columns; j++)
                    more += mine[j];
                if (n + more >= room)
                    return -1;
            }
            for (Py_ssize_t j = 0; j < columns; j += 64) {
                const int beyond = columns - j < 64 ? (int)(64 - columns + j) : 0;
                n += write_places(packed(mine + j) & ~UINT64_C(0) >> beyond, j, column + n);
            }
            for (Py_ssize_t l = start; l < n; l++)
                value[l] = x[column[l]];
            end[r] = (int32_t)n;
        }
    }
    return n;
}

/* Products ------------------------------------------------------------------------------------- */

/* F (c, rows) = X Z of Z (c, columns) */
static void predict(void **at, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t c, const double *Z,
                    double *F)
{
    const int32_t *start = at[START], *column = at[COLUMN];
    const double *value = at[VALUE];
    for (Py_ssize_t r = 0; r < c; r++, Z += columns, F += rows)
        for (Py_ssize_t i = 0; i < rows; i++) {
            double sum = 0;
            for (int32_t l = start[i]; l < start[i + 1]; l++)
                sum += value[l] * Z[column[l]];
            F[i] = sum;
        }
}

/* M (c, columns) += V X of V (c, rows), two of these at a time. */
static void correlate(void **at, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t c, const double *V,
                      double *M)
{
    const int32_t *start = at[START], *column = at[COLUMN];
    const double *value = at[VALUE];
    for (; c > 1; c -= 2, V += 2 * rows, M += 2 * columns)
        for (Py_ssize_t i = 0; i < rows; i++) {
            const double v = V[i], w = V[rows + i];
            for (int32_t l = start[i]; l < start[i + 1]; l++) {
                M[column[l]] += v * value[l];
                M[columns + column[l]] += w * value[l];
            }
        }
    for (Py_ssize_t i = 0; i < rows && c > 0; i++) {
        const double v = V[i];
        for (int32_t l = start[i]; l < start[i + 1]; l++)
            M[column[l]] += v * value[l];
    }
}

/* Arrays of Python ---------------------------------------------------------------------------- */

KERNEL(csr_entries)
{
    PyObject *given[4];
    Py_ssize_t rows, columns, room, found;
    if (!PyArg_ParseTuple(args, "(nnn)OOOO", &rows, &columns, &room, FOUR(given)))
        return NULL;
    if (rows < 0 || columns < 1 || room < 1 || room > INT32_MAX || columns > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[4] = {rows * columns, rows, room + SPARE, room + SPARE};
    Py_buffer views[4];
    void *at[4];
    if (!get_arrays(4, given, views, at, "diid", sizes, 1))
        return NULL;
    const Py_ssize_t together = columns < FLAGS ? FLAGS / columns : 1;
    uint8_t *flags = calloc(together * columns + 64, 1); /* 0 or 1, also where none is set */
    if (flags != NULL) {
        Py_BEGIN_ALLOW_THREADS
        found = list(at, rows, columns, room, together, flags);
        Py_END_ALLOW_THREADS
        free(flags);
    }
    release(4, views);
    return flags == NULL ? PyErr_NoMemory() : PyLong_FromSsize_t(found);
}

/* Whether rows begin where others end, and columns are there. */
VECTORISED static int is_sound(void **at, Py_ssize_t rows, Py_ssize_t entries, Py_ssize_t columns)
{
    const int32_t *start = at[START], *column = at[COLUMN];
    const int32_t width = columns < INT32_MAX ? (int32_t)columns : INT32_MAX;
    int sound = start[0] == 0 && start[rows] == entries;
    for (Py_ssize_t i = 0; i < rows; i++)
        sound &= (start[i] <= start[i + 1]) & (start[i + 1] - start[i] <= width);
    for (Py_ssize_t l = 0; l < entries; l++)
        sound &= (column[l] >= 0) & (column[l] < width);
    return sound;
}

typedef void Product(void **, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double *, double *);

/* A product with c columns of numbers, to as many. */
static PyObject *multiply(PyObject *args, Product *product, int transposed)
{
    PyObject *given[5];
    Py_ssize_t rows, entries, columns, c;
    if (!PyArg_ParseTuple(args, "(nnnn)OOOOO", &rows, &entries, &columns, &c, FOUR(given), given + 4))
        return NULL;
    if (rows < 0 || entries < 0 || columns < 0 || c < 0)
        return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
    const Py_ssize_t sizes[5] = {rows + 1, entries, entries, c * (transposed ? rows : columns),
                                 c * (transposed ? columns : rows)};
    Py_buffer views[5];
    void *at[5];
    if (!get_arrays(5, given, views, at, "iiddd", sizes, 4))
        return NULL;
    const int sound = is_sound(at, rows, entries, columns);
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        product(at, rows, columns, c, at[3], at[4]);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "Rows or columns are out of range.");
    release(5, views);
    if (!sound)
        return NULL;
    Py_RETURN_NONE;
}

KERNEL(csr_predict) { return multiply(args, predict, 0); }
KERNEL(csr_correlate) { return multiply(args, correlate, 1); }

KERNEL(csr_gram)
{
    PyObject *given[ARRAYS];
    Py_ssize_t rows, entries, columns, p;
    if (!PyArg_ParseTuple(args, "(nnnn)OOOOOOO", &rows, &entries, &columns, &p, FOUR(given), given + 4, given + 5, given + 6))
        return NULL;
    const Py_ssize_t sizes[ARRAYS] = {rows + 1, entries, entries, rows, columns, p * p, p};
    Py_buffer views[ARRAYS];
    void *at[ARRAYS];
    int done = 0;
    if (!get_arrays(ARRAYS, given, views, at, "iiddidd", sizes, Q))
        return NULL;
    int sound = is_sound(at, rows, entries, columns);
    const int32_t *place = at[PLACE];
    for (Py_ssize_t j = 0; j < columns; j++)
        sound &= place[j] < p;
    if (!sound)
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
