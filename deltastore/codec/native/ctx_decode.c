/* Reading segments (spec, Codec ctx): gaps and steps class by class, then one scan that finds where they are. */
#include "bits.h"
#include "classes.h"

#define NEVER INT32_MAX
#define AHEAD 1024 /* lanes that are fetched into the cache before they are needed */

/* What is still to be found in a segment. */
typedef struct {
    uint32_t *gaps;
    uint8_t *steps;
    size_t index[DS_CLASSES], end[DS_CLASSES]; /* of gaps and steps in sparse classes, of symbols in dense ones */
    int32_t left[DS_CLASSES]; /* lanes up to the next change; a dense class has one in each lane */
    const uint8_t *wide;
    ds_pairs pairs;
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
            uint64_t gap = (q << r) + ds_get(&low, r);
            if ((next += gap) >= DS_SEGMENT) return DS_RANK;
            next++;
            s->gaps[done++] = (uint32_t)gap;
        }
        s->end[k] = done;
        s->left[k] = s->index[k] < done ? (int32_t)s->gaps[s->index[k]] : NEVER;
    }
    if (!ds_ended(&unary)) return DS_UNARY;
    return ds_ended(&low) ? DS_OK : DS_LOW;
}

static inline ds_fault read_steps(const ds_coded *in, size_t changes, size_t width, state_t *s) {
    const uint8_t *near = in->near.data, *near_end = near + in->near.len;
    const uint8_t *far = in->far.data, *far_end = far + in->far.len;
    const uint8_t none = 0;
    uint64_t mask = ds_width_mask(width);
    if (in->codes.len != (changes + 3) / 4) return DS_ENDS;
    for (size_t i = 0; i < changes; i++) {
        unsigned code = in->codes.data[i / 4] >> (2 * (i & 3)) & 3, escaped = code == 2;
        if (code == 3) return DS_CODE;
        if (escaped & (near == near_end)) return DS_ESCAPES;
        /* Which of the steps are escaped cannot be guessed, hence no branch. */
        unsigned x = *(near == near_end ? &none : near);
        near += escaped;
        uint64_t step = escaped ? ds_unzigzag(x + 3) & mask : code ? 1 : mask;
        if (escaped & ((x == 255) | (x + 3 > mask))) {
            if (x < 255) return DS_SHORTEST;
            if ((size_t)(far_end - far) < width) return DS_ESCAPES;
            step = ds_load(far, width);
            far += width;
            if (ds_zigzag(step, width) < 258) return DS_SHORTEST;
        }
        ds_store(s->steps + i * width, step, width);
    }
    if (near != near_end || far != far_end) return DS_ESCAPES;
    if (changes & 3 && in->codes.data[changes / 4] >> (2 * (changes & 3))) return DS_PADDING;
    return DS_OK;
}

/* The changes of 64 lanes: a bit and a step for each. */
typedef struct {
    uint64_t bits, steps[DS_LOT];
    unsigned count;
} hits_t;

/* Those in dense classes, given a bit for each lane in one of them. */
static inline ds_fault dense_hits(const ds_coded *in, uint64_t bits, const uint8_t *classes, size_t width, state_t *s,
                                  hits_t *hits) {
    for (; bits; bits &= bits - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(bits);
        uint8_t k = classes[lane];
        if (s->index[k] == s->end[k]) return DS_CLASS;
        unsigned z = in->dense[k].data[s->index[k]++];
        /* Half of them change: a branch would be guessed wrong as often. */
        hits->bits |= (uint64_t)(z > 0) << lane;
        hits->count += z > 0;
        hits->steps[lane] = ds_unzigzag(z) & ds_width_mask(width);
        if (z < 255) continue;
        if ((size_t)(in->wide.data + in->wide.len - s->wide) < width) return DS_ESCAPES;
        hits->steps[lane] = ds_load(s->wide, width);
        s->wide += width;
        if (ds_zigzag(hits->steps[lane], width) < 255) return DS_SHORTEST;
    }
    return DS_OK;
}

