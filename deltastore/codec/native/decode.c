/* From `ulp` streams to positions and steps or new bits, and from there into lanes (spec, Codec ulp). */
#include "decode.h"

#include "reading.h"

#define AHEAD ((size_t)32) /* changes that are fetched into the cache before they are needed */

/* Calls a function with constants where it depends on these widths: shifts and masks then are constants too. */
#define BY_WIDTH(width, call)                                                                                          \
    switch (width) {                                                                                                   \
    case 1: call(1); break;                                                                                            \
    case 2: call(2); break;                                                                                            \
    case 4: call(4); break;                                                                                            \
    default: call(8); break;                                                                                           \
    }

/* Where what is read goes: steps as they are, or new bits over lanes; nowhere where there are no positions. */
typedef struct {
    ds_positions positions;
    uint8_t *values;
    const ds_lanes_of *old;
    uint64_t delta;
} sink_t;

static inline void place(const ds_batch *run, size_t first, size_t width, uint8_t *positions) {
    for (size_t i = 0; i < run->count; i++) ds_store(positions + i * width, first + run->lanes[i], width);
}

static inline void keep(const ds_batch *run, size_t first, size_t done, size_t width, sink_t *to) {
    if (to->positions.at == NULL) return;
    if (to->positions.width == 4)
        place(run, first, 4, to->positions.at + done * 4);
    else
        place(run, first, 8, to->positions.at + done * 8);
    if (!to->old) memcpy(to->values + done * width, run->steps, run->count * width);
}

static inline uint64_t word_at(const uint8_t *lanes, size_t bytes, size_t at) {
    return bytes - at >= 8 ? ds_load8(lanes + at) : ds_load(lanes + at, bytes - at);
}

/* The last word that was looked at, and what it has become. */
typedef struct {
    size_t at;
    uint64_t now;
} word_t;

static inline void fetch(const ds_batch *run, size_t i, const uint8_t *lanes, size_t width) {
    __builtin_prefetch(lanes + run->lanes[i] * width);
}

/* New bits of a run, and what they do to the digest: change by change, also where several are of one word. What the
 * next run needs is fetched meanwhile. */
static inline void patch_run(const ds_batch *run, const ds_batch *next, size_t first, size_t width, const ds_lanes_of *old,
                             uint8_t *new_bits, word_t *word, uint64_t *sum) {
    uint64_t mask = ds_width_mask(width), now = word->now, delta = 0;
    const uint8_t *lanes = old->at + first * width;
    size_t last = word->at, bytes = old->bytes - first * width, i;
    size_t whole = bytes & ~(size_t)7;
    uint64_t tail = ds_load(lanes + whole, bytes & 7); /* the last word, where it is not a whole one */
    uint64_t salt0 = ds_salt(old->key, old->first_word + first * width / 8);
    for (i = 0; i < run->count; i++) {
        if (i < next->count) fetch(next, i, lanes, width);
        size_t at = run->lanes[i] * width, here = at & ~(size_t)7;
        unsigned shift = (unsigned)(8 * (at & 7));
        uint64_t before = here == last ? now : here < whole ? ds_load8(lanes + here) : tail;
        uint64_t value = (before >> shift) + ds_load(run->steps + i * width, width);
        uint64_t salt = salt0 + here / 8 * DS_GOLDEN;
        now = before ^ ((value ^ before >> shift) & mask) << shift;
        last = here;
        ds_store(new_bits + i * width, value, width);
        delta += ds_mix(now + salt) - ds_mix(before + salt);
    }
    for (; i < next->count; i++) fetch(next, i, lanes, width);
    *word = (word_t){last, now};
    *sum += delta;
}

/* One block: a run is read while the one before it waits to be laid over the lanes. */
static inline ds_fault decode_block(const ds_streams *s, ds_place *at, ds_block *b, size_t width, sink_t *to,
                                    size_t done) {
    ds_batch runs[2];
    word_t word = {SIZE_MAX, 0};
    ds_fault fault = DS_OK;
    size_t laid = done;
    runs[0].count = 0;
    for (unsigned held = 0;; held = !held) {
        ds_batch *run = &runs[held], *next = &runs[!held];
        next->count = 0;
        if (b->index < b->changes) fault = ds_read(s, at, b, width, next);
        if (fault != DS_OK) return fault;
        keep(next, b->first, done, width, to);
        done += next->count;
        if (to->old) patch_run(run, next, b->first, width, to->old, to->values + laid * width, &word, &to->delta);
        laid += run->count;
        if (next->count == 0) return ds_shut(s, at, b);
    }
}

