/* The `ulp` streams of one slice, read a run of changes at a time; every read is checked against its end. */
#ifndef DELTASTORE_READING_H
#define DELTASTORE_READING_H

#include "streams.h"

/* How far a slice has been read. */
typedef struct {
    size_t symbol;
    const uint8_t *codes, *near, *far;
} ds_place;

/* One block that is being read: what the table gives it, found to fit what is left of the streams. */
typedef struct {
    size_t first, room, symbols_end, changes, index;
    const uint8_t *codes, *near_end, *far_end;
    size_t lane;
} ds_block;

static inline ds_place ds_begin(const ds_streams *s) { return (ds_place){0, s->codes, s->near, s->far}; }

static inline ds_fault ds_open(const ds_streams *s, ds_place *at, size_t number, ds_block *b) {
    uint32_t row[4];
    memcpy(row, s->table + 16 * number, 16);
    b->first = number * DS_BLOCK;
    b->room = s->lanes - b->first < DS_BLOCK ? s->lanes - b->first : DS_BLOCK;
    if (row[0] > s->symbols - at->symbol || ((size_t)row[1] + 3) / 4 > (size_t)(s->codes + s->codes_len - at->codes) ||
        row[2] > (size_t)(s->near + s->near_len - at->near) ||
        row[3] > (size_t)(s->far + s->far_len - at->far) / s->width)
        return DS_ENDS;
    b->symbols_end = at->symbol + row[0];
    b->changes = row[1];
    b->index = 0;
    b->lane = 0;
    b->codes = at->codes;
    b->near_end = at->near + row[2];
    b->far_end = at->far + row[3] * s->width;
    return DS_OK;
}

/* Lanes of the next `count` changes, without a branch for each: whether they fit is asked once for many. */
static inline ds_fault ds_lanes(const ds_streams *s, ds_place *at, ds_block *b, size_t count, uint32_t *lanes) {
    uint32_t largest = s->high ? 65535 : 255;
    size_t n = 0, lane = b->lane, symbol = at->symbol;
    while (n < count) {
        size_t some = b->symbols_end - symbol < count - n ? b->symbols_end - symbol : count - n;
        if (some == 0) return DS_GAPS_COUNT;
        for (size_t end = symbol + some; symbol < end; symbol++) {
            uint32_t gap = s->low[symbol] | (s->high ? (uint32_t)s->high[symbol] << 8 : 0);
            size_t change = gap != largest;
            lane += gap;
            lanes[n] = (uint32_t)lane;
            lane += change;
            n += change;
        }
        if (lane > b->room) return DS_GAPS_RANGE;
    }
    at->symbol = symbol;
    b->lane = lane;
    return DS_OK;
}

static inline ds_fault ds_escape(ds_place *at, const ds_block *b, size_t width, uint8_t *step) {
    uint64_t mask = ds_width_mask(width);
    if (at->near == b->near_end) return DS_ESCAPES;
    unsigned x = *at->near++;
    if (x < 255) {
        ds_store(step, ds_unzigzag(x + 3), width);
        return x + 3 > mask ? DS_SHORTEST : DS_OK;
    }
    if (at->far == b->far_end) return DS_ESCAPES;
    memcpy(step, at->far, width);
    at->far += width;
    return ds_zigzag(ds_load(step, width), width) < 258 ? DS_SHORTEST : DS_OK;
}

/* Steps of the next `count` changes; `steps` has room for a multiple of 32. */
static inline ds_fault ds_steps(ds_place *at, const ds_block *b, size_t count, size_t width, uint8_t *steps) {
    uint64_t codes[DS_BATCH / 32];
    codes[(count - 1) / 32] = 0;
    memcpy(codes, b->codes + b->index / 4, (count + 3) / 4);
    for (size_t first = 0; first < count; first += 32) {
        uint64_t some = codes[first / 32];
        if (count - first < 32) some &= (1ull << 2 * (count - first)) - 1;
        for (size_t i = 0; i < 32; i++) /* 1 for a code that is odd, else -1; a branch would be a coin toss */
            ds_store(steps + (first + i) * width, ((some >> 2 * i & 1) - 1) | 1, width);
        uint64_t escaped = some >> 1 & 0x5555555555555555ull;
        if (escaped & some) return DS_CODE;
        for (; escaped; escaped &= escaped - 1) {
            size_t i = first + (size_t)__builtin_ctzll(escaped) / 2;
            ds_fault fault = ds_escape(at, b, width, steps + i * width);
            if (fault != DS_OK) return fault;
        }
    }
    return DS_OK;
}

/* The next changes, as many as a run holds. There must be one: `index < changes`. */
static inline ds_fault ds_read(const ds_streams *s, ds_place *at, ds_block *b, size_t width, ds_batch *run) {
    size_t count = b->changes - b->index < DS_BATCH ? b->changes - b->index : DS_BATCH;
    ds_fault fault = ds_lanes(s, at, b, count, run->lanes);
    if (fault == DS_OK) fault = ds_steps(at, b, count, width, run->steps);
    b->index += count;
    run->count = count;
    return fault;
}

static inline ds_fault ds_shut(const ds_streams *s, ds_place *at, const ds_block *b) {
    if (at->symbol != b->symbols_end) {
        for (size_t i = at->symbol; i < b->symbols_end; i++)
            if (s->low[i] != 255 || (s->high && s->high[i] != 255)) return DS_GAPS_COUNT;
        return DS_GAPS_TAIL;
    }
    if (at->near != b->near_end || at->far != b->far_end) return DS_ESCAPES;
    if (b->changes & 3 && b->codes[b->changes >> 2] >> (2 * (b->changes & 3))) return DS_PADDING;
    at->codes = b->codes + (b->changes + 3) / 4;
    return DS_OK;
}

static inline ds_fault ds_finish(const ds_streams *s, const ds_place *at) {
    int ended = at->symbol == s->symbols && at->codes == s->codes + s->codes_len &&
                at->near == s->near + s->near_len && at->far == s->far + s->far_len;
    return ended ? DS_OK : DS_ENDS;
}

#endif
