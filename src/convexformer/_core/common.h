/* What compiled modules share. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdarg.h>

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

/* Arrays that a kernel was given, and where their numbers are. */
typedef struct {
    int count;
    Py_buffer views[11];
    void *at[11];
} Arrays;

/* What work on them came to. */
enum { UNSOUND = -1, NO_MEMORY, DONE };

/* Numbers of the tuple that is an argument, in the words of PyArg_ParseTuple. */
static inline int get_shape(PyObject *args, int place, const char *format, ...)
{
    PyObject *shape = PyTuple_GetItem(args, place);
    va_list numbers;
    va_start(numbers, format);
    const int found = shape != NULL && PyArg_VaParse(shape, format, numbers);
    va_end(numbers);
    return found;
}

/* A small whole number, or a flag, that is an argument. */
static inline int get_int(PyObject *args, int place)
{
    return (int)PyLong_AsLong(PyTuple_GetItem(args, place));
}

static inline double get_double(PyObject *args, int place)
{
    return PyFloat_AsDouble(PyTuple_GetItem(args, place));
}

static inline PyObject *refuse_sizes(void)
{
    return PyErr_Format(PyExc_ValueError, "Sizes are out of range.");
}

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

static inline void release(Py_ssize_t count, Py_buffer *views)
{
    while (count > 0)
        PyBuffer_Release(views + --count);
}

/* Arguments from `first` on that are arrays of so many numbers of these types; those from `written`
   on are written. 0, and an error, where they are not. */
static inline int get_arrays(PyObject *args, int first, const char *types, const Py_ssize_t *sizes,
                             int written, Arrays *of)
{
    for (of->count = 0; types[of->count]; of->count++) {
        const int k = of->count;
        if (PyErr_Occurred() || !get(PyTuple_GetItem(args, first + k), of->views + k, types[k],
                                     sizes[k], k >= written)) {
            release(k, of->views);
            return 0;
        }
        of->at[k] = of->views[k].buf;
    }
    return 1;
}

/* What a kernel returns, in the words of Py_BuildValue, if its work is done; or an error. */
static inline PyObject *finish(Arrays *of, int done, const char *format, ...)
{
    PyObject *result = NULL;
    va_list values;
    va_start(values, format);
    release(of->count, of->views);
    if (done == DONE && !PyErr_Occurred())
        result = Py_VaBuildValue(format, values);
    else if (done == NO_MEMORY)
        PyErr_NoMemory();
    else if (done == UNSOUND)
        PyErr_SetString(PyExc_ValueError, "Numbers in arrays are out of range.");
    va_end(values);
    return result;
}
