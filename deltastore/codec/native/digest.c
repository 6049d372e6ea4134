/* The state digest of contiguous bytes (spec, State digest). */
#include "common.h"

/* Four independent sums hide the latency of the multiplications; addition commutes, so their order is free. */
uint64_t ds_digest(const uint8_t *data, size_t bytes, uint64_t key, uint64_t first_word) {
    size_t words = bytes / 8, j = 0;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    uint64_t salt = ds_salt(key, first_word);
    for (; j + 4 <= words; j += 4, salt += 4 * DS_GOLDEN) {
        const uint8_t *p = data + 8 * j;
        s0 += ds_mix(ds_load8(p) + salt);
        s1 += ds_mix(ds_load8(p + 8) + salt + DS_GOLDEN);
        s2 += ds_mix(ds_load8(p + 16) + salt + 2 * DS_GOLDEN);
        s3 += ds_mix(ds_load8(p + 24) + salt + 3 * DS_GOLDEN);
    }
    for (; j < words; j++, salt += DS_GOLDEN) s0 += ds_mix(ds_load8(data + 8 * j) + salt);
    if (bytes % 8) s0 += ds_mix(ds_load(data + 8 * j, bytes % 8) + salt);
    return s0 + s1 + s2 + s3;
}
