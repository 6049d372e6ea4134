/* What the harnesses share: an input that is read piece by piece, copies of exact size that the sanitizers watch,
 * the streams of a slice, and what must hold of a change.
 */
#ifndef DELTASTORE_FUZZ_H
#define DELTASTORE_FUZZ_H

#include <stdio.h>

#include "decode.h"
#include "diff.h"
#include "merge.h"
#include "planes.h"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what); \
            abort(); \
        } \
    } while (0)

static const uint64_t KEY = 0x0123456789ABCDEFull;

typedef struct {
    const uint8_t *data;
    size_t left;
} input;

/* The next bytes as a copy of their own, with zeros behind the end of the input. */
static inline uint8_t *take(input *in, size_t count) {
    size_t there = count < in->left ? count : in->left;
    uint8_t *copy = calloc(count + !count, 1);
    CHECK(copy);
    if (there) memcpy(copy, in->data, there);
    in->data += there;
    in->left -= there;
    return copy;
}

/* The next number, little-endian. */
static inline uint64_t number(input *in, size_t bytes) {
    uint8_t *copy = take(in, bytes);
    uint64_t value = ds_load(copy, bytes);
    free(copy);
    return value;
}

/* A number of lanes: few, or (kind 7, for they are slow) those of about one block. */
static inline size_t lane_count(unsigned kind, size_t value) {
    return (kind & 7) == 7 ? DS_BLOCK - 32 + value % 64 : value % 2048;
}

/* Bits that are the same in every run. */
static inline uint8_t *noise(size_t bytes, uint64_t seed) {
    uint8_t *data = malloc(bytes + !bytes);
    CHECK(data);
    for (size_t i = 0; i < bytes; i += 8)
        ds_store(data + i, ds_mix(seed += DS_GOLDEN), bytes - i < 8 ? bytes - i : 8);
    return data;
}

static inline uint8_t *copied(const uint8_t *data, size_t bytes) {
    input in = {data, bytes};
    return take(&in, bytes);
}

/* The layout that `fuzz_steps.py` writes and reads too: width, gaps and kind of lanes in one byte; lanes and the
 * lengths of the streams, two bytes each; the table; the streams. */
static inline ds_streams read_streams(input *in) {
    unsigned how = (unsigned)number(in, 1);
    ds_streams s = {.width = (size_t)1 << (how & 3)};
    s.lanes = lane_count(how >> 3, number(in, 2));
    s.blocks = (s.lanes + DS_BLOCK - 1) / DS_BLOCK;
    s.symbols = number(in, 2);
    s.codes_len = number(in, 2);
    s.near_len = number(in, 2);
    s.far_len = number(in, 2);
    s.table = take(in, 16 * s.blocks);
    s.low = take(in, s.symbols);
    s.high = how & 4 && s.symbols ? take(in, s.symbols) : NULL;
    s.codes = take(in, s.codes_len);
    s.near = take(in, s.near_len);
    s.far = take(in, s.far_len);
    return s;
}

static inline void free_streams(ds_streams *s) {
    const uint8_t *all[6] = {s->table, s->low, s->high, s->codes, s->near, s->far};
    for (int i = 0; i < 6; i++) free((void *)all[i]);
}

/* What was written as it is read: no pointer is NULL. */
static inline ds_streams written(ds_ulp *out, size_t lanes, size_t width) {
    ds_buf *all[5] = {&out->table, &out->gaps, &out->codes, &out->near, &out->far};
    for (int i = 0; i < 5; i++) CHECK(ds_reserve(all[i], 1));
    return (ds_streams){out->table.data, out->table.len / 16, lanes, width, out->gaps.data, NULL, out->gaps.len,
                        out->codes.data, out->near.data, out->far.data, out->codes.len, out->near.len, out->far.len};
}

/* Changes that the table declares; 0 where no slice has so many. */
static inline size_t declared(const ds_streams *s) {
    size_t sum = 0;
    for (size_t i = 0; i < s->blocks; i++) sum += ds_load(s->table + 16 * i + 4, 4);
    return sum <= s->lanes ? sum : 0;
}

typedef struct {
    size_t count;
    int64_t *positions;
    uint8_t *steps;
} change;

