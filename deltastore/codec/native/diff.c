/* Compare, encode as `ulp`, move the base and keep the digest up to date, in one pass (spec, Codec ulp). */
#include "diff.h"

#include "compare.h"

#define CHUNK ((size_t)8192) /* bytes of each stream that are compared, then encoded while they are in the cache */
#define AHEAD ((size_t)2048) /* bytes that are fetched before they are compared: the memory works while we encode */

/* What the digest of a slice takes, and which of its new values are not finite. */
typedef struct {
    uint64_t key, first_word;
    ds_nonfinite bad;
} slice_t;

static inline unsigned popcount(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full;
    return (unsigned)(x * 0x0101010101010101ull >> 56);
}

/* Lanes of a chunk that differ. Four are written whether they are there or not: that costs less than a branch. */
static inline size_t find(const uint8_t *a, const uint8_t *b, size_t lanes, size_t width, uint16_t *found) {
    size_t n = 0, at = 0;
    for (; at + 64 <= lanes; at += 64) {
        for (size_t line = 0; line < width; line++) {
            __builtin_prefetch(a + at * width + 64 * line + AHEAD, 1);
            __builtin_prefetch(b + at * width + 64 * line + AHEAD);
        }
        uint64_t mask = ds_differing(a + at * width, b + at * width, width);
        unsigned count = popcount(mask);
        for (int k = 0; k < 4; k++) {
            found[n + (size_t)k] = (uint16_t)(at + (size_t)__builtin_ctzll(mask | 1ull << 63));
            mask &= mask - 1;
        }
        for (unsigned k = 4; k < count; k++, mask &= mask - 1)
            found[n + k] = (uint16_t)(at + (size_t)__builtin_ctzll(mask));
        n += count;
    }
    for (; at < lanes; at++) {
        found[n] = (uint16_t)at;
        n += memcmp(a + at * width, b + at * width, width) != 0;
    }
    return n;
}

/* Moves the base at some of the lanes that were found, keeps the digest, and says what the steps are. */
static inline void move(uint8_t *base, const uint8_t *new_, const uint16_t *lanes, size_t count, size_t origin,
                        const slice_t *of, size_t bytes, size_t width, uint64_t first_word, ds_batch *run,
                        ds_found *found) {
    uint64_t mask = ds_width_mask(width), salt0 = ds_salt(of->key, first_word), delta = 0, nonfinite = 0;
    size_t whole = bytes & ~(size_t)7, n = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = lanes[i] * width, word = at & ~(size_t)7;
        unsigned shift = (unsigned)(8 * (at & 7));
        uint64_t before = word < whole ? ds_load8(base + word) : ds_load(base + word, bytes & 7);
        uint64_t now = ds_load(new_ + at, width), step = (now - (before >> shift)) & mask;
        uint64_t after = before ^ (((before >> shift) ^ now) & mask) << shift;
        uint64_t salt = salt0 + word / 8 * DS_GOLDEN;
        delta += ds_mix(after + salt) - ds_mix(before + salt);
        nonfinite += ((now & of->bad.mask) == of->bad.value) & (step != 0);
        ds_store(base + at, now, width);
        run->lanes[n] = (uint32_t)(origin + lanes[i]);
        ds_store(run->steps + n * width, step, width);
        n += step != 0; /* it is where whoever writes to the new weights meanwhile has put one back */
    }
    run->count = n;
    found->delta += delta;
    found->nonfinite += nonfinite;
}

static inline int diff(uint8_t *base, const uint8_t *new_, size_t bytes, size_t width, const slice_t *of, ds_ulp *out,
                       ds_found *found) {
    uint16_t lanes[CHUNK + 4];
    ds_batch run;
    for (size_t block = 0; block < bytes; block += DS_BLOCK * width) {
        size_t end = bytes - block < DS_BLOCK * width ? bytes : block + DS_BLOCK * width;
        ds_cursor c;
        if (!ds_start(out, (end - block) / width, width, &c)) return 0;
        for (size_t at = block; at < end; at += CHUNK) {
            size_t n = end - at < CHUNK ? end - at : CHUNK, origin = (at - block) / width;
            size_t count = find(base + at, new_ + at, n / width, width, lanes);
            for (size_t i = 0; i < count; i += DS_BATCH) {
                size_t some = count - i < DS_BATCH ? count - i : DS_BATCH;
                move(base + at, new_ + at, lanes + i, some, origin, of, n, width, of->first_word + at / 8, &run,
                     found);
                ds_write(&c, &run, width);
            }
        }
        ds_end(out, &c, width);
    }
    return 1;
}

/* Returns 0 if memory ran out; the base has then moved for the blocks that `out->table` lists. */
int ds_ulp_diff(uint8_t *base, const uint8_t *new_, size_t bytes, size_t width, uint64_t key, uint64_t first_word,
                ds_nonfinite bad, ds_ulp *out, ds_found *found) {
    slice_t of = {key, first_word, bad};
    switch (width) { /* so that shifts and masks are constants */
    case 1: return diff(base, new_, bytes, 1, &of, out, found);
    case 2: return diff(base, new_, bytes, 2, &of, out, found);
    case 4: return diff(base, new_, bytes, 4, &of, out, found);
    default: return diff(base, new_, bytes, 8, &of, out, found);
    }
}
