/* The parts of a set become one: order, counts, and one list of all tensors. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"

static llm_status order_parts(llm_gguf *g, llm_error *err) {
    llm_gguf_part *parts = g->parts;
    for (int32_t i = 0; i < g->n_parts; i++) {
        if (parts[i].split_count == g->n_parts) continue;
        return llm_gguf_fail(&parts[i], err, LLM_E_FORMAT,
                             "key 'split.count': %" PRId64 "; the set has %" PRId32 " parts",
                             parts[i].split_count, g->n_parts);
    }
    /* Each number is under n_parts, so n_parts different ones are a permutation. */
    for (int32_t i = 0; i < g->n_parts; i++) {
        while (parts[i].split_no != i) {
            llm_gguf_part *rival = &parts[parts[i].split_no];
            if (rival->split_no == parts[i].split_no)
                return llm_gguf_fail(&parts[i], err, LLM_E_FORMAT,
                                     "key 'split.no': %" PRId64 "; %s claims the same number",
                                     parts[i].split_no, rival->path);
            llm_gguf_part swap = *rival;
            *rival = parts[i];
            parts[i] = swap;
        }
    }
    return LLM_OK;
}

static llm_status check_tensor_counts(llm_gguf *g, uint64_t n_tensors, llm_error *err) {
    for (int32_t i = 0; i < g->n_parts; i++) {
        const llm_gguf_part *part = &g->parts[i];
        if (part->split_tensors < 0 && part->is_split && i == 0)
            return llm_gguf_fail(
                part, err, LLM_E_FORMAT,
                "key 'split.tensors.count': missing, though 'split.count' is %" PRId64,
                part->split_count);
        if (part->split_tensors >= 0 && (uint64_t)part->split_tensors != n_tensors)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "key 'split.tensors.count': %" PRId64 "; the %" PRId32
                                 " parts hold %" PRIu64,
                                 part->split_tensors, g->n_parts, n_tensors);
    }
    return LLM_OK;
}

/* Moves the parts' tensors into one list and gives their names a NUL. */
static bool gather(llm_gguf *g, uint64_t n_tensors, uint64_t n_name_bytes) {
    g->tensors = malloc((size_t)(n_tensors ? n_tensors : 1) * sizeof *g->tensors);
    g->names = malloc((size_t)(n_name_bytes + n_tensors + 1));
    if (!g->tensors || !g->names || !llm_name_index_reserve(&g->by_name, (uint32_t)n_tensors))
        return false;
    char *name = g->names;
    for (int32_t p = 0; p < g->n_parts; p++) {
        llm_gguf_part *part = &g->parts[p];
        for (uint32_t i = 0; i < part->n_tensors; i++) {
            llm_tensor_info *t = &g->tensors[g->n_tensors];
            *t = part->tensors[i];
            memcpy(name, t->name, part->name_bytes[i]);
            name[part->name_bytes[i]] = 0;
            t->name = name;
            t->part = p;
            llm_name_index_add(&g->by_name, name, part->name_bytes[i], g->n_tensors++);
            name += part->name_bytes[i] + 1;
        }
        free(part->tensors);
        free(part->name_bytes);
        part->tensors = NULL;
        part->name_bytes = NULL;
    }
    return true;
}

static llm_status index_names(llm_gguf *g, llm_error *err) {
    int64_t a = -1, b = -1;
    if (!llm_name_index_finish(&g->by_name, &a, &b))
        return llm_gguf_fail(&g->parts[0], err, LLM_E_MEMORY,
                             "out of memory for %" PRIu32 " tensors", g->n_tensors);
    if (b < 0) return LLM_OK;
    const llm_tensor_info *t = &g->tensors[b];
    return llm_gguf_fail(&g->parts[t->part], err, LLM_E_FORMAT,
                         "tensor %s: listed twice, as tensors %" PRId64 " and %" PRId64
                         " (the first is in part %d, the second in part %d of %" PRId32 ")",
                         llm_quote(t->name, strlen(t->name)).text, a, b, g->tensors[a].part + 1,
                         t->part + 1, g->n_parts);
}

llm_status llm_gguf_join(llm_gguf *g, llm_error *err) {
    if (g->n_parts > 1) {
        llm_status status = order_parts(g, err);
        if (status != LLM_OK) return status;
    }
    uint64_t n_tensors = 0, n_name_bytes = 0; /* sums of at most 1000 x 32768 x 127 */
    for (int32_t p = 0; p < g->n_parts; p++) {
        n_tensors += g->parts[p].n_tensors;
        for (uint32_t i = 0; i < g->parts[p].n_tensors; i++)
            n_name_bytes += g->parts[p].name_bytes[i];
    }
    llm_status status = check_tensor_counts(g, n_tensors, err);
    if (status != LLM_OK) return status;
    if (n_tensors > LLM_GGUF_MAX_TENSORS)
        return llm_gguf_fail(&g->parts[0], err, LLM_E_FORMAT,
                             "tensor count of all parts: %" PRIu64 "; the limit is %d", n_tensors,
                             LLM_GGUF_MAX_TENSORS);
    if (!gather(g, n_tensors, n_name_bytes))
        return llm_gguf_fail(&g->parts[0], err, LLM_E_MEMORY,
                             "out of memory for %" PRIu64 " tensors", n_tensors);
    return index_names(g, err);
}
