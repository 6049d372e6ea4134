/* Any streams at all: refused, or a change whose only form they are. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    ds_streams s = read_streams(&in);
    change c;
    if (read_change(&s, declared(&s), &c) == DS_OK) {
        uint8_t *base = noise(s.lanes * s.width, 1), *after = copied(base, s.lanes * s.width);
        is_patch(&s, &c, base);
        apply(&c, after, s.lanes, s.width);
        is_diff(&s, base, after);
        free(base);
        free(after);
    }
    free_change(&c);
    if (read_change(&s, in.left % 8, &c) == DS_OK) CHECK(in.left % 8 == declared(&s));
    free_change(&c);
    free_streams(&s);
    return 0;
}
