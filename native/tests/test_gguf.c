/* The GGUF reader: every value type, lookups, shapes, split sets in memory and on disk, file kinds
 * that are refused, and the time and comparison counts that large vocabularies may cost. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "base/os_clock.h"
#include "gguf/gguf.h"
#include "quant/formats.h"

#if !defined(_WIN32)
#include <sys/stat.h>
#include <unistd.h>
#endif

/* ---- Writing a file ----------------------------------------------------------------------- */

typedef struct writer {
    uint8_t *bytes;
    size_t n, capacity;
} writer;

static void put(writer *w, const void *bytes, size_t n) {
    if (w->n + n > w->capacity) {
        w->capacity = 2 * (w->n + n);
        w->bytes = realloc(w->bytes, w->capacity);
        if (!w->bytes) exit(2);
    }
    if (n) memcpy(w->bytes + w->n, bytes, n);
    w->n += n;
}

static void put_int(writer *w, uint64_t value, int n_bytes) {
    uint8_t bytes[8];
    for (int i = 0; i < n_bytes; i++) bytes[i] = (uint8_t)(value >> (8 * i));
    put(w, bytes, (size_t)n_bytes);
}

static void put_string(writer *w, const char *text) {
    put_int(w, strlen(text), 8);
    put(w, text, strlen(text));
}

static void put_header(writer *w, uint32_t version, uint64_t n_tensors, uint64_t n_values) {
    put(w, "GGUF", 4);
    put_int(w, version, 4);
    put_int(w, n_tensors, 8);
    put_int(w, n_values, 8);
}

static void put_value(writer *w, const char *key, int type, uint64_t value, int n_bytes) {
    put_string(w, key);
    put_int(w, (uint64_t)type, 4);
    put_int(w, value, n_bytes);
}

static void put_array(writer *w, const char *key, int type, uint64_t count) {
    put_string(w, key);
    put_int(w, LLM_GGUF_ARRAY, 4);
    put_int(w, (uint64_t)type, 4);
    put_int(w, count, 8);
}

/* An F32 tensor [n]. */
static void put_tensor(writer *w, const char *name, uint64_t n, uint64_t offset) {
    put_string(w, name);
    put_int(w, 1, 4);
    put_int(w, n, 8);
    put_int(w, LLM_F32, 4);
    put_int(w, offset, 8);
}

static void put_zeros(writer *w, size_t n) {
    for (size_t i = 0; i < n; i++) put(w, "", 1);
}

static void pad(writer *w, size_t alignment) {
    put_zeros(w, (alignment - w->n % alignment) % alignment);
}

static llm_gguf *open_bytes(const writer *w, llm_error *err) {
    llm_gguf *g = NULL;
    const llm_gguf_buffer buffer = {"test.gguf", w->bytes, w->n};
    *err = (llm_error){0};
    llm_status status = llm_gguf_open_memory(&buffer, 1, &g, err);
    CHECK((status == LLM_OK) == (g != NULL), "status %d: %s", status, err->message);
    CHECK(status == err->status, "status %d, in the error %d", status, err->status);
    return g;
}

/* The file is refused with a message that holds every one of the given texts. */
static void expect_refused(writer *w, llm_status status, const char *first, ...) {
    llm_error err;
    llm_gguf *g = open_bytes(w, &err);
    CHECK(!g && err.status == status, "status %d, not %d: %s", err.status, status, err.message);
    va_list args;
    va_start(args, first);
    for (const char *text = first; text; text = va_arg(args, const char *))
        CHECK(strstr(err.message, text), "\"%s\" is not in: %s", text, err.message);
    va_end(args);
    llm_gguf_close(g);
    free(w->bytes);
    *w = (writer){0};
}

/* ---- Metadata ----------------------------------------------------------------------------- */

static llm_gguf_value value_of(const llm_gguf *g, const char *key) {
    llm_gguf_value v = {0};
    int64_t i = llm_gguf_find(g, key);
    CHECK(i >= 0 && llm_gguf_value_at(g, i, &v) == LLM_OK, "%s is not there", key);
    CHECK(v.key_bytes == strlen(key) && memcmp(v.key, key, v.key_bytes) == 0, "%s: key", key);
    return v;
}

