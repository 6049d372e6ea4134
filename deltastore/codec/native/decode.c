/* From `ulp` streams to positions and steps, and from there into lanes (spec, Codec ulp). */
#include "decode.h"

#define AHEAD 32 /* changes that are fetched into the cache before they are needed */

static inline ds_fault decode(const ds_streams *s, size_t width, int64_t *positions, uint8_t *steps, size_t changes) {
    ds_place at = ds_begin(s);
    size_t done = 0;
    for (size_t number = 0; number < s->blocks; number++) {
        ds_block b;
        ds_fault fault = ds_open(s, &at, number, &b);
        if (fault == DS_OK && b.changes > changes - done) fault = DS_ENDS;
        for (; fault == DS_OK && b.index < b.changes; done++) {
            size_t lane = 0;
            uint64_t step = 0;
            fault = ds_next(s, &at, &b, width, &lane, &step);
            positions[done] = (int64_t)(b.first + lane);
            ds_store(steps + done * width, step, width);
        }
        if (fault == DS_OK) fault = ds_shut(s, &at, &b);
        if (fault != DS_OK) return fault;
    }
    return done == changes ? ds_finish(s, &at) : DS_ENDS;
}

ds_fault ds_ulp_decode(const ds_streams *s, int64_t *positions, uint8_t *steps, size_t changes) {
    switch (s->width) { /* so that shifts and masks are constants */
    case 1: return decode(s, 1, positions, steps, changes);
    case 2: return decode(s, 2, positions, steps, changes);
    case 4: return decode(s, 4, positions, steps, changes);
    default: return decode(s, 8, positions, steps, changes);
    }
}

/* What new bits at ascending positions do to the digest, word by word; nothing is written to the lanes. */
uint64_t ds_patch(const uint8_t *lanes, size_t bytes, size_t width, const int64_t *positions, const uint8_t *values,
                  size_t count, int relative, uint64_t key, uint64_t first_word, uint8_t *new_bits) {
    uint64_t delta = 0, mask = ds_width_mask(width), old = 0, now = 0;
    size_t word = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + (size_t)positions[i + AHEAD] * width);
        size_t at = (size_t)positions[i] * width;
        if (at / 8 != word) {
            if (word != SIZE_MAX) {
                uint64_t salt = ds_salt(key, first_word + word);
                delta += ds_mix(now + salt) - ds_mix(old + salt);
            }
            word = at / 8;
            old = now = ds_load(lanes + 8 * word, bytes - 8 * word < 8 ? bytes - 8 * word : 8);
        }
        unsigned shift = (unsigned)(8 * (at % 8));
        uint64_t value = ds_load(values + i * width, width);
        if (relative) value = ((old >> shift) + value) & mask;
        ds_store(new_bits + i * width, value, width);
        now = (now & ~(mask << shift)) | value << shift;
    }
    if (word != SIZE_MAX) {
        uint64_t salt = ds_salt(key, first_word + word);
        delta += ds_mix(now + salt) - ds_mix(old + salt);
    }
    return delta;
}

void ds_scatter(uint8_t *lanes, size_t width, const int64_t *positions, const uint8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + (size_t)positions[i + AHEAD] * width, 1);
        memcpy(lanes + (size_t)positions[i] * width, values + i * width, width);
    }
}

void ds_gather(const uint8_t *lanes, size_t width, const int64_t *positions, uint8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + (size_t)positions[i + AHEAD] * width);
        memcpy(values + i * width, lanes + (size_t)positions[i] * width, width);
    }
}
