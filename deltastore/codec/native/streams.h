/* The `ulp` streams of one slice, and how they are written. */
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

#define DS_BATCH ((size_t)256) /* changes that are read or written at a time, and stay in the nearest cache; a multiple of 32 */

/* Successive changes of one block: ascending lanes within it, and steps of `width` bytes, none of them 0. */
typedef struct {
    uint32_t lanes[DS_BATCH];
    uint8_t steps[8 * DS_BATCH];
    size_t count;
} ds_batch;

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

/* Writes changes behind all those before them. One loop for each stream, almost free of branches. */
static inline void ds_write(ds_cursor *cursor, const ds_batch *run, size_t width) {
    ds_cursor c = *cursor; /* in registers: what is written could be anything to a compiler */
    size_t count = run->count;
    for (size_t i = 0; i < count; i++) {
        size_t gap = run->lanes[i] - c.next;
        c.next = (size_t)run->lanes[i] + 1;
        for (; gap >= 255; gap -= 255) *c.gaps++ = 255;
        *c.gaps++ = (uint8_t)gap;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t z = ds_zigzag(ds_load(run->steps + i * width, width), width);
        c.codes[i] = (uint8_t)(z < 3 ? z - 1 : 2);
    }
    c.codes += count;
    for (size_t i = 0; i < count; i++) {
        uint64_t step = ds_load(run->steps + i * width, width), z = ds_zigzag(step, width);
        *c.near = (uint8_t)(z < 258 ? z - 3 : 255);
        c.near += z >= 3;
        if (z < 258) continue;
        ds_store(c.far, step, width);
        c.far += width;
    }
    *cursor = c;
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
