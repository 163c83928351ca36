/* Losses with exponentials, in one pass: for compiled modules of problems and of solvers. */

#include "elementary.h"
#include <math.h>

#define SOME 256 /* samples of a softmax at a time */

/* Loss log(1 + exp(-y f)), minus its slope, and its curvature. */
VECTORISED static void expand_logistic(Py_ssize_t size, const double *F, const double *Y,
                                       double *value, double *V, double *H)
{
#pragma omp simd
    for (Py_ssize_t i = 0; i < size; i++) {
        const double margin = Y[i] * F[i], small = exp_below(-fabs(F[i]));
        const double share = 1 / (1 + small);
        value[i] = (margin > 0 ? 0 : -margin) + log1p_near(small); /* NaN stays NaN */
        V[i] = Y[i] * (margin > 0 ? small : 1) * share;
        H[i] = small * share * share;
    }
}

/* Cross-entropy of some samples, minus its slopes, and probabilities; arrays are (c, rows). */
VECTORISED static void expand_softmax(Py_ssize_t some, Py_ssize_t rows, Py_ssize_t c,
                                      const double *F, const double *Y, double *value, double *V,
                                      double *P)
{
    double top[SOME], others[SOME], lead[SOME];
    for (Py_ssize_t i = 0; i < some; i++)
        top[i] = F[i], lead[i] = others[i] = value[i] = 0;
    for (Py_ssize_t l = 0; l < c; l++) {
        const double *f = F + l * rows, *y = Y + l * rows;
#pragma omp simd
        for (Py_ssize_t i = 0; i < some; i++) {
            const int above = f[i] > top[i];
            lead[i] = above ? (double)l : lead[i];
            top[i] = above ? f[i] : top[i];
            value[i] -= f[i] * y[i];
        }
    }
    for (Py_ssize_t l = 0; l < c; l++) { /* relative to the leader, which stays apart: it is 1 */
        const double *f = F + l * rows;
        double *p = P + l * rows;
#pragma omp simd
        for (Py_ssize_t i = 0; i < some; i++) {
            p[i] = exp_below(f[i] - top[i]);
            others[i] += lead[i] == (double)l ? 0 : p[i];
        }
    }
#pragma omp simd
    for (Py_ssize_t i = 0; i < some; i++) {
        const double near = others[i] < 1 ? others[i] : 1;
        const double logarithm = others[i] < 1 ? log1p_near(near) : log_of(1 + others[i]);
        value[i] = (top[i] + value[i]) + logarithm; /* the first sum often is zero */
    }
    for (Py_ssize_t l = 0; l < c; l++) {
        const double *y = Y + l * rows;
        double *p = P + l * rows, *v = V + l * rows;
#pragma omp simd
        for (Py_ssize_t i = 0; i < some; i++) {
            const double all = 1 + others[i];
            p[i] /= all;
            /* 1 - p of a likely class is the sum of the others: exact where the fit is perfect */
            v[i] = y[i] * (p[i] > 0.5 ? others[i] / all : 1 - p[i]) - (1 - y[i]) * p[i];
        }
    }
}

/* The same of all samples. */
static void expand_all_softmax(Py_ssize_t rows, Py_ssize_t c, const double *F, const double *Y,
                               double *value, double *V, double *P)
{
    for (Py_ssize_t i = 0; i < rows; i += SOME)
        expand_softmax(rows - i < SOME ? rows - i : SOME, rows, c, F + i, Y + i, value + i, V + i,
                       P + i);
}
