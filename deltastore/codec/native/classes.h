/* Classes of 64 lanes at once, and how many there are of each (spec, Codec ctx). */
#ifndef DELTASTORE_CLASSES_H
#define DELTASTORE_CLASSES_H

#include "ctx.h"

#define DS_LOT 64 /* lanes that are classed at once */

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

/* Interleaves the sums of two halves: byte pairs (a, b) of 8 partial sums each. */
static inline __m128i ds_fold(__m128i a, __m128i b) {
    return _mm_add_epi8(_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b));
}

/* How many of 64 classes are k, for each k. */
static inline void ds_tally(const uint8_t *classes, uint8_t *tally) {
    __m128i c[4], sum[DS_CLASSES];
    for (int i = 0; i < 4; i++) c[i] = _mm_loadu_si128((const __m128i *)(classes + 16 * i));
    for (int k = 0; k < DS_CLASSES; k++) {
        const __m128i is = _mm_set1_epi8((char)k);
        sum[k] = _mm_add_epi8(_mm_add_epi8(_mm_cmpeq_epi8(c[0], is), _mm_cmpeq_epi8(c[1], is)),
                              _mm_add_epi8(_mm_cmpeq_epi8(c[2], is), _mm_cmpeq_epi8(c[3], is)));
    }
    for (int half = DS_CLASSES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) sum[k] = ds_fold(sum[k], sum[k + half]);
    /* Comparisons gave -1 for each. */
    _mm_storeu_si128((__m128i *)tally, _mm_sub_epi8(_mm_setzero_si128(), sum[0]));
}

/* Adds a tally to sums of 16 bits. */
static inline void ds_sum(const uint8_t *tally, const uint16_t *sums, uint16_t *after) {
    const __m128i none = _mm_setzero_si128(), t = _mm_loadu_si128((const __m128i *)tally);
    const __m128i *from = (const __m128i *)sums;
    _mm_storeu_si128((__m128i *)after, _mm_add_epi16(_mm_loadu_si128(from), _mm_unpacklo_epi8(t, none)));
    _mm_storeu_si128((__m128i *)after + 1, _mm_add_epi16(_mm_loadu_si128(from + 1), _mm_unpackhi_epi8(t, none)));
}

/* Adds a tally to what has been seen; one bit for each class in which that passes what comes next. */
static inline unsigned ds_pass(const uint8_t *tally, const int32_t *seen, const int32_t *next, int32_t *until) {
    const __m128i none = _mm_setzero_si128(), t = _mm_loadu_si128((const __m128i *)tally);
    const __m128i half[2] = {_mm_unpacklo_epi8(t, none), _mm_unpackhi_epi8(t, none)};
    __m128i passed[4];
    for (int i = 0; i < 4; i++) {
        __m128i more = i & 1 ? _mm_unpackhi_epi16(half[i / 2], none) : _mm_unpacklo_epi16(half[i / 2], none);
        __m128i sum = _mm_add_epi32(_mm_loadu_si128((const __m128i *)(seen + 4 * i)), more);
        _mm_storeu_si128((__m128i *)(until + 4 * i), sum);
        passed[i] = _mm_cmpgt_epi32(sum, _mm_loadu_si128((const __m128i *)(next + 4 * i)));
    }
    __m128i low = _mm_packs_epi32(passed[0], passed[1]), high = _mm_packs_epi32(passed[2], passed[3]);
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

static inline void ds_tally(const uint8_t *classes, uint8_t *tally) {
    memset(tally, 0, DS_CLASSES);
    for (size_t i = 0; i < DS_LOT; i++)
        if (classes[i] < DS_CLASSES) tally[classes[i]]++;
}

static inline void ds_sum(const uint8_t *tally, const uint16_t *sums, uint16_t *after) {
    for (int k = 0; k < DS_CLASSES; k++) after[k] = (uint16_t)(sums[k] + tally[k]);
}

static inline unsigned ds_pass(const uint8_t *tally, const int32_t *seen, const int32_t *next, int32_t *until) {
    unsigned passed = 0;
    for (int k = 0; k < DS_CLASSES; k++) {
        until[k] = seen[k] + tally[k];
        passed |= (unsigned)(next[k] < until[k]) << k;
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

/* Up to 64 lanes; what is missing gets a class of its own that nobody counts. */
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

static inline uint64_t ds_lower(unsigned lane) { return lane ? ~0ull >> (64 - lane) : 0; }

#endif
