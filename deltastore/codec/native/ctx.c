/* Coding segments by class (spec, Codec ctx). Scans look at 64 lanes at once, and know nothing of changes. */
#include "ctx.h"

#include "bits.h"
#include "classes.h"

#define SAMPLE 64 /* lanes of every STRIDE that are counted to choose origins */
#define STRIDE 2048
#define MANY 256 /* changes of a block that are enough to choose its origin */
#define CHUNK ((size_t)8192) /* lanes whose classes are held at once; a divisor of a block */
#define AHEAD 16 /* samples and changes that are fetched into the cache before they are needed */

/* The exponents of a sample of one block. Most lanes have one of a few: four rows, so that none waits for the one before. */
static inline void count_block(const ds_run *run, size_t first, size_t lanes, size_t width, uint32_t *row) {
    uint16_t rows[4][256] = {{0}};
    size_t sampled = 0;
    for (size_t at = first; at < first + lanes; at += STRIDE) {
        size_t end = first + lanes - at < SAMPLE ? first + lanes : at + SAMPLE, soon = at + AHEAD * STRIDE;
        for (size_t i = soon; i < soon + SAMPLE && i < run->count; i += 64 / width)
            __builtin_prefetch(run->lanes + i * width);
        for (size_t i = at; i < end; i++)
            rows[i % 4][ds_exponent(ds_load(run->lanes + i * width, width), run->field)]++;
        sampled += end - at;
    }
    for (size_t e = 0; e < 256; e++) {
        uint32_t found = (uint32_t)rows[0][e] + rows[1][e] + rows[2][e] + rows[3][e];
        if (found) row[e] = (uint32_t)((uint64_t)found * lanes / sampled);
    }
}

static inline void count(const ds_run *run, size_t width, uint32_t *seen, uint32_t *changed) {
    for (size_t first = 0; first < run->count; first += DS_BLOCK) {
        size_t lanes = run->count - first < DS_BLOCK ? run->count - first : DS_BLOCK;
        count_block(run, first, lanes, width, seen + first / DS_BLOCK * 256);
    }
    size_t blocks = (run->count + DS_BLOCK - 1) / DS_BLOCK, every = 1;
    if (run->changes > MANY * blocks) every = run->changes / (MANY * blocks);
    for (size_t i = 0; i < run->changes; i += every) {
        size_t at = (size_t)run->positions[i], soon = i + AHEAD * every;
        if (soon < run->changes) __builtin_prefetch(run->lanes + (size_t)run->positions[soon] * width);
        uint64_t old = ds_load(run->lanes + at * width, width) - ds_load(run->steps + i * width, width);
        changed[256 * (at / DS_BLOCK) + ds_exponent(old, run->field)] += (uint32_t)every;
    }
}

/* `seen` has 256 counts for each block, from a sample and scaled; `changed` likewise. */
void ds_ctx_count(const ds_run *run, size_t width, uint32_t *seen, uint32_t *changed) {
    switch (width) { /* so that shifts and masks are constants */
    case 1: count(run, 1, seen, changed); return;
    case 2: count(run, 2, seen, changed); return;
    case 4: count(run, 4, seen, changed); return;
    default: count(run, 8, seen, changed);
    }
}

/* --- Encoding ---------------------------------------------------------------------------------------- */

/* Some lanes of a block: their classes, and how many of each class are before each lot. */
typedef struct {
    uint8_t classes[CHUNK];
    uint16_t before[CHUNK / DS_LOT + 1][DS_CLASSES];
} chunk_t;

/* How far a segment has been coded. */
typedef struct {
    uint32_t seen[DS_CLASSES];  /* lanes of each class */
    ds_buf changes[DS_CLASSES]; /* ranks, of 4 bytes each, and steps */
    ds_pairs pairs;
    chunk_t chunk;
} state_t;

static inline void add(ds_buf *b, uint64_t value, size_t bytes) {
    ds_store(b->data + b->len, value, bytes);
    b->len += bytes;
}

