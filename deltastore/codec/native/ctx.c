/* Coding segments by class (spec, Codec ctx). Scans look at 64 lanes at once; only lots with a change cost more. */
#include "ctx.h"

#include "bits.h"
#include "classes.h"

#define SAMPLE 64 /* lanes of every STRIDE that are counted to choose origins */
#define STRIDE 2048
#define AHEAD 32 /* changes that are fetched into the cache before they are needed */

static inline void count(const ds_run *run, size_t width, uint32_t *seen, uint32_t *changed) {
    for (size_t block = 0; block * DS_BLOCK < run->count; block++) {
        size_t first = block * DS_BLOCK, sampled = 0;
        size_t lanes = run->count - first < DS_BLOCK ? run->count - first : DS_BLOCK;
        uint32_t *row = seen + 256 * block;
        for (size_t at = 0; at < lanes; at += STRIDE) {
            size_t end = lanes - at < SAMPLE ? lanes : at + SAMPLE;
            for (size_t i = at; i < end; i++)
                row[ds_exponent(ds_load(run->lanes + (first + i) * width, width), run->field)]++;
            sampled += end - at;
        }
        for (size_t e = 0; e < 256; e++) row[e] = (uint32_t)((uint64_t)row[e] * lanes / sampled);
    }
    for (size_t i = 0; i < run->changes; i++) {
        size_t at = (size_t)run->positions[i];
        if (i + AHEAD < run->changes) __builtin_prefetch(run->lanes + (size_t)run->positions[i + AHEAD] * width);
        uint64_t old = ds_load(run->lanes + at * width, width) - ds_load(run->steps + i * width, width);
        changed[256 * (at / DS_BLOCK) + ds_exponent(old, run->field)]++;
    }
}

/* `seen` has 256 counts for each block, from a sample and scaled; `changed` likewise, of all changes. */
void ds_ctx_count(const ds_run *run, size_t width, uint32_t *seen, uint32_t *changed) {
    switch (width) { /* so that shifts and masks are constants */
    case 1: count(run, 1, seen, changed); return;
    case 2: count(run, 2, seen, changed); return;
    case 4: count(run, 4, seen, changed); return;
    default: count(run, 8, seen, changed);
    }
}

/* --- Encoding ---------------------------------------------------------------------------------------- */

/* The changes of a segment in the order of lanes: class and rank of those in sparse classes. */
typedef struct {
    uint64_t *steps;
    uint32_t *ranks, *order;
    uint8_t *classes;
    size_t count;
} changes_t;

static inline void add(ds_buf *b, uint64_t value, size_t bytes) {
    ds_store(b->data + b->len, value, bytes);
    b->len += bytes;
}

/* One block: ranks of its changes, from `*next` on, and the symbols of its dense lanes. */
static inline int encode_block(const ds_run *run, size_t first, size_t lanes, size_t width, unsigned dense, size_t *next,
                        uint32_t *seen, changes_t *to, ds_segment *out) {
    uint8_t origin = run->origins[first / DS_BLOCK], classes[DS_LOT], tally[DS_CLASSES];
    uint64_t mask = ds_width_mask(width);
    for (unsigned k = 0; k < dense; k++)
        if (!ds_reserve(&out->dense[k], lanes)) return 0;
    for (size_t at = first; at < first + lanes; at += DS_LOT) {
        size_t end = first + lanes - at < DS_LOT ? first + lanes : at + DS_LOT, begin = *next;
        ds_classes(run->lanes + at * width, end - at, width, run->field, origin, classes);
        for (; *next < run->changes && (size_t)run->positions[*next] < end; ++*next) {
            size_t lane = (size_t)run->positions[*next];
            uint64_t old = ds_load(run->lanes + lane * width, width) - ds_load(run->steps + *next * width, width);
            classes[lane - at] = ds_class(old & mask, run->field, origin);
        }
        for (uint64_t bits = dense ? ds_below(classes, dense) : 0; bits; bits &= bits - 1)
            add(&out->dense[classes[__builtin_ctzll(bits)]], 0, 1);
        for (size_t i = begin; i < *next; i++) {
            unsigned lane = (unsigned)((size_t)run->positions[i] - at);
            uint8_t k = classes[lane];
            uint32_t rank = seen[k] + ds_ones(ds_members(classes, k) & ds_lower(lane));
            uint64_t step = ds_load(run->steps + i * width, width), z = ds_zigzag(step, width);
            if (k >= dense) {
                to->steps[to->count] = step;
                to->ranks[to->count] = rank;
                to->classes[to->count++] = k;
                continue;
            }
            out->dense[k].data[rank] = z < 255 ? (uint8_t)z : 255;
            if (z < 255) continue;
            if (!ds_reserve(&out->wide, width)) return 0;
            add(&out->wide, step, width);
        }
        ds_tally(classes, tally);
        for (int k = 0; k < DS_CLASSES; k++) seen[k] += tally[k];
    }
    return 1;
}

