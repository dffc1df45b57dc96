/* pool.h: where K and V live inside a block.
 *
 * A block holds 32 tokens of every layer of its layer group:
 *   [layer in group][kv head][ K part | V part ]
 * K part: token-minor, so that a vector over tokens is one load and a score needs no horizontal
 * sum; V part: token-major. q8_0 keeps four inputs of a dot side by side: dims of K, tokens of V.
 *   f16:  K f16 [dim][32];           V f16 [32][dim]
 *   q8_0: K u8 [dim/4][32][4], k + 128, then f16 scales [dim/32][32];
 *         V s8 [32/4][dim][4],          then f16 scales [dim/32][32]
 * dim is the head dimension rounded up to 16 (f16) or a multiple of 32 (q8_0).
 */
#ifndef LLM_POOL_H
#define LLM_POOL_H

#include "localllm_kv.h"

typedef struct llm_kv_layout {
    int32_t kv_type;
    int32_t dim;         /* padded head dimension */
    int32_t n_kv_heads;
    int32_t n_layers;    /* in the group */
    uint64_t part_bytes; /* K or V of one head: both are equally large */
    uint64_t block_bytes;
} llm_kv_layout;

struct llm_kv_pool {
    int32_t n_groups;
    struct llm_kv_group {
        llm_kv_layout layout;
        int32_t n_blocks;
        uint8_t *base;
        uint64_t reserved_bytes;
    } group[LLM_MAX_GROUPS];
};

/* The padded head dimension of a valid kv type. */
int32_t llm_kv_dim(const llm_model *m, int32_t kv_type);

static inline uint64_t llm_kv_head_offset(const llm_kv_layout *l, int32_t layer_in_group,
                                          int32_t kv_head) {
    return 2 * l->part_bytes
           * ((uint64_t)layer_in_group * (uint64_t)l->n_kv_heads + (uint64_t)kv_head);
}

#endif
