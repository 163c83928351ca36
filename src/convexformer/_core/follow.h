/* Scores, what they leave, and its correlations, in one pass over rows of X. */

enum { X, Z, TARGET, SAMPLE_WEIGHT, OTHER, S, V, M, FOLLOWED };

#define SOME 256  /* rows whose products are summed before others are: sums of many round */
#define LANES 8   /* sums of which a product is made up, so that none waits for the last */
#define OUTPUTS 4 /* that can be followed together */
#define LEAD 1024 /* numbers, at least, from what is read to what is fetched */

/* sum = x z of four rows, while what comes next is fetched. */
static inline void score(const double *const *x, const double *z, Py_ssize_t p, const double *next,
                         double *sum)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    double sums[4][LANES] = {{0}};
    Py_ssize_t j = 0;
    for (; j + LANES <= p; j += LANES, next += 4 * LANES) {
        for (int r = 0; r < 4; r++)
            FETCH(next + r * LANES);
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            sums[0][l] += x0[j + l] * z[j + l];
            sums[1][l] += x1[j + l] * z[j + l];
            sums[2][l] += x2[j + l] * z[j + l];
            sums[3][l] += x3[j + l] * z[j + l];
        }
    }
    for (int r = 0; r < 4; r++) {
        sum[r] = 0;
        for (Py_ssize_t l = j; l < p; l++)
            sum[r] += x[r][l] * z[l];
        for (int l = 0; l < LANES; l++)
            sum[r] += sums[r][l];
    }
}

/* s = X z, v = weight (target - s) and M += (v, other)' X, if there is an other, for some rows of
   X: these stay in the cache from one product to the next, and the sums, of which `m` has room for
   2 p, are read and written once for four of them. */
VECTORISED static void follow_rows(void **at, Py_ssize_t rows, Py_ssize_t p, int others, double *m)
{
    const double *x = at[X], *z = at[Z], *target = at[TARGET], *weight = at[SAMPLE_WEIGHT];
    const double *other = at[OTHER];
    double *s = at[S], *v = at[V], *total = at[M], *o = m + p;
    const Py_ssize_t ahead = p < LEAD / 4 ? LEAD : 4 * p;
    for (Py_ssize_t i = 0; i < rows; i += 4, x += 4 * p) {
        double sum[4], a[4] = {0}, b[4] = {0};
        const double *each[4] = {x, x, x, x}; /* those beyond the last row count for nothing */
        for (int r = 1; r < 4 && i + r < rows; r++)
            each[r] = x + r * p;
        score(each, z, p, x + ahead, sum);
        for (int r = 0; r < 4 && i + r < rows; r++) {
            s[i + r] = sum[r];
            v[i + r] = a[r] = weight[i + r] * (target[i + r] - sum[r]);
            b[r] = others ? other[i + r] : 0;
        }
        const double a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
        const double b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
        const double *x0 = each[0], *x1 = each[1], *x2 = each[2], *x3 = each[3];
        if (i % SOME == 0)
            memset(m, 0, 2 * p * sizeof *m);
        if (others)
#pragma omp simd
            for (Py_ssize_t j = 0; j < p; j++) {
                m[j] += a0 * x0[j] + a1 * x1[j] + a2 * x2[j] + a3 * x3[j];
                o[j] += b0 * x0[j] + b1 * x1[j] + b2 * x2[j] + b3 * x3[j];
            }
        else
#pragma omp simd
            for (Py_ssize_t j = 0; j < p; j++)
                m[j] += a0 * x0[j] + a1 * x1[j] + a2 * x2[j] + a3 * x3[j];
        if (i % SOME == SOME - 4 || i + 4 >= rows)
            for (Py_ssize_t j = 0; j < (1 + others) * p; j++)
                total[j] += m[j];
    }
}

/* m += v' x and n += w' x of four rows x. */
static inline void add_two(Py_ssize_t p, const double *const *x, const double *v, const double *w,
                           double *m, double *n)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    const double v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
    const double w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
#pragma omp simd
    for (Py_ssize_t j = 0; j < p; j++) {
        m[j] += (v0 * x0[j] + v1 * x1[j]) + (v2 * x2[j] + v3 * x3[j]);
        n[j] += (w0 * x0[j] + w1 * x1[j]) + (w2 * x2[j] + w3 * x3[j]);
    }
}

/* The same for up to OUTPUTS of them, two at a time: S = X Z, V = weight (target - S), M = V' X.
   `room` is for coefficients and sums, as many as outputs can be. */
VECTORISED static void follow_outputs(void **at, Py_ssize_t rows, Py_ssize_t p, Py_ssize_t c,
                                      double *room)
{
    const double *x = at[X], *target = at[TARGET], *weight = at[SAMPLE_WEIGHT];
    double *s = at[S], *v = at[V], *total = at[M], *z = room, *m = z + OUTPUTS * p;
    memset(z, 0, OUTPUTS * p * sizeof *z);
    for (Py_ssize_t j = 0; j < p; j++)
        for (Py_ssize_t l = 0; l < c; l++)
            z[l * p + j] = ((const double *)at[Z])[j * c + l];
    for (Py_ssize_t i = 0; i < rows; i += 4, x += 4 * p) {
        double sum[4][4], left[OUTPUTS][4] = {{0}};
        const double *each[4] = {x, x, x, x}; /* those beyond the last row count for nothing */
        for (int r = 1; r < 4 && i + r < rows; r++)
            each[r] = x + r * p;
        multiply_four_doubles(p, each, z, p, sum);
        for (Py_ssize_t r = 0; r < 4 && i + r < rows; r++)
            for (Py_ssize_t l = 0; l < c; l++) {
                const Py_ssize_t here = (i + r) * c + l;
                s[here] = sum[r][l];
                v[here] = left[l][r] = weight[i + r] * (target[here] - sum[r][l]);
            }
        if (i % SOME == 0)
            memset(m, 0, OUTPUTS * p * sizeof *m);
        for (Py_ssize_t l = 0; l < c; l += 2)
            add_two(p, each, left[l], left[l + 1], m + l * p, m + (l + 1) * p);
        if (i % SOME == SOME - 4 || i + 4 >= rows)
            for (Py_ssize_t j = 0; j < c * p; j++)
                total[j] += m[j];
    }
}
