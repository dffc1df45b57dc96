#include "gguf/name_index.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash_of(const char *name, size_t n_bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_bytes; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3u;
    return hash;
}

static int compare_names(const void *left, const void *right) {
    const llm_name_entry *a = left, *b = right;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    if (a->n_bytes != b->n_bytes) return a->n_bytes < b->n_bytes ? -1 : 1;
    return memcmp(a->name, b->name, a->n_bytes);
}

bool llm_merge_sort(void *base, size_t n, size_t size, int (*compare)(const void *, const void *)) {
    if (n < 2) return true;
    if (n > SIZE_MAX / 2 / size) return false;
    char *other = malloc(n * size);
    if (!other) return false;
    char *from = base, *to = other;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = begin + width < n ? begin + width : n;
            size_t end = begin + 2 * width < n ? begin + 2 * width : n;
            size_t a = begin, b = middle;
            for (size_t k = begin; k < end; k++) {
                bool left =
                    b == end || (a < middle && compare(from + a * size, from + b * size) <= 0);
                memcpy(to + k * size, from + (left ? a++ : b++) * size, size);
            }
        }
        char *swap = from;
        from = to;
        to = swap;
    }
    if (from != (char *)base) memcpy(base, from, n * size);
    free(other);
    return true;
}

bool llm_name_index_reserve(llm_name_index *index, uint32_t n) {
    *index = (llm_name_index){0};
    index->entries = malloc((n ? n : 1) * sizeof *index->entries);
    return index->entries != NULL;
}

void llm_name_index_add(llm_name_index *index, const char *name, size_t n_bytes, uint32_t item) {
    index->entries[index->n++] = (llm_name_entry){
        .hash = hash_of(name, n_bytes), .name = name, .n_bytes = (uint32_t)n_bytes, .item = item};
}

bool llm_name_index_finish(llm_name_index *index, int64_t *twin_a, int64_t *twin_b) {
    llm_name_entry *e = index->entries;
    *twin_a = *twin_b = -1;
    /* The sort is stable, so equal names stay in the order in which they were added. */
    if (!llm_merge_sort(e, index->n, sizeof *e, compare_names)) return false;
    for (uint32_t i = 1; i < index->n; i++) {
        if (compare_names(&e[i - 1], &e[i]) != 0) continue;
        if (*twin_b >= 0 && e[i].item >= *twin_b) continue;
        *twin_a = e[i - 1].item;
        *twin_b = e[i].item;
    }
    return true;
}

int64_t llm_name_index_find(const llm_name_index *index, const char *name, size_t n_bytes) {
    if (n_bytes > UINT32_MAX) return -1;
    const llm_name_entry wanted = {
        .hash = hash_of(name, n_bytes), .name = name, .n_bytes = (uint32_t)n_bytes};
    uint32_t low = 0, high = index->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare_names(&index->entries[middle], &wanted);
        if (order == 0) return index->entries[middle].item;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

void llm_name_index_free(llm_name_index *index) {
    free(index->entries);
    *index = (llm_name_index){0};
}
