/* The extension `_compiled`: its kernels. What each takes, in which order, and what it does, is said
   by its twin in _numpy.py. */

#include "common.h"

#define EACH_KERNEL(OF)                                                                            \
    OF(balance) OF(block_descent) OF(csr_correlate) OF(csr_entries) OF(csr_gram) OF(csr_predict)   \
    OF(few_columns_product) OF(gram_of_columns) OF(logistic_dual) OF(logistic_expansion)           \
    OF(loss_point) OF(newton) OF(predict_and_correlate) OF(prepare_tokens) OF(softmax_dual)        \
    OF(softmax_expansion) OF(transpose_tokens) OF(wide_registers)

#define DECLARE(name) KERNEL(name);
#define METHOD(name) {#name, core_##name, METH_VARARGS, NULL},

EACH_KERNEL(DECLARE)

static PyMethodDef methods[] = {EACH_KERNEL(METHOD){NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_compiled", "Kernels of the solvers, compiled.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&module);
}
