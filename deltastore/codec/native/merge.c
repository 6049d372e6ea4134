/* Successive deltas of one slice as one, without any state: steps add, block by block (spec, Codec ulp). */
#include "merge.h"

/* Steps of a block, and one bit for each lane that any delta has touched. */
typedef struct {
    uint8_t steps[8 * DS_BLOCK];
    uint64_t touched[DS_BLOCK / 64];
} sums_t;

static inline ds_fault add(const ds_streams *s, ds_place *at, size_t number, size_t width, sums_t *sums) {
    ds_block b;
    ds_fault fault = ds_open(s, at, number, &b);
    while (fault == DS_OK && b.index < b.changes) {
        size_t lane;
        uint64_t step;
        fault = ds_next(s, at, &b, width, &lane, &step);
        if (fault != DS_OK) break;
        uint8_t *p = sums->steps + lane * width;
        ds_store(p, ds_load(p, width) + step, width);
        sums->touched[lane >> 6] |= 1ull << (lane & 63);
    }
    return fault == DS_OK ? ds_shut(s, at, &b) : fault;
}

static inline void flush(sums_t *sums, size_t lanes, size_t width, ds_cursor *c) {
    for (size_t i = 0; i < (lanes + 63) / 64; i++) {
        for (uint64_t bits = sums->touched[i]; bits; bits &= bits - 1) {
            size_t lane = 64 * i + (size_t)__builtin_ctzll(bits);
            uint64_t step = ds_load(sums->steps + lane * width, width);
            if (step) ds_emit(c, lane, step, width);
            ds_store(sums->steps + lane * width, 0, width);
        }
        sums->touched[i] = 0;
    }
}

static inline ds_fault merge(const ds_streams *inputs, size_t count, size_t width, ds_place *places, sums_t *sums,
                             ds_ulp *out) {
    for (size_t number = 0; number < inputs[0].blocks; number++) {
        size_t first = number * DS_BLOCK, lanes = inputs[0].lanes - first;
        if (lanes > DS_BLOCK) lanes = DS_BLOCK;
        for (size_t k = 0; k < count; k++) {
            ds_fault fault = add(&inputs[k], &places[k], number, width, sums);
            if (fault != DS_OK) return fault;
        }
        ds_cursor c;
        if (!ds_start(out, lanes, width, &c)) return DS_MEMORY;
        flush(sums, lanes, width, &c);
        ds_end(out, &c, width);
    }
    for (size_t k = 0; k < count; k++)
        if (ds_finish(&inputs[k], &places[k]) != DS_OK) return DS_ENDS;
    return DS_OK;
}

/* The inputs have the same blocks, lanes and width, oldest first; there is at least one. */
ds_fault ds_ulp_merge(const ds_streams *inputs, size_t count, ds_ulp *out) {
    size_t width = inputs[0].width;
    sums_t *sums = calloc(1, sizeof(sums_t));
    ds_place *places = malloc(count * sizeof(ds_place));
    ds_fault fault = DS_MEMORY;
    if (sums && places) {
        for (size_t k = 0; k < count; k++) places[k] = ds_begin(&inputs[k]);
        fault = width == 1   ? merge(inputs, count, 1, places, sums, out)
                : width == 2 ? merge(inputs, count, 2, places, sums, out)
                : width == 4 ? merge(inputs, count, 4, places, sums, out)
                             : merge(inputs, count, 8, places, sums, out);
    }
    free(sums);
    free(places);
    return fault;
}
