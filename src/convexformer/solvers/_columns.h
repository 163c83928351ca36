/* Columns of some tokens, dense or by their entries, and products with them. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8 /* columns that are summed side by side */
#define TILE 4  /* rows of sums */
#define ROWS 64 /* samples that are multiplied at a time, and stay in cache */

typedef struct {
    Py_ssize_t N, n, d, p;  /* p = n d columns */
    Py_ssize_t width;       /* of a row: p and perhaps some zeros */
    double *A;              /* (N, width), or NULL, then entries: */
    int32_t *start;         /* (N + 1,) */
    int32_t *column;
    double *value;
} Columns;

/* Whole lanes; an odd number of them where rows are long, whose starts then spread over the cache. */
static Py_ssize_t row_width(Py_ssize_t p)
{
    const Py_ssize_t lanes = (p + LANES - 1) / LANES;
    return (lanes > 8 ? lanes | 1 : lanes) * LANES;
}

/* f = X z; z has a whole width */
VECTORISED static void predict(const Columns *X, const double *z, double *f)
{
    const Py_ssize_t width = X->width;
    for (Py_ssize_t i = 0; i < X->N && X->A == NULL; i++) {
        double total = 0;
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++)
            total += X->value[l] * z[X->column[l]];
        f[i] = total;
    }
    for (Py_ssize_t i = 0; i < X->N && X->A != NULL; i += TILE) {
        const double *x[TILE];
        double sums[TILE][LANES] = {{0}};
        for (int r = 0; r < TILE; r++) /* the last one again, where there are no more */
            x[r] = X->A + (i + r < X->N ? i + r : X->N - 1) * width;
        for (Py_ssize_t j = 0; j < width; j += LANES)
            for (int r = 0; r < TILE; r++)
#pragma omp simd
                for (int k = 0; k < LANES; k++)
                    sums[r][k] += x[r][j + k] * z[j + k];
        for (int r = 0; r < TILE && i + r < X->N; r++) {
            double total = 0;
            for (int k = 0; k < LANES; k++)
                total += sums[r][k];
            f[i + r] = total;
        }
    }
}

/* out[j, k] += sum_i a[j][i step] x[i, k] over some rows of x, for all j and k of a tile. */
VECTORISED static void add_tile(Py_ssize_t rows, const double *const *a, Py_ssize_t step,
                                const double *x, Py_ssize_t width, double *out)
{
    const double *a0 = a[0], *a1 = a[1], *a2 = a[2], *a3 = a[3];
    double sums[TILE][LANES] = {{0}};
    for (Py_ssize_t i = 0; i < rows; i++, x += width)
#pragma omp simd
        for (int k = 0; k < LANES; k++) {
            sums[0][k] += a0[i * step] * x[k];
            sums[1][k] += a1[i * step] * x[k];
            sums[2][k] += a2[i * step] * x[k];
            sums[3][k] += a3[i * step] * x[k];
        }
    for (int j = 0; j < TILE; j++)
        for (int k = 0; k < LANES; k++)
            out[j * width + k] += sums[j][k];
}

/* The same of a tile twice as tall and as wide, so that sums do not wait for each other. */
WIDE static void add_wide_tile(Py_ssize_t rows, const double *const *a, Py_ssize_t step,
                               const double *x, Py_ssize_t width, double *out)
{
    double sums[2 * TILE][LANES], others[2 * TILE][LANES];
    for (int j = 0; j < 2 * TILE; j++)
        for (int k = 0; k < LANES; k++)
            sums[j][k] = others[j][k] = 0;
    for (Py_ssize_t i = 0; i < rows; i++, x += width)
        for (int j = 0; j < 2 * TILE; j++) {
            const double by = a[j][i * step];
#pragma omp simd
            for (int k = 0; k < LANES; k++)
                sums[j][k] += by * x[k];
#pragma omp simd
            for (int k = 0; k < LANES; k++)
                others[j][k] += by * x[LANES + k];
        }
    for (int j = 0; j < 2 * TILE; j++)
        for (int k = 0; k < LANES; k++) {
            out[j * width + k] += sums[j][k];
            out[j * width + LANES + k] += others[j][k];
        }
}

/* The same of `count` rows of sums, of two tiles at most, and all columns up to an `end`. */
static void add(Py_ssize_t rows, const double *const *a, Py_ssize_t count, Py_ssize_t step,
                const double *x, Py_ssize_t width, Py_ssize_t end, double *out)
{
    Py_ssize_t k = 0;
    for (; HAS_WIDE && count > TILE && k + LANES < end; k += 2 * LANES)
        add_wide_tile(rows, a, step, x + k, width, out + k);
    for (; k < end; k += LANES)
        for (int j = 0; j < count && j < 2 * TILE; j += TILE)
            add_tile(rows, a + j, step, x + k, width, out + j * width + k);
}

