/* Segments of the codec `ctx` (spec, Codec ctx): ranks of changed lanes within the class of their exponent. */
#ifndef DELTASTORE_CTX_H
#define DELTASTORE_CTX_H

#include "streams.h"

#define DS_CLASSES 16
#define DS_SEGMENT ((size_t)1 << 22) /* lanes of a segment at most */
#define DS_RICE 24                   /* largest Rice parameter */

/* Where the exponent of a lane is: (lane >> shift & mask) - 1, modulo 256. */
typedef struct {
    unsigned shift;
    uint64_t mask;
} ds_field;

/* Lanes of one slice within a segment; an origin for each block. Positions ascend and are below `count`. */
typedef struct {
    const uint8_t *lanes;
    size_t count;
    ds_field field;
    const uint8_t *origins;
    const int64_t *positions;
    const uint8_t *steps;
    size_t changes;
} ds_run;

/* A row of the table, as it is stored. */
typedef struct {
    uint32_t unary, near, far, wide, counts[DS_CLASSES];
    uint8_t rices[DS_CLASSES];
} ds_row;

typedef struct {
    ds_row row;
    ds_buf unary, low, codes, near, far, wide, dense[DS_CLASSES];
} ds_segment;

typedef struct {
    const uint8_t *data;
    size_t len;
} ds_view;

typedef struct {
    ds_row row;
    ds_view unary, low, codes, near, far, wide, dense[DS_CLASSES];
} ds_coded;

void ds_ctx_count(const ds_run *run, size_t width, uint32_t *seen, uint32_t *changed);
int ds_ctx_encode(const ds_run *runs, size_t count, size_t width, unsigned dense, ds_segment *out);
void ds_ctx_free(ds_segment *out);
ds_fault ds_ctx_decode(const ds_run *runs, size_t count, size_t width, unsigned dense, const ds_coded *in,
                       int64_t *positions, uint8_t *steps, size_t capacity, uint64_t *counts);

#endif
