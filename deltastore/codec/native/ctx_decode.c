/* Reading segments (spec, Codec ctx): gaps and steps class by class, then one scan that finds where they are. */
#include "bits.h"
#include "classes.h"

#define NEVER INT32_MAX
#define CHUNK 8192 /* lanes whose classes are held at once; a divisor of a block */

/* What is still to be found in a segment. */
typedef struct {
    uint32_t *ranks;
    uint64_t *steps;
    size_t index[DS_CLASSES], end[DS_CLASSES]; /* of ranks and steps in sparse classes, of symbols in dense ones */
    int32_t seen[DS_CLASSES], next[DS_CLASSES];
    const uint8_t *wide;
} state_t;

/* Where changes go. */
typedef struct {
    int64_t *positions;
    uint8_t *steps;
    size_t done, capacity;
} found_t;

static ds_fault read_gaps(const ds_coded *in, unsigned dense, state_t *s) {
    ds_bit_reader unary = {in->unary.data, 0, 8 * (uint64_t)in->unary.len};
    ds_bit_reader low = {in->low.data, 0, 8 * (uint64_t)in->low.len};
    size_t done = 0;
    for (unsigned k = dense; k < DS_CLASSES; k++) {
        uint64_t next = 0, q;
        unsigned r = in->row.rices[k];
        s->index[k] = done;
        if (r > DS_RICE || (uint64_t)in->row.counts[k] * r > low.bits - low.at) return DS_ENDS;
        for (uint32_t i = 0; i < in->row.counts[k]; i++) {
            if (!ds_get_unary(&unary, &q)) return DS_UNARY;
            next += (q << r) + ds_get(&low, r);
            if (next >= DS_SEGMENT) return DS_RANK;
            s->ranks[done++] = (uint32_t)next++;
        }
        s->end[k] = done;
        s->next[k] = s->index[k] < done ? (int32_t)s->ranks[s->index[k]] : NEVER;
    }
    if (!ds_ended(&unary)) return DS_UNARY;
    return ds_ended(&low) ? DS_OK : DS_LOW;
}

static inline ds_fault read_steps(const ds_coded *in, size_t changes, size_t width, state_t *s) {
    const uint8_t *near = in->near.data, *near_end = near + in->near.len;
    const uint8_t *far = in->far.data, *far_end = far + in->far.len;
    uint64_t mask = ds_width_mask(width);
    if (in->codes.len != (changes + 3) / 4) return DS_ENDS;
    for (size_t i = 0; i < changes; i++) {
        unsigned code = in->codes.data[i / 4] >> (2 * (i & 3)) & 3;
        s->steps[i] = code ? 1 : mask;
        if (code < 2) continue;
        if (code == 3) return DS_CODE;
        if (near == near_end) return DS_ESCAPES;
        unsigned x = *near++;
        s->steps[i] = ds_unzigzag(x + 3) & mask;
        if (x < 255 && x + 3 > mask) return DS_SHORTEST;
        if (x < 255) continue;
        if ((size_t)(far_end - far) < width) return DS_ESCAPES;
        s->steps[i] = ds_load(far, width);
        far += width;
        if (ds_zigzag(s->steps[i], width) < 258) return DS_SHORTEST;
    }
    if (near != near_end || far != far_end) return DS_ESCAPES;
    if (changes & 3 && in->codes.data[changes / 4] >> (2 * (changes & 3))) return DS_PADDING;
    return DS_OK;
}

/* The changes of 64 lanes in dense classes: one bit each, and their steps. */
static inline ds_fault dense_hits(const ds_coded *in, uint64_t bits, const uint8_t *classes, size_t width, state_t *s,
                           uint64_t *hits, uint64_t *steps) {
    for (; bits; bits &= bits - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(bits);
        uint8_t k = classes[lane];
        if (s->index[k] == s->end[k]) return DS_CLASS;
        unsigned z = in->dense[k].data[s->index[k]++];
        if (!z) continue;
        *hits |= 1ull << lane;
        steps[lane] = ds_unzigzag(z) & ds_width_mask(width);
        if (z < 255) continue;
        if ((size_t)(in->wide.data + in->wide.len - s->wide) < width) return DS_ESCAPES;
        steps[lane] = ds_load(s->wide, width);
        s->wide += width;
        if (ds_zigzag(steps[lane], width) < 255) return DS_SHORTEST;
    }
    return DS_OK;
}

