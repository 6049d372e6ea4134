#ifndef DELTASTORE_DIFF_H
#define DELTASTORE_DIFF_H

#include "streams.h"

/* What bit patterns are NaN or infinite: (bits & mask) == value; mask 0 and value 1 where there are none. */
typedef struct {
    uint64_t mask, value;
} ds_nonfinite;

/* What a comparison found beside the streams. */
typedef struct {
    uint64_t delta, nonfinite;
} ds_found;

int ds_ulp_diff(uint8_t *base, const uint8_t *new_, size_t bytes, size_t width, uint64_t key, uint64_t first_word,
                ds_nonfinite bad, ds_ulp *out, ds_found *found);

#endif
