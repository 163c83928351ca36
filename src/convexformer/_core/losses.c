/* Losses with exponentials, and their intercepts: a logistic loss (c = 1), or a softmax.

   Samples' numbers are (c, N). problem/losses.py and problem/ say the same in NumPy. */

#include "common.h"
#include "intercepts.h"
#include "losses.h"
#include <stdlib.h>

#define ROUNDING 1e-14
#define BALANCED 1e-9 /* part of a slope's terms that counts as none: the loss is off by its square */
#define TINY 0x1p-1022 /* the smallest normal number: what log is taken of instead of zero */

/* Entropy of q = y v and 1 - q, from the smaller of them. */
VECTORISED static void dual_logistic(Py_ssize_t size, const double *V, const double *Y,
                                     double *value)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < size; i++) {
        const double q = Y[i] * V[i], s = q < 0.5 ? q : 1 - q;
        value[i] = -s * log_of(s > TINY ? s : TINY) - (1 - s) * log1p_near(-s);
    }
}

/* Entropy of q = y - v over classes; near 1 from 1 - q, which is v. */
VECTORISED static void dual_softmax(Py_ssize_t rows, Py_ssize_t c, const double *V, const double *Y,
                                    double *value)
{
    for (Py_ssize_t i = 0; i < rows; i++)
        value[i] = 0;
    for (Py_ssize_t l = 0; l < c; l++) {
        const double *v = V + l * rows, *y = Y + l * rows;
#pragma omp simd
        for (Py_ssize_t i = 0; i < rows; i++) {
            const double q = y[i] - v[i] < 0 ? 0 : y[i] - v[i];
            const int near = y[i] == 1 && v[i] < 0.5;
            const double away = near ? v[i] : 0;
            value[i] -= q * (near ? log1p_near(-away) : log_of(q > TINY ? q : TINY));
        }
    }
}

/* Intercepts ------------------------------------------------------------------------------------ */

typedef struct {
    Py_ssize_t N, c;
    const double *Y, *weight;
    double *F, *value, *V, *P; /* (c, N), but value (N,) */
    double *bend;              /* (c, c) */
} Expansion;

typedef struct {
    double loss, *slope, *size; /* weighted sums: minus the slope, and the size of its terms */
} Sums;

/* The loss at scores S + b, and sums over samples. */
VECTORISED static void expand(const Expansion *at, const double *S, const double *b, Sums *sums)
{
    const Py_ssize_t N = at->N;
    const double *a = at->weight, *value = at->value;
    double loss = 0;
    for (Py_ssize_t l = 0; l < at->c; l++) {
        const double *s = S + l * N, by = b[l];
        double *f = at->F + l * N;
#pragma omp simd
        for (Py_ssize_t i = 0; i < N; i++)
            f[i] = s[i] + by;
    }
    if (at->c == 1)
        expand_logistic(N, at->F, at->Y, at->value, at->V, at->P);
    else
        expand_all_softmax(N, at->c, at->F, at->Y, at->value, at->V, at->P);
#pragma omp simd reduction(+ : loss)
    for (Py_ssize_t i = 0; i < N; i++)
        loss += a[i] > 0 ? a[i] * value[i] : 0;
    sums->loss = loss;
    for (Py_ssize_t l = 0; l < at->c; l++) {
        const double *v = at->V + l * N;
        double slope = 0, size = 0;
#pragma omp simd reduction(+ : slope, size)
        for (Py_ssize_t i = 0; i < N; i++) {
            slope += a[i] * v[i];
            size += a[i] * fabs(v[i]);
        }
        sums->slope[l] = slope, sums->size[l] = size;
    }
}

VECTORISED static double dot(Py_ssize_t size, const double *x, const double *y)
{
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (Py_ssize_t i = 0; i < size; i++)
        total += x[i] * y[i];
    return total;
}

/* sum_i a_i p_i q_i */
VECTORISED static double product(Py_ssize_t N, const double *a, const double *p, const double *q)
{
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (Py_ssize_t i = 0; i < N; i++)
        total += a[i] * p[i] * q[i];
    return total;
}

