/* Successive deltas of one slice as one, without any state: steps add, lane by lane (spec, Codec ulp). */
#include "merge.h"

#include "compare.h"
#include "reading.h"

/* Lanes summed up at a time: few enough for the nearest caches, many enough to go through every delta for. */
#define WINDOW ((size_t)1 << 14)

/* Sums of the steps of a window. */
typedef struct {
    uint8_t steps[8 * WINDOW];
} sums_t;

/* One delta: the block that is read, a run of its changes, and how many of these are added already. */
typedef struct {
    ds_place at;
    ds_block block;
    ds_batch run;
    size_t added;
} source_t;

/* Adds the changes of one delta in a window. */
static inline ds_fault add(const ds_streams *s, source_t *from, size_t first, size_t width, sums_t *sums) {
    for (;;) {
        const ds_batch *run = &from->run;
        size_t i = from->added, count = run->count;
        for (; i < count && run->lanes[i] < first + WINDOW; i++) {
            size_t lane = run->lanes[i] - first;
            uint8_t *p = sums->steps + lane * width;
            ds_store(p, ds_load(p, width) + ds_load(run->steps + i * width, width), width);
        }
        from->added = i;
        if (i < count || from->block.index == from->block.changes) return DS_OK;
        ds_fault fault = ds_read(s, &from->at, &from->block, width, &from->run);
        if (fault != DS_OK) return fault;
        from->added = 0;
    }
}

/* Writes the steps of a window that are not 0, and makes them 0. */
static inline void flush(sums_t *sums, size_t first, size_t lanes, size_t width, ds_cursor *cursor) {
    static const uint8_t none[64 * 8];
    ds_batch run = {.count = 0};
    for (size_t at = 0; at < lanes; at += 64) {
        uint64_t mask = ds_differing(sums->steps + at * width, none, width);
        if (mask == 0) continue;
        if (run.count > DS_BATCH - 64) {
            ds_write(cursor, &run, width);
            run.count = 0;
        }
        for (; mask; mask &= mask - 1) {
            size_t lane = at + (size_t)__builtin_ctzll(mask);
            run.lanes[run.count] = (uint32_t)(first + lane);
            memcpy(run.steps + run.count++ * width, sums->steps + lane * width, width);
        }
    }
    ds_write(cursor, &run, width);
    memset(sums->steps, 0, lanes * width);
}

static inline ds_fault merge_block(const ds_streams *inputs, size_t count, size_t number, size_t width,
                                   source_t *sources, sums_t *sums, ds_ulp *out) {
    size_t lanes = inputs[0].lanes - number * DS_BLOCK;
    if (lanes > DS_BLOCK) lanes = DS_BLOCK;
    ds_fault fault = DS_OK;
    for (size_t k = 0; k < count && fault == DS_OK; k++) {
        fault = ds_open(&inputs[k], &sources[k].at, number, &sources[k].block);
        sources[k].run.count = sources[k].added = 0;
    }
    ds_cursor c;
    if (fault == DS_OK && !ds_start(out, lanes, width, &c)) return DS_MEMORY;
    for (size_t first = 0; first < lanes && fault == DS_OK; first += WINDOW) {
        for (size_t k = 0; k < count && fault == DS_OK; k++) fault = add(&inputs[k], &sources[k], first, width, sums);
        size_t some = lanes - first < WINDOW ? lanes - first : WINDOW;
        if (fault == DS_OK) flush(sums, first, some, width, &c);
    }
    for (size_t k = 0; k < count && fault == DS_OK; k++) fault = ds_shut(&inputs[k], &sources[k].at, &sources[k].block);
    if (fault == DS_OK) ds_end(out, &c, width);
    return fault;
}

static inline ds_fault merge(const ds_streams *inputs, size_t count, size_t width, source_t *sources, sums_t *sums,
                             ds_ulp *out) {
    for (size_t number = 0; number < inputs[0].blocks; number++) {
        ds_fault fault = merge_block(inputs, count, number, width, sources, sums, out);
        if (fault != DS_OK) return fault;
    }
    for (size_t k = 0; k < count; k++)
        if (ds_finish(&inputs[k], &sources[k].at) != DS_OK) return DS_ENDS;
    return DS_OK;
}

/* The inputs have the same blocks, lanes and width, oldest first; there is at least one. */
ds_fault ds_ulp_merge(const ds_streams *inputs, size_t count, ds_ulp *out) {
    size_t width = inputs[0].width;
    sums_t *sums = calloc(1, sizeof(sums_t));
    source_t *sources = calloc(count, sizeof(source_t));
    ds_fault fault = DS_MEMORY;
    if (sums && sources) {
        for (size_t k = 0; k < count; k++) sources[k].at = ds_begin(&inputs[k]);
        fault = width == 1   ? merge(inputs, count, 1, sources, sums, out)
                : width == 2 ? merge(inputs, count, 2, sources, sums, out)
                : width == 4 ? merge(inputs, count, 4, sources, sums, out)
                             : merge(inputs, count, 8, sources, sums, out);
    }
    free(sums);
    free(sources);
    return fault;
}
