/* Coding segments by class (spec, Codec ctx). Scans look at 64 lanes at once, and know nothing of changes. */
#include "ctx.h"

#include "bits.h"
#include "classes.h"

#define SAMPLE 64 /* lanes of every STRIDE that are counted to choose origins */
#define STRIDE 2048
#define EVERY 4   /* of the changes, where there are MANY to a block */
#define MANY 1024
#define CHUNK ((size_t)1 << 16) /* lanes whose classes are held at once; a divisor of a block */
#define AHEAD 32 /* changes that are fetched into the cache before they are needed */

static inline void count(const ds_run *run, size_t width, uint32_t *seen, uint32_t *changed) {
    for (size_t block = 0; block * DS_BLOCK < run->count; block++) {
        size_t first = block * DS_BLOCK, sampled = 0;
        size_t lanes = run->count - first < DS_BLOCK ? run->count - first : DS_BLOCK;
        uint32_t *row = seen + 256 * block;
        for (size_t at = 0; at < lanes; at += STRIDE) {
            size_t end = lanes - at < SAMPLE ? lanes : at + SAMPLE, soon = first + at + AHEAD * STRIDE;
            for (size_t i = soon; i < soon + SAMPLE && i < run->count; i += 64 / width)
                __builtin_prefetch(run->lanes + i * width);
            for (size_t i = at; i < end; i++)
                row[ds_exponent(ds_load(run->lanes + (first + i) * width, width), run->field)]++;
            sampled += end - at;
        }
        for (size_t e = 0; e < 256; e++) row[e] = (uint32_t)((uint64_t)row[e] * lanes / sampled);
    }
    size_t every = run->changes > MANY * ((run->count + DS_BLOCK - 1) / DS_BLOCK) ? EVERY : 1;
    for (size_t i = 0; i < run->changes; i += every) {
        size_t at = (size_t)run->positions[i];
        if (i + AHEAD < run->changes) __builtin_prefetch(run->lanes + (size_t)run->positions[i + AHEAD] * width);
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

/* Some lanes of a block: their classes, and of each lot what the lots before it have of each class. */
typedef struct {
    uint8_t classes[CHUNK];
    uint16_t before[CHUNK / DS_LOT][DS_CLASSES];
} chunk_t;

/* Classes before the changes from `begin` to `end`, and their sums; what is in them is added to `seen`. */
static inline void class_chunk(const ds_run *run, size_t first, size_t lanes, size_t width, size_t begin, size_t end,
                               uint32_t *seen, chunk_t *chunk) {
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
    size_t last = (lanes - 1) / DS_LOT;
    memset(chunk->before[0], 0, sizeof chunk->before[0]);
    for (size_t lot = 0; lot < last; lot++) {
        ds_tally(chunk->classes + lot * DS_LOT, tally);
        ds_sum(tally, chunk->before[lot], chunk->before[lot + 1]);
    }
    /* The sum of a whole chunk need not fit into 16 bits. */
    ds_tally(chunk->classes + last * DS_LOT, tally);
    for (int k = 0; k < DS_CLASSES; k++) seen[k] += (uint32_t)chunk->before[last][k] + tally[k];
}

/* One chunk: ranks of its changes, from `*next` on, and the symbols of its dense lanes. */
static inline int encode_chunk(const ds_run *run, size_t first, size_t lanes, size_t width, unsigned dense,
                               size_t *next, uint32_t *seen, chunk_t *chunk, changes_t *to, ds_segment *out) {
    size_t begin = *next;
    while (*next < run->changes && (size_t)run->positions[*next] < first + lanes) ++*next;
    uint32_t base[DS_CLASSES];
    memcpy(base, seen, sizeof base);
    class_chunk(run, first, lanes, width, begin, *next, seen, chunk);
    for (unsigned k = 0; k < dense; k++) {
        size_t more = seen[k] - base[k];
        if (!ds_reserve(&out->dense[k], more)) return 0;
        if (more) memset(out->dense[k].data + out->dense[k].len, 0, more);
        out->dense[k].len += more;
    }
    for (size_t i = begin; i < *next; i++) {
        size_t lane = (size_t)run->positions[i] - first, lot = lane / DS_LOT;
        const uint8_t *classes = chunk->classes + lot * DS_LOT;
        uint8_t k = chunk->classes[lane];
        uint64_t below = ds_members(classes, k) & ds_lower((unsigned)(lane % DS_LOT));
        uint32_t rank = base[k] + chunk->before[lot][k] + ds_ones(below);
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

static inline int encode(const ds_run *runs, size_t count, size_t width, unsigned dense, chunk_t *chunk, changes_t *c,
                         ds_segment *out) {
    uint32_t seen[DS_CLASSES] = {0};
    size_t lanes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t next = 0;
        for (size_t first = 0; first < runs[i].count; first += CHUNK) {
            size_t n = runs[i].count - first < CHUNK ? runs[i].count - first : CHUNK;
            if (!encode_chunk(&runs[i], first, n, width, dense, &next, seen, chunk, c, out)) return 0;
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
    chunk_t *chunk = malloc(sizeof *chunk);
    int ok = c.steps && c.ranks && c.order && c.classes && chunk;
    if (ok)
        ok = width == 1   ? encode(runs, count, 1, dense, chunk, &c, out)
             : width == 2 ? encode(runs, count, 2, dense, chunk, &c, out)
             : width == 4 ? encode(runs, count, 4, dense, chunk, &c, out)
                          : encode(runs, count, 8, dense, chunk, &c, out);
    free(c.steps);
    free(c.ranks);
    free(c.order);
    free(c.classes);
    free(chunk);
    return ok;
}

void ds_ctx_free(ds_segment *out) {
    ds_buf *all[] = {&out->unary, &out->low, &out->codes, &out->near, &out->far, &out->wide};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ds_free(all[i]);
    for (int k = 0; k < DS_CLASSES; k++) ds_free(&out->dense[k]);
}
