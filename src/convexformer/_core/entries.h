/* X that is mostly zero, by the entries of its rows that are not, and products with it. */

#include <stdint.h>

typedef struct {
    Py_ssize_t rows, columns;
    int32_t *start, *column; /* (rows + 1,): where entries of rows start; their columns */
    double *value;
} Entries;

/* Whether rows begin where others end, and columns are there. */
VECTORISED static int is_sound(const Entries *X, Py_ssize_t count)
{
    const int32_t width = X->columns < INT32_MAX ? (int32_t)X->columns : INT32_MAX;
    int sound = X->start[0] == 0 && X->start[X->rows] == count;
    for (Py_ssize_t i = 0; i < X->rows; i++)
        sound &= (X->start[i] <= X->start[i + 1]) & (X->start[i + 1] - X->start[i] <= width);
    for (Py_ssize_t l = 0; l < count; l++)
        sound &= (X->column[l] >= 0) & (X->column[l] < width);
    return sound;
}

/* F (c, rows) = X Z of Z (c, columns) */
VECTORISED static void predict_by_entries(const Entries *X, Py_ssize_t c, const double *Z, double *F)
{
    const int32_t *start = X->start, *column = X->column;
    const double *value = X->value;
    for (; c > 0; c--, Z += X->columns, F += X->rows)
        for (Py_ssize_t i = 0; i < X->rows; i++) {
            double sum = 0, other = 0; /* that do not wait for each other */
            int32_t l = start[i];
            for (; l + 1 < start[i + 1]; l += 2) {
                sum += value[l] * Z[column[l]];
                other += value[l + 1] * Z[column[l + 1]];
            }
            if (l < start[i + 1])
                sum += value[l] * Z[column[l]];
            F[i] = sum + other;
        }
}

/* M (c, columns) += V X of V (c, rows), two of these at a time. */
VECTORISED static void correlate_by_entries(const Entries *X, Py_ssize_t c, const double *V, double *M)
{
    const Py_ssize_t rows = X->rows, columns = X->columns;
    const int32_t *start = X->start, *column = X->column;
    const double *value = X->value;
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