static inline ds_fault read_change(const ds_streams *s, size_t count, change *c) {
    *c = (change){count, malloc(8 * count + !count), malloc(s->width * count + !count)};
    CHECK(c->positions && c->steps);
    ds_fault fault = ds_ulp_decode(s, c->positions, c->steps, count);
    CHECK(ds_ulp_check(s, count) == fault);
    return fault;
}

static inline void free_change(change *c) {
    free(c->positions);
    free(c->steps);
}

/* Applies a change to lanes; positions ascend inside them, and the digest moves as was said beforehand. */
static inline void apply(const change *c, uint8_t *lanes, size_t count, size_t width) {
    size_t bytes = count * width;
    for (size_t i = 0; i < c->count; i++)
        CHECK(c->positions[i] > (i ? c->positions[i - 1] : -1) && (size_t)c->positions[i] < count);
    uint8_t *bits = malloc(c->count * width + !c->count);
    CHECK(bits);
    uint64_t before = ds_digest(lanes, bytes, KEY, 7);
    ds_lanes_of of = {lanes, bytes, width, KEY, 7};
    uint64_t delta = ds_patch(&of, c->positions, c->steps, c->count, 1, bits);
    CHECK(ds_digest(lanes, bytes, KEY, 7) == before);
    ds_scatter(lanes, width, (ds_positions){(uint8_t *)c->positions, 8}, bits, c->count);
    CHECK(ds_digest(lanes, bytes, KEY, 7) == before + delta);
    for (size_t i = 0; i < c->count; i++)
        CHECK(memcmp(lanes + (size_t)c->positions[i] * width, bits + i * width, width) == 0);
    free(bits);
}

/* Reads streams over lanes: positions of 4 and of 8 bytes, new bits and what they do to the digest, as in two steps. */
static inline void is_patch(const ds_streams *s, const change *c, const uint8_t *lanes) {
    ds_lanes_of of = {lanes, s->lanes * s->width, s->width, KEY, 7};
    uint8_t *bits = malloc(c->count * s->width + !c->count), *found = malloc(c->count * s->width + !c->count);
    CHECK(bits && found);
    uint64_t delta = ds_patch(&of, c->positions, c->steps, c->count, 1, bits);
    for (size_t wide = 4; wide <= 8; wide += 4) {
        ds_positions at = {malloc(c->count * wide + !c->count), wide};
        uint64_t gain = 0;
        CHECK(at.at && ds_ulp_patch(s, &of, at, found, c->count, &gain) == DS_OK && gain == delta);
        for (size_t i = 0; i < c->count; i++) CHECK(ds_load(at.at + i * wide, wide) == (uint64_t)c->positions[i]);
        CHECK(c->count == 0 || memcmp(found, bits, c->count * s->width) == 0);
        free(at.at);
    }
    free(bits);
    free(found);
}

static inline void same(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len) {
    CHECK(a_len == b_len && (a_len == 0 || memcmp(a, b, a_len) == 0));
}

/* Compares, and checks that the streams are exactly these: a change has one form. `base` moves. */
static inline void is_diff(const ds_streams *s, uint8_t *base, const uint8_t *new_) {
    ds_ulp out = {0};
    ds_found found = {0, 0};
    CHECK(ds_ulp_diff(base, new_, s->lanes * s->width, s->width, KEY, 7, (ds_nonfinite){0, 1}, &out, &found));
    same(base, s->lanes * s->width, new_, s->lanes * s->width);
    ds_buf low = {0}, high = {0};
    if (s->high) {
        CHECK(ds_ulp_widen(out.gaps.data, out.gaps.len, out.table.data, s->blocks, &low, &high));
        same(low.data, low.len, s->low, s->symbols);
        same(high.data, high.len, s->high, s->symbols);
    } else {
        same(out.gaps.data, out.gaps.len, s->low, s->symbols);
    }
    same(out.table.data, out.table.len, s->table, 16 * s->blocks);
    same(out.codes.data, out.codes.len, s->codes, s->codes_len);
    same(out.near.data, out.near.len, s->near, s->near_len);
    same(out.far.data, out.far.len, s->far, s->far_len);
    ds_free(&low);
    ds_free(&high);
    ds_ulp_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
