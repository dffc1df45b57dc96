/* Opens the input as a GGUF file, or as a split set whose parts are divided by PART_MARK (written
 * by tests/faults/gguf_corpus.py), and reads all that the reader offers. What opens has to be
 * consistent; whatever does not must have a status and a message. */
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"
#include "quant/formats.h"

#define PART_MARK "\xff--part--\xff"
#define MAX_PARTS 8

static uint8_t sink; /* keeps reads from being optimized away */

static void demand(int condition) {
    if (!condition) abort();
}

static void read_range(const uint8_t *bytes, uint64_t n_bytes) {
    uint8_t seen = 0;
    for (uint64_t i = 0; i < n_bytes; i++) seen ^= bytes[i];
    sink = seen;
}

static void read_strings(const llm_gguf *g, int64_t i, uint64_t count) {
    int64_t n_bytes = 0, again = 0;
    llm_error err;
    demand(llm_gguf_strings(g, i, NULL, NULL, &n_bytes, &err) == LLM_OK && n_bytes >= 0);
    int64_t *offsets = malloc((size_t)(count + 1) * sizeof *offsets);
    char *bytes = malloc((size_t)n_bytes + 1);
    demand(offsets && bytes);
    demand(llm_gguf_strings(g, i, offsets, bytes, &again, &err) == LLM_OK && again == n_bytes);
    demand(offsets[0] == 0 && offsets[count] == n_bytes);
    for (uint64_t k = 0; k < count; k++) demand(offsets[k] <= offsets[k + 1]);
    free(offsets);
    free(bytes);
}

static void read_values(const llm_gguf *g) {
    for (int64_t i = 0; i < llm_gguf_n_values(g); i++) {
        llm_gguf_value v;
        demand(llm_gguf_value_at(g, i, &v) == LLM_OK);
        char *key = malloc(v.key_bytes + 1);
        demand(key != NULL);
        memcpy(key, v.key, v.key_bytes);
        key[v.key_bytes] = 0;
        demand(llm_gguf_find(g, key) == i);
        free(key);
        read_range(v.data, v.data_bytes);
        if (v.type == LLM_GGUF_ARRAY && v.element_type == LLM_GGUF_STRING)
            read_strings(g, i, v.count);
    }
}

static void read_tensors(const llm_gguf *g) {
    for (int64_t i = 0; i < llm_gguf_n_tensors(g); i++) {
        llm_tensor_info t;
        demand(llm_gguf_tensor_at(g, i, &t) == LLM_OK && llm_gguf_find_tensor(g, t.name) == i);
        demand(t.part >= 0 && t.part < llm_gguf_n_parts(g) && t.n_bytes > 0);
        const llm_format *format = llm_format_of(t.type);
        demand(format && t.dims[0] % format->block_elements == 0);
        for (int d = 0; d < LLM_MAX_DIMS; d++) demand(t.dims[d] >= 1);
        read_range(t.data, t.n_bytes);
    }
}

static int32_t divide(const uint8_t *data, size_t size, llm_gguf_buffer *parts) {
    const size_t mark_bytes = sizeof PART_MARK - 1;
    int32_t n = 0;
    size_t begin = 0;
    for (size_t at = 0; n < MAX_PARTS - 1 && at + mark_bytes <= size; at++) {
        if (memcmp(data + at, PART_MARK, mark_bytes) != 0) continue;
        parts[n++] = (llm_gguf_buffer){"part", data + begin, at - begin};
        begin = at + mark_bytes;
        at = begin - 1;
    }
    parts[n++] = (llm_gguf_buffer){"last part", data + begin, size - begin};
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    llm_gguf_buffer parts[MAX_PARTS];
    uint8_t *copies[MAX_PARTS];
    int32_t n_parts = divide(data, size, parts);
    /* Each part in an allocation of its own, so that a read past its end is seen. */
    for (int32_t i = 0; i < n_parts; i++) {
        copies[i] = malloc(parts[i].n_bytes ? (size_t)parts[i].n_bytes : 1);
        demand(copies[i] != NULL);
        if (parts[i].n_bytes) memcpy(copies[i], parts[i].bytes, (size_t)parts[i].n_bytes);
        parts[i].bytes = copies[i];
    }
    llm_gguf *g = NULL;
    llm_error err = {0};
    llm_status status = llm_gguf_open_memory(parts, n_parts, &g, &err);
    demand((status == LLM_OK) == (g != NULL));
    if (g) {
        read_values(g);
        read_tensors(g);
    } else {
        demand(err.status == status && err.message[0]);
    }
    llm_gguf_close(g);
    for (int32_t i = 0; i < n_parts; i++) free(copies[i]);
    return 0;
}