/* The factor of intercepts' curvature; 0 where there is none. */
static int bend(const Expansion *at)
{
    const Py_ssize_t N = at->N, c = at->c;
    memset(at->bend, 0, c * c * sizeof *at->bend);
    if (c == 1)
        at->bend[0] = dot(N, at->weight, at->P);
    for (Py_ssize_t l = 0; l < c; l++)
        for (Py_ssize_t m = 0; m < l; m++) {
            const double both = product(N, at->weight, at->P + l * N, at->P + m * N);
            at->bend[l * c + l] += both;
            at->bend[m * c + m] += both;
            at->bend[l * c + m] = -both;
        }
    return factorise(c, at->bend);
}

/* The step that takes slopes to zero, to first order: it has no common part. */
static void newton(const Expansion *at, const double *slope, double *step)
{
    double mean = 0;
    memcpy(step, slope, at->c * sizeof *step);
    solve(at->c, at->bend, step, 1);
    solve_back(at->c, at->bend, step);
    for (Py_ssize_t l = 0; l < at->c && at->c > 1; l++)
        mean += step[l] / at->c;
    for (Py_ssize_t l = 0; l < at->c; l++)
        step[l] -= mean;
}

static int is_balanced(Py_ssize_t c, const Sums *at)
{
    int balanced = 1;
    for (Py_ssize_t l = 0; l < c; l++)
        balanced &= fabs(at->slope[l]) <= BALANCED * at->size[l];
    return balanced;
}

/* V of the expansion weighted, and made to sum to zero by steps of intercepts along its curvature,
   that add up in `step`; 0 where there is none. A second round removes the rounding of the first.
   `room` is for 2 c numbers. */
VECTORISED static int balance(const Expansion *at, int rounds, double *out, double *step,
                              double *room)
{
    const Py_ssize_t N = at->N, c = at->c;
    const double *a = at->weight;
    double *slope = room, *more = room + c;
    if (rounds > 0 && !bend(at))
        return 0;
    for (Py_ssize_t l = 0; l < c; l++)
        for (Py_ssize_t i = 0; i < N; i++)
            out[l * N + i] = a[i] * at->V[l * N + i];
    for (int round = 0; round < rounds; round++) {
        for (Py_ssize_t l = 0; l < c; l++)
            slope[l] = sum(N, out + l * N);
        newton(at, slope, more);
        memset(at->value, 0, N * sizeof *at->value); /* what outputs move on average */
        for (Py_ssize_t l = 0; l < c && c > 1; l++)
            for (Py_ssize_t i = 0; i < N; i++)
                at->value[i] += at->P[l * N + i] * more[l];
        for (Py_ssize_t l = 0; l < c; l++) {
            const double *p = at->P + l * N, by = more[l];
            double *v = out + l * N;
            for (Py_ssize_t i = 0; i < N; i++)
                v[i] -= a[i] * p[i] * (by - at->value[i]);
            step[l] += by;
        }
    }
    return 1;
}

/* V (c, N) to the domain of the conjugate; 0 where it was beyond by more than rounding. */
VECTORISED static int confine(const Expansion *at, double *V)
{
    const Py_ssize_t N = at->N, c = at->c;
    const int joint = c > 1;
    double far = 0;
    for (Py_ssize_t l = 0; l < c; l++) {
        const double *y = at->Y + l * N, *a = at->weight;
        double *v = V + l * N;
#pragma omp simd reduction(+ : far)
        for (Py_ssize_t i = 0; i < N; i++) {
            const double above = joint ? y[i] : y[i] > 0 ? 1 : 0, low = a[i] * (above - 1);
            const double top = a[i] * above, lift = v[i] < low ? low : v[i];
            const double inside = lift > top ? top : lift;
            far += fabs(inside - v[i]) <= ROUNDING * a[i] ? 0 : 1;
            v[i] = inside;
        }
    }
    for (Py_ssize_t i = 0; i < N && c > 1; i++) { /* as is assumed of their correlations */
        double others = 0;
        for (Py_ssize_t l = 0; l < c - 1; l++)
            others += V[l * N + i];
        V[(c - 1) * N + i] = -others;
    }
    return far == 0;
}

/* Arrays of Python ----------------------------------------------------------------------------- */

enum { EXPAND_LOGISTIC, DUAL_LOGISTIC, EXPAND_SOFTMAX, DUAL_SOFTMAX };

