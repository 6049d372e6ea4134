/* Streams of bits, the least significant of each byte first. */
#ifndef DELTASTORE_BITS_H
#define DELTASTORE_BITS_H

#include "common.h"

/* Writes; whoever owns the memory has made room for 8 bytes more than what is written. */
typedef struct {
    uint8_t *to;
    uint64_t held;
    unsigned count; /* bits held, fewer than 8 between calls */
} ds_bits;

/* At most 32 bits of a value that has no others. */
static inline void ds_put(ds_bits *b, uint64_t value, unsigned bits) {
    b->held |= value << b->count;
    b->count += bits;
    ds_store(b->to, b->held, 8);
    b->to += b->count / 8;
    b->held >>= b->count & ~7u;
    b->count &= 7;
}

/* So many zeros and a one. */
static inline void ds_put_unary(ds_bits *b, uint64_t zeros) {
    for (; zeros >= 32; zeros -= 32) ds_put(b, 0, 32);
    ds_put(b, 1ull << zeros, (unsigned)zeros + 1);
}

/* Ends the stream; returns its bytes. */
static inline size_t ds_flush(ds_bits *b, const uint8_t *start) {
    if (b->count) *b->to++ = (uint8_t)b->held;
    return (size_t)(b->to - start);
}

/* Reads. */
typedef struct {
    const uint8_t *data;
    uint64_t at, bits;
} ds_bit_reader;

/* The next bits, as many as there are up to 57, the first lowest; zeros beyond the end. */
static inline uint64_t ds_peek(const ds_bit_reader *r) {
    size_t byte = (size_t)(r->at / 8), left = (size_t)(r->bits / 8) - byte;
    uint64_t v = left >= 8 ? ds_load8(r->data + byte) : ds_load(r->data + byte, left);
    return v >> (r->at & 7);
}

/* A unary number; returns 0 if the stream ends within it. */
static inline int ds_get_unary(ds_bit_reader *r, uint64_t *zeros) {
    *zeros = 0;
    while (r->at < r->bits) {
        uint64_t v = ds_peek(r);
        if (v) {
            unsigned n = (unsigned)__builtin_ctzll(v);
            *zeros += n;
            r->at += n + 1;
            return 1;
        }
        uint64_t whole = 64 - (r->at & 7), skip = r->bits - r->at < whole ? r->bits - r->at : whole;
        *zeros += skip;
        r->at += skip;
    }
    return 0;
}

/* At most 32 bits, of which the stream has enough. */
static inline uint64_t ds_get(ds_bit_reader *r, unsigned bits) {
    uint64_t v = ds_peek(r) & ((1ull << bits) - 1);
    r->at += bits;
    return v;
}

/* Whether what is left is less than a byte, of zeros. */
static inline int ds_ended(const ds_bit_reader *r) {
    return r->bits - r->at < 8 && (r->at == r->bits || ds_peek(r) == 0);
}

#endif
