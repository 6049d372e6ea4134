/* The `ulp` streams of one slice, read and written change by change; every read is checked against its end. */
#ifndef DELTASTORE_STREAMS_H
#define DELTASTORE_STREAMS_H

#include "common.h"

/* What is wrong with a stream; the order is that of the messages in `native.py`. */
typedef enum {
    DS_OK,
    DS_GAPS_COUNT, /* a block does not hold as many changes as its table says */
    DS_GAPS_TAIL,  /* the gaps of a block go on after its last change */
    DS_GAPS_RANGE, /* a change lies outside its block */
    DS_CODE,       /* the code 3 */
    DS_PADDING,    /* padding bits are set */
    DS_ESCAPES,    /* other escapes than the table says */
    DS_SHORTEST,   /* a step that is not in its shortest form */
    DS_ENDS,       /* a stream ends too early or too late */
    DS_UNARY,      /* a segment has other gaps than its row says */
    DS_LOW,        /* padding bits of the gaps are set */
    DS_RANK,       /* a change lies past the last lane of its class */
    DS_CLASS,      /* a class has other lanes than its row says */
    DS_MEMORY
} ds_fault;

/* `low` alone for 8-bit gaps, with `high` for 16-bit ones; `table` has four u32 per block. No other pointer is NULL,
 * even where nothing is behind it. */
typedef struct {
    const uint8_t *table;
    size_t blocks, lanes, width;
    const uint8_t *low, *high;
    size_t symbols;
    const uint8_t *codes, *near, *far;
    size_t codes_len, near_len, far_len;
} ds_streams;

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

/* The next change: its lane within the block and its step. There must be one: `index < changes`. */
static inline ds_fault ds_next(const ds_streams *s, ds_place *at, ds_block *b, size_t width, size_t *lane,
                               uint64_t *step) {
    uint32_t largest = s->high ? 65535 : 255, symbol;
    do {
        if (at->symbol == b->symbols_end) return DS_GAPS_COUNT;
        symbol = s->low[at->symbol] | (s->high ? (uint32_t)s->high[at->symbol] << 8 : 0);
        at->symbol++;
        b->lane += symbol;
    } while (symbol == largest);
    if (b->lane >= b->room) return DS_GAPS_RANGE;
    *lane = b->lane++;
    uint64_t mask = ds_width_mask(width);
    unsigned code = b->codes[b->index >> 2] >> (2 * (b->index & 3)) & 3;
    b->index++;
    *step = code ? 1 : mask;
    if (code < 2) return DS_OK;
    if (code == 3) return DS_CODE;
    if (at->near == b->near_end) return DS_ESCAPES;
    unsigned x = *at->near++;
    if (x < 255) {
        *step = ds_unzigzag(x + 3) & mask;
        return x + 3 > mask ? DS_SHORTEST : DS_OK;
    }
    if (at->far == b->far_end) return DS_ESCAPES;
    *step = ds_load(at->far, width);
    at->far += width;
    return ds_zigzag(*step, width) < 258 ? DS_SHORTEST : DS_OK;
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

/* The streams of some blocks as they are written, with 8-bit gaps. */
typedef struct {
    ds_buf table, gaps, codes, near, far;
    uint64_t changed;
} ds_ulp;

/* Where the streams of the block that is written have come to; its codes are a byte each until it ends. */
typedef struct {
    uint8_t *gaps, *codes, *near, *far;
    size_t next;
} ds_cursor;

/* Room for a block of at most so many changes: each an escape, and the longest gaps between them. */
static inline int ds_start(ds_ulp *out, size_t changes, size_t width, ds_cursor *c) {
    if (!ds_reserve(&out->table, 16) || !ds_reserve(&out->gaps, changes + DS_BLOCK / 255 + 1) ||
        !ds_reserve(&out->codes, changes + 3) || !ds_reserve(&out->near, changes + 1) ||
        !ds_reserve(&out->far, changes * width))
        return 0;
    *c = (ds_cursor){out->gaps.data + out->gaps.len, out->codes.data + out->codes.len,
                     out->near.data + out->near.len, out->far.data + out->far.len, 0};
    return 1;
}

/* Writes a change at a lane of the block, behind all those before it. Almost free of branches. */
static inline void ds_emit(ds_cursor *c, size_t lane, uint64_t step, size_t width) {
    size_t gap = lane - c->next;
    c->next = lane + 1;
    for (; gap >= 255; gap -= 255) *c->gaps++ = 255;
    *c->gaps++ = (uint8_t)gap;
    uint64_t z = ds_zigzag(step, width);
    *c->codes++ = z < 3 ? (uint8_t)(z - 1) : 2;
    *c->near = z < 258 ? (uint8_t)(z - 3) : 255;
    c->near += z >= 3;
    if (z >= 258) {
        ds_store(c->far, step, width);
        c->far += width;
    }
}

static inline uint32_t ds_took(ds_buf *b, const uint8_t *end) {
    size_t n = (size_t)(end - (b->data + b->len));
    b->len += n;
    return (uint32_t)n;
}

/* Ends the block, packs its codes and writes its row of the table. */
static inline void ds_end(ds_ulp *out, ds_cursor *c, size_t width) {
    uint8_t *codes = out->codes.data + out->codes.len;
    uint32_t changes = (uint32_t)(c->codes - codes), row[4];
    memset(c->codes, 0, 3);
    for (size_t i = 0; 4 * i < changes; i++)
        codes[i] = (uint8_t)(codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 | codes[4 * i + 3] << 6);
    out->codes.len += (changes + 3) / 4;
    row[0] = ds_took(&out->gaps, c->gaps);
    row[1] = changes;
    row[2] = ds_took(&out->near, c->near);
    row[3] = ds_took(&out->far, c->far) / (uint32_t)width;
    memcpy(out->table.data + out->table.len, row, 16);
    out->table.len += 16;
    out->changed += changes;
}

int ds_ulp_encode(const int64_t *positions, const uint8_t *steps, size_t count, size_t lanes, size_t width, ds_ulp *out);
int ds_ulp_widen(const uint8_t *gaps, size_t count, uint8_t *table, size_t blocks, ds_buf *low, ds_buf *high);
void ds_ulp_free(ds_ulp *out);

#endif
