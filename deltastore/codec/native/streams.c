/* Whole streams: from positions and steps, 8-bit gaps as 16-bit ones, and memory (spec, Codec ulp, Gap coding). */
#include "streams.h"

/* Steps at ascending positions within the lanes; returns 0 if memory ran out. */
int ds_ulp_encode(const int64_t *positions, const uint8_t *steps, size_t count, size_t lanes, size_t width,
                  ds_ulp *out) {
    ds_batch run;
    size_t at = 0;
    for (size_t first = 0; first < lanes; first += DS_BLOCK) {
        size_t end = at;
        while (end < count && (size_t)positions[end] - first < DS_BLOCK) end++;
        ds_cursor c;
        if (!ds_start(out, end - at, width, &c)) return 0;
        for (; at < end; at += run.count) {
            run.count = end - at < DS_BATCH ? end - at : DS_BATCH;
            for (size_t i = 0; i < run.count; i++) run.lanes[i] = (uint32_t)((size_t)positions[at + i] - first);
            memcpy(run.steps, steps + at * width, run.count * width);
            ds_write(&c, &run, width);
        }
        ds_end(out, &c, width);
    }
    return 1;
}

/* 8-bit gap symbols of whole blocks as 16-bit ones, in a low and a high plane; the table is brought up to date. */
int ds_ulp_widen(const uint8_t *gaps, size_t count, uint8_t *table, size_t blocks, ds_buf *low, ds_buf *high) {
    const uint8_t *end = gaps + count;
    for (size_t b = 0; b < blocks; b++) {
        uint32_t row[2], symbols = 0;
        memcpy(row, table + 16 * b, 8);
        if (row[0] > (size_t)(end - gaps)) return 0;
        size_t room = (size_t)row[0] + DS_BLOCK / 65535 + 1;
        if (!ds_reserve(low, room) || !ds_reserve(high, room)) return 0;
        size_t gap = 0;
        for (uint32_t i = 0; i < row[0]; i++) {
            gap += gaps[i];
            if (gaps[i] == 255) continue;
            for (; gap >= 65535; gap -= 65535, symbols++) low->data[low->len++] = high->data[high->len++] = 255;
            low->data[low->len++] = (uint8_t)gap;
            high->data[high->len++] = (uint8_t)(gap >> 8);
            symbols++;
            gap = 0;
        }
        gaps += row[0];
        memcpy(table + 16 * b, &symbols, 4);
    }
    return 1;
}

void ds_ulp_free(ds_ulp *out) {
    ds_free(&out->table);
    ds_free(&out->gaps);
    ds_free(&out->codes);
    ds_free(&out->near);
    ds_free(&out->far);
}