/* M += X'V by entries, for `count` rows of V: as a rule they are two. */
static inline void scatter(const Columns *X, Py_ssize_t count, const double *V, double *M)
{
    for (Py_ssize_t i = 0; i < X->N; i++)
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++)
            for (Py_ssize_t r = 0; r < count; r++)
                M[r * X->width + X->column[l]] += V[r * X->N + i] * X->value[l];
}

/* M = X'V for some rows of V (count, N); M has room for whole tiles. */
static void correlate(const Columns *X, Py_ssize_t count, const double *V, double *M)
{
    memset(M, 0, (count + 2 * TILE) * X->width * sizeof *M);
    if (X->A == NULL) {
        Py_ssize_t r = 0;
        for (; r + 2 <= count; r += 2)
            scatter(X, 2, V + r * X->N, M + r * X->width);
        if (r < count)
            scatter(X, 1, V + r * X->N, M + r * X->width);
        return;
    }
    for (Py_ssize_t first = 0; first < X->N; first += ROWS) {
        const Py_ssize_t rows = X->N - first < ROWS ? X->N - first : ROWS;
        for (Py_ssize_t r = 0; r < count; r += 2 * TILE) {
            const double *a[2 * TILE];
            for (int j = 0; j < 2 * TILE; j++) /* the last one again, where there are no more */
                a[j] = V + (r + j < count ? r + j : count - 1) * X->N + first;
            add(rows, a, count - r, 1, X->A + first * X->width, X->width, X->p, M + r * X->width);
        }
    }
}

/* The lower half of X' diag(w) X in G (width, width); `scaled` has room for ROWS of a width. */
VECTORISED static void weighted_gram(const Columns *X, const double *w, double *scaled, double *G)
{
    const Py_ssize_t width = X->width;
    memset(G, 0, width * width * sizeof *G);
    for (Py_ssize_t i = 0; i < X->N && X->A == NULL; i++)
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++) {
            const double by = w[i] * X->value[l];
            double *row = G + X->column[l] * width;
            for (int32_t m = X->start[i]; m <= l; m++)
                row[X->column[m]] += by * X->value[m];
        }
    for (Py_ssize_t first = 0; first < X->N && X->A != NULL; first += ROWS) {
        const Py_ssize_t rows = X->N - first < ROWS ? X->N - first : ROWS;
        const double *x = X->A + first * width;
        for (Py_ssize_t i = 0; i < rows; i++)
#pragma omp simd
            for (Py_ssize_t j = 0; j < width; j++)
                scaled[i * width + j] = w[first + i] * x[i * width + j];
        for (Py_ssize_t j = 0; j < X->p; j += 2 * TILE) {
            const double *a[2 * TILE];
            for (int r = 0; r < 2 * TILE; r++)
                a[r] = scaled + j + r;
            add(rows, a, X->p - j, width, x, width, j + 1, G + j * width);
        }
    }
}

/* Which columns are taken ---------------------------------------------------------------------- */

/* out[i] = columns of x[i] that have a place, less their means; `from` says where these are. */
VECTORISED static void gather(Py_ssize_t rows, Py_ssize_t width, const double *x, Py_ssize_t p,
                              const Py_ssize_t *from, const double *center, Py_ssize_t by,
                              double *out)
{
    for (Py_ssize_t j = 0, end; j < p; j = end) {
        for (end = j + 1; end < p && from[end] == from[end - 1] + 1;)
            end++;
        for (Py_ssize_t i = 0; i < rows; i++)
            for (Py_ssize_t k = j; k < end; k++)
                out[i * by + k] = x[i * width + from[j] + k - j] - center[k];
    }
}

/* Columns of X (N, width) that have a place, less their means: 0 where memory is short, -1 where a
   place is taken twice, or not at all. */
static int take(Py_ssize_t width, const double *X, const int32_t *place, const double *center,
                Columns *to)
{
    Py_ssize_t *from = malloc(to->p * sizeof *from), taken = 0;
    int sound = 1;
    to->A = calloc(to->N * to->width, sizeof *to->A);
    if (to->A == NULL || from == NULL) {
        free(from);
        return 0;
    }
    for (Py_ssize_t j = 0; j < to->p; j++)
        from[j] = -1;
    for (Py_ssize_t j = 0; j < width && sound; j++)
        if (place[j] >= 0) {
            sound = place[j] < to->p && from[place[j]] < 0;
            if (sound)
                from[place[j]] = j, taken++;
        }
    sound &= taken == to->p;
    for (Py_ssize_t first = 0; first < to->N && sound; first += ROWS)
        gather(to->N - first < ROWS ? to->N - first : ROWS, width, X + first * width, to->p, from,
               center, to->width, to->A + first * to->width);
    free(from);
    return sound ? 1 : -1;
}

