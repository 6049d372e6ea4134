/* The kernels of the codec `ctx` as Python functions: buffers in, bytes and numbers out, no GIL in between. */
#include "module.h"

#include "ctx.h"

#define VIEWS 4 /* buffers of a run: lanes, origins, positions, steps */

/* Runs that Python passed, with the buffers that they point into. */
typedef struct {
    Py_ssize_t count;
    ds_run *runs;
    Py_buffer *views;
    size_t lanes, changes;
} runs_t;

static void release(runs_t *r) {
    for (Py_ssize_t i = 0; r->views && i < r->count * VIEWS; i++)
        if (r->views[i].obj) PyBuffer_Release(&r->views[i]);
    PyMem_Free(r->views);
    PyMem_Free(r->runs);
}

/* One run: (lanes, shift, mask, origins), and positions and steps where there are changes. */
static int take_run(PyObject *item, Py_ssize_t width, Py_buffer *views, ds_run *run) {
    unsigned int shift;
    unsigned long long mask;
    PyObject *lanes, *origins, *positions = NULL, *steps = NULL;
    if (!PyArg_ParseTuple(item, "OIKO|OO", &lanes, &shift, &mask, &origins, &positions, &steps)) return 0;
    PyObject *objects[VIEWS] = {lanes, origins, positions, steps};
    for (int i = 0; i < VIEWS; i++)
        if (objects[i] && PyObject_GetBuffer(objects[i], &views[i], PyBUF_SIMPLE) < 0) return 0;
    run->lanes = views[0].buf;
    run->count = (size_t)(views[0].len / width);
    run->field = (ds_field){shift, mask};
    run->origins = views[1].buf;
    run->positions = views[2].buf;
    run->steps = views[3].buf;
    run->changes = (size_t)views[2].len / 8;
    size_t blocks = (run->count + DS_BLOCK - 1) / DS_BLOCK;
    if (views[0].len % width || shift >= 8 * (unsigned)width || mask > 255 ||
        (size_t)views[1].len != blocks || (size_t)views[3].len != run->changes * (size_t)width || !in_order(run->positions, run->changes, run->count)) {
        refused("a run does not fit together");
        return 0;
    }
    return 1;
}

static int take_runs(PyObject *items, Py_ssize_t width, runs_t *r) {
    if (!width_ok(width)) {
        refused("lanes have 1, 2, 4 or 8 bytes");
        return 0;
    }
    r->count = PyTuple_Size(items);
    r->runs = PyMem_Calloc((size_t)r->count + 1, sizeof *r->runs);
    r->views = PyMem_Calloc((size_t)r->count * VIEWS + 1, sizeof *r->views);
    if (!r->runs || !r->views) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < r->count; i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        if (!item || !take_run(item, width, r->views + i * VIEWS, &r->runs[i])) return 0;
        r->lanes += r->runs[i].count;
        r->changes += r->runs[i].changes;
    }
    if (r->lanes <= DS_SEGMENT) return 1;
    refused("a segment has too many lanes");
    return 0;
}

/* ctx_count(lanes, width, shift, mask, positions, steps, seen, changed) */
PyObject *py_ctx_count(PyObject *self, PyObject *args) {
    Py_buffer lanes, positions, steps, seen, changed;
    Py_ssize_t width;
    unsigned int shift;
    unsigned long long mask;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nIKy*y*w*w*", &lanes, &width, &shift, &mask, &positions, &steps, &seen,
                          &changed))
        return NULL;
    size_t each = width_ok(width) ? (size_t)width : 1, count = (size_t)lanes.len / each;
    ds_run run = {lanes.buf, count, {shift, mask}, NULL, positions.buf, steps.buf,
                  (size_t)positions.len / 8};
    size_t bytes = (count + DS_BLOCK - 1) / DS_BLOCK * 256 * sizeof(uint32_t);
    if (!width_ok(width) || lanes.len % width || shift >= 8 * each || mask > 255 ||
        (size_t)steps.len != run.changes * each || (size_t)seen.len != bytes || (size_t)changed.len != bytes ||
        !in_order(run.positions, run.changes, run.count)) {
        refused("sizes do not fit together");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    ds_ctx_count(&run, each, seen.buf, changed.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
end:
    PyBuffer_Release(&lanes);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&steps);
    PyBuffer_Release(&seen);
    PyBuffer_Release(&changed);
    return result;
}

