/* From `ulp` streams to positions and steps, and from there into lanes (spec, Codec ulp). */
#include "decode.h"

#define AHEAD 32 /* changes that are fetched into the cache before they are needed */

static inline ds_fault decode(ds_streams own, size_t width, int64_t *positions, uint8_t *steps, size_t changes) {
    const ds_streams *s = &own; /* a copy, which what is written cannot alias: its fields stay in registers */
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
    ds_streams narrow = *s;
    narrow.high = NULL;
    switch (s->width) { /* so that shifts and masks are constants, and 8-bit gaps need no second plane */
    case 1: return s->high ? decode(*s, 1, positions, steps, changes) : decode(narrow, 1, positions, steps, changes);
    case 2: return s->high ? decode(*s, 2, positions, steps, changes) : decode(narrow, 2, positions, steps, changes);
    case 4: return s->high ? decode(*s, 4, positions, steps, changes) : decode(narrow, 4, positions, steps, changes);
    default: return s->high ? decode(*s, 8, positions, steps, changes) : decode(narrow, 8, positions, steps, changes);
    }
}

static inline uint64_t word_at(const uint8_t *lanes, size_t bytes, size_t at) {
    return bytes - at >= 8 ? ds_load8(lanes + at) : ds_load(lanes + at, bytes - at);
}

static inline uint64_t patch(const uint8_t *lanes, size_t bytes, size_t width, const int64_t *positions,
                             const uint8_t *values, size_t count, int relative, uint64_t key, uint64_t first_word,
                             uint8_t *new_bits) {
    uint64_t delta = 0, mask = ds_width_mask(width), from = relative ? mask : 0;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + (size_t)positions[i + AHEAD] * width);
        size_t at = (size_t)positions[i] * width, word = at & ~(size_t)7;
        uint64_t old = word_at(lanes, bytes, word), now = old;
        for (;; i++) { /* all changes of one word: mostly one */
            unsigned shift = (unsigned)(8 * (at & 7));
            uint64_t value = ((old >> shift & from) + ds_load(values + i * width, width)) & mask;
            ds_store(new_bits + i * width, value, width);
            now = (now & ~(mask << shift)) | value << shift;
            if (width == 8 || i + 1 == count) break;
            at = (size_t)positions[i + 1] * width;
            if ((at & ~(size_t)7) != word) break;
        }
        uint64_t salt = ds_salt(key, first_word + word / 8);
        delta += ds_mix(now + salt) - ds_mix(old + salt);
    }
    return delta;
}

/* What new bits at ascending positions do to the digest, word by word; nothing is written to the lanes. */
uint64_t ds_patch(const uint8_t *lanes, size_t bytes, size_t width, const int64_t *positions, const uint8_t *values,
                  size_t count, int relative, uint64_t key, uint64_t first_word, uint8_t *new_bits) {
    switch (width) { /* so that shifts and masks are constants */
    case 1: return patch(lanes, bytes, 1, positions, values, count, relative, key, first_word, new_bits);
    case 2: return patch(lanes, bytes, 2, positions, values, count, relative, key, first_word, new_bits);
    case 4: return patch(lanes, bytes, 4, positions, values, count, relative, key, first_word, new_bits);
    default: return patch(lanes, bytes, 8, positions, values, count, relative, key, first_word, new_bits);
    }
}

static inline void scatter(uint8_t *lanes, size_t width, const int64_t *positions, const uint8_t *values,
                           size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + (size_t)positions[i + AHEAD] * width, 1);
        memcpy(lanes + (size_t)positions[i] * width, values + i * width, width);
    }
}

void ds_scatter(uint8_t *lanes, size_t width, const int64_t *positions, const uint8_t *values, size_t count) {
    switch (width) {
    case 1: scatter(lanes, 1, positions, values, count); return;
    case 2: scatter(lanes, 2, positions, values, count); return;
    case 4: scatter(lanes, 4, positions, values, count); return;
    default: scatter(lanes, 8, positions, values, count);
    }
}
