/* The best point of a plane: along what a sweep has moved and the last move before it. */

#define PRODUCTS 6   /* of a token's coefficients, its move u and its last move w: zz, zu, zw, uu, uw, ww */
#define NEWTON 8     /* steps to the best point, at most */
#define SINGULAR 1e-9 /* of a Hessian: then both moves are one */
#define FARTHEST 10  /* times a move: beyond, what a move has of rounding would count */

/* The objective at z + a u + b w, less that at z, for products q of tokens and those of v in `bulk`
   (slopes of u and w, and uu, uw, ww); its slopes and Hessian in g. */
static double on_plane(const Round *at, double (*q)[PRODUCTS], const double *bulk, const double *to,
                       double *g)
{
    const double a = to[0], b = to[1];
    double value = a * bulk[0] + b * bulk[1];
    value += 0.5 * (a * a * bulk[2] + 2 * a * b * bulk[3] + b * b * bulk[4]);
    g[0] = bulk[0] + a * bulk[2] + b * bulk[3], g[1] = bulk[1] + a * bulk[3] + b * bulk[4];
    g[2] = bulk[2], g[3] = bulk[3], g[4] = bulk[4];
    for (Py_ssize_t k = 0; k < at->n; k++) {
        if (q[k][0] == 0)
            continue;
        const double u = q[k][1] + a * q[k][3] + b * q[k][4];
        const double w = q[k][2] + a * q[k][4] + b * q[k][5];
        const double more = a * (q[k][1] + u) + b * (q[k][2] + w), start = sqrt(q[k][0]);
        const double norm = sqrt(fmax(q[k][0] + more, 1e-30 * q[k][0]));
        const double by = at->limit[k] / norm, cube = by / (norm * norm);
        value += at->limit[k] * more / (start + norm);
        g[0] += by * u, g[1] += by * w;
        g[2] += by * q[k][3] - cube * u * u;
        g[3] += by * q[k][4] - cube * u * w;
        g[4] += by * q[k][5] - cube * w * w;
    }
    return value;
}

/* The best a and b, from (1, 0) on: Newton's method, halfway back where it goes too far. */
static void find_best(const Round *at, double (*q)[PRODUCTS], const double *bulk, double *best)
{
    double to[2] = {1, 0}, g[5], least = INFINITY;
    for (int steps = 0; steps < NEWTON; steps++) {
        const double value = on_plane(at, q, bulk, to, g);
        if (!(value < least)) {
            to[0] = 0.5 * (to[0] + best[0]), to[1] = 0.5 * (to[1] + best[1]);
            continue;
        }
        least = value, best[0] = to[0], best[1] = to[1];
        const double det = g[2] * g[4] - g[3] * g[3];
        if (!(det > SINGULAR * g[2] * g[4]))
            return;
        to[0] -= (g[0] * g[4] - g[1] * g[3]) / det;
        to[1] -= (g[1] * g[2] - g[0] * g[3]) / det;
        if (!(fabs(to[0]) < FARTHEST && fabs(to[1]) < FARTHEST))
            return;
    }
}

/* Products of a part's moves, token by token and of v; 0 where a token began or ceased to be used. */
VECTORISED static int multiply_moves(const Round *at, Py_ssize_t first, const double *Z0,
                                     const double *e0, const double *e, double (*q)[PRODUCTS],
                                     double *bulk)
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part, start = first * at->N;
    const double *last_e = at->last + at->n * one;
    memset(bulk, 0, 5 * sizeof *bulk);
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = k * one + first * at->d;
        const double *z = Z0 + here, *to = at->Z + here, *w = at->last + here, *M = at->M + here;
        double *p = q[k];
        const int used = is_used(size, z);
        if (used != is_used(size, to) || (!used && is_used(size, w)))
            return 0;
        memset(p, 0, PRODUCTS * sizeof *p);
        for (Py_ssize_t j = 0; j < size; j++) {
            const double u = to[j] - z[j];
            p[0] += z[j] * z[j], p[1] += z[j] * u, p[2] += z[j] * w[j];
            p[3] += u * u, p[4] += u * w[j], p[5] += w[j] * w[j];
            bulk[0] -= u * M[j], bulk[1] -= w[j] * M[j];
        }
    }
    double along_u = 0, along_w = 0, uu = 0, uw = 0, ww = 0;
#pragma omp simd reduction(+ : along_u, along_w, uu, uw, ww)
    for (Py_ssize_t i = start; i < start + at->part * at->N; i++) {
        const double u = e[i] - e0[i], w = last_e[i];
        along_u += e0[i] * u, along_w += e0[i] * w;
        uu += u * u, uw += u * w, ww += w * w;
    }
    bulk[0] += along_u, bulk[1] += along_w, bulk[2] = uu, bulk[3] = uw, bulk[4] = ww;
    return 1;
}

/* x = x0 + a (x - x0) + b last, and last = x - x0. */
VECTORISED static void move_along(Py_ssize_t size, const double *by, const double *x0, double *x,
                                  double *last)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < size; i++) {
        last[i] = by[0] * (x[i] - x0[i]) + by[1] * last[i];
        x[i] = x0[i] + last[i];
    }
}

/* A part, which a sweep has moved from Z0 and e0, to the best point of its plane; q is for products
   of tokens. */
static void search_plane(const Round *at, Py_ssize_t first, const double *Z0, const double *e0,
                         double *e, double (*q)[PRODUCTS])
{
    const Py_ssize_t one = at->d * at->c, size = at->d * at->part, start = first * at->N;
    double by[2] = {1, 0}, bulk[5];
    if (multiply_moves(at, first, Z0, e0, e, q, bulk))
        find_best(at, q, bulk, by);
    for (Py_ssize_t k = 0; k < at->n; k++) {
        const Py_ssize_t here = k * one + first * at->d;
        move_along(size, by, Z0 + here, at->Z + here, at->last + here);
    }
    move_along(at->part * at->N, by, e0 + start, e + start, at->last + at->n * one + start);
}