static void test_values(uint32_t version) {
    static const int sizes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    writer w = {0};
    put_header(&w, version, 0, 11 + 3);
    for (int type = 0; type < 13; type++) {
        char key[16];
        snprintf(key, sizeof key, "k.%d", type);
        if (sizes[type])
            put_value(&w, key, type, type == LLM_GGUF_BOOL ? 1 : 0x0102030405060708u, sizes[type]);
    }
    put_string(&w, "text");
    put_int(&w, LLM_GGUF_STRING, 4);
    put_string(&w, "a\xff b");
    put_array(&w, "numbers", LLM_GGUF_U16, 3); /* starts at an odd address */
    for (int i = 1; i <= 3; i++) put_int(&w, (uint64_t)i, 2);
    put_array(&w, "words", LLM_GGUF_STRING, 3);
    put_string(&w, "one");
    put_string(&w, "");
    put_string(&w, "three");

    llm_error err;
    llm_gguf *g = open_bytes(&w, &err);
    CHECK(g, "%s", err.message);
    if (!g) return;
    CHECK(llm_gguf_version(g) == (int32_t)version && llm_gguf_n_parts(g) == 1, "version");
    CHECK(llm_gguf_file_bytes(g) == w.n && llm_gguf_n_values(g) == 14, "counts");
    for (int type = 0; type < 13; type++) {
        char key[16];
        snprintf(key, sizeof key, "k.%d", type);
        CHECK((llm_gguf_find(g, key) >= 0) == (sizes[type] != 0), "%s", key);
        if (!sizes[type]) continue;
        llm_gguf_value v = value_of(g, key);
        CHECK(v.type == type && v.element_type == type && v.count == 1, "%s", key);
        CHECK(v.data_bytes == (uint64_t)sizes[type], "%s", key);
        CHECK(v.data[0] == (type == LLM_GGUF_BOOL ? 1 : 8), "%s", key);
    }
    llm_gguf_value text = value_of(g, "text"), numbers = value_of(g, "numbers");
    CHECK(text.data_bytes == 4 && memcmp(text.data, "a\xff b", 4) == 0, "text");
    CHECK(numbers.type == LLM_GGUF_ARRAY && numbers.element_type == LLM_GGUF_U16, "numbers");
    CHECK(numbers.count == 3 && numbers.data_bytes == 6 && numbers.data[4] == 3, "numbers");

    int64_t words = llm_gguf_find(g, "words"), n_bytes = 0, offsets[4];
    char bytes[8];
    CHECK(llm_gguf_strings(g, words, NULL, NULL, &n_bytes, &err) == LLM_OK && n_bytes == 8, "size");
    CHECK(llm_gguf_strings(g, words, offsets, bytes, NULL, &err) == LLM_OK, "strings");
    CHECK(offsets[0] == 0 && offsets[1] == 3 && offsets[2] == 3 && offsets[3] == 8, "offsets");
    CHECK(memcmp(bytes, "onethree", 8) == 0, "bytes");
    CHECK(llm_gguf_strings(g, llm_gguf_find(g, "numbers"), NULL, NULL, &n_bytes, &err)
              == LLM_E_ARGUMENT,
          "not strings");
    CHECK(llm_gguf_strings(g, -1, NULL, NULL, &n_bytes, &err) == LLM_E_ARGUMENT, "index");
    llm_gguf_value v;
    CHECK(llm_gguf_value_at(g, 14, &v) == LLM_E_ARGUMENT, "past the last");
    CHECK(llm_gguf_find(g, "word") == -1 && llm_gguf_find(g, NULL) == -1, "unknown keys");
    llm_gguf_close(g);
    free(w.bytes);
}

