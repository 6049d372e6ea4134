/* The kernels as a Python module over the limited API: buffers in, bytes and numbers out, no GIL in between.
 *
 * Every length and position is checked here before a kernel sees it.
 */
#include "module.h"

#include "decode.h"
#include "diff.h"
#include "merge.h"
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

static int ascending(const int64_t *positions, size_t count) {
    for (size_t i = 1; i < count; i++)
        if (positions[i] <= positions[i - 1]) return 0;
    return 1;
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

static PyObject *py_ulp_diff(PyObject *self, PyObject *args) {
    Py_buffer base, new_;
    Py_ssize_t width;
    unsigned long long key, first, mask, value;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*nKKKK", &base, &new_, &width, &key, &first, &mask, &value)) return NULL;
    if (!width_ok(width) || base.len != new_.len || base.len % width) {
        refused("base and new must be lanes of the same number and width");
        goto end;
    }
    ds_ulp out;
    memset(&out, 0, sizeof out);
    ds_nonfinite bad = {mask, value};
    ds_found found = {0, 0};
    int ok;
    Py_BEGIN_ALLOW_THREADS
    ok = ds_ulp_diff(base.buf, new_.buf, (size_t)base.len, (size_t)width, key, first,
                     bad, &out, &found);
    Py_END_ALLOW_THREADS
    if (ok)
        result = Py_BuildValue("NNNNNKKK", bytes_of(&out.table), bytes_of(&out.gaps), bytes_of(&out.codes),
                               bytes_of(&out.near), bytes_of(&out.far), (unsigned long long)out.changed,
                               (unsigned long long)found.delta, (unsigned long long)found.nonfinite);
    else
        PyErr_NoMemory();
    ds_ulp_free(&out);
end:
    PyBuffer_Release(&base);
    PyBuffer_Release(&new_);
    return result;
}

static PyObject *py_ulp_encode(PyObject *self, PyObject *args) {
    Py_buffer positions, steps;
    Py_ssize_t lanes, width;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*nn", &positions, &steps, &lanes, &width)) return NULL;
    size_t count = (size_t)positions.len / 8;
    if (!width_ok(width) || lanes < 0 || positions.len % 8 || (size_t)steps.len != count * (size_t)width ||
        !ascending(positions.buf, count) || !inside(positions.buf, count, (size_t)lanes)) {
        refused("positions must ascend within the lanes, with one step for each");
        goto end;
    }
    ds_ulp out;
    memset(&out, 0, sizeof out);
    int ok;
    Py_BEGIN_ALLOW_THREADS
    ok = ds_ulp_encode(positions.buf, steps.buf, count, (size_t)lanes, (size_t)width, &out);
    Py_END_ALLOW_THREADS
    if (ok)
        result = Py_BuildValue("NNNNN", bytes_of(&out.table), bytes_of(&out.gaps), bytes_of(&out.codes),
                               bytes_of(&out.near), bytes_of(&out.far));
    else
        PyErr_NoMemory();
    ds_ulp_free(&out);
end:
    PyBuffer_Release(&positions);
    PyBuffer_Release(&steps);
    return result;
}

static PyObject *py_ulp_widen(PyObject *self, PyObject *args) {
    Py_buffer gaps, table;
    ds_buf low = {0}, high = {0};
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*", &gaps, &table)) return NULL;
    if (table.len % 16 == 0 &&
        ds_ulp_widen(gaps.buf, (size_t)gaps.len, table.buf, (size_t)table.len / 16, &low, &high))
        result = Py_BuildValue("NN", bytes_of(&low), bytes_of(&high));
    else if (low.failed || high.failed)
        PyErr_NoMemory();
    else
        refused("the table has other symbols than the gaps");
    ds_free(&low);
    ds_free(&high);
    PyBuffer_Release(&gaps);
    PyBuffer_Release(&table);
    return result;
}

/* The streams of one slice: (table, low, high, codes, near, far). */
#define PARTS 6

static int streams_of(PyObject *parts, Py_buffer *views, Py_ssize_t lanes, Py_ssize_t width, ds_streams *s) {
    if (!PyTuple_Check(parts) || PyTuple_Size(parts) != PARTS || !width_ok(width) || lanes < 0) {
        refused("the streams of a slice are a tuple of six, of lanes of a width");
        return 0;
    }
    for (int i = 0; i < PARTS; i++)
        if (PyObject_GetBuffer(PyTuple_GetItem(parts, i), &views[i], PyBUF_SIMPLE) < 0) return 0;
    size_t blocks = ((size_t)lanes + DS_BLOCK - 1) / DS_BLOCK;
    if ((size_t)views[0].len != 16 * blocks || (views[2].len && views[2].len != views[1].len)) {
        refused("sizes do not fit together");
        return 0;
    }
    *s = (ds_streams){views[0].buf, blocks, (size_t)lanes, (size_t)width, views[1].buf,
                      views[2].len ? views[2].buf : NULL, (size_t)views[1].len, views[3].buf, views[4].buf,
                      views[5].buf, (size_t)views[3].len, (size_t)views[4].len, (size_t)views[5].len};
    return 1;
}

static void release(Py_buffer *views, Py_ssize_t count) {
    for (Py_ssize_t i = 0; views && i < count; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
}

static PyObject *py_ulp_decode(PyObject *self, PyObject *args) {
    Py_buffer views[PARTS], positions, steps;
    Py_ssize_t lanes, width;
    PyObject *parts, *result = NULL;
    ds_streams s;
    ds_fault fault;
    (void)self;
    if (!PyArg_ParseTuple(args, "Onnw*w*", &parts, &lanes, &width, &positions, &steps)) return NULL;
    memset(views, 0, sizeof views);
    if (!streams_of(parts, views, lanes, width, &s)) goto end;
    size_t changes = (size_t)positions.len / 8;
    if (positions.len % 8 || (size_t)steps.len != changes * s.width) {
        refused("sizes do not fit together");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    fault = ds_ulp_decode(&s, positions.buf, steps.buf, changes);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong((long)fault);
end:
    release(views, PARTS);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&steps);
    return result;
}

static PyObject *py_ulp_patch(PyObject *self, PyObject *args) {
    Py_buffer views[PARTS], old, positions, values;
    Py_ssize_t width;
    unsigned long long key, first;
    PyObject *parts, *result = NULL;
    uint64_t delta = 0;
    ds_streams s;
    ds_fault fault;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*nKKw*w*", &parts, &old, &width, &key, &first, &positions, &values)) return NULL;
    memset(views, 0, sizeof views);
    if (!width_ok(width) || old.len % width || values.len % width) {
        refused("sizes do not fit together");
        goto end;
    }
    if (!streams_of(parts, views, old.len / width, width, &s)) goto end;
    size_t changes = (size_t)values.len / s.width;
    ds_positions to = {positions.buf, changes ? (size_t)positions.len / changes : 8};
    if ((to.width != 8 && (to.width != 4 || s.lanes > (size_t)INT32_MAX + 1)) || (size_t)positions.len != changes * to.width) {
        refused("sizes do not fit together");
        goto end;
    }
    ds_lanes_of lanes = {old.buf, (size_t)old.len, s.width, key, first};
    Py_BEGIN_ALLOW_THREADS
    fault = ds_ulp_patch(&s, &lanes, to, values.buf, changes, &delta);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("iK", (int)fault, (unsigned long long)delta);
end:
    release(views, PARTS);
    PyBuffer_Release(&old);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&values);
    return result;
}

static PyObject *py_ulp_merge(PyObject *self, PyObject *args) {
    PyObject *inputs, *result = NULL;
    Py_ssize_t lanes, width;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!nn", &PyTuple_Type, &inputs, &lanes, &width)) return NULL;
    Py_ssize_t count = PyTuple_Size(inputs);
    if (!width_ok(width) || lanes < 0 || count < 1) return refused("a merge needs inputs and a width");
    Py_buffer *views = PyMem_Calloc((size_t)count * PARTS, sizeof(Py_buffer));
    ds_streams *streams = PyMem_Calloc((size_t)count, sizeof(ds_streams));
    ds_ulp out;
    memset(&out, 0, sizeof out);
    if (!views || !streams) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t k = 0; k < count; k++)
        if (!streams_of(PyTuple_GetItem(inputs, k), views + k * PARTS, lanes, width, streams + k)) goto end;
    ds_fault fault;
    Py_BEGIN_ALLOW_THREADS
    fault = ds_ulp_merge(streams, (size_t)count, &out);
    Py_END_ALLOW_THREADS
    if (fault == DS_MEMORY)
        PyErr_NoMemory();
    else
        result = Py_BuildValue("iNNNNNK", (int)fault, bytes_of(&out.table), bytes_of(&out.gaps),
                               bytes_of(&out.codes), bytes_of(&out.near), bytes_of(&out.far),
                               (unsigned long long)out.changed);
end:
    release(views, count * PARTS);
    PyMem_Free(views);
    PyMem_Free(streams);
    ds_ulp_free(&out);
    return result;
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
