/* What all kernels share: little-endian words, the mixing function, growing buffers.
 *
 * Kernels take pointers and lengths, never trust a count that came from a file, and know nothing of Python.
 */
#ifndef DELTASTORE_COMMON_H
#define DELTASTORE_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian machines only; the numpy twin serves the others"
#endif

#define DS_BLOCK ((size_t)1 << 18) /* lanes of a block */
#define DS_GOLDEN 0x9E3779B97F4A7C15ull

static inline uint64_t ds_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* h(t, j) of a word; `salt` is key + (j + 1) * golden. */
static inline uint64_t ds_salt(uint64_t key, uint64_t word) { return key + (word + 1) * DS_GOLDEN; }

static inline uint64_t ds_load(const uint8_t *p, size_t bytes) {
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

static inline uint64_t ds_load8(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline void ds_store(uint8_t *p, uint64_t v, size_t bytes) { memcpy(p, &v, bytes); }

static inline uint64_t ds_width_mask(size_t width) {
    return width == 8 ? ~0ull : (1ull << (8 * width)) - 1;
}

static inline uint64_t ds_zigzag(uint64_t step, size_t width) {
    uint64_t sign = step >> (8 * width - 1) & 1;
    return ((step << 1) ^ (0 - sign)) & ds_width_mask(width);
}

static inline uint64_t ds_unzigzag(uint64_t z) { return (z >> 1) ^ (0 - (z & 1)); }

/* A buffer that grows; `failed` stays set once memory ran out. */
typedef struct {
    uint8_t *data;
    size_t len, cap;
    int failed;
} ds_buf;

static inline int ds_reserve(ds_buf *b, size_t more) {
    if (b->cap - b->len >= more) return 1;
    size_t cap = b->cap + b->cap / 2 + more;
    uint8_t *data = malloc(cap); /* and not realloc, which copies what is only reserved too */
    if (data == NULL) {
        b->failed = 1;
        return 0;
    }
    if (b->len) memcpy(data, b->data, b->len);
    free(b->data);
    b->data = data;
    b->cap = cap;
    return 1;
}

static inline void ds_free(ds_buf *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

uint64_t ds_digest(const uint8_t *data, size_t bytes, uint64_t key, uint64_t first_word);

#endif
