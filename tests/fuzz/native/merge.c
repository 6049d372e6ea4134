/* Successive deltas, any streams at all: refused if one of them is, else the diff of the two ends. */
#include "fuzz.h"

#define MOST 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    ds_streams s[MOST];
    change c[MOST];
    size_t count = 0;
    int fine = 1;
    while (count == 0 || (count < MOST && in.left)) {
        s[count] = read_streams(&in);
        if (s[count].lanes != s[0].lanes || s[count].width != s[0].width) {
            free_streams(&s[count]);
            break;
        }
        fine &= read_change(&s[count], declared(&s[count]), &c[count]) == DS_OK;
        count++;
    }
    size_t lanes = s[0].lanes, width = s[0].width;
    ds_ulp out = {0};
    CHECK((ds_ulp_merge(s, count, &out) == DS_OK) == fine);
    if (fine) {
        uint8_t *base = noise(lanes * width, 2), *after = copied(base, lanes * width);
        for (size_t k = 0; k < count; k++) apply(&c[k], after, lanes, width);
        ds_streams merged = written(&out, lanes, width);
        is_diff(&merged, base, after);
        free(base);
        free(after);
    }
    ds_ulp_free(&out);
    for (size_t k = 0; k < count; k++) {
        free_change(&c[k]);
        free_streams(&s[k]);
    }
    return 0;
}