static void test_bad_values(void) {
    writer w = {0};
    put_header(&w, 3, 0, (uint64_t)1 << 40);
    put_value(&w, "a", LLM_GGUF_U32, 1, 4);
    expect_refused(&w, LLM_E_FORMAT, "test.gguf", "metadata count 1099511627776", "limit", NULL);
    put_header(&w, 3, 0, 2);
    put_value(&w, "twice", LLM_GGUF_U32, 1, 4);
    put_value(&w, "twice", LLM_GGUF_U32, 2, 4);
    expect_refused(&w, LLM_E_FORMAT, "key 'twice'", "stated twice", NULL);
    put_header(&w, 3, 0, 1);
    put_array(&w, "words", LLM_GGUF_STRING, (uint64_t)1 << 61);
    put_zeros(&w, 64);
    expect_refused(&w, LLM_E_FORMAT, "key 'words'", "2305843009213693952", "room for 8", NULL);
    put_header(&w, 3, 0, 1);
    put_array(&w, "nested", LLM_GGUF_ARRAY, 1);
    put_zeros(&w, 64);
    expect_refused(&w, LLM_E_UNSUPPORTED, "key 'nested'", "array of arrays", NULL);
    put_header(&w, 3, 0, 1);
    put_value(&w, "general.alignment", LLM_GGUF_U32, 48, 4);
    expect_refused(&w, LLM_E_FORMAT, "'general.alignment': 48", "power of two", NULL);
    put_header(&w, 3, 0, 1);
    put_value(&w, "esc\x1b]0;x", LLM_GGUF_U32, 48, 4);
    expect_refused(&w, LLM_E_FORMAT, "esc\\x1b]0;x", NULL);
}

/* ---- Tensors ------------------------------------------------------------------------------ */

static void test_tensors(void) {
    writer w = {0};
    put_header(&w, 3, 3, 1);
    put_value(&w, "general.alignment", LLM_GGUF_U32, 64, 4);
    put_tensor(&w, "late", 5, 128); /* data order is not list order, and gaps are allowed */
    put_string(&w, "block");
    put_int(&w, 4, 4);
    for (int i = 0; i < 4; i++) put_int(&w, i ? (uint64_t)i : 64, 8);
    put_int(&w, LLM_Q4_0, 4);
    put_int(&w, 256, 8);
    put_tensor(&w, "first", 16, 0);
    pad(&w, 64);
    size_t data = w.n;
    put_zeros(&w, 256 + 64 / 32 * 18 * 6);

    llm_error err;
    llm_gguf *g = open_bytes(&w, &err);
    CHECK(g && llm_gguf_n_tensors(g) == 3, "%s", err.message);
    if (!g) return;
    llm_tensor_info t;
    CHECK(llm_gguf_tensor_at(g, llm_gguf_find_tensor(g, "block"), &t) == LLM_OK, "block");
    CHECK(strcmp(t.name, "block") == 0 && t.type == LLM_Q4_0 && t.n_dims == 4, "block");
    CHECK(t.dims[0] == 64 && t.dims[1] == 1 && t.dims[2] == 2 && t.dims[3] == 3, "block");
    CHECK(t.n_bytes == 216 && t.data == w.bytes + data + 256 && t.part == 0, "block");
    CHECK(llm_gguf_tensor_at(g, 0, &t) == LLM_OK && t.data == w.bytes + data + 128, "late");
    CHECK(t.dims[1] == 1 && t.dims[3] == 1, "unused dimensions are 1");
    CHECK(llm_gguf_find_tensor(g, "bloc") == -1 && llm_gguf_find_tensor(g, NULL) == -1, "unknown");
    CHECK(llm_gguf_tensor_at(g, 3, &t) == LLM_E_ARGUMENT, "past the last");
    CHECK(llm_gguf_tensor_at(g, -1, &t) == LLM_E_ARGUMENT, "before the first");
    llm_gguf_close(g);
    w.n--; /* the last byte of the last tensor is missing */
    expect_refused(&w, LLM_E_FORMAT, "tensor 'block'", "216 bytes at offset 256", "471", NULL);
}

