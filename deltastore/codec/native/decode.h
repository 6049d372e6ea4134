#ifndef DELTASTORE_DECODE_H
#define DELTASTORE_DECODE_H

#include "streams.h"

ds_fault ds_ulp_decode(const ds_streams *s, int64_t *positions, uint8_t *steps, size_t changes);
uint64_t ds_patch(const uint8_t *lanes, size_t bytes, size_t width, const int64_t *positions, const uint8_t *values,
                  size_t count, int relative, uint64_t key, uint64_t first_word, uint8_t *new_bits);
void ds_scatter(uint8_t *lanes, size_t width, const int64_t *positions, const uint8_t *values, size_t count);

#endif
