/* Classes of 64 lanes at once, and how many there are of each (spec, Codec ctx). */
#ifndef DELTASTORE_CLASSES_H
#define DELTASTORE_CLASSES_H

#include "ctx.h"

#define DS_LOT 64 /* lanes that are classed at once */

/* Of each pair of classes, the second in the upper four bits: how many of the two are k, for each k. */
typedef struct {
    _Alignas(16) uint8_t counts[DS_CLASSES * DS_CLASSES][DS_CLASSES];
} ds_pairs;

static inline void ds_pairs_fill(ds_pairs *pairs) {
    memset(pairs, 0, sizeof *pairs);
    for (int pair = 0; pair < DS_CLASSES * DS_CLASSES; pair++) {
        pairs->counts[pair][pair % DS_CLASSES]++;
        pairs->counts[pair][pair / DS_CLASSES]++;
    }
}

static inline uint8_t ds_exponent(uint64_t lane, ds_field f) {
    return (uint8_t)((lane >> f.shift & f.mask) - 1);
}

static inline uint8_t ds_class(uint64_t lane, ds_field f, uint8_t origin) {
    int k = (int)ds_exponent(lane, f) - origin;
    return (uint8_t)(k < 0 ? 0 : k < DS_CLASSES - 1 ? k : DS_CLASSES - 1);
}

static inline void ds_classes_each(const uint8_t *lanes, size_t count, size_t width, ds_field f, uint8_t origin,
                                   uint8_t *classes) {
    for (size_t i = 0; i < count; i++) classes[i] = ds_class(ds_load(lanes + i * width, width), f, origin);
}

#if defined(__SSE2__)
#include <emmintrin.h>

/* 64 lanes of 2 bytes. */
static inline void ds_classes_2(const uint8_t *lanes, ds_field f, uint8_t origin, uint8_t *classes) {
    const __m128i shift = _mm_cvtsi32_si128((int)f.shift), mask = _mm_set1_epi16((short)f.mask);
    const __m128i first = _mm_set1_epi8((char)origin), last = _mm_set1_epi8(DS_CLASSES - 1);
    const __m128i one = _mm_set1_epi8(1);
    for (size_t i = 0; i < DS_LOT; i += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(lanes + 2 * i));
        __m128i b = _mm_loadu_si128((const __m128i *)(lanes + 2 * i + 16));
        a = _mm_and_si128(_mm_srl_epi16(a, shift), mask);
        b = _mm_and_si128(_mm_srl_epi16(b, shift), mask);
        __m128i k = _mm_subs_epu8(_mm_sub_epi8(_mm_packus_epi16(a, b), one), first);
        _mm_storeu_si128((__m128i *)(classes + i), _mm_min_epu8(k, last));
    }
}

/* How many of 64 classes are k, for each k. */
static inline void ds_tally_lot(const ds_pairs *pairs, const uint8_t *classes, uint8_t *tally) {
    const __m128i offsets = _mm_set1_epi16(0x0FF0);
    __m128i even = _mm_setzero_si128(), odd = even;
    for (int i = 0; i < DS_LOT; i += 16) {
        /* Of the two classes in 16 bits, one nibble each: where their row begins, in bytes. */
        __m128i c = _mm_loadu_si128((const __m128i *)(classes + i));
        c = _mm_and_si128(_mm_or_si128(c, _mm_slli_epi16(c, 4)), offsets);
        uint64_t low = (uint64_t)_mm_cvtsi128_si64(c), high = (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(c, c));
        for (int at = 0; at < 64; at += 16) {
            const uint8_t *first = pairs->counts[0] + (uint16_t)(low >> at);
            const uint8_t *second = pairs->counts[0] + (uint16_t)(high >> at);
            even = _mm_add_epi8(even, _mm_load_si128((const __m128i *)first));
            odd = _mm_add_epi8(odd, _mm_load_si128((const __m128i *)second));
        }
    }
    _mm_storeu_si128((__m128i *)tally, _mm_add_epi8(even, odd));
}

/* Adds a tally to sums of 16 bits. */
static inline void ds_sum(const uint8_t *tally, const uint16_t *sums, uint16_t *after) {
    const __m128i none = _mm_setzero_si128(), t = _mm_loadu_si128((const __m128i *)tally);
    const __m128i *from = (const __m128i *)sums;
    _mm_storeu_si128((__m128i *)after, _mm_add_epi16(_mm_loadu_si128(from), _mm_unpacklo_epi8(t, none)));
    _mm_storeu_si128((__m128i *)after + 1, _mm_add_epi16(_mm_loadu_si128(from + 1), _mm_unpackhi_epi8(t, none)));
}

/* Takes a tally from what is left of each class; one bit for each of which there was less. */
static inline unsigned ds_pass(const uint8_t *tally, int32_t *left) {
    const __m128i none = _mm_setzero_si128(), t = _mm_loadu_si128((const __m128i *)tally);
    const __m128i half[2] = {_mm_unpacklo_epi8(t, none), _mm_unpackhi_epi8(t, none)};
    __m128i rest[4];
    for (int i = 0; i < 4; i++) {
        __m128i *at = (__m128i *)(left + 4 * i);
        __m128i less = i & 1 ? _mm_unpackhi_epi16(half[i / 2], none) : _mm_unpacklo_epi16(half[i / 2], none);
        rest[i] = _mm_sub_epi32(_mm_loadu_si128(at), less);
        _mm_storeu_si128(at, rest[i]);
    }
    /* Signs stay when numbers are packed. */
    __m128i low = _mm_packs_epi32(rest[0], rest[1]), high = _mm_packs_epi32(rest[2], rest[3]);
    return (unsigned)_mm_movemask_epi8(_mm_packs_epi16(low, high));
}

