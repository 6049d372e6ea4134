/* Two states and the way between them: diff, decode and apply lead from one to the other, in both gap widths. */
#include "fuzz.h"

static ds_nonfinite bad(size_t width) {
    switch (width) {
    case 2: return (ds_nonfinite){0x7F80, 0x7F80};
    case 4: return (ds_nonfinite){0x7F800000, 0x7F800000};
    default: return (ds_nonfinite){0x7F, 0x7F};
    }
}

/* Changes lanes as three bytes of the input at a time say: how far away, in which way, by how much. */
static void walk(input *in, uint8_t *lanes, size_t count, size_t width) {
    size_t at = 0;
    while (in->left >= 3) {
        size_t gap = number(in, 1);
        unsigned how = (unsigned)number(in, 1);
        uint64_t by = number(in, 1);
        at += gap << (how >> 4);
        if (at >= count) return;
        uint64_t old = ds_load(lanes + at * width, width);
        uint64_t values[4] = {old + 1, old - 1, old + by - 128, ds_mix(by)};
        ds_store(lanes + at * width, how & 4 ? bad(width).value : values[how & 3], width);
        at++;
    }
}

static void check_found(const uint8_t *a, const uint8_t *b, size_t count, size_t width, const ds_ulp *out,
                        const ds_found *found) {
    uint64_t changed = 0, nonfinite = 0, delta = ds_digest(b, count * width, KEY, 7);
    for (size_t i = 0; i < count; i++) {
        uint64_t now = ds_load(b + i * width, width);
        changed += now != ds_load(a + i * width, width);
        nonfinite += now != ds_load(a + i * width, width) && (now & bad(width).mask) == bad(width).value;
    }
    CHECK(out->changed == changed && found->nonfinite == nonfinite);
    CHECK(found->delta == delta - ds_digest(a, count * width, KEY, 7));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    unsigned how = (unsigned)number(&in, 1);
    size_t width = (size_t)1 << (how & 3), count = lane_count(how >> 3, number(&in, 2)), bytes = count * width;
    uint8_t *a = how & 4 ? calloc(bytes + !bytes, 1) : noise(bytes, number(&in, 1));
    uint8_t *b = copied(a, bytes), *moved = copied(a, bytes);
    walk(&in, b, count, width);
    ds_ulp out = {0};
    ds_found found = {0, 0};
    CHECK(ds_ulp_diff(moved, b, bytes, width, KEY, 7, bad(width), &out, &found));
    same(moved, bytes, b, bytes);
    check_found(a, b, count, width, &out, &found);
    ds_streams s = written(&out, count, width);
    change c, wide;
    CHECK(read_change(&s, declared(&s), &c) == DS_OK);
    uint8_t *after = copied(a, bytes);
    apply(&c, after, count, width);
    same(after, bytes, b, bytes);
    ds_buf low = {0}, high = {0};
    CHECK(ds_ulp_widen(out.gaps.data, out.gaps.len, out.table.data, s.blocks, &low, &high));
    s.low = low.data;
    s.high = low.len ? high.data : NULL;
    s.symbols = low.len;
    CHECK(read_change(&s, c.count, &wide) == DS_OK);
    same((uint8_t *)c.positions, 8 * c.count, (uint8_t *)wide.positions, 8 * c.count);
    same(c.steps, width * c.count, wide.steps, width * c.count);
    free_change(&c);
    free_change(&wide);
    ds_free(&low);
    ds_free(&high);
    ds_ulp_free(&out);
    free(a);
    free(b);
    free(moved);
    free(after);
    return 0;
}
