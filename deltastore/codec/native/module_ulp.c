/* The kernels of the codec `ulp` as Python functions: buffers in, bytes and numbers out, no GIL in between. */
#include "module.h"

#include "decode.h"
#include "diff.h"
#include "merge.h"

PyObject *py_ulp_diff(PyObject *self, PyObject *args) {
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

PyObject *py_ulp_encode(PyObject *self, PyObject *args) {
    Py_buffer positions, steps;
    Py_ssize_t lanes, width;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*nn", &positions, &steps, &lanes, &width)) return NULL;
    size_t count = (size_t)positions.len / 8;
    if (!width_ok(width) || lanes < 0 || positions.len % 8 || (size_t)steps.len != count * (size_t)width ||
        !in_order(positions.buf, count, (size_t)lanes)) {
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

PyObject *py_ulp_widen(PyObject *self, PyObject *args) {
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

PyObject *py_ulp_decode(PyObject *self, PyObject *args) {
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

PyObject *py_ulp_check(PyObject *self, PyObject *args) {
    Py_buffer views[PARTS];
    Py_ssize_t lanes, width, changes;
    PyObject *parts, *result = NULL;
    ds_streams s;
    ds_fault fault;
    (void)self;
    if (!PyArg_ParseTuple(args, "Onnn", &parts, &lanes, &width, &changes)) return NULL;
    memset(views, 0, sizeof views);
    if (!streams_of(parts, views, lanes, width, &s)) goto end;
    if (changes < 0) {
        refused("sizes do not fit together");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    fault = ds_ulp_check(&s, (size_t)changes);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong((long)fault);
end:
    release(views, PARTS);
    return result;
}

PyObject *py_ulp_patch(PyObject *self, PyObject *args) {
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

PyObject *py_ulp_merge(PyObject *self, PyObject *args) {
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
