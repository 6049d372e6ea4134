/* Planes hold the bytes that they should and come back; digests are the sum that the spec writes down. */
#include "fuzz.h"

static void check_planes(const uint8_t *lanes, size_t count, size_t width, unsigned left) {
    size_t bytes = count * width, bits = 8 * width;
    uint8_t *planes = malloc(bytes + !bytes), *back = malloc(bytes + !bytes);
    ds_split(lanes, count, width, left, planes);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < bits; k++) {
            size_t to = (k + left) % bits;
            CHECK((planes[to / 8 * count + i] >> to % 8 & 1) == (lanes[i * width + k / 8] >> k % 8 & 1));
        }
    ds_merge(planes, count, width, left, back);
    same(back, bytes, lanes, bytes);
    free(planes);
    free(back);
}

static void check_digest(const uint8_t *data, size_t bytes, uint64_t key, uint64_t first) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        for (size_t k = at; k < bytes && k < at + 8; k++) word |= (uint64_t)data[k] << 8 * (k - at);
        sum += ds_mix(word + key + (first + at / 8 + 1) * DS_GOLDEN);
    }
    CHECK(ds_digest(data, bytes, key, first) == sum);
    size_t half = bytes / 16 * 8;
    CHECK(ds_digest(data, half, key, first) + ds_digest(data + half, bytes - half, key, first + half / 8) == sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    unsigned how = (unsigned)number(&in, 1);
    size_t width = (size_t)1 << (how & 3);
    uint64_t key = number(&in, 8), first = number(&in, 8);
    size_t bytes = in.left;
    uint8_t *lanes = take(&in, bytes);
    check_digest(lanes, bytes, key, first);
    check_planes(lanes, bytes / width, width, (how >> 2) % (8 * (unsigned)width));
    free(lanes);
    return 0;
}
