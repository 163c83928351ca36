/* Gram matrices of some columns of X, in the precision of NUMBER. Included once for each: rows are
   packed a block at a time into panels of PANEL columns, which stay in cache, and these multiplied
   with each other by tiles that stay in registers; what blocks add up to is float64. */

/* q (TILE, PANEL) += a' b, of TILE columns of one panel and all of another. */
VECTORISED static void NAMED(add_tile)(Py_ssize_t rows, const NUMBER *a, const NUMBER *b,
                                       double *q, Py_ssize_t by)
{
    NUMBER sum[TILE][PANEL] = {{0}};
    for (Py_ssize_t i = 0; i < rows; i++, a += PANEL, b += PANEL)
        for (int r = 0; r < TILE; r++)
#pragma omp simd
            for (int l = 0; l < PANEL; l++)
                sum[r][l] += a[r] * b[l];
    for (int r = 0; r < TILE; r++)
        for (int l = 0; l < PANEL; l++)
            q[r * by + l] += sum[r][l];
}

/* q (PANEL,) += beside' b, of one more column and a panel; four rows at a time, whose sums do not
   wait for each other. */
VECTORISED static void NAMED(add_beside)(Py_ssize_t rows, const NUMBER *beside, const NUMBER *b,
                                         double *q)
{
    NUMBER sum[4][PANEL] = {{0}};
    for (Py_ssize_t i = 0; i < rows; i += 4, b += 4 * PANEL)
        for (int r = 0; r < 4; r++)
#pragma omp simd
            for (int l = 0; l < PANEL; l++)
                sum[r][l] += beside[i + r] * b[r * PANEL + l];
    for (int l = 0; l < PANEL; l++)
        q[l] += (sum[0][l] + sum[1][l]) + (sum[2][l] + sum[3][l]);
}

/* Columns of a block of rows from `first` on to panels, piece by piece, each within one panel; and
   the one beside them. */
VECTORISED static void NAMED(pack)(const Columns *of, Py_ssize_t first, Py_ssize_t rows,
                                   NUMBER *beside, NUMBER *panels)
{
    for (Py_ssize_t i = 0; i < rows; i++) {
        const double *x = of->x + (first + i) * of->width, root = of->root[first + i];
        for (const Piece *piece = of->pieces; piece->size; piece++) {
            const double *from = x + piece->from, *center = of->center + piece->at;
            NUMBER *to = panels + piece->to + i * PANEL;
            for (int j = 0; j < PANEL; j += LINE / 8)
                FETCH(from + AHEAD * of->width + j);
            if (piece->size == PANEL)
#pragma omp simd
                for (int j = 0; j < PANEL; j++)
                    to[j] = (NUMBER)(root * (from[j] - center[j]));
            else
#pragma omp simd
                for (Py_ssize_t j = 0; j < piece->size; j++)
                    to[j] = (NUMBER)(root * (from[j] - center[j]));
        }
        beside[i] = (NUMBER)(root * of->beside[first + i]);
    }
    for (Py_ssize_t i = rows; i % 4; i++) /* rows are multiplied by fours */
        beside[i] = 0;
}

/* Products of the first `own` columns with all, to q, and of the one beside with these, to b; both
   have room for whole panels. 0 where memory is short. */
static int NAMED(multiply)(const Columns *of, Py_ssize_t rows, Py_ssize_t own, double *q, double *b)
{
    const Py_ssize_t padded = (of->p + PANEL - 1) / PANEL * PANEL;
    NUMBER *beside = calloc(BLOCK + padded * PITCH, sizeof *beside), *panels = beside + BLOCK;
    if (beside == NULL)
        return 0;
    for (Py_ssize_t first = 0, some; first < rows; first += some) {
        some = rows - first < BLOCK ? rows - first : BLOCK;
        NAMED(pack)(of, first, some, beside, panels);
        for (Py_ssize_t k = 0; k < own; k += PANEL) { /* half of what is symmetric */
            const NUMBER *panel = panels + k * PITCH;
            NAMED(add_beside)(some, beside, panel, b + k);
            for (Py_ssize_t l = 0; l < padded - k; l += PANEL)
                for (int j = 0; j < PANEL; j += TILE)
                    NAMED(add_tile)(some, panel + j, panel + l * PITCH, q + (k + j) * padded + k + l,
                                    padded);
        }
    }
    for (Py_ssize_t j = 0; j < own; j++)
        for (Py_ssize_t l = 0; l < j; l++)
            q[j * padded + l] = q[l * padded + j];
    free(beside);
    return 1;
}

#undef NUMBER
#undef PANEL
#undef NAMED