static inline ds_fault decode(const ds_streams *given, size_t width, int wide, sink_t *to, size_t changes) {
    ds_streams own = *given; /* a copy, which what is written cannot alias: its fields stay in registers */
    if (!wide) own.high = NULL;
    ds_place at = ds_begin(&own);
    size_t done = 0;
    for (size_t number = 0; number < own.blocks; number++) {
        ds_block b;
        ds_fault fault = ds_open(&own, &at, number, &b);
        if (fault == DS_OK && b.changes > changes - done) fault = DS_ENDS;
        if (fault == DS_OK) fault = decode_block(&own, &at, &b, width, to, done);
        if (fault != DS_OK) return fault;
        done += b.changes;
    }
    return done == changes ? ds_finish(&own, &at) : DS_ENDS;
}

static ds_fault decode_to(const ds_streams *s, sink_t *to, size_t changes) {
    ds_fault fault;
#define DECODE(w) fault = s->high ? decode(s, w, 1, to, changes) : decode(s, w, 0, to, changes)
    BY_WIDTH(s->width, DECODE)
    return fault;
}

ds_fault ds_ulp_decode(const ds_streams *s, int64_t *positions, uint8_t *steps, size_t changes) {
    sink_t to = {{(uint8_t *)positions, 8}, steps, NULL, 0};
    return decode_to(s, &to, changes);
}

/* Whether the streams are those of so many changes; nothing is kept of them. */
ds_fault ds_ulp_check(const ds_streams *s, size_t changes) {
    sink_t to = {{NULL, 0}, NULL, NULL, 0};
    return decode_to(s, &to, changes);
}

/* Positions, new bits, and what they do to the digest; nothing is written to the lanes, which are those of `s`. */
ds_fault ds_ulp_patch(const ds_streams *s, const ds_lanes_of *old, ds_positions positions, uint8_t *new_bits,
                      size_t changes, uint64_t *delta) {
    sink_t to = {positions, new_bits, old, 0};
    ds_fault fault = decode_to(s, &to, changes);
    *delta = to.delta;
    return fault;
}

static inline uint64_t patch(const ds_lanes_of *old, size_t width, const int64_t *positions, const uint8_t *values,
                             size_t count, int relative, uint8_t *new_bits) {
    uint64_t delta = 0, mask = ds_width_mask(width), from = relative ? mask : 0, now = 0;
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(old->at + (size_t)positions[i + AHEAD] * width);
        size_t at = (size_t)positions[i] * width, word = at & ~(size_t)7;
        unsigned shift = (unsigned)(8 * (at & 7));
        uint64_t before = word == last ? now : word_at(old->at, old->bytes, word);
        uint64_t value = ((before >> shift & from) + ds_load(values + i * width, width)) & mask;
        uint64_t salt = ds_salt(old->key, old->first_word + word / 8);
        now = (before & ~(mask << shift)) | value << shift;
        last = word;
        ds_store(new_bits + i * width, value, width);
        delta += ds_mix(now + salt) - ds_mix(before + salt);
    }
    return delta;
}

/* What new bits at ascending positions do to the digest; nothing is written to the lanes. */
uint64_t ds_patch(const ds_lanes_of *old, const int64_t *positions, const uint8_t *values, size_t count, int relative,
                  uint8_t *new_bits) {
    uint64_t delta;
#define PATCH(w) delta = patch(old, w, positions, values, count, relative, new_bits)
    BY_WIDTH(old->width, PATCH)
    return delta;
}

static inline size_t position(ds_positions p, size_t i) { return (size_t)ds_load(p.at + i * p.width, p.width); }

static inline void scatter(uint8_t *lanes, size_t width, ds_positions p, const uint8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + position(p, i + AHEAD) * width, 1);
        memcpy(lanes + position(p, i) * width, values + i * width, width);
    }
}

void ds_scatter(uint8_t *lanes, size_t width, ds_positions p, const uint8_t *values, size_t count) {
    ds_positions narrow = {p.at, 4}, wide = {p.at, 8};
#define SCATTER(w) p.width == 4 ? scatter(lanes, w, narrow, values, count) : scatter(lanes, w, wide, values, count)
    BY_WIDTH(width, SCATTER)
}

static inline void gather(const uint8_t *lanes, size_t width, ds_positions p, uint8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(lanes + position(p, i + AHEAD) * width);
        memcpy(values + i * width, lanes + position(p, i) * width, width);
    }
}

void ds_gather(const uint8_t *lanes, size_t width, ds_positions p, uint8_t *values, size_t count) {
    ds_positions narrow = {p.at, 4}, wide = {p.at, 8};
#define GATHER(w) p.width == 4 ? gather(lanes, w, narrow, values, count) : gather(lanes, w, wide, values, count)
    BY_WIDTH(width, GATHER)
}