/* Those in a sparse class that has some; `count` lanes are in it. */
static inline void sparse_hits(const uint8_t *classes, unsigned k, int32_t count, size_t width, state_t *s,
                               hits_t *hits) {
    uint64_t members = ds_members(classes, (uint8_t)k);
    int32_t next = s->left[k] + count;
    while (next < count) {
        unsigned lane = ds_select(members, (unsigned)next);
        hits->bits |= 1ull << lane;
        hits->count++;
        hits->steps[lane] = ds_load(s->steps + s->index[k]++ * width, width);
        next = s->index[k] < s->end[k] ? next + 1 + (int32_t)s->gaps[s->index[k]] : NEVER;
    }
    s->left[k] = next - count;
}

/* The changes of up to 64 lanes: those of the classes that `passed` has a bit for. */
static inline ds_fault find(const ds_coded *in, const uint8_t *classes, const uint8_t *tally, unsigned passed,
                            size_t at, size_t width, unsigned dense, state_t *s, found_t *to) {
    hits_t hits;
    hits.bits = 0;
    hits.count = 0;
    unsigned low = passed & ((1u << dense) - 1);
    if (low) {
        ds_fault fault = dense_hits(in, ds_below(classes, dense), classes, width, s, &hits);
        if (fault != DS_OK) return fault;
        for (unsigned k = 0; k < dense; k++) s->left[k] = 0;
    }
    for (passed -= low; passed; passed &= passed - 1) {
        unsigned k = (unsigned)__builtin_ctz(passed);
        sparse_hits(classes, k, tally[k], width, s, &hits);
    }
    if (hits.count > to->capacity - to->done) return DS_ENDS;
    for (unsigned i = 0; i < hits.count; i++, hits.bits &= hits.bits - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(hits.bits);
        to->positions[to->done] = (int64_t)(at + lane);
        ds_store(to->steps + to->done++ * width, hits.steps[lane], width);
    }
    return DS_OK;
}

static inline ds_fault scan(const ds_run *run, const ds_coded *in, size_t width, unsigned dense, state_t *s,
                            found_t *to) {
    for (size_t at = 0; at < run->count; at += DS_LOT) {
        uint8_t classes[DS_LOT], tally[DS_CLASSES];
        size_t lanes = run->count - at < DS_LOT ? run->count - at : DS_LOT;
        for (size_t i = at + AHEAD; i < at + AHEAD + DS_LOT && i < run->count; i += 64 / width)
            __builtin_prefetch(run->lanes + i * width);
        ds_classes(run->lanes + at * width, lanes, width, run->field, run->origins[at / DS_BLOCK], classes);
        ds_tally(&s->pairs, classes, lanes, tally);
        unsigned passed = ds_pass(tally, s->left);
        if (!passed) continue;
        ds_fault fault = find(in, classes, tally, passed, at, width, dense, s, to);
        if (fault != DS_OK) return fault;
    }
    return DS_OK;
}

static inline ds_fault decode(const ds_run *runs, size_t count, size_t width, unsigned dense, const ds_coded *in,
                       size_t changes, state_t *s, found_t *to, uint64_t *counts) {
    ds_fault fault = read_gaps(in, dense, s);
    if (fault == DS_OK) fault = read_steps(in, changes, width, s);
    for (unsigned k = 0; k < dense; k++) {
        s->end[k] = in->dense[k].len;
        s->left[k] = 0;
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
    state_t s = {.gaps = malloc((changes + 1) * sizeof(uint32_t)), .steps = malloc((changes + 1) * width),
                 .wide = in->wide.data};
    found_t to = {positions, steps, 0, capacity};
    ds_fault fault = DS_MEMORY;
    ds_pairs_fill(&s.pairs);
    if (s.gaps && s.steps)
        fault = width == 1   ? decode(runs, count, 1, dense, in, changes, &s, &to, counts)
                : width == 2 ? decode(runs, count, 2, dense, in, changes, &s, &to, counts)
                : width == 4 ? decode(runs, count, 4, dense, in, changes, &s, &to, counts)
                             : decode(runs, count, 8, dense, in, changes, &s, &to, counts);
    free(s.gaps);
    free(s.steps);
    return fault;
}
