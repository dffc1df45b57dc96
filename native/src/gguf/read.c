/* What may be asked of an open file. */
#include <inttypes.h>
#include <string.h>

#include "gguf/gguf.h"

int32_t llm_gguf_version(const llm_gguf *g) { return g->parts[0].version; }

int32_t llm_gguf_n_parts(const llm_gguf *g) { return g->n_parts; }

uint64_t llm_gguf_file_bytes(const llm_gguf *g) {
    uint64_t n = 0; /* mapped files: the sum fits an address space */
    for (int32_t i = 0; i < g->n_parts; i++) n += g->parts[i].n_bytes;
    return n;
}

int64_t llm_gguf_n_values(const llm_gguf *g) { return g->parts[0].n_values; }

int64_t llm_gguf_find(const llm_gguf *g, const char *key) {
    return key ? llm_name_index_find(&g->parts[0].keys, key, strlen(key)) : -1;
}

llm_status llm_gguf_value_at(const llm_gguf *g, int64_t i, llm_gguf_value *out) {
    if (i < 0 || i >= g->parts[0].n_values) return LLM_E_ARGUMENT;
    *out = g->parts[0].values[i];
    return LLM_OK;
}

static llm_status check_parts(const llm_gguf *g,
                              llm_status (*check)(const llm_file_map *map, llm_error *err),
                              llm_error *err) {
    for (int32_t i = 0; i < g->n_parts; i++) {
        llm_error inner;
        llm_status status = check(&g->parts[i].map, &inner);
        if (status != LLM_OK) return llm_gguf_fail(&g->parts[i], err, status, "%s", inner.message);
    }
    return LLM_OK;
}

llm_status llm_gguf_check(const llm_gguf *g, llm_error *err) {
    return check_parts(g, llm_file_map_check, err);
}

llm_status llm_gguf_check_unchanged(const llm_gguf *g, llm_error *err) {
    return check_parts(g, llm_file_map_check_unchanged, err);
}

void llm_gguf_expect_written(llm_gguf *g, int64_t written_ns) {
    g->parts[0].map.written_ns = written_ns;
}

llm_status llm_gguf_strings(const llm_gguf *g, int64_t i, int64_t *offsets, char *bytes,
                            int64_t *n_bytes, llm_error *err) {
    const llm_gguf_part *part = &g->parts[0];
    if (i < 0 || i >= part->n_values)
        return llm_gguf_fail(part, err, LLM_E_ARGUMENT,
                             "metadata value %" PRId64 "; the limit is 0 to %" PRId64, i,
                             (int64_t)part->n_values - 1);
    const llm_gguf_value *v = &part->values[i];
    if (v->type != LLM_GGUF_ARRAY || v->element_type != LLM_GGUF_STRING)
        return llm_gguf_fail(part, err, LLM_E_ARGUMENT, "key %s: not an array of strings",
                             llm_quote(v->key, v->key_bytes).text);
    if (!offsets != !bytes)
        return llm_gguf_fail(part, err, LLM_E_ARGUMENT,
                             "llm_gguf_strings: offsets and bytes go together");
    /* The run of records was walked at open; what is not text in it is 8 bytes a record. */
    if (n_bytes) *n_bytes = (int64_t)(v->data_bytes - 8 * v->count);
    if (!offsets) return LLM_OK;
    const uint8_t *p = v->data;
    int64_t at = 0;
    uint64_t left = v->data_bytes - 8 * v->count;
    for (uint64_t k = 0; k < v->count; k++) {
        uint64_t n = llm_load_u64(p);
        offsets[k] = at;
        if (n > left) /* the lengths were summed at open */
            return llm_gguf_fail(part, err, LLM_E_IO,
                                 "another program wrote to the file while it was used");
        left -= n;
        memcpy(bytes + at, p + 8, (size_t)n);
        at += (int64_t)n;
        p += 8 + n;
    }
    offsets[v->count] = at;
    return llm_gguf_check(g, err);
}

int64_t llm_gguf_n_tensors(const llm_gguf *g) { return g->n_tensors; }

int64_t llm_gguf_find_tensor(const llm_gguf *g, const char *name) {
    return name ? llm_name_index_find(&g->by_name, name, strlen(name)) : -1;
}

llm_status llm_gguf_tensor_at(const llm_gguf *g, int64_t i, llm_tensor_info *out) {
    if (i < 0 || i >= g->n_tensors) return LLM_E_ARGUMENT;
    *out = g->tensors[i];
    return LLM_OK;
}