/* The gaps of one class; its changes are `order[0]` to `order[n - 1]`. */
static void encode_gaps(const changes_t *c, const uint32_t *order, size_t n, uint8_t *rice, ds_bits *unary,
                        ds_bits *low) {
    uint64_t half = ((uint64_t)c->ranks[order[n - 1]] + 1) / (2 * n);
    unsigned r = 0;
    while (half >> (r + 1)) r++;
    *rice = (uint8_t)r;
    uint64_t next = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t gap = c->ranks[order[i]] - next;
        next = (uint64_t)c->ranks[order[i]] + 1;
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

static inline int encode_changes(changes_t *c, size_t lanes, size_t width, unsigned dense, ds_segment *out) {
    uint32_t starts[DS_CLASSES + 1] = {0}, fill[DS_CLASSES];
    for (size_t i = 0; i < c->count; i++) starts[c->classes[i] + 1]++;
    for (int k = 0; k < DS_CLASSES; k++) starts[k + 1] += starts[k];
    memcpy(fill, starts, sizeof fill);
    for (size_t i = 0; i < c->count; i++) c->order[fill[c->classes[i]]++] = (uint32_t)i;
    /* A gap takes no more unary bits than lanes; low bits at most as many as a rank has. */
    if (!ds_reserve(&out->unary, lanes / 8 + 16) || !ds_reserve(&out->low, 3 * c->count + 16) ||
        !ds_reserve(&out->codes, c->count / 4 + 1) || !ds_reserve(&out->near, c->count) ||
        !ds_reserve(&out->far, c->count * width))
        return 0;
    ds_bits unary = {out->unary.data, 0, 0}, low = {out->low.data, 0, 0};
    memset(out->codes.data, 0, c->count / 4 + 1);
    for (unsigned k = dense; k < DS_CLASSES; k++) {
        size_t n = starts[k + 1] - starts[k];
        out->row.counts[k] = (uint32_t)n;
        if (n) encode_gaps(c, c->order + starts[k], n, &out->row.rices[k], &unary, &low);
    }
    for (size_t i = 0; i < c->count; i++) encode_step(out, i, c->steps[c->order[i]], width);
    out->codes.len = (c->count + 3) / 4;
    out->unary.len = ds_flush(&unary, out->unary.data);
    out->low.len = ds_flush(&low, out->low.data);
    return 1;
}

static inline int encode(const ds_run *runs, size_t count, size_t width, unsigned dense, changes_t *c, ds_segment *out) {
    uint32_t seen[DS_CLASSES] = {0};
    size_t lanes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t next = 0;
        for (size_t first = 0; first < runs[i].count; first += DS_BLOCK) {
            size_t n = runs[i].count - first < DS_BLOCK ? runs[i].count - first : DS_BLOCK;
            if (!encode_block(&runs[i], first, n, width, dense, &next, seen, c, out)) return 0;
        }
        lanes += runs[i].count;
    }
    if (!encode_changes(c, lanes, width, dense, out)) return 0;
    memcpy(out->row.counts, seen, dense * sizeof *seen);
    out->row.unary = (uint32_t)out->unary.len;
    out->row.near = (uint32_t)out->near.len;
    out->row.far = (uint32_t)(out->far.len / width);
    out->row.wide = (uint32_t)(out->wide.len / width);
    return 1;
}

/* The runs have at most DS_SEGMENT lanes in all. Returns 0 if memory ran out. */
int ds_ctx_encode(const ds_run *runs, size_t count, size_t width, unsigned dense, ds_segment *out) {
    size_t changes = 1;
    for (size_t i = 0; i < count; i++) changes += runs[i].changes;
    changes_t c = {malloc(changes * sizeof(uint64_t)), malloc(changes * sizeof(uint32_t)),
                   malloc(changes * sizeof(uint32_t)), malloc(changes), 0};
    int ok = c.steps && c.ranks && c.order && c.classes;
    if (ok)
        ok = width == 1   ? encode(runs, count, 1, dense, &c, out)
             : width == 2 ? encode(runs, count, 2, dense, &c, out)
             : width == 4 ? encode(runs, count, 4, dense, &c, out)
                          : encode(runs, count, 8, dense, &c, out);
    free(c.steps);
    free(c.ranks);
    free(c.order);
    free(c.classes);
    return ok;
}

void ds_ctx_free(ds_segment *out) {
    ds_buf *all[] = {&out->unary, &out->low, &out->codes, &out->near, &out->far, &out->wide};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ds_free(all[i]);
    for (int k = 0; k < DS_CLASSES; k++) ds_free(&out->dense[k]);
}