/* Classes before the changes, which are those from `begin` to `end`, and their sums. */
static inline void class_chunk(const ds_run *run, size_t first, size_t lanes, size_t width, size_t begin, size_t end,
                               const ds_pairs *pairs, chunk_t *chunk) {
    uint8_t origin = run->origins[first / DS_BLOCK], tally[DS_CLASSES];
    uint64_t mask = ds_width_mask(width);
    for (size_t at = 0; at < lanes; at += DS_LOT)
        ds_classes(run->lanes + (first + at) * width, lanes - at < DS_LOT ? lanes - at : DS_LOT, width, run->field,
                   origin, chunk->classes + at);
    for (size_t i = begin; i < end; i++) {
        size_t lane = (size_t)run->positions[i];
        uint64_t old = ds_load(run->lanes + lane * width, width) - ds_load(run->steps + i * width, width);
        chunk->classes[lane - first] = ds_class(old & mask, run->field, origin);
    }
    memset(chunk->before[0], 0, sizeof chunk->before[0]);
    for (size_t at = 0, lot = 0; at < lanes; at += DS_LOT, lot++) {
        size_t soon = first + CHUNK + at;
        for (size_t i = soon; i < soon + DS_LOT && i < run->count; i += 64 / width)
            __builtin_prefetch(run->lanes + i * width);
        ds_tally(pairs, chunk->classes + at, lanes - at < DS_LOT ? lanes - at : DS_LOT, tally);
        ds_sum(tally, chunk->before[lot], chunk->before[lot + 1]);
    }
}

/* One chunk: classes and ranks of its changes, from `*next` on. */
static inline int encode_chunk(const ds_run *run, size_t first, size_t lanes, size_t width, unsigned dense,
                               size_t *next, state_t *s, ds_segment *out) {
    chunk_t *chunk = &s->chunk;
    size_t end = *next;
    while (end < run->changes && (size_t)run->positions[end] < first + lanes) end++;
    class_chunk(run, first, lanes, width, *next, end, &s->pairs, chunk);
    for (; *next < end; ++*next) {
        size_t lane = (size_t)run->positions[*next] - first, lot = lane / DS_LOT;
        uint64_t step = ds_load(run->steps + *next * width, width);
        uint8_t k = chunk->classes[lane];
        uint64_t below = ds_members(chunk->classes + lot * DS_LOT, k) & ds_lower((unsigned)(lane % DS_LOT));
        if (!ds_reserve(&s->changes[k], 4 + width)) return 0;
        uint8_t *to = s->changes[k].data + s->changes[k].len;
        s->changes[k].len += 4 + width;
        ds_store(to, s->seen[k] + chunk->before[lot][k] + ds_ones(below), 4);
        ds_store(to + 4, step, width);
        /* What is rare comes first: which of the changes are dense cannot be guessed. */
        if (ds_zigzag(step, width) < 255 || k >= dense) continue;
        if (!ds_reserve(&out->wide, width)) return 0;
        add(&out->wide, step, width);
    }
    for (int k = 0; k < DS_CLASSES; k++) s->seen[k] += chunk->before[(lanes + DS_LOT - 1) / DS_LOT][k];
    return 1;
}

/* The symbols of a dense class. */
static inline int encode_dense(const ds_buf *changes, size_t lanes, size_t width, ds_buf *out) {
    if (!lanes) return 1;
    if (!ds_reserve(out, lanes)) return 0;
    memset(out->data, 0, lanes);
    out->len = lanes;
    for (size_t at = 0; at < changes->len; at += 4 + width) {
        uint64_t z = ds_zigzag(ds_load(changes->data + at + 4, width), width);
        out->data[ds_load(changes->data + at, 4)] = z < 255 ? (uint8_t)z : 255;
    }
    return 1;
}

/* The gaps of a sparse class that has changes. */
static inline void encode_gaps(const ds_buf *changes, size_t width, uint8_t *rice, ds_bits *unary, ds_bits *low) {
    size_t each = 4 + width;
    uint64_t next = 0, half = (ds_load(changes->data + changes->len - each, 4) + 1) / (2 * (changes->len / each));
    unsigned r = 0;
    while (half >> (r + 1)) r++;
    *rice = (uint8_t)r;
    for (size_t at = 0; at < changes->len; at += each) {
        uint64_t rank = ds_load(changes->data + at, 4), gap = rank - next;
        next = rank + 1;
        ds_put_unary(unary, gap >> r);
        ds_put(low, gap & ((1ull << r) - 1), r);
    }
}