static PyObject *coded_of(const ds_segment *out, unsigned dense) {
    PyObject *classes = PyTuple_New((Py_ssize_t)dense);
    for (unsigned k = 0; classes && k < dense; k++) {
        PyObject *symbols = bytes_of(&out->dense[k]);
        if (!symbols || PyTuple_SetItem(classes, (Py_ssize_t)k, symbols) < 0) {
            Py_DECREF(classes);
            return NULL;
        }
    }
    if (!classes) return NULL;
    return Py_BuildValue("y#NNNNNNN", (const char *)&out->row, (Py_ssize_t)sizeof out->row, bytes_of(&out->unary),
                         bytes_of(&out->low), bytes_of(&out->codes), bytes_of(&out->near), bytes_of(&out->far),
                         bytes_of(&out->wide), classes);
}

/* ctx_encode(((lanes, shift, mask, origins, positions, steps), ...), width, dense)
 *   -> (row, unary, low, codes, near, far, wide, (symbols, ...)) */
PyObject *py_ctx_encode(PyObject *self, PyObject *args) {
    PyObject *items, *result = NULL;
    Py_ssize_t width, dense;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!nn", &PyTuple_Type, &items, &width, &dense)) return NULL;
    if (dense < 0 || dense > DS_CLASSES) return refused("there are at most 16 dense classes");
    runs_t r = {0};
    ds_segment out;
    memset(&out, 0, sizeof out);
    if (take_runs(items, width, &r)) {
        int ok;
        Py_BEGIN_ALLOW_THREADS
        ok = ds_ctx_encode(r.runs, (size_t)r.count, (size_t)width, (unsigned)dense, &out);
        Py_END_ALLOW_THREADS
        result = ok ? coded_of(&out, (unsigned)dense) : PyErr_NoMemory();
    }
    ds_ctx_free(&out);
    release(&r);
    return result;
}

#define STREAMS 7 /* row, unary, low, codes, near, far, wide */

/* The streams of a segment; `views` has room for all of them and the symbols of all classes. */
static int take_coded(PyObject *coded, Py_buffer *views, unsigned *dense, ds_coded *in) {
    PyObject *parts[STREAMS], *classes;
    if (!PyArg_ParseTuple(coded, "OOOOOOOO!", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4], &parts[5],
                          &parts[6], &PyTuple_Type, &classes))
        return 0;
    Py_ssize_t count = PyTuple_Size(classes);
    if (count > DS_CLASSES) {
        refused("there are at most 16 dense classes");
        return 0;
    }
    *dense = (unsigned)count;
    ds_view *to[] = {NULL, &in->unary, &in->low, &in->codes, &in->near, &in->far, &in->wide};
    for (int i = 0; i < STREAMS + count; i++) {
        PyObject *part = i < STREAMS ? parts[i] : PyTuple_GetItem(classes, i - STREAMS);
        if (PyObject_GetBuffer(part, &views[i], PyBUF_SIMPLE) < 0) return 0;
        ds_view view = {views[i].buf, (size_t)views[i].len};
        if (i >= STREAMS) in->dense[i - STREAMS] = view;
        else if (i) *to[i] = view;
    }
    if (views[0].len != (Py_ssize_t)sizeof in->row) {
        refused("a row has another size");
        return 0;
    }
    memcpy(&in->row, views[0].buf, sizeof in->row);
    return 1;
}

/* ctx_decode(((lanes, shift, mask, origins), ...), width,
 *            (row, unary, low, codes, near, far, wide, (symbols, ...)), positions, steps, counts) -> fault */
PyObject *py_ctx_decode(PyObject *self, PyObject *args) {
    PyObject *items, *coded, *result = NULL;
    Py_buffer positions, steps, counts, views[STREAMS + DS_CLASSES];
    Py_ssize_t width;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!nO!w*w*w*", &PyTuple_Type, &items, &width, &PyTuple_Type, &coded, &positions,
                          &steps, &counts))
        return NULL;
    runs_t r = {0};
    ds_coded in;
    unsigned dense = 0;
    memset(&in, 0, sizeof in);
    memset(views, 0, sizeof views);
    if (!take_coded(coded, views, &dense, &in) || !take_runs(items, width, &r)) goto end;
    size_t capacity = (size_t)positions.len / 8;
    if (positions.len % 8 || (size_t)steps.len != capacity * (size_t)width || counts.len != 8 * r.count) {
        refused("sizes do not fit together");
        goto end;
    }
    ds_fault fault;
    Py_BEGIN_ALLOW_THREADS
    fault = ds_ctx_decode(r.runs, (size_t)r.count, (size_t)width, dense, &in, positions.buf, steps.buf, capacity,
                          counts.buf);
    Py_END_ALLOW_THREADS
    result = fault == DS_MEMORY ? PyErr_NoMemory() : PyLong_FromLong((long)fault);
end:
    for (int i = 0; i < STREAMS + DS_CLASSES; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
    release(&r);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&steps);
    PyBuffer_Release(&counts);
    return result;
}