/* Two arrays that are read, then a value for every entry, or row, and two more where there are. */
static PyObject *call(PyObject *args, int what)
{
    const int joint = what >= EXPAND_SOFTMAX;
    Py_ssize_t rows, c;
    Arrays of;
    void **at = of.at;
    if (!get_shape(args, 0, "nn", &rows, &c))
        return NULL;
    if (rows < 0 || c < 1)
        return refuse_sizes();
    const Py_ssize_t all = rows * c, sizes[] = {all, all, joint ? rows : all, all, all};
    if (!get_arrays(args, 1, what % 2 ? "ddd" : "ddddd", sizes, 2, &of))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (what == EXPAND_LOGISTIC)
        expand_logistic(all, at[0], at[1], at[2], at[3], at[4]);
    else if (what == DUAL_LOGISTIC)
        dual_logistic(all, at[0], at[1], at[2]);
    else if (what == EXPAND_SOFTMAX)
        expand_all_softmax(rows, c, at[0], at[1], at[2], at[3], at[4]);
    else
        dual_softmax(rows, c, at[0], at[1], at[2]);
    Py_END_ALLOW_THREADS
    return finish(&of, DONE, "");
}

KERNEL(logistic_expansion) { return call(args, EXPAND_LOGISTIC); }
KERNEL(logistic_dual) { return call(args, DUAL_LOGISTIC); }
KERNEL(softmax_expansion) { return call(args, EXPAND_SOFTMAX); }
KERNEL(softmax_dual) { return call(args, DUAL_SOFTMAX); }

/* Memory of an expansion but for scores; returns what is more, (5 c,) from zero, or NULL. */
static double *reserve(Expansion *at)
{
    const Py_ssize_t N = at->N, c = at->c;
    at->value = malloc(((2 * c + 1) * N + c * c + 5 * c) * sizeof *at->value);
    at->V = at->value + N, at->P = at->V + c * N, at->bend = at->P + c * N;
    return at->value == NULL ? NULL : memset(at->bend + c * c, 0, 5 * c * sizeof *at->bend);
}

/* All that is to be known at scores F = S + b. */
KERNEL(loss_point)
{
    const int rounds = get_int(args, 1);
    Expansion at;
    Arrays of;
    int found = 0, settled = 0;
    if (!get_shape(args, 0, "nn", &at.N, &at.c))
        return NULL;
    if (at.N < 1 || at.c < 1)
        return refuse_sizes();
    const Py_ssize_t all = at.N * at.c, sizes[] = {all, all, at.N, at.c, all, all};
    if (!get_arrays(args, 2, "dddddd", sizes, 4, &of))
        return NULL;
    at.Y = of.at[1], at.weight = of.at[2], at.F = of.at[4];
    double *room = reserve(&at), *V = of.at[5];
    Sums sums = {0, room, room + at.c};
    Py_BEGIN_ALLOW_THREADS
    if (room != NULL) {
        expand(&at, of.at[0], of.at[3], &sums);
        settled = rounds == 0 || is_balanced(at.c, &sums);
        found = balance(&at, rounds, V, room + 2 * at.c, room + 3 * at.c) && confine(&at, V);
    }
    Py_END_ALLOW_THREADS
    free(at.value);
    return finish(&of, room != NULL ? DONE : NO_MEMORY, "idi", found, sums.loss, settled);
}

KERNEL(balance)
{
    const int rounds = get_int(args, 1);
    Expansion at;
    Arrays of;
    int found = 0;
    if (!get_shape(args, 0, "nn", &at.N, &at.c))
        return NULL;
    if (at.N < 1 || at.c < 1)
        return refuse_sizes();
    const Py_ssize_t all = at.N * at.c, sizes[] = {all, all, at.N, all, at.c};
    if (!get_arrays(args, 2, "ddddd", sizes, 3, &of))
        return NULL;
    double *room = reserve(&at);
    at.V = of.at[0], at.P = of.at[1], at.weight = of.at[2];
    Py_BEGIN_ALLOW_THREADS
    if (room != NULL)
        found = balance(&at, rounds, of.at[3], of.at[4], room);
    Py_END_ALLOW_THREADS
    free(at.value);
    return finish(&of, room != NULL ? DONE : NO_MEMORY, "i", found);
}