static inline void encode_step(ds_segment *out, size_t index, uint64_t step, size_t width) {
    uint64_t z = ds_zigzag(step, width);
    uint8_t code = z < 3 ? (uint8_t)(z - 1) : 2;
    out->codes.data[index / 4] |= (uint8_t)(code << (2 * (index & 3)));
    if (code < 2) return;
    add(&out->near, z - 3 < 255 ? z - 3 : 255, 1);
    if (z - 3 >= 255) add(&out->far, step, width);
}

static inline int encode_sparse(const state_t *s, size_t lanes, size_t width, unsigned dense, ds_segment *out) {
    size_t count = 0, index = 0, each = 4 + width;
    for (unsigned k = dense; k < DS_CLASSES; k++) count += s->changes[k].len / each;
    /* A gap takes no more unary bits than lanes; low bits at most as many as a rank has. */
    if (!ds_reserve(&out->unary, lanes / 8 + 16) || !ds_reserve(&out->low, 3 * count + 16) ||
        !ds_reserve(&out->codes, count / 4 + 1) || !ds_reserve(&out->near, count) ||
        !ds_reserve(&out->far, count * width))
        return 0;
    ds_bits unary = {out->unary.data, 0, 0}, low = {out->low.data, 0, 0};
    memset(out->codes.data, 0, count / 4 + 1);
    for (unsigned k = dense; k < DS_CLASSES; k++) {
        const ds_buf *changes = &s->changes[k];
        out->row.counts[k] = (uint32_t)(changes->len / each);
        if (changes->len) encode_gaps(changes, width, &out->row.rices[k], &unary, &low);
        for (size_t at = 4; at < changes->len; at += each)
            encode_step(out, index++, ds_load(changes->data + at, width), width);
    }
    out->codes.len = (count + 3) / 4;
    out->unary.len = ds_flush(&unary, out->unary.data);
    out->low.len = ds_flush(&low, out->low.data);
    return 1;
}

static inline int encode(const ds_run *runs, size_t count, size_t width, unsigned dense, state_t *s,
                         ds_segment *out) {
    size_t lanes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t next = 0;
        for (size_t first = 0; first < runs[i].count; first += CHUNK) {
            size_t n = runs[i].count - first < CHUNK ? runs[i].count - first : CHUNK;
            if (!encode_chunk(&runs[i], first, n, width, dense, &next, s, out)) return 0;
        }
        lanes += runs[i].count;
    }
    for (unsigned k = 0; k < dense; k++) {
        if (!encode_dense(&s->changes[k], s->seen[k], width, &out->dense[k])) return 0;
        out->row.counts[k] = s->seen[k];
    }
    if (!encode_sparse(s, lanes, width, dense, out)) return 0;
    out->row.unary = (uint32_t)out->unary.len;
    out->row.near = (uint32_t)out->near.len;
    out->row.far = (uint32_t)(out->far.len / width);
    out->row.wide = (uint32_t)(out->wide.len / width);
    return 1;
}

/* The runs have at most DS_SEGMENT lanes in all. Returns 0 if memory ran out. */
int ds_ctx_encode(const ds_run *runs, size_t count, size_t width, unsigned dense, ds_segment *out) {
    state_t s;
    memset(&s, 0, sizeof s);
    ds_pairs_fill(&s.pairs);
    int ok = width == 1   ? encode(runs, count, 1, dense, &s, out)
             : width == 2 ? encode(runs, count, 2, dense, &s, out)
             : width == 4 ? encode(runs, count, 4, dense, &s, out)
                          : encode(runs, count, 8, dense, &s, out);
    for (int k = 0; k < DS_CLASSES; k++) ds_free(&s.changes[k]);
    return ok;
}

void ds_ctx_free(ds_segment *out) {
    ds_buf *all[] = {&out->unary, &out->low, &out->codes, &out->near, &out->far, &out->wide};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ds_free(all[i]);
    for (int k = 0; k < DS_CLASSES; k++) ds_free(&out->dense[k]);
}
