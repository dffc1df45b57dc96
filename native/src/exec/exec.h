/* exec.h: the state of an executor, and the parts of a step.
 *
 * A step is one job on the thread pool: every thread walks the same phases (forward.c) with a
 * barrier between two of them. All buffers are sized at creation, nothing is allocated in a step.
 */
#ifndef LLM_EXEC_H
#define LLM_EXEC_H

#include <stdatomic.h>

#include "base/threads.h"
#include "kv/pool.h"
#include "model/model.h"
#include "sampling/candidates.h"

#define LLM_SPLIT_BLOCKS 16 /* blocks of one attention split: absolute borders, every 512 tokens */

/* Query rows of one sequence that attend together: n_tokens consecutive new tokens. */
typedef struct llm_tile {
    int32_t first_token; /* index into the step's tokens */
    int32_t n_tokens;
    int32_t first_pos;
    int32_t block_begin, block_end; /* absolute blocks that any row sees */
    int32_t first_state; /* split mode: index of the tile's first split */
    const int32_t *table;
} llm_tile;

/* How the attention of one layer group is cut into tasks. Either a task is a (tile, kv head) and
 * walks all splits, or it is a (tile, split, kv head) and a second phase merges: the same sums in
 * the same order, only their place differs. */
typedef struct llm_attn_plan {
    llm_tile *tiles; /* [max_tokens] */
    int32_t n_tiles;
    bool by_split;
    int32_t n_splits; /* of all tiles together */
    int32_t *split_tile; /* [LLM_MAX_SPLITS] */
    int32_t *split_number; /* [LLM_MAX_SPLITS] absolute split */
} llm_attn_plan;

#define LLM_MAX_SPLITS 1024
#define LLM_STATE_FLOATS (4 << 20) /* bound of the states of split mode, in floats */

typedef struct llm_thread_scratch {
    uint8_t *matmul;
    float *q, *out; /* [64][dim] padded query and result rows */
    llm_attn_state sum, part; /* 64 rows */
} llm_thread_scratch;

struct llm_exec {
    const llm_model *m;
    llm_kv_pool *pool;
    llm_threads *threads;
    int32_t n_threads, max_tokens, max_seqs, n_sampled, dim;
    const int32_t *cancel;

    uint8_t *arena;
    uint64_t arena_bytes;
    float *x, *h, *q, *k, *v, *att, *gate, *up, *delta; /* [max_tokens][width] */
    float *cos[2], *sin[2]; /* [max_tokens][n_rot / 2] */
    float *logits; /* [max_seqs][n_vocab] */
    float *states; /* split mode */
    llm_candidates candidates; /* to sample in, one row after another */
    int32_t *token_pos, *token_seq; /* [max_tokens] */
    int32_t *out_row; /* [max_tokens] token of each logits row */
    uint8_t *act_memory[LLM_N_ACT_KINDS]; /* of the widest input, max_tokens */
    llm_thread_scratch *scratch; /* [n_threads] */
    llm_attn_plan plan[LLM_MAX_GROUPS];

    /* The current step. */
    const llm_batch *batch;
    int32_t n_out; /* rows of logits */
    float *out_logits; /* [n_out][n_vocab] */
    bool stopped; /* the cancel flag was seen */
    atomic_int *counters; /* one per phase, for work taken in turns */
    int32_t n_counters;
};

/* sampling.c: checks the samplers of a batch and makes room in them, so that sampling cannot fail. */
llm_status llm_prepare_sampling(llm_exec *e, const llm_batch *b, const llm_logprobs *logprobs,
                                llm_error *err);
/* The token of sequence s from its logits [n_vocab], which its sampler then has accepted; -1 for NULL.
 * Fills row s of logprobs, which may be NULL. */
int32_t llm_sample_row(llm_exec *e, const llm_batch *b, int32_t s, const float *logits,
                       const llm_logprobs *logprobs);
/* plan.c */
void llm_plan_attention(llm_exec *e, const llm_batch *b);
/* forward.c: the job of a step. */
void llm_forward(void *exec, int32_t thread, int32_t n_threads);
/* attend.c: one layer's attention; the barrier between its phases is inside. */
void llm_attend(llm_exec *e, const llm_layer *layer, int32_t thread, int32_t counter);
/* Rope, q and k norms, and the write of K and V for this thread's share of heads. */
void llm_write_kv(llm_exec *e, const llm_layer *layer, int32_t thread);

int32_t llm_n_counters(const llm_model *m);
#define LLM_COUNTERS_PER_LAYER 6

#endif