/* One bit for each of 64 classes that is k. */
static inline uint64_t ds_members(const uint8_t *classes, uint8_t k) {
    const __m128i is = _mm_set1_epi8((char)k);
    uint64_t bits = 0;
    for (int i = 0; i < 4; i++) {
        __m128i c = _mm_loadu_si128((const __m128i *)(classes + 16 * i));
        bits |= (uint64_t)(uint16_t)_mm_movemask_epi8(_mm_cmpeq_epi8(c, is)) << (16 * i);
    }
    return bits;
}

/* One bit for each of 64 classes that is below `dense`, which is at least 1. */
static inline uint64_t ds_below(const uint8_t *classes, unsigned dense) {
    const __m128i last = _mm_set1_epi8((char)(dense - 1));
    uint64_t bits = 0;
    for (int i = 0; i < 4; i++) {
        __m128i c = _mm_loadu_si128((const __m128i *)(classes + 16 * i));
        bits |= (uint64_t)(uint16_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(c, last), c)) << (16 * i);
    }
    return bits;
}
#else
static inline void ds_classes_2(const uint8_t *lanes, ds_field f, uint8_t origin, uint8_t *classes) {
    ds_classes_each(lanes, DS_LOT, 2, f, origin, classes);
}

static inline void ds_tally_lot(const ds_pairs *pairs, const uint8_t *classes, uint8_t *tally) {
    uint64_t low = 0, high = 0;
    for (size_t i = 0; i < DS_LOT; i += 2) {
        const uint8_t *counts = pairs->counts[classes[i] | classes[i + 1] << 4];
        low += ds_load8(counts);
        high += ds_load8(counts + 8);
    }
    ds_store(tally, low, 8);
    ds_store(tally + 8, high, 8);
}

static inline void ds_sum(const uint8_t *tally, const uint16_t *sums, uint16_t *after) {
    for (int k = 0; k < DS_CLASSES; k++) after[k] = (uint16_t)(sums[k] + tally[k]);
}

static inline unsigned ds_pass(const uint8_t *tally, int32_t *left) {
    unsigned passed = 0;
    for (int k = 0; k < DS_CLASSES; k++) {
        left[k] -= tally[k];
        passed |= (unsigned)(left[k] < 0) << k;
    }
    return passed;
}

static inline uint64_t ds_members(const uint8_t *classes, uint8_t k) {
    uint64_t bits = 0;
    for (size_t i = 0; i < DS_LOT; i++) bits |= (uint64_t)(classes[i] == k) << i;
    return bits;
}

static inline uint64_t ds_below(const uint8_t *classes, unsigned dense) {
    uint64_t bits = 0;
    for (size_t i = 0; i < DS_LOT; i++) bits |= (uint64_t)(classes[i] < dense) << i;
    return bits;
}
#endif

/* How many of up to 64 classes are k, for each k. */
static inline void ds_tally(const ds_pairs *pairs, const uint8_t *classes, size_t count, uint8_t *tally) {
    if (count == DS_LOT) {
        ds_tally_lot(pairs, classes, tally);
        return;
    }
    memset(tally, 0, DS_CLASSES);
    for (size_t i = 0; i < count; i++) tally[classes[i]]++;
}

/* Up to 64 lanes; what is missing gets a class that there is not. */
static inline void ds_classes(const uint8_t *lanes, size_t count, size_t width, ds_field f, uint8_t origin,
                              uint8_t *classes) {
    if (width == 2 && count == DS_LOT) {
        ds_classes_2(lanes, f, origin, classes);
        return;
    }
    ds_classes_each(lanes, count, width, f, origin, classes);
    memset(classes + count, 255, DS_LOT - count);
}

static inline unsigned ds_ones(uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555ull;
    bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0Full;
    return (unsigned)((bits * 0x0101010101010101ull) >> 56);
}

/* Which bit is the one with so many others below it; there must be one. */
static inline unsigned ds_select(uint64_t bits, unsigned others) {
    const uint64_t each = 0x0101010101010101ull, top = 0x8080808080808080ull;
    uint64_t ones = bits - (bits >> 1 & 0x5555555555555555ull);
    ones = (ones & 0x3333333333333333ull) + (ones >> 2 & 0x3333333333333333ull);
    ones = ((ones + (ones >> 4)) & 0x0F0F0F0F0F0F0F0Full) * each; /* in each byte: in it and below it */
    uint64_t passed = ((others * each | top) - ones) & top;
    unsigned start = (unsigned)((passed >> 7) * each >> 56) * 8;
    others -= (unsigned)(ones << 8 >> start & 255);
    /* The same once more, with a byte for each bit. */
    uint64_t spread = (bits >> start & 255) * each & 0x8040201008040201ull;
    ones = ((spread + (top - each)) >> 7 & each) * each;
    passed = ((others * each | top) - ones) & top;
    return start + (unsigned)((passed >> 7) * each >> 56);
}

static inline uint64_t ds_lower(unsigned lane) { return lane ? ~0ull >> (64 - lane) : 0; }

#endif
