/* What the memory of the machine can do: reads of one and of two streams, and a copy. */
#include <stdint.h>
#include <string.h>

uint64_t bench_read1(const uint64_t *a, uint64_t words) {
    uint64_t s[8] = {0};
    uint64_t i = 0;
    for (; i + 8 <= words; i += 8)
        for (int k = 0; k < 8; k++) s[k] += a[i + k];
    for (; i < words; i++) s[0] += a[i];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

uint64_t bench_read2(const uint64_t *a, const uint64_t *b, uint64_t words) {
    uint64_t s[8] = {0};
    uint64_t i = 0;
    for (; i + 8 <= words; i += 8)
        for (int k = 0; k < 8; k++) s[k] |= a[i + k] ^ b[i + k];
    for (; i < words; i++) s[0] |= a[i] ^ b[i];
    return s[0] | s[1] | s[2] | s[3] | s[4] | s[5] | s[6] | s[7];
}

void bench_copy(uint64_t *to, const uint64_t *from, uint64_t words) { memcpy(to, from, 8 * words); }