static void test_bad_tensors(void) {
    writer w = {0};
    put_header(&w, 3, 2, 0);
    put_tensor(&w, "a", 16, 0);
    put_tensor(&w, "b", 16, 32);
    pad(&w, 32);
    put_zeros(&w, 128);
    expect_refused(&w, LLM_E_FORMAT, "tensor 'b'", "lies inside tensor 'a'", NULL);
    put_header(&w, 3, 2, 0);
    put_tensor(&w, "a", 8, 0);
    put_tensor(&w, "a", 8, 32);
    pad(&w, 32);
    put_zeros(&w, 128);
    expect_refused(&w, LLM_E_FORMAT, "tensor 'a'", "listed twice", NULL);
    put_header(&w, 3, 1, 0);
    put_tensor(&w, "wrap", (uint64_t)1 << 62, 0);
    pad(&w, 32);
    put_zeros(&w, 128);
    expect_refused(&w, LLM_E_FORMAT, "tensor 'wrap'", "4611686018427387904", NULL);
    put_header(&w, 3, 1, 0);
    put_tensor(&w, "late", 8, UINT64_MAX - 31);
    pad(&w, 32);
    put_zeros(&w, 128);
    expect_refused(&w, LLM_E_FORMAT, "tensor 'late'", "18446744073709551584", "128", NULL);
}

/* ---- Split sets --------------------------------------------------------------------------- */

#define N_PARTS 3

static writer make_part(int number, int count, int n_tensors_stated, const char *tensor) {
    writer w = {0};
    put_header(&w, 3, 1, 4);
    put_value(&w, "split.no", LLM_GGUF_U16, (uint64_t)number, 2);
    put_value(&w, "split.count", LLM_GGUF_U16, (uint64_t)count, 2);
    put_value(&w, "split.tensors.count", LLM_GGUF_I32, (uint64_t)n_tensors_stated, 4);
    put_value(&w, "number", LLM_GGUF_U32, (uint64_t)number, 4);
    put_tensor(&w, tensor, 8, 0);
    pad(&w, 32);
    for (int i = 0; i < 32; i++) put_int(&w, (uint64_t)number, 1);
    return w;
}

static void check_set(const llm_gguf *g) {
    CHECK(llm_gguf_n_parts(g) == N_PARTS && llm_gguf_n_tensors(g) == N_PARTS, "counts");
    CHECK(value_of(g, "number").data[0] == 0, "metadata comes from part 0");
    for (int i = 0; i < N_PARTS; i++) {
        const char name[2] = {(char)('a' + i), 0};
        llm_tensor_info t;
        CHECK(llm_gguf_find_tensor(g, name) == i, "%s: order of parts", name);
        CHECK(llm_gguf_tensor_at(g, i, &t) == LLM_OK && t.part == i && t.data[31] == i, "%s", name);
    }
}

static llm_status open_three(writer *parts, int n, llm_error *err, bool check) {
    llm_gguf_buffer buffers[N_PARTS] = {{0}};
    static const char *const labels[N_PARTS] = {"x", "y", "z"};
    for (int i = 0; i < n; i++)
        buffers[i] = (llm_gguf_buffer){labels[i], parts[i].bytes, parts[i].n};
    llm_gguf *g = NULL;
    llm_status status = llm_gguf_open_memory(buffers, n, &g, err);
    if (status == LLM_OK && check) check_set(g);
    llm_gguf_close(g);
    for (int i = 0; i < n; i++) free(parts[i].bytes);
    return status;
}

