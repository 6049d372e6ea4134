/* Faults against the state digest: does its change vanish, whole or in one of its halves?
 *
 * The digest is a sum over words, so what a fault does to it is a sum over the words that the fault touches. A
 * caller checks single faults against the real digest before it trusts the count.
 */
#include <stdint.h>

#define MOST 128 /* words that one fault touches at most */
#define GOLDEN 0x9E3779B97F4A7C15ull

enum { PAIR, EQUAL, SWAP, SHIFT, ZEROS, ROWS, FLIPS };

typedef struct {
    uint64_t at[MOST], old[MOST], now[MOST];
    uint64_t key, first, count;
} fault_t;

typedef struct {
    uint64_t state;
} rng_t;

static uint64_t next(rng_t *r) {
    uint64_t x = r->state += GOLDEN;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Seeds close to one another must not give streams that run into one another. */
static rng_t seeded(uint64_t seed) {
    rng_t r = {seed * 0xD1342543DE82EF95ull + 1};
    r.state = next(&r) ^ next(&r) << 1;
    return r;
}

static uint64_t below(rng_t *r, uint64_t n) { return (uint64_t)(((unsigned __int128)next(r) * n) >> 64); }

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static uint64_t add_lane(uint64_t word, unsigned lane, uint64_t step) {
    unsigned shift = 16 * lane;
    uint64_t mask = 0xFFFFull << shift;
    return (word & ~mask) | ((((word >> shift) + step) << shift) & mask);
}

/* A word that no other part of the fault touches. */
static void add(fault_t *f, uint64_t at, uint64_t old, uint64_t now) {
    f->at[f->count] = at;
    f->old[f->count] = old;
    f->now[f->count++] = now;
}

static void set(fault_t *f, uint64_t at, uint64_t old, uint64_t now) {
    for (uint64_t i = 0; i < f->count; i++)
        if (f->at[i] == at) {
            f->now[i] = now;
            return;
        }
    add(f, at, old, now);
}

static uint64_t now_at(const fault_t *f, const uint64_t *w, uint64_t at) {
    for (uint64_t i = 0; i < f->count; i++)
        if (f->at[i] == at) return f->now[i];
    return w[at];
}

static void pair(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t lanes = 4 * words, i = below(r, lanes), j;
    do j = next(r) & 1 ? below(r, lanes) : (i + 1 + below(r, 8)) % lanes;
    while (j == i);
    set(f, i / 4, w[i / 4], add_lane(w[i / 4], i % 4, 1));
    set(f, j / 4, w[j / 4], add_lane(now_at(f, w, j / 4), j % 4, ~0ull));
}

/* Two neighbours that hold the same word both change to the same other word. */
static void equal(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t at = below(r, words - 1), old = w[at];
    uint64_t now = next(r) & 1 ? add_lane(old, next(r) & 3, next(r) & 1 ? 1 : ~0ull) : w[below(r, words)];
    set(f, at, old, now);
    set(f, at + 1, old, now);
}

static void swap(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t i = below(r, words), j = next(r) & 1 ? below(r, words) : (i + 1 + below(r, 4)) % words;
    if (i == j) return;
    set(f, i, w[i], w[j]);
    set(f, j, w[j], w[i]);
}

/* A run moves up by one lane or one word. */
static void shift(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t n = 2 + below(r, 63), at = 1 + below(r, words - n - 1), lane = next(r) & 1;
    for (uint64_t k = at; k < at + n; k++) add(f, k, w[k], lane ? w[k] << 16 | w[k - 1] >> 48 : w[k - 1]);
}

static void zeros(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t n = 1 + below(r, 64), at = below(r, words - n);
    for (uint64_t k = at; k < at + n; k++) add(f, k, w[k], 0);
}

static void rows(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t n = 8 + below(r, 57), at = below(r, words - 2 * n);
    for (uint64_t k = at; k < at + n; k++) add(f, k + n, w[k + n], w[k]);
}

static void flips(fault_t *f, rng_t *r, const uint64_t *w, uint64_t words) {
    uint64_t n = 1 + below(r, 4), start = below(r, words);
    for (uint64_t k = 0; k < n; k++) {
        uint64_t at = next(r) & 1 ? start : below(r, words);
        set(f, at, w[at], now_at(f, w, at) ^ 1ull << (next(r) & 63));
    }
}

/* Draws faults until one changes something. */
static void draw(fault_t *f, int kind, rng_t *r, const uint64_t *w, uint64_t words) {
    static void (*const kinds[])(fault_t *, rng_t *, const uint64_t *, uint64_t) = {pair,  equal, swap, shift,
                                                                                  zeros, rows,  flips};
    uint64_t differs = 0;
    while (!differs) {
        f->count = 0;
        kinds[kind](f, r, w, words);
        for (uint64_t i = 0; i < f->count; i++) differs |= f->old[i] ^ f->now[i];
    }
    f->key = next(r);
    f->first = below(r, 1ull << 40);
}

static uint64_t change(const fault_t *f) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < f->count; i++) {
        uint64_t salt = f->key + (f->first + f->at[i] + 1) * GOLDEN;
        sum += mix(f->now[i] + salt) - mix(f->old[i] + salt);
    }
    return sum;
}

/* The control: a plain sum of words, which a good trial must find wanting. */
static uint64_t plain_change(const fault_t *f) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < f->count; i++) sum += f->now[i] - f->old[i];
    return sum;
}

/* Counts trials whose change is zero: whole, in the low half, in the high half. */
void bench_trials(int kind, int plain, uint64_t seed, const uint64_t *w, uint64_t words, uint64_t trials,
                  uint64_t missed[3]) {
    rng_t r = seeded(seed);
    fault_t f;
    missed[0] = missed[1] = missed[2] = 0;
    for (uint64_t t = 0; t < trials; t++) {
        draw(&f, kind, &r, w, words);
        uint64_t d = plain ? plain_change(&f) : change(&f);
        missed[0] += d == 0;
        missed[1] += (uint32_t)d == 0;
        missed[2] += d >> 32 == 0;
    }
}

/* One fault, to be checked by the caller. */
uint64_t bench_fault(int kind, uint64_t seed, const uint64_t *w, uint64_t words, fault_t *f) {
    rng_t r = seeded(seed);
    draw(f, kind, &r, w, words);
    return change(f);
}
