/* Any 8-bit gaps and any table: refused, or the same lanes with 16-bit gaps. */
#include "fuzz.h"

/* Adds up the gaps of a block, up to the last change, and mixes every lane in; what follows that is no change. */
static uint64_t lanes_of(const uint8_t *low, const uint8_t *high, size_t count) {
    uint64_t lane = 0, sum = 0, largest = high ? 65535 : 255;
    for (size_t i = 0; i < count; i++) {
        uint64_t symbol = low[i] | (high ? (uint64_t)high[i] << 8 : 0);
        lane += symbol;
        if (symbol != largest) sum = ds_mix(sum + lane++);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    size_t blocks = number(&in, 1) % 4, count = number(&in, 2);
    uint8_t *table = take(&in, 16 * blocks), *before = copied(table, 16 * blocks), *gaps = take(&in, count);
    ds_buf low = {0}, high = {0};
    if (ds_ulp_widen(gaps, count, table, blocks, &low, &high)) {
        size_t narrow = 0, wide = 0;
        for (size_t b = 0; b < blocks; b++) {
            size_t was = ds_load(before + 16 * b, 4), is = ds_load(table + 16 * b, 4);
            CHECK(was <= count - narrow && is <= low.len - wide);
            CHECK(lanes_of(gaps + narrow, NULL, was) == (is ? lanes_of(low.data + wide, high.data + wide, is) : 0));
            same(table + 16 * b + 4, 12, before + 16 * b + 4, 12);
            narrow += was;
            wide += is;
        }
        CHECK(wide == low.len && low.len == high.len);
    }
    ds_free(&low);
    ds_free(&high);
    free(table);
    free(before);
    free(gaps);
    return 0;
}
