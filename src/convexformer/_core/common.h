/* What compiled modules share. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Where the compiler can, one version for each level of processors: by what these can do, as the
   name of a maker's (arch=haswell) would leave out all others'. */
#if !defined(__x86_64__) || !defined(__GLIBC__) || !defined(__GNUC__) || defined(__clang__)
#define VECTORISED
#elif __GNUC__ >= 12
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define WIDE __attribute__((target("arch=x86-64-v4"))) /* only to be called if HAS_WIDE */
#define WIDE_LANES
#include <immintrin.h>
#define HAS_WIDE __builtin_cpu_supports("x86-64-v4")
#else
#define VECTORISED __attribute__((target_clones("avx2", "default")))
#endif

/* Whether the processor has 32 registers of 64 bytes. */
#ifndef WIDE
#define WIDE
#define HAS_WIDE 0
#endif

/* What is done with each of four rows, whose sums have names of their own: an array of them would be
   stored again and again. */
#define EACH_ROW(OF) OF(0) OF(1) OF(2) OF(3)

/* Ask for what lies there, to be read soon. */
#if defined(__GNUC__)
#define FETCH(place) __builtin_prefetch(place)
#else
#define FETCH(place) ((void)(place))
#endif

/* What the extension exports: module.c says of every kernel which arrays it takes. */
#define KERNEL(name) PyObject *core_##name(PyObject *self, PyObject *args)

/* For PyArg_ParseTuple. */
#define FOUR(given) (given), (given) + 1, (given) + 2, (given) + 3

/* A contiguous array of `size` numbers of a type. */
static int get(PyObject *array, Py_buffer *view, char type, Py_ssize_t size, int writable)
{
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (array == NULL || PyObject_GetBuffer(array, view, flags) < 0)
        return 0;
    const Py_ssize_t found = view->len / view->itemsize;
    const char *format = view->format; /* of int32 'l' where a long has 32 bits */
    const int same = format[0] == type || (type == 'i' && format[0] == 'l' && view->itemsize == 4);
    if (same && format[1] == 0 && found == size)
        return 1;
    PyErr_Format(PyExc_ValueError, "An array of %zd numbers of type %c was expected, got %zd of %s.",
                 size, type, found, view->format);
    PyBuffer_Release(view);
    return 0;
}

static inline void release(int count, Py_buffer *views)
{
    while (count > 0)
        PyBuffer_Release(views + --count);
}

/* Arrays of so many numbers of these types; those from `writable` on are written. */
static inline int get_arrays(int count, PyObject **given, Py_buffer *views, void **at,
                             const char *types, const Py_ssize_t *sizes, int writable)
{
    for (int n = 0; n < count; n++) {
        if (!get(given[n], views + n, types[n], sizes[n], n >= writable)) {
            release(n, views);
            return 0;
        }
        at[n] = views[n].buf;
    }
    return 1;
}
