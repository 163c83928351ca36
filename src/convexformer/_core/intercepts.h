/* Intercepts of a logistic loss, or of a softmax: their curvature, and steps. */

#include <math.h>

VECTORISED static double sum(Py_ssize_t size, const double *x)
{
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (Py_ssize_t i = 0; i < size; i++)
        total += x[i];
    return total;
}

/* L of the curvature (c, c), whose lower half that replaces; 0 where there is none. What all
   outputs of a softmax have in common bends nothing: there any curvature will do. */
static int factorise(Py_ssize_t c, double *bend)
{
    double common = 0;
    for (Py_ssize_t l = 0; l < c && c > 1; l++)
        common += bend[l * c + l] / (c * c);
    for (Py_ssize_t l = 0; l < c; l++)
        for (Py_ssize_t m = 0; m <= l; m++) {
            double *b = bend + l * c;
            b[m] += common;
            for (Py_ssize_t k = 0; k < m; k++)
                b[m] -= b[k] * bend[m * c + k];
            if (l == m && !(b[m] > 0))
                return 0;
            b[m] = l == m ? sqrt(b[m]) : b[m] / bend[m * c + m];
        }
    return 1;
}

/* x = L^-1 x; x[l] is at l * by */
static void solve(Py_ssize_t c, const double *L, double *x, Py_ssize_t by)
{
    for (Py_ssize_t l = 0; l < c; l++) {
        for (Py_ssize_t m = 0; m < l; m++)
            x[l * by] -= L[l * c + m] * x[m * by];
        x[l * by] /= L[l * c + l];
    }
}

/* x = L'^-1 x */
static void solve_back(Py_ssize_t c, const double *L, double *x)
{
    for (Py_ssize_t l = c - 1; l >= 0; l--) {
        for (Py_ssize_t m = l + 1; m < c; m++)
            x[l] -= L[m * c + l] * x[m];
        x[l] /= L[l * c + l];
    }
}
