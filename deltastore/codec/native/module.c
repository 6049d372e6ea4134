/* The kernels as a Python module over the limited API: buffers in, bytes and numbers out, no GIL in between.
 *
 * Every length and position is checked here before a kernel sees it. Here are those that know nothing of a codec.
 */
#include "module.h"

#include "decode.h"
#include "diff.h"
#include "planes.h"

/* Whether all positions are lanes of a slice. */
static int inside(const int64_t *positions, size_t count, size_t lanes) {
    uint64_t worst = 0;
    for (size_t i = 0; i < count; i++) worst = (uint64_t)positions[i] > worst ? (uint64_t)positions[i] : worst;
    return count == 0 || worst < lanes;
}

static int inside_narrow(const int32_t *positions, size_t count, size_t lanes) {
    uint32_t worst = 0;
    for (size_t i = 0; i < count; i++) worst = (uint32_t)positions[i] > worst ? (uint32_t)positions[i] : worst;
    return count == 0 || worst < lanes;
}

/* The positions of `count` values, where they are integers of 4 or 8 bytes and lanes of a slice; else of width 0. */
static ds_positions positions_of(const Py_buffer *from, size_t count, size_t lanes) {
    ds_positions found = {from->buf, 0};
    if ((size_t)from->len == 8 * count)
        found.width = inside(from->buf, count, lanes) ? 8 : 0;
    else if ((size_t)from->len == 4 * count)
        found.width = inside_narrow(from->buf, count, lanes) ? 4 : 0;
    return found;
}

static PyObject *py_digest(PyObject *self, PyObject *args) {
    Py_buffer data;
    unsigned long long key, first, result;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*KK", &data, &key, &first)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = ds_digest(data.buf, (size_t)data.len, key, first);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLongLong(result);
}

static PyObject *py_patch(PyObject *self, PyObject *args) {
    Py_buffer lanes, positions, values, out;
    Py_ssize_t width;
    int relative;
    unsigned long long key, first, delta = 0;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*ny*y*pKKw*", &lanes, &width, &positions, &values, &relative, &key, &first, &out))
        return NULL;
    size_t count = (size_t)positions.len / 8;
    if (!width_ok(width) || lanes.len % width || (size_t)values.len != count * (size_t)width ||
        out.len != values.len || !inside(positions.buf, count, (size_t)(lanes.len / width))) {
        refused("positions and values are not of these lanes");
        goto end;
    }
    ds_lanes_of old = {lanes.buf, (size_t)lanes.len, (size_t)width, key, first};
    Py_BEGIN_ALLOW_THREADS
    delta = ds_patch(&old, positions.buf, values.buf, count, relative, out.buf);
    Py_END_ALLOW_THREADS
    result = PyLong_FromUnsignedLongLong(delta);
end:
    PyBuffer_Release(&lanes);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&values);
    PyBuffer_Release(&out);
    return result;
}

/* Values to lanes at positions, or from there. */
static PyObject *moved(PyObject *args, int gather) {
    Py_buffer lanes, positions, values;
    Py_ssize_t width;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, gather ? "y*ny*w*" : "w*ny*y*", &lanes, &width, &positions, &values)) return NULL;
    if (!width_ok(width) || lanes.len % width || values.len % width) {
        refused("lanes and values are not of this width");
        goto end;
    }
    size_t count = (size_t)(values.len / width);
    ds_positions at = positions_of(&positions, count, (size_t)(lanes.len / width));
    if (count && !at.width) {
        refused("positions and values are not of these lanes");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    if (gather)
        ds_gather(lanes.buf, (size_t)width, at, values.buf, count);
    else
        ds_scatter(lanes.buf, (size_t)width, at, values.buf, count);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
end:
    PyBuffer_Release(&lanes);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&values);
    return result;
}

static PyObject *py_scatter(PyObject *self, PyObject *args) {
    (void)self;
    return moved(args, 0);
}

static PyObject *py_gather(PyObject *self, PyObject *args) {
    (void)self;
    return moved(args, 1);
}

static PyObject *py_planes(PyObject *args, int merge) {
    Py_buffer from, to;
    Py_ssize_t width, left;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nnw*", &from, &width, &left, &to)) return NULL;
    if (!width_ok(width) || from.len % width || from.len != to.len || left < 0 || left >= 8 * width) {
        refused("planes and lanes must have the same number of bytes, and be rotated by less than a lane");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    (merge ? ds_merge : ds_split)(from.buf, (size_t)(from.len / width), (size_t)width, (unsigned)left, to.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
end:
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    return result;
}

static PyObject *py_split(PyObject *self, PyObject *args) {
    (void)self;
    return py_planes(args, 0);
}

static PyObject *py_merge(PyObject *self, PyObject *args) {
    (void)self;
    return py_planes(args, 1);
}

static PyMethodDef methods[] = {
    {"digest", py_digest, METH_VARARGS, "digest(data, key, first_word) -> int"},
    {"ulp_diff", py_ulp_diff, METH_VARARGS,
     "ulp_diff(base, new, width, key, first_word, mask, value) -> "
     "(table, gaps, codes, near, far, changed, delta, nonfinite)"},
    {"ulp_encode", py_ulp_encode, METH_VARARGS,
     "ulp_encode(positions, steps, lanes, width) -> (table, gaps, codes, near, far)"},
    {"ulp_widen", py_ulp_widen, METH_VARARGS, "ulp_widen(gaps, table) -> (low, high)"},
    {"ulp_decode", py_ulp_decode, METH_VARARGS,
     "ulp_decode((table, low, high, codes, near, far), lanes, width, positions, steps) -> fault"},
    {"ulp_check", py_ulp_check, METH_VARARGS,
     "ulp_check((table, low, high, codes, near, far), lanes, width, changes) -> fault"},
    {"ulp_patch", py_ulp_patch, METH_VARARGS,
     "ulp_patch((table, low, high, codes, near, far), lanes, width, key, first_word, positions, values) -> "
     "(fault, delta)"},
    {"ulp_merge", py_ulp_merge, METH_VARARGS,
     "ulp_merge(((table, low, high, codes, near, far), ...), lanes, width) -> "
     "(fault, table, gaps, codes, near, far, changed)"},
    {"ctx_count", py_ctx_count, METH_VARARGS,
     "ctx_count(lanes, width, shift, mask, positions, steps, seen, changed)"},
    {"ctx_encode", py_ctx_encode, METH_VARARGS,
     "ctx_encode(((lanes, shift, mask, origins, positions, steps), ...), width, dense) -> "
     "(row, unary, low, codes, near, far, wide, (symbols, ...))"},
    {"ctx_decode", py_ctx_decode, METH_VARARGS,
     "ctx_decode(((lanes, shift, mask, origins), ...), width, "
     "(row, unary, low, codes, near, far, wide, (symbols, ...)), positions, steps, counts) -> fault"},
    {"patch", py_patch, METH_VARARGS, "patch(lanes, width, positions, values, relative, key, first_word, out) -> delta"},
    {"scatter", py_scatter, METH_VARARGS, "scatter(lanes, width, positions, values)"},
    {"gather", py_gather, METH_VARARGS, "gather(lanes, width, positions, values)"},
    {"split", py_split, METH_VARARGS, "split(lanes, width, rotation, planes)"},
    {"merge", py_merge, METH_VARARGS, "merge(planes, width, rotation, lanes)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled kernels; `kernels` is their numpy twin.", 0, methods, slots, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
