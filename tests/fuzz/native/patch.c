/* Positions inside the lanes, in any order: no access outside; ascending ones move the digest as was said. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    unsigned how = (unsigned)number(&in, 1);
    size_t width = (size_t)1 << (how & 3), count = 1 + number(&in, 1), bytes = count * width;
    size_t changes = number(&in, 1);
    int64_t positions[255];
    int ascending = 1;
    for (size_t i = 0; i < changes; i++) {
        positions[i] = (int64_t)(how & 8 ? (i ? (size_t)positions[i - 1] + 1 + number(&in, 1) % 4 : number(&in, 1))
                                         : number(&in, 1));
        if ((size_t)positions[i] >= count) changes = i;
        if (i && i < changes) ascending &= positions[i] > positions[i - 1];
    }
    change c = {changes, malloc(8 * changes + !changes), take(&in, changes * width)};
    memcpy(c.positions, positions, 8 * changes);
    uint8_t *lanes = noise(bytes, number(&in, 1)), *bits = malloc(changes * width + !changes);
    ds_lanes_of of = {lanes, bytes, width, KEY, number(&in, 8)};
    ds_patch(&of, c.positions, c.steps, changes, how >> 2 & 1, bits);
    int32_t narrow[255];
    for (size_t i = 0; i < changes; i++) narrow[i] = (int32_t)positions[i];
    ds_positions at = how & 16 ? (ds_positions){(uint8_t *)narrow, 4} : (ds_positions){(uint8_t *)c.positions, 8};
    ds_scatter(lanes, width, at, bits, changes);
    ds_gather(lanes, width, at, bits, changes);
    if (ascending) apply(&c, lanes, count, width);
    free_change(&c);
    free(lanes);
    free(bits);
    return 0;
}