static void test_split_sets(void) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const char *const names[3] = {"a", "b", "c"};
    llm_error err = {0};
    for (int o = 0; o < 6; o++) {
        writer parts[N_PARTS];
        for (int i = 0; i < N_PARTS; i++)
            parts[i] = make_part(orders[o][i], 3, 3, names[orders[o][i]]);
        CHECK(open_three(parts, 3, &err, true) == LLM_OK, "order %d: %s", o, err.message);
    }
    writer same[N_PARTS] = {make_part(0, 3, 3, "a"), make_part(2, 3, 3, "b"),
                            make_part(2, 3, 3, "c")};
    CHECK(open_three(same, 3, &err, false) == LLM_E_FORMAT, "number claimed twice");
    CHECK(strstr(err.message, "'split.no': 2; ") && strstr(err.message, "claims"), "%s",
          err.message);
    writer twice[N_PARTS] = {make_part(0, 3, 3, "a"), make_part(1, 3, 3, "b"),
                             make_part(2, 3, 3, "a")};
    CHECK(open_three(twice, 3, &err, false) == LLM_E_FORMAT, "tensor in two parts");
    CHECK(strstr(err.message, "tensor 'a'") && strstr(err.message, "part 3"), "%s", err.message);
    writer counts[N_PARTS] = {make_part(0, 3, 4, "a"), make_part(1, 3, 4, "b"),
                              make_part(2, 3, 4, "c")};
    CHECK(open_three(counts, 3, &err, false) == LLM_E_FORMAT, "tensor count");
    CHECK(strstr(err.message, "'split.tensors.count': 4"), "%s", err.message);
    writer other[N_PARTS] = {make_part(0, 3, 3, "a"), make_part(1, 2, 3, "b"),
                             make_part(2, 3, 3, "c")};
    CHECK(open_three(other, 3, &err, false) == LLM_E_FORMAT, "counts differ");
    CHECK(strstr(err.message, "'split.count': 2"), "%s", err.message);
    writer one[1] = {make_part(0, 3, 3, "a")};
    CHECK(open_three(one, 1, &err, false) == LLM_E_ARGUMENT, "one part of three");
}

/* ---- Files -------------------------------------------------------------------------------- */

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(2);
    }
}

static void expect_open_fails(const char *path, llm_status status, const char *text) {
    llm_gguf *g = NULL;
    llm_error err = {0};
    CHECK(llm_gguf_open(path, &g, &err) == status && !g, "%s: %s", path, err.message);
    CHECK(strstr(err.message, text) && strstr(err.message, path), "%s", err.message);
}

/* All in the working directory (ctest's build folder), so that no path has to be made up. */
static void test_files(void) {
    static const char *const paths[N_PARTS] = {"test_gguf_set-00001-of-00003.gguf",
                                               "test_gguf_set-00002-of-00003.gguf",
                                               "test_gguf_set-00003-of-00003.gguf"};
    static const char *const names[3] = {"a", "b", "c"};
    for (int i = 0; i < N_PARTS; i++) {
        writer w = make_part(i, 3, 3, names[i]);
        write_file(paths[i], w.bytes, w.n);
        free(w.bytes);
    }
    for (int i = 0; i < N_PARTS; i++) {
        llm_gguf *g = NULL;
        llm_error err = {0};
        CHECK(llm_gguf_open(paths[i], &g, &err) == LLM_OK, "%s", err.message);
        if (g) check_set(g);
        llm_gguf_close(g);
    }
    remove(paths[1]);
    expect_open_fails(paths[0], LLM_E_IO, "1 of the 3 parts of this set are missing");
    expect_open_fails(paths[2], LLM_E_IO, paths[1]);
    remove(paths[0]);
    remove(paths[2]);
    expect_open_fails("test_gguf_none.gguf", LLM_E_IO, "cannot open");
    expect_open_fails(".", LLM_E_IO, "directory");
    write_file("test_gguf_empty.gguf", "", 0);
    expect_open_fails("test_gguf_empty.gguf", LLM_E_IO, "empty");
    remove("test_gguf_empty.gguf");
#if !defined(_WIN32)
    if (mkfifo("test_gguf_pipe.gguf", 0600) == 0) {
        expect_open_fails("test_gguf_pipe.gguf", LLM_E_IO, "pipe");
        remove("test_gguf_pipe.gguf");
    }
    expect_open_fails("/dev/null", LLM_E_IO, "device");
#endif
    llm_gguf *g = NULL;
    llm_error err = {0};
    CHECK(llm_gguf_open(NULL, &g, &err) == LLM_E_ARGUMENT, "no path");
    CHECK(llm_gguf_open("test_gguf_none.gguf", &g, NULL) == LLM_E_IO, "no one listens");
    char *long_path = malloc(5001);
    memset(long_path, 'x', 5000);
    long_path[5000] = 0;
    CHECK(llm_gguf_open(long_path, &g, &err) == LLM_E_IO, "long path");
    CHECK(strstr(err.message, "cannot open"), "the reason is not cut away: %s", err.message);
    free(long_path);
    llm_gguf_close(NULL);
}

