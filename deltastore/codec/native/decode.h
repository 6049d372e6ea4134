#ifndef DELTASTORE_DECODE_H
#define DELTASTORE_DECODE_H

#include "streams.h"

/* Positions in a slice, ascending, as integers of 4 or 8 bytes. */
typedef struct {
    uint8_t *at;
    size_t width;
} ds_positions;

/* The contiguous lanes of a slice, and what its digest takes: the tensor's key, and the index of the first word. */
typedef struct {
    const uint8_t *at;
    size_t bytes, width;
    uint64_t key, first_word;
} ds_lanes_of;

ds_fault ds_ulp_decode(const ds_streams *s, int64_t *positions, uint8_t *steps, size_t changes);
ds_fault ds_ulp_check(const ds_streams *s, size_t changes);
ds_fault ds_ulp_patch(const ds_streams *s, const ds_lanes_of *old, ds_positions positions, uint8_t *new_bits,
                      size_t changes, uint64_t *delta);
uint64_t ds_patch(const ds_lanes_of *old, const int64_t *positions, const uint8_t *values, size_t count, int relative,
                  uint8_t *new_bits);
void ds_scatter(uint8_t *lanes, size_t width, ds_positions positions, const uint8_t *values, size_t count);
void ds_gather(const uint8_t *lanes, size_t width, ds_positions positions, uint8_t *values, size_t count);

#endif
