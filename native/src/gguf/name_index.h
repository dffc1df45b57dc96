/* name_index.h: finds a name's number, whatever the names are.
 *
 * Entries sorted by (hash, length, bytes) and searched by halving. A hash table would be open to
 * names chosen to collide; here such names only cost their own comparison: building takes
 * O(n log n) comparisons and never reads more than the names' bytes times log n.
 */
#ifndef LLM_GGUF_NAME_INDEX_H
#define LLM_GGUF_NAME_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct llm_name_entry {
    uint64_t hash;
    const char *name; /* not owned, not NUL-terminated */
    uint32_t n_bytes;
    uint32_t item;
} llm_name_entry;

typedef struct llm_name_index {
    llm_name_entry *entries; /* room for every name that will be added, owned */
    uint32_t n;
} llm_name_index;

bool llm_name_index_reserve(llm_name_index *index, uint32_t n); /* false: out of memory */
void llm_name_index_add(llm_name_index *index, const char *name, size_t n_bytes, uint32_t item);

/* Sorts. False when memory is out. When two names are equal, *twin_a < *twin_b are the items of
 * the pair whose second comes first; else both are -1. */
bool llm_name_index_finish(llm_name_index *index, int64_t *twin_a, int64_t *twin_b);
int64_t llm_name_index_find(const llm_name_index *index, const char *name, size_t n_bytes);
void llm_name_index_free(llm_name_index *index);

/* Sorts n entries of `size` bytes at `base` by a merge sort (n log n whatever the input, unlike
 * some systems' qsort). False: out of memory. */
bool llm_merge_sort(void *base, size_t n, size_t size, int (*compare)(const void *, const void *));

#endif
