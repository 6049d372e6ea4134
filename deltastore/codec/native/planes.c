/* Byte planes of lanes: plane i holds byte i of each rotated lane (spec, Byte planes). */
#include "planes.h"

static inline uint64_t rotated(uint64_t v, size_t width, unsigned left) {
    return left ? (v << left | v >> (8 * width - left)) & ds_width_mask(width) : v;
}

static inline void split(const uint8_t *lanes, size_t count, size_t width, unsigned left, uint8_t *planes) {
    for (size_t i = 0; i < count; i++) {
        uint64_t v = rotated(ds_load(lanes + i * width, width), width, left);
        for (size_t k = 0; k < width; k++) planes[k * count + i] = (uint8_t)(v >> (8 * k));
    }
}

static inline void merge(const uint8_t *planes, size_t count, size_t width, unsigned left, uint8_t *lanes) {
    for (size_t i = 0; i < count; i++) {
        uint64_t v = 0;
        for (size_t k = 0; k < width; k++) v |= (uint64_t)planes[k * count + i] << (8 * k);
        ds_store(lanes + i * width, rotated(v, width, left), width);
    }
}

#if defined(__SSE2__)
#include <emmintrin.h>

static inline __m128i rotated16(__m128i v, unsigned left) {
    return _mm_or_si128(_mm_sll_epi16(v, _mm_cvtsi32_si128((int)left)),
                        _mm_srl_epi16(v, _mm_cvtsi32_si128(16 - (int)left)));
}

/* 16 lanes of 2 bytes at once; returns how many were done. */
static size_t split2(const uint8_t *lanes, size_t count, unsigned left, uint8_t *low, uint8_t *high) {
    size_t i = 0;
    const __m128i byte = _mm_set1_epi16(255);
    for (; i + 16 <= count; i += 16) {
        __m128i a = rotated16(_mm_loadu_si128((const __m128i *)(lanes + 2 * i)), left);
        __m128i b = rotated16(_mm_loadu_si128((const __m128i *)(lanes + 2 * i + 16)), left);
        _mm_storeu_si128((__m128i *)(low + i), _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte)));
        _mm_storeu_si128((__m128i *)(high + i), _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
    }
    return i;
}

static size_t merge2(const uint8_t *low, const uint8_t *high, size_t count, unsigned left, uint8_t *lanes) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(low + i)), b = _mm_loadu_si128((const __m128i *)(high + i));
        _mm_storeu_si128((__m128i *)(lanes + 2 * i), rotated16(_mm_unpacklo_epi8(a, b), left));
        _mm_storeu_si128((__m128i *)(lanes + 2 * i + 16), rotated16(_mm_unpackhi_epi8(a, b), left));
    }
    return i;
}
#else
static size_t split2(const uint8_t *lanes, size_t count, unsigned left, uint8_t *low, uint8_t *high) {
    (void)lanes, (void)count, (void)left, (void)low, (void)high;
    return 0;
}

static size_t merge2(const uint8_t *low, const uint8_t *high, size_t count, unsigned left, uint8_t *lanes) {
    (void)low, (void)high, (void)count, (void)left, (void)lanes;
    return 0;
}
#endif

/* `left` is less than the bits of a lane; the planes lie one after the other, the lowest first. */
void ds_split(const uint8_t *lanes, size_t count, size_t width, unsigned left, uint8_t *planes) {
    switch (width) { /* so that shifts and masks are constants */
    case 1: split(lanes, count, 1, left, planes); return;
    case 2:
        for (size_t i = split2(lanes, count, left, planes, planes + count); i < count; i++) {
            uint64_t v = rotated(ds_load(lanes + 2 * i, 2), 2, left);
            planes[i] = (uint8_t)v;
            planes[count + i] = (uint8_t)(v >> 8);
        }
        return;
    case 4: split(lanes, count, 4, left, planes); return;
    default: split(lanes, count, 8, left, planes);
    }
}

void ds_merge(const uint8_t *planes, size_t count, size_t width, unsigned left, uint8_t *lanes) {
    unsigned right = left ? (unsigned)(8 * width) - left : 0;
    switch (width) {
    case 1: merge(planes, count, 1, right, lanes); return;
    case 2:
        for (size_t i = merge2(planes, planes + count, count, right, lanes); i < count; i++) {
            uint64_t v = planes[i] | (uint64_t)planes[count + i] << 8;
            ds_store(lanes + 2 * i, rotated(v, 2, right), 2);
        }
        return;
    case 4: merge(planes, count, 4, right, lanes); return;
    default: merge(planes, count, 8, right, lanes);
    }
}