/* ---- Cost --------------------------------------------------------------------------------- */

static uint64_t n_compared;

static int compare_counted(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    n_compared++;
    return (x > y) - (x < y);
}

/* 2^15 entries in orders that make a careless quicksort quadratic: n log n comparisons at most. */
static void test_sort(void) {
    enum { N = 1 << 15 };
    static int32_t values[N];
    for (int order = 0; order < 5; order++) {
        for (int i = 0; i < N; i++) {
            const int32_t orders[5] = {i, N - i, 7, i < N / 2 ? i : N - i, (i * 40503) & 0xffff};
            values[i] = orders[order];
        }
        n_compared = 0;
        CHECK(llm_merge_sort(values, N, sizeof *values, compare_counted), "memory");
        for (int i = 1; i < N; i++) CHECK(values[i - 1] <= values[i], "order %d at %d", order, i);
        CHECK(n_compared <= 15u * N, "order %d: %llu", order, (unsigned long long)n_compared);
    }
}

static void test_index(void) {
    enum { N = 20000 };
    static char names[N][12];
    llm_name_index index;
    int64_t a = 0, b = 0;
    CHECK(llm_name_index_reserve(&index, N), "memory");
    for (uint32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "n%u", i < N - 1 ? i : 5); /* the last one repeats n5 */
        llm_name_index_add(&index, names[i], strlen(names[i]), i);
    }
    CHECK(llm_name_index_finish(&index, &a, &b) && a == 5 && b == N - 1, "twins");
    for (uint32_t i = 0; i < N - 1; i++)
        CHECK(i == 5 || llm_name_index_find(&index, names[i], strlen(names[i])) == i, "%u", i);
    CHECK(llm_name_index_find(&index, "n", 1) == -1 && llm_name_index_find(&index, "", 0) == -1,
          "none");
    llm_name_index_free(&index);
}

/* 260,000 tokens and 500,000 merges: 50 ms is the bar, 5 times that for a busy machine. */
static void test_large_vocabulary(void) {
    writer w = {0};
    put_header(&w, 3, 0, 4);
    put_array(&w, "tokenizer.ggml.tokens", LLM_GGUF_STRING, 260000);
    char text[40];
    for (int i = 0; i < 260000; i++) {
        snprintf(text, sizeof text, "token%d", i);
        put_string(&w, text);
    }
    put_array(&w, "tokenizer.ggml.scores", LLM_GGUF_F32, 260000);
    put_zeros(&w, 4 * 260000);
    put_array(&w, "tokenizer.ggml.token_type", LLM_GGUF_I32, 260000);
    put_zeros(&w, 4 * 260000);
    put_array(&w, "tokenizer.ggml.merges", LLM_GGUF_STRING, 500000);
    for (int i = 0; i < 500000; i++) {
        snprintf(text, sizeof text, "left%d right%d", i, i / 2);
        put_string(&w, text);
    }
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        llm_error err;
        uint64_t start = llm_now_ns();
        llm_gguf *g = open_bytes(&w, &err);
        double ms = (double)(llm_now_ns() - start) / 1e6;
        if (ms < best) best = ms;
        CHECK(g && value_of(g, "tokenizer.ggml.merges").count == 500000, "%s", err.message);
        llm_gguf_close(g);
    }
    printf("260k tokens, 500k merges: %.2f ms\n", best);
    CHECK(best <= 250.0, "%.1f ms; the limit is 250", best);
    free(w.bytes);
}

int main(void) {
    test_values(2);
    test_values(3);
    test_bad_values();
    test_tensors();
    test_bad_tensors();
    test_split_sets();
    test_files();
    test_sort();
    test_index();
    test_large_vocabulary();
    return n_failed != 0;
}
