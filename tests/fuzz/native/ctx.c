/* Segments of codec `ctx`: any streams are refused or read; what is read, or was made up, comes back once encoded. */
#include "ctx.h"

#include "fuzz.h"

#define RUNS 3

typedef struct {
    size_t width, count;
    unsigned dense;
    ds_run runs[RUNS];
    uint8_t *lanes[RUNS], *origins[RUNS];
    size_t total;
} segment;

/* Lanes with exponents about where the classes are, so that all of them occur. */
static segment read_segment(input *in) {
    static const ds_field fields[4] = {{3, 15, 0}, {7, 255, 0}, {23, 255, 0}, {0, 0, 255}};
    unsigned how = (unsigned)number(in, 1);
    segment s = {.width = (size_t)1 << (how & 3), .count = 1 + (how >> 2) % RUNS, .dense = (how >> 4) + (how >> 3 & 1)};
    for (size_t i = 0; i < s.count; i++) {
        size_t lanes = number(in, 2) % 1500, blocks = (lanes + DS_BLOCK - 1) / DS_BLOCK;
        s.lanes[i] = noise(lanes * s.width, i + 3);
        s.origins[i] = take(in, blocks);
        for (size_t k = 0; k < lanes && fields[how & 3].mask; k++) {
            uint64_t e = (blocks ? s.origins[i][0] : 0) + ds_load(s.lanes[i] + k * s.width, 1) % 18;
            ds_store(s.lanes[i] + k * s.width, (e & fields[how & 3].mask) << fields[how & 3].shift, s.width);
        }
        s.runs[i] = (ds_run){.lanes = s.lanes[i], .count = lanes, .field = fields[how & 3], .origins = s.origins[i]};
        s.total += lanes;
    }
    return s;
}

/* Whether streams are read, and as what. */
static ds_fault decode(const segment *s, const ds_coded *in, change *c, uint64_t *counts) {
    return ds_ctx_decode(s->runs, s->count, s->width, s->dense, in, c->positions, c->steps, c->count, counts);
}

static change room(size_t count, size_t width) {
    change c = {count, malloc(8 * count + !count), malloc(width * count + !count)};
    CHECK(c.positions && c.steps);
    return c;
}

/* Encodes a change from the lanes after it, and reads the same again from those before. */
static void comes_back(const segment *s, const change *c, const uint64_t *counts) {
    ds_run runs[RUNS];
    uint8_t *after[RUNS];
    size_t done = 0;
    memcpy(runs, s->runs, sizeof runs);
    for (size_t i = 0; i < s->count; i++) {
        after[i] = copied(s->lanes[i], runs[i].count * s->width);
        runs[i].lanes = after[i];
        runs[i].positions = c->positions + done;
        runs[i].steps = c->steps + done * s->width;
        runs[i].changes = counts[i];
        for (size_t k = done; k < done + counts[i]; k++)
            CHECK(c->positions[k] > (k > done ? c->positions[k - 1] : -1) &&
                  (size_t)c->positions[k] < runs[i].count && ds_load(c->steps + k * s->width, s->width));
        apply(&(change){counts[i], c->positions + done, c->steps + done * s->width}, after[i], runs[i].count, s->width);
        done += counts[i];
    }
    CHECK(done == c->count);
    ds_segment out;
    memset(&out, 0, sizeof out);
    CHECK(ds_ctx_encode(runs, s->count, s->width, s->dense, &out));
    ds_buf *all[6] = {&out.unary, &out.low, &out.codes, &out.near, &out.far, &out.wide};
    ds_coded coded = {.row = out.row};
    ds_view *views[6] = {&coded.unary, &coded.low, &coded.codes, &coded.near, &coded.far, &coded.wide};
    for (int i = 0; i < 6; i++) *views[i] = (ds_view){copied(all[i]->data, all[i]->len), all[i]->len};
    for (unsigned k = 0; k < s->dense; k++)
        coded.dense[k] = (ds_view){copied(out.dense[k].data, out.dense[k].len), out.dense[k].len};
    change again = room(c->count, s->width);
    uint64_t found[RUNS] = {0};
    CHECK(decode(s, &coded, &again, found) == DS_OK);
    same((uint8_t *)found, 8 * s->count, (const uint8_t *)counts, 8 * s->count);
    same((uint8_t *)again.positions, 8 * c->count, (uint8_t *)c->positions, 8 * c->count);
    same(again.steps, s->width * c->count, c->steps, s->width * c->count);
    for (int i = 0; i < 6; i++) free((void *)views[i]->data);
    for (unsigned k = 0; k < s->dense; k++) free((void *)coded.dense[k].data);
    for (size_t i = 0; i < s->count; i++) free(after[i]);
    free_change(&again);
    ds_ctx_free(&out);
}

static void any_streams(const segment *s, input *in) {
    ds_coded coded;
    memset(&coded, 0, sizeof coded);
    ds_view *views[6] = {&coded.unary, &coded.low, &coded.codes, &coded.near, &coded.far, &coded.wide};
    uint64_t counts[RUNS] = {0};
    size_t changes = number(in, 2) % 2048;
    for (unsigned k = 0; k < DS_CLASSES; k++) {
        coded.row.counts[k] = (uint32_t)number(in, 1) | (uint32_t)number(in, 1) << (k & 1 ? 8 : 24);
        coded.row.rices[k] = (uint8_t)number(in, 1);
    }
    for (int i = 0; i < 6; i++) {
        size_t len = number(in, 1);
        *views[i] = (ds_view){take(in, len), len};
    }
    for (unsigned k = 0; k < s->dense; k++) {
        size_t len = number(in, 1);
        coded.dense[k] = (ds_view){take(in, len), len};
    }
    change c = room(changes, s->width);
    if (decode(s, &coded, &c, counts) == DS_OK) comes_back(s, &c, counts);
    for (int i = 0; i < 6; i++) free((void *)views[i]->data);
    for (unsigned k = 0; k < s->dense; k++) free((void *)coded.dense[k].data);
    free_change(&c);
}

static void made_up(const segment *s, input *in) {
    change c = room(s->total, s->width);
    uint64_t counts[RUNS] = {0}, mask = ds_width_mask(s->width);
    c.count = 0;
    for (size_t i = 0; i < s->count; i++)
        for (size_t at = number(in, 1); at < s->runs[i].count && in->left; at += 1 + number(in, 1)) {
            uint64_t by = number(in, 1), values[4] = {1, mask, by, ds_mix(by)}, step = values[by & 3] & mask;
            c.positions[c.count] = (int64_t)at;
            ds_store(c.steps + c.count * s->width, step ? step : 1, s->width);
            counts[i]++;
            c.count++;
        }
    comes_back(s, &c, counts);
    free_change(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    unsigned hostile = (unsigned)number(&in, 1) & 1;
    segment s = read_segment(&in);
    if (hostile)
        any_streams(&s, &in);
    else
        made_up(&s, &in);
    for (size_t i = 0; i < s.count; i++) {
        free(s.lanes[i]);
        free(s.origins[i]);
    }
    return 0;
}
