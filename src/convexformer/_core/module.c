/* The extension `_compiled`: its kernels, with the arrays that each takes.

   Arrays are contiguous; those that a kernel writes come last, as a rule. _numpy.py has the same
   kernels in NumPy. */

#include "common.h"

#define METHOD(name, text) {#name, core_##name, METH_VARARGS, text}

KERNEL(balance);
KERNEL(best_intercept);
KERNEL(block_descent);
KERNEL(confine);
KERNEL(csr_correlate);
KERNEL(csr_entries);
KERNEL(csr_gram);
KERNEL(csr_predict);
KERNEL(few_columns_product);
KERNEL(gram_of_columns);
KERNEL(logistic_dual);
KERNEL(logistic_expansion);
KERNEL(loss_point);
KERNEL(newton);
KERNEL(predict_and_correlate);
KERNEL(prepare_tokens);
KERNEL(softmax_dual);
KERNEL(softmax_expansion);
KERNEL(transpose_tokens);
KERNEL(wide_registers);

static PyMethodDef methods[] = {
    /* block_descent.c, tokens.c */
    {"wide_registers", core_wide_registers, METH_NOARGS,
     "wide_registers() -> bool\n\n"
     "Whether the processor has AVX-512: then reading int16 takes half the time of float32."},
    METHOD(block_descent,
           "block_descent(tokens, grams, (n, d, c, N, part, in_samples), step, limit, square, Z, M,\n"
           "sweeps=6) -> (value, gap)\n\n"
           "Some sweeps of block coordinate descent over the tokens, with Anderson extrapolation,\n"
           "and the gap; square, Z and M in place."),
    METHOD(transpose_tokens,
           "transpose_tokens(X, groups, center, factor, root, A, (rows, width, n, d, first, N))\n\n"
           "Columns of n groups of d less their center, times a factor of each and the root of\n"
           "weights, as rows of A, from `first` on; float64 becomes float32."),
    METHOD(prepare_tokens,
           "prepare_tokens(A, gram, unit, packed, (n, d, N))\n\n"
           "Gram matrices of tokens, and, unless it is None, tokens packed as int16: over units of\n"
           "their own, by which `unit` grows, or is 0 where entries do not fit."),
    /* newton.c */
    METHOD(newton,
           "newton((N, n, d, c, blocks, entries, width), start, column, X, place, center, Y,\n"
           "weight, limit, F, Z, b, intercept, goal, seconds) -> (done, gap)\n\n"
           "Proximal Newton method for a logistic loss (c = 1) or a softmax, from Z with scores F.\n"
           "In place are Z and b, to which moves of the intercepts are added. X is dense where\n"
           "entries is -1; those of its columns count that have a place, less their center. It is\n"
           "done where the gap is below its goal, or where that would take more seconds: then the\n"
           "next call may go on from there."),
    /* csr.c */
    METHOD(csr_entries,
           "csr_entries((rows, columns, room), X, end, column, value) -> how many\n\n"
           "List what is not zero: where those of each row end, their columns and values; -1\n"
           "without room for them, and one more. The latter arrays have three more numbers, that\n"
           "mean nothing."),
    METHOD(csr_predict,
           "csr_predict((rows, entries, columns, c), start, column, value, Z, F)\n\n"
           "F (c, rows) = X Z of Z (c, columns)."),
    METHOD(csr_correlate,
           "csr_correlate((rows, entries, columns, c), start, column, value, V, M)\n\n"
           "M (c, columns) += X'V of V (c, rows)."),
    METHOD(csr_gram,
           "csr_gram((rows, entries, columns, p), start, column, value, weight, place, Q, sum)\n\n"
           "Q (p, p) = X' diag(weight) X and sum (p,) = X' weight, from zero, of columns that have\n"
           "a place in them; places ascend with columns."),
    /* dense.c */
    METHOD(predict_and_correlate,
           "predict_and_correlate((rows, p, c, others), X, z, target, weight, other, s, v, M)\n\n"
           "s = X z, v = weight (target - s) and M += (v, other)' X, in one pass over X, for c of\n"
           "them up to 4; for one there is an other (1), or none (0)."),
    METHOD(gram_of_columns,
           "gram_of_columns((rows, width, n, d, own, padded), doubles, X, group, center, root,\n"
           "beside, Q, q)\n\n"
           "Q (padded, padded) = B' A and q (padded,) = B' beside, from zero, for A the columns of\n"
           "n groups of X less `center`, B the first `own` of them, and all times `root`. In\n"
           "float32, or doubles; padded are columns up to a multiple of 16, or 8, and what there\n"
           "is beside A and B in Q and q means nothing."),
    /* few_columns.c */
    METHOD(few_columns_product,
           "few_columns_product((N, p, c), transposed, X, by, out)\n\n"
           "out (N, c) = X by of X (N, p) and by (p, c), or, transposed, out (p, c) = X' by, for c\n"
           "up to 16."),
    /* losses.c */
    METHOD(logistic_expansion,
           "logistic_expansion((rows, c), F, Y, value, V, H)\n\n"
           "Loss, minus its slope, and its curvature."),
    METHOD(logistic_dual,
           "logistic_dual((rows, c), V, Y, value)\n\nMinus the conjugate at -V."),
    METHOD(softmax_expansion,
           "softmax_expansion((rows, c), F, Y, value, V, P)\n\n"
           "Loss, minus its slopes, and probabilities; arrays are (c, rows), value (rows,)."),
    METHOD(softmax_dual, "softmax_dual((rows, c), V, Y, value)\n\nMinus the conjugate at -V."),
    /* intercepts: a logistic loss where c = 1, else a softmax; arrays are (c, N) */
    METHOD(best_intercept,
           "best_intercept((N, c), S, Y, weight, b) -> whether there is curvature\n\n"
           "b (c,), in place, becomes the intercept at which the loss of scores S + b is least."),
    METHOD(loss_point,
           "loss_point((N, c), rounds, S, Y, weight, b, F, V) -> (found, loss, settled)\n\n"
           "F = S + b, the loss there, V as `balance` and `confine` have it, and whether b is the\n"
           "best intercept; not found where there is no curvature, or V is beyond bounds."),
    METHOD(balance,
           "balance((N, c), rounds, V, P, weight, out, step) -> whether there is curvature\n\n"
           "out = V weighted, and made to sum to zero; steps of intercepts are added to `step`."),
    METHOD(confine,
           "confine((N, c), V, Y, weight, out) -> whether nothing but rounding was beyond\n\n"
           "out = V within bounds."),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_compiled", "Kernels of the solvers, compiled.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&module);
}
