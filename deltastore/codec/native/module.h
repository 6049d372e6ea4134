/* What the parts of the Python module share. */
#ifndef DELTASTORE_MODULE_H
#define DELTASTORE_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "common.h"

static inline int width_ok(Py_ssize_t width) { return width == 1 || width == 2 || width == 4 || width == 8; }

static inline PyObject *refused(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* Whether positions ascend and are lanes of a slice. */
static inline int in_order(const int64_t *positions, size_t count, size_t lanes) {
    int64_t last = -1;
    for (size_t i = 0; i < count; i++) {
        if (positions[i] <= last) return 0;
        last = positions[i];
    }
    return last < (int64_t)lanes;
}

static inline PyObject *bytes_of(const ds_buf *b) {
    return PyBytes_FromStringAndSize((const char *)b->data, (Py_ssize_t)b->len);
}

PyObject *py_ulp_diff(PyObject *self, PyObject *args);
PyObject *py_ulp_encode(PyObject *self, PyObject *args);
PyObject *py_ulp_widen(PyObject *self, PyObject *args);
PyObject *py_ulp_decode(PyObject *self, PyObject *args);
PyObject *py_ulp_check(PyObject *self, PyObject *args);
PyObject *py_ulp_patch(PyObject *self, PyObject *args);
PyObject *py_ulp_merge(PyObject *self, PyObject *args);
PyObject *py_ctx_count(PyObject *self, PyObject *args);
PyObject *py_ctx_encode(PyObject *self, PyObject *args);
PyObject *py_ctx_decode(PyObject *self, PyObject *args);

#endif