/* Those in a sparse class that has some. */
static inline void sparse_hits(const uint8_t *classes, uint8_t k, int32_t until, state_t *s, uint64_t *hits,
                        uint64_t *steps) {
    uint64_t members = ds_members(classes, k);
    int32_t passed = s->seen[k];
    while (s->next[k] < until) {
        for (; passed < s->next[k]; passed++) members &= members - 1;
        unsigned lane = (unsigned)__builtin_ctzll(members);
        *hits |= 1ull << lane;
        steps[lane] = s->steps[s->index[k]++];
        s->next[k] = s->index[k] < s->end[k] ? (int32_t)s->ranks[s->index[k]] : NEVER;
    }
}

static inline ds_fault scan_lot(const ds_coded *in, const uint8_t *classes, size_t at, size_t width, unsigned dense,
                                state_t *s, found_t *to) {
    uint8_t tally[DS_CLASSES];
    int32_t until[DS_CLASSES];
    uint64_t hits = 0, steps[DS_LOT];
    ds_tally(classes, tally);
    unsigned passed = ds_pass(tally, s->seen, s->next, until);
    if (dense) {
        ds_fault fault = dense_hits(in, ds_below(classes, dense), classes, width, s, &hits, steps);
        if (fault != DS_OK) return fault;
    }
    for (; passed; passed &= passed - 1) {
        unsigned k = (unsigned)__builtin_ctzll(passed);
        sparse_hits(classes, (uint8_t)k, until[k], s, &hits, steps);
    }
    memcpy(s->seen, until, sizeof until);
    for (; hits; hits &= hits - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(hits);
        if (to->done == to->capacity) return DS_ENDS;
        to->positions[to->done] = (int64_t)(at + lane);
        ds_store(to->steps + to->done++ * width, steps[lane], width);
    }
    return DS_OK;
}

static inline ds_fault scan(const ds_run *run, const ds_coded *in, size_t width, unsigned dense, state_t *s,
                            found_t *to) {
    uint8_t classes[CHUNK];
    for (size_t first = 0; first < run->count; first += CHUNK) {
        size_t lanes = run->count - first < CHUNK ? run->count - first : CHUNK;
        uint8_t origin = run->origins[first / DS_BLOCK];
        for (size_t at = 0; at < lanes; at += DS_LOT)
            ds_classes(run->lanes + (first + at) * width, lanes - at < DS_LOT ? lanes - at : DS_LOT, width, run->field,
                       origin, classes + at);
        for (size_t at = 0; at < lanes; at += DS_LOT) {
            ds_fault fault = scan_lot(in, classes + at, first + at, width, dense, s, to);
            if (fault != DS_OK) return fault;
        }
    }
    return DS_OK;
}

static inline ds_fault decode(const ds_run *runs, size_t count, size_t width, unsigned dense, const ds_coded *in,
                       size_t changes, state_t *s, found_t *to, uint64_t *counts) {
    ds_fault fault = read_gaps(in, dense, s);
    if (fault == DS_OK) fault = read_steps(in, changes, width, s);
    for (unsigned k = 0; k < dense; k++) {
        s->end[k] = in->dense[k].len;
        s->next[k] = NEVER;
    }
    for (size_t i = 0; fault == DS_OK && i < count; i++) {
        size_t before = to->done;
        fault = scan(&runs[i], in, width, dense, s, to);
        counts[i] = to->done - before;
    }
    if (fault != DS_OK) return fault;
    for (unsigned k = 0; k < DS_CLASSES; k++)
        if (s->index[k] != s->end[k]) return k < dense ? DS_CLASS : DS_RANK;
    if (s->wide != in->wide.data + in->wide.len) return DS_ESCAPES;
    return to->done == to->capacity ? DS_OK : DS_ENDS;
}

/* Lanes before the changes in, at most DS_SEGMENT of them; positions within each run and steps out. */
ds_fault ds_ctx_decode(const ds_run *runs, size_t count, size_t width, unsigned dense, const ds_coded *in,
                       int64_t *positions, uint8_t *steps, size_t capacity, uint64_t *counts) {
    size_t changes = 0;
    for (unsigned k = dense; k < DS_CLASSES; k++) changes += in->row.counts[k];
    if (changes > capacity) return DS_ENDS;
    state_t s = {.ranks = malloc((changes + 1) * sizeof(uint32_t)), .steps = malloc((changes + 1) * sizeof(uint64_t)),
                 .wide = in->wide.data};
    found_t to = {positions, steps, 0, capacity};
    ds_fault fault = DS_MEMORY;
    if (s.ranks && s.steps)
        fault = width == 1   ? decode(runs, count, 1, dense, in, changes, &s, &to, counts)
                : width == 2 ? decode(runs, count, 2, dense, in, changes, &s, &to, counts)
                : width == 4 ? decode(runs, count, 4, dense, in, changes, &s, &to, counts)
                             : decode(runs, count, 8, dense, in, changes, &s, &to, counts);
    free(s.ranks);
    free(s.steps);
    return fault;
}
