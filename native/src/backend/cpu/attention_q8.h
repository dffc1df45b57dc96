/* attention_q8.h: the products of attention over q8_0 blocks as integer dots (attention_q8.c); runs of
 * blocks, what a row sees and the softmax are those of attention.c. */
#ifndef LLM_ATTENTION_Q8_H
#define LLM_ATTENTION_Q8_H

#include "backend/cpu/isa.h"
#include "backend/kernels.h"

enum {
    LLM_Q8_VALUES = LLM_ATTN_ROWS * 128, /* most rows * dims of a pass */
    LLM_Q8_GROUPS = LLM_Q8_VALUES / 32, /* most rows * groups of 32 dims of a run of blocks */
};

/* A q8_0 block that rows [ra, rb) see some of. */
typedef struct llm_q8_block {
    const uint8_t *k, *v;
    int32_t ra, rb;
    float *p; /* [row][32] scores, then weights */
    const int32_t *first, *end; /* [row] tokens that the row sees */
} llm_q8_block;

typedef struct llm_q8_pass {
    int32_t n_rows, dim, groups;
    _Alignas(64) int8_t q[LLM_Q8_VALUES]; /* [row][dim] */
    float q_scale[LLM_Q8_GROUPS]; /* [row][group] */
    int32_t q_start[LLM_Q8_GROUPS]; /* -128 * sum(q): K is stored as k + 128 */
    float peak[LLM_ATTN_ROWS], inverse[LLM_ATTN_ROWS]; /* [block][row] largest weight, 1 / it */
    /* [block][group][row]: 32 low bytes and 32 high bytes of u; u * u_scale is weight * V's scale */
    _Alignas(64) uint8_t u[LLM_Q8_GROUPS * LLM_BLOCK_TOKENS * 2];
    float u_scale[LLM_Q8_GROUPS];
} llm_q8_pass;

/* Bit t is set when a row that sees tokens [first, end) of a block sees token t. */
static inline uint32_t llm_seen_tokens(int32_t first, int32_t end) {
    const int32_t n = end - first; /* 0 where first is 32 */
    return n == LLM_BLOCK_TOKENS ? UINT32_MAX : ((1u << n) - 1) << (first & 31);
}

/* Most blocks of a run of a pass with n_rows rows. */
static inline int32_t llm_q8_run_blocks(int32_t n_rows, int32_t dim) {
    return LLM_Q8_GROUPS / (n_rows * (dim / 32));
}

/* Begins a pass: quantizes its queries, n_rows * dim <= LLM_Q8_VALUES. */
void LLM_FN(q8_queries)(llm_q8_pass *s, const float *const *q, int32_t n_rows, int32_t dim);
/* Ends it. */
void LLM_FN(q8_finish)(const llm_q8_pass *s);
/* q . k of the block's rows and 32 tokens into b->p; lanes of tokens that a row does not see may hold
 * anything. ahead: K or V of a block, asked of memory meanwhile; NULL for none. */
void LLM_FN(q8_scores)(const llm_q8_pass *s, const llm_q8_block *b, const uint8_t *ahead);
/* Quantizes the weights of a run of blocks. most, m: of [block][row], the largest score of the block
 * and the maximum that the weights are relative to, up to the next multiple of 16. */
void LLM_FN(q8_weights)(llm_q8_pass *s, const llm_q8_block *blocks, int32_t n_blocks,
                        const float *most, const float *m);
/* o [row][dim] := o * grow + weights * V, for block j of the run. */
void LLM_FN(q8_outputs)(const llm_q8_pass *s, const llm_q8_block *b, int32_t j, const float *grow,
                        float *o, const uint8_t *ahead);
void LLM_FN(q8_write)(uint8_t *k_block, uint8_t *v_block, int32_t dim, int32_t slot, const float *k,
                      const float *v);

#endif
