/* Which of 64 lanes differ. */
#ifndef DELTASTORE_COMPARE_H
#define DELTASTORE_COMPARE_H

#include "common.h"

/* Bit i says whether lane i of 64 differs. */
#if defined(__SSE2__)
#include <emmintrin.h>

static inline __m128i same16(const uint8_t *a, const uint8_t *b, size_t width) {
    __m128i x = _mm_loadu_si128((const __m128i *)a), y = _mm_loadu_si128((const __m128i *)b);
    return width == 1 ? _mm_cmpeq_epi8(x, y) : width == 2 ? _mm_cmpeq_epi16(x, y) : _mm_cmpeq_epi32(x, y);
}

/* A byte of all ones for each of 16 lanes that are the same. */
static inline __m128i same_lanes(const uint8_t *a, const uint8_t *b, size_t width) {
    if (width == 1) return same16(a, b, 1);
    if (width == 2) return _mm_packs_epi16(same16(a, b, 2), same16(a + 16, b + 16, 2));
    __m128i low = _mm_packs_epi32(same16(a, b, 4), same16(a + 16, b + 16, 4));
    return _mm_packs_epi16(low, _mm_packs_epi32(same16(a + 32, b + 32, 4), same16(a + 48, b + 48, 4)));
}

static inline uint64_t ds_differing(const uint8_t *a, const uint8_t *b, size_t width) {
    uint64_t mask = 0;
    if (width == 8) {
        for (int i = 0; i < 64; i++) mask |= (uint64_t)(ds_load8(a + 8 * i) != ds_load8(b + 8 * i)) << i;
        return mask;
    }
    for (int i = 0; i < 4; i++) {
        uint32_t same = (uint32_t)_mm_movemask_epi8(same_lanes(a + 16 * i * width, b + 16 * i * width, width));
        mask |= (uint64_t)(same ^ 0xFFFF) << (16 * i);
    }
    return mask;
}
#else
static inline uint64_t ds_differing(const uint8_t *a, const uint8_t *b, size_t width) {
    uint64_t mask = 0;
    for (size_t i = 0; i < 64; i++)
        mask |= (uint64_t)(memcmp(a + i * width, b + i * width, width) != 0) << i;
    return mask;
}
#endif

#endif
