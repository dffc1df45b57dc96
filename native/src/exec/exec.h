/* exec.h: the state of an executor, and the parts of a step.
 *
 * A step is one job on the thread pool: every thread walks the same phases (forward.c), with four
 * barriers a layer. All buffers are sized at creation, nothing is allocated in a step.
 */
#ifndef LLM_EXEC_H
#define LLM_EXEC_H

#include <stdatomic.h>

#include "base/threads.h"
#include "exec/profile.h"
#include "kv/pool.h"
#include "model/model.h"
#include "sampling/candidates.h"

#define LLM_FEW_ROWS 8 /* up to here every thread norms and quantizes all rows for itself */
#define LLM_SPLIT_BLOCKS 16 /* blocks of one attention split: absolute borders, every 512 tokens */

/* Query rows of one sequence that attend together: n_tokens consecutive new tokens. */
typedef struct llm_tile {
    int32_t first_token; /* index into the step's tokens */
    int32_t n_tokens;
    int32_t first_pos;
    int32_t block_begin, block_end; /* absolute blocks that any row sees */
    int32_t first_state; /* split mode: index of the tile's first split */
    bool has_output; /* a row of logits is asked for */
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
#define LLM_STATE_FLOATS (2 << 20) /* bound of the states of split mode, in floats */

typedef struct llm_thread_scratch {
    uint8_t *matmul;
    float *q, *out; /* [64][dim] padded query and result rows */
    llm_attn_state sum, part; /* 64 rows */
    /* The thread's own copies of what few rows need, so that nobody waits for a norm. */
    float *x, *in; /* [LLM_FEW_ROWS][n_embd], [LLM_FEW_ROWS][in_width] */
    uint8_t *acts[LLM_N_ACT_KINDS];
} llm_thread_scratch;

/* Tasks of split mode are fewer: plan.c. */
#define LLM_SPLITS_DONE(n_threads) (4 * (n_threads))

struct llm_exec {
    const llm_model *m;
    llm_kv_pool *pool;
    llm_threads *threads;
    int32_t n_threads, max_tokens, max_seqs, n_sampled, dim, in_width;
    const int32_t *cancel;
    volatile uint32_t *progress; /* written by thread 0 */

    uint8_t *arena;
    uint64_t arena_bytes;
    float *x, *q, *k, *v, *att, *gate, *up, *delta; /* [max_tokens][width] */
    float
        *in; /* [max_tokens][in_width] what is quantized: in_width fits a norm's and an attention's
                  output */
    float *cos[2], *sin[2]; /* [max_tokens][n_rot / 2] */
    float *logits; /* [max_seqs][n_vocab] */
    float *states; /* split mode */
    llm_candidates candidates; /* to sample in, one row after another */
    int32_t *token_pos, *token_seq; /* [max_tokens] */
    int32_t *out_row; /* [max_tokens] token of each logits row */
    uint8_t *in_acts[LLM_N_ACT_KINDS]; /* max_tokens of in_width */
    uint8_t *ff_acts[LLM_N_ACT_KINDS]; /* max_tokens of n_ff */
    llm_thread_scratch *scratch; /* [n_threads] */
    llm_attn_plan plan[LLM_MAX_GROUPS];

    /* The current step. */
    const llm_batch *batch;
    int32_t n_out; /* rows of logits */
    int32_t part_rows; /* rows of logits that are there at once */
    float *out_logits; /* [min(n_out, part_rows)][n_vocab] */
    int32_t *out_tokens; /* the caller's, and the places of log probabilities */
    const llm_logprobs *out_logprobs;
    bool stopped; /* the cancel flag was seen */
    atomic_int *turns; /* [n_layers + 1][turns_per_layer], see llm_turns_of */
    int32_t turns_per_layer;
#if LLM_PROFILE
    llm_profile *profile; /* [n_threads] */
#endif
};

/* Of many rows that the threads take in turns: the next one, and how many are done. */
typedef struct llm_row_turns {
    atomic_int *next, *done;
} llm_row_turns;

/* Counters of one layer, 0 when a step begins, for work taken in turns. The head counts as a layer. */
typedef struct llm_layer_turns {
    atomic_int *qkv, *write, *attend, *out, *gate_up, *down; /* the next task of a phase */
    llm_row_turns norm, quantize, ffn_norm, activate;
    atomic_int *head_rows; /* [n_kv_heads] rows of q, k, v; then also tokens in the pool */
    atomic_int *split_done; /* [LLM_SPLITS_DONE] finished splits of a tile and kv head */
    atomic_int *ff_rows; /* [llm_n_ff_groups] rows of gate and up */
} llm_layer_turns;

/* Outputs of gate and up that become inputs of down together: a block of any type of activations. */
#define LLM_FF_GROUP 256
static inline int32_t llm_n_ff_groups(const llm_hparams *h) {
    return (h->n_ff + LLM_FF_GROUP - 1) / LLM_FF_GROUP;
}

#define LLM_SINGLE_TURNS 14 /* counters of a layer beside the arrays */
static inline llm_layer_turns llm_turns_of(const llm_exec *e, int32_t layer) {
    atomic_int *at = e->turns + (int64_t)layer * e->turns_per_layer;
    atomic_int *heads = at + LLM_SINGLE_TURNS, *splits = heads + e->m->h.n_kv_heads;
    return (llm_layer_turns){.qkv = at,
                             .write = at + 1,
                             .attend = at + 2,
                             .out = at + 3,
                             .gate_up = at + 4,
                             .down = at + 5,
                             .norm = {at + 6, at + 7},
                             .quantize = {at + 8, at + 9},
                             .ffn_norm = {at + 10, at + 11},
                             .activate = {at + 12, at + 13},
                             .head_rows = heads,
                             .split_done = splits,
                             .ff_rows = splits + LLM_SPLITS_DONE(e->n_threads)};
}

/* sampling.c: checks the samplers of a batch and makes room in them, so that sampling cannot fail. */
llm_status llm_prepare_sampling(llm_exec *e, const llm_batch *b, const llm_logprobs *logprobs,
                                llm_error *err);
/* What is asked of rows [first, first + n) of the logits, which are in out_logits: samples and log
 * probabilities. */
void llm_take_rows(llm_exec *e, int32_t first, int32_t n);
/* The samplers accept what was sampled: at the end of a step, as one that fails may be run again. */
void llm_accept_sampled(const llm_exec *e);
/* The caller's rows before any is taken: -1, and nothing. */
void llm_clear_rows(const llm_exec *e);
/* plan.c */
void llm_plan_attention(llm_exec *e, const llm_batch *b);
/* forward.c: the job of a step. */
void llm_forward(void *exec, int32_t thread, int32_t n_threads);
/* Thread 0 has done a piece of the step. */
static inline void llm_note_progress(llm_exec *e, int32_t thread) {
    if (thread == 0 && e->progress) ++*e->progress;
}
/* Returns when q of this kv head's group is rotated and K and V of the step are in the pool. */
void llm_await_head(llm_exec *e, const llm_layer *layer, int32_t kv_head, int32_t thread);
/* attend.c: one layer's attention, all rows or only the tiles that have an output row. */
void llm_attend(llm_exec *e, const llm_layer *layer, int32_t thread, bool outputs_only);
/* Rope, q and k norms, and the write of K and V of one token; head: 0 .. n_heads - 1 of q, then the
 * kv heads. */
void llm_write_head(llm_exec *e, const llm_layer *layer, int32_t token, int32_t head,
                    int32_t thread);

#endif
