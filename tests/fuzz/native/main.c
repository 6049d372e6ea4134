/* What runs a harness where the compiler has no libFuzzer of its own.
 *
 * With LIBFUZZER defined: the libFuzzer that the harness is linked with, fed with the coverage that gcc counts.
 * Without: files and folders are replayed, then changed at random from a seed, blindly. The options are libFuzzer's.
 */
#include "fuzz.h"

#ifdef LIBFUZZER
#define COUNTERS ((size_t)1 << 14)

int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*one)(const uint8_t *, size_t));
void __sanitizer_cov_8bit_counters_init(uint8_t *start, uint8_t *stop);
void __sanitizer_cov_trace_pc(void);

static uint8_t counters[COUNTERS];

/* gcc calls this for every edge; libFuzzer's own refuses to work. */
void __sanitizer_cov_trace_pc(void) {
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    counters[(pc ^ pc >> 14) % COUNTERS]++;
}

int main(int argc, char **argv) {
    __sanitizer_cov_8bit_counters_init(counters, counters + COUNTERS);
    return LLVMFuzzerRunDriver(&argc, &argv, LLVMFuzzerTestOneInput);
}
#else
#include <dirent.h>
#include <sys/stat.h>
#include <time.h>

#define MOST ((size_t)4096)

typedef struct {
    uint8_t data[MOST];
    size_t len;
} sample;

static sample *samples;
static size_t count;
static char crash[4096] = "crash";

static void read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    CHECK(file);
    samples = realloc(samples, (count + 1) * sizeof *samples);
    CHECK(samples);
    samples[count].len = fread(samples[count].data, 1, MOST, file);
    fclose(file);
    count++;
}

static void read_path(const char *path) {
    struct dirent *entry;
    DIR *folder = opendir(path);
    if (!folder) {
        read_file(path);
        return;
    }
    while ((entry = readdir(folder))) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.') read_file(inner);
    }
    closedir(folder);
}

static uint64_t state;
static size_t below(size_t n) { return ds_mix(state += DS_GOLDEN) % n; }

static void change_one(sample *s) {
    size_t at = below(s->len + 1), more = 1 + below(8), end = s->len;
    if (end == 0 || below(8) == 0) { /* put in */
        for (; more && s->len < MOST; more--, s->len++) {
            memmove(s->data + at + 1, s->data + at, s->len - at);
            s->data[at] = (uint8_t)below(256);
        }
    } else if (at < end && below(8) == 0) { /* take out */
        more = more < end - at ? more : end - at;
        memmove(s->data + at, s->data + at + more, end - at - more);
        s->len -= more;
    } else if (at < end) { /* a bit, a small step, an extreme, or anything */
        uint8_t values[5] = {(uint8_t)(s->data[at] ^ 1u << below(8)), (uint8_t)(s->data[at] + 1),
                             (uint8_t)(s->data[at] - 1), below(2) ? 0 : 255, (uint8_t)below(256)};
        s->data[at] = values[below(5)];
    }
}

/* Written before it is run, so that it is there whatever happens. */
static void run(const sample *s) {
    FILE *file = fopen(crash, "wb");
    CHECK(file && fwrite(s->data, 1, s->len, file) == s->len);
    fclose(file);
    LLVMFuzzerTestOneInput(s->data, s->len);
}

int main(int argc, char **argv) {
    unsigned long seconds = 0, seed = 1, done = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "-artifact_prefix=", 17) == 0)
            snprintf(crash, sizeof crash, "%scrash", argv[i] + 17);
        else if (argv[i][0] != '-')
            read_path(argv[i]);
        else
            (void)(sscanf(argv[i], "-max_total_time=%lu", &seconds) || sscanf(argv[i], "-seed=%lu", &seed));
    }
    for (size_t i = 0; i < count; i++) run(&samples[i]);
    if (!count) samples = calloc(count = 1, sizeof *samples);
    state = seed;
    for (time_t end = time(NULL) + (time_t)seconds; time(NULL) < end; done++) {
        sample one = samples[below(count)];
        for (size_t n = 1 + below(4); n; n--) change_one(&one);
        run(&one);
    }
    printf("%zu samples and %lu changed ones: nothing found\n", count, done);
    remove(crash);
    free(samples);
    return 0;
}
#endif