/* Entries of X whose columns have a place among those of `to`: 0 where memory is short, -1 where
   entries are not within their rows, or columns. */
VECTORISED static int choose(Py_ssize_t entries, Py_ssize_t width, const int32_t *start,
                             const int32_t *column, const double *value, const int32_t *place,
                             Columns *to)
{
    int32_t n = 0, sound = start[0] == 0 && start[to->N] == entries;
    to->start = malloc((to->N + 1) * sizeof *to->start);
    to->column = malloc((entries + 1) * sizeof *to->column);
    to->value = malloc((entries + 1) * sizeof *to->value);
    if (to->start == NULL || to->column == NULL || to->value == NULL)
        return 0;
    const int32_t end = (int32_t)width;
    for (Py_ssize_t i = 0; i < to->N; i++)
        sound &= start[i] <= start[i + 1];
    for (Py_ssize_t j = 0; j < width; j++)
        sound &= place[j] < to->p;
    for (Py_ssize_t l = 0; l < entries; l++)
        sound &= (column[l] >= 0) & (column[l] < end);
    for (Py_ssize_t i = 0; i < to->N && sound; i++) {
        to->start[i] = n;
        for (int32_t l = start[i]; l < start[i + 1]; l++) {
            const int32_t here = place[column[l]];
            to->column[n] = here, to->value[n] = value[l];
            n += here >= 0;
        }
    }
    to->start[to->N] = n;
    return sound ? 1 : -1;
}

/* Samples that read the same ------------------------------------------------------------------- */

#define FEW_KINDS 4 /* samples of a kind, on average, from which it is worth telling kinds */

static uint64_t mixed(uint64_t key, double number, int32_t column)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    key = (key ^ bits ^ (uint64_t)(uint32_t)column) * UINT64_C(0x9e3779b97f4a7c15);
    return key ^ key >> 32;
}

/* Whether samples i and j have the same entries, and targets Y (c, N). */
static int are_same(const Columns *X, Py_ssize_t c, const double *Y, Py_ssize_t i, Py_ssize_t j)
{
    const int32_t size = X->start[i + 1] - X->start[i];
    if (size != X->start[j + 1] - X->start[j])
        return 0;
    for (int32_t l = X->start[i], m = X->start[j]; l < X->start[i + 1]; l++, m++)
        if (X->column[l] != X->column[m] || X->value[l] != X->value[m])
            return 0;
    for (Py_ssize_t l = 0; l < c; l++)
        if (Y[l * X->N + i] != Y[l * X->N + j])
            return 0;
    return 1;
}

/* Of samples with the same entries and targets let the first stay for all, with what they weigh:
   letters of a few tokens are of few kinds. `first` (N,) are those that stay. Returns how many; all
   where these are too many to gain, or memory is short. */
static Py_ssize_t merge(Columns *X, Py_ssize_t c, const double *Y, double *weight, int32_t *first)
{
    const Py_ssize_t N = X->N, most = N / FEW_KINDS;
    int shift = 62;
    while (shift > 32 && (INT64_C(1) << (64 - shift)) < 2 * most)
        shift--;
    Py_ssize_t kinds = 0, i = 0;
    int32_t *table = calloc((size_t)1 << (64 - shift), sizeof *table), n = 0;
    double *total = malloc((most + 1) * sizeof *total);
    for (; table != NULL && total != NULL && i < N && kinds < most; i++) {
        uint64_t key = 0;
        for (int32_t l = X->start[i]; l < X->start[i + 1]; l++)
            key = mixed(key, X->value[l], X->column[l]);
        for (Py_ssize_t l = 0; l < c; l++)
            key = mixed(key, Y[l * N + i], 0);
        uint64_t at = key >> shift;
        while (table[at] && !are_same(X, c, Y, first[table[at] - 1], i))
            at = (at + 1) & ((UINT64_C(1) << (64 - shift)) - 1);
        if (!table[at])
            table[at] = (int32_t)(kinds + 1), first[kinds] = (int32_t)i, total[kinds++] = 0;
        total[table[at] - 1] += weight[i];
    }
    const int done = i == N && table != NULL && total != NULL;
    for (Py_ssize_t k = 0; k < kinds && done; k++) { /* rows move to the front */
        const int32_t from = X->start[first[k]], end = X->start[first[k] + 1];
        weight[k] = total[k], X->start[k] = n;
        for (int32_t l = from; l < end; l++, n++)
            X->column[n] = X->column[l], X->value[n] = X->value[l];
    }
    free(table);
    free(total);
    if (!done)
        return N;
    X->start[kinds] = n, X->N = kinds;
    return kinds;
}
