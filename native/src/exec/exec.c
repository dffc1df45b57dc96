/* exec.c: creation of an executor, checks of a batch, steps and runs of decode steps. */
#include "exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "base/os_memory.h"
#include "base/status.h"
#include "gguf/gguf.h"

/* Hands out 64-byte aligned parts of a region; with base NULL it only measures. */
typedef struct bump {
    uint8_t *base;
    uint64_t used;
} bump;

static void *take(bump *b, uint64_t n_bytes) {
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (n_bytes + 63) / 64 * 64;
    return p;
}

static float *take_floats(bump *b, int64_t n) { return take(b, (uint64_t)n * sizeof(float)); }

static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static void take_acts(bump *b, uint8_t **acts, int32_t n, int64_t k) {
    for (int32_t kind = LLM_ACT_Q32; kind <= LLM_ACT_Q256; kind++) {
        acts[kind] = take(b, llm_acts_bytes((llm_act_kind)kind, n, k));
    }
}

static void lay_out_thread(llm_exec *e, llm_thread_scratch *s, bump *b) {
    int64_t rows = LLM_ATTN_ROWS, dim = e->dim;
    s->matmul = take(b, e->m->kernels->matmul_scratch());
    s->q = take_floats(b, rows * dim);
    s->out = take_floats(b, rows * dim);
    llm_attn_state *states[] = {&s->sum, &s->part};
    for (int32_t i = 0; i < 2; i++) {
        states[i]->o = take_floats(b, rows * dim);
        states[i]->m = take_floats(b, rows);
        states[i]->l = take_floats(b, rows);
    }
    s->x = take_floats(b, LLM_FEW_ROWS * (int64_t)e->m->h.n_embd);
    s->in = take_floats(b, LLM_FEW_ROWS * (int64_t)e->in_width);
    take_acts(b, s->acts, LLM_FEW_ROWS, e->in_width);
}

static void lay_out(llm_exec *e, bump *b) {
    const llm_hparams *h = &e->m->h;
    int64_t n = e->max_tokens;
    int64_t q_width = (int64_t)h->n_heads * h->head_dim;
    int64_t kv_width = (int64_t)h->n_kv_heads * h->head_dim;
    e->in_width = (int32_t)max_i64(h->n_embd, q_width);
    e->x = take_floats(b, n * h->n_embd);
    e->in = take_floats(b, n * e->in_width);
    e->delta = take_floats(b, n * h->n_embd);
    e->q = take_floats(b, n * q_width);
    e->att = take_floats(b, n * q_width);
    e->k = take_floats(b, n * kv_width);
    e->v = take_floats(b, n * kv_width);
    e->gate = take_floats(b, n * h->n_ff);
    e->up = take_floats(b, n * h->n_ff);
    for (int32_t kind = 0; kind < 2; kind++) {
        e->cos[kind] = take_floats(b, n * (h->n_rot / 2));
        e->sin[kind] = take_floats(b, n * (h->n_rot / 2));
    }
    e->logits = take_floats(b, (int64_t)e->max_seqs * h->n_vocab);
    e->states = take_floats(b, LLM_STATE_FLOATS);
    void *candidates = take(b, llm_candidates_bytes(e->n_sampled));
    if (candidates) llm_candidates_init(&e->candidates, e->n_sampled, candidates);
    e->token_pos = take(b, (uint64_t)n * sizeof(int32_t));
    e->token_seq = take(b, (uint64_t)n * sizeof(int32_t));
    e->out_row = take(b, (uint64_t)n * sizeof(int32_t));
    take_acts(b, e->in_acts, e->max_tokens, e->in_width);
    take_acts(b, e->ff_acts, e->max_tokens, h->n_ff);
    e->scratch = take(b, (uint64_t)e->n_threads * sizeof *e->scratch);
    for (int32_t i = 0; i < e->n_threads; i++) {
        llm_thread_scratch measured;
        lay_out_thread(e, b->base ? &e->scratch[i] : &measured, b);
    }
    for (int32_t i = 0; i < e->m->n_groups; i++) {
        e->plan[i].tiles = take(b, (uint64_t)n * sizeof(llm_tile));
        e->plan[i].split_tile = take(b, LLM_MAX_SPLITS * sizeof(int32_t));
        e->plan[i].split_number = take(b, LLM_MAX_SPLITS * sizeof(int32_t));
    }
#if LLM_PROFILE
    e->profile = take(b, (uint64_t)e->n_threads * sizeof *e->profile);
#endif
    int32_t counters =
        LLM_SINGLE_TURNS + h->n_kv_heads + LLM_SPLITS_DONE(e->n_threads) + llm_n_ff_groups(h);
    e->turns_per_layer = (counters + 15) / 16 * 16; /* layers share no cache line */
    e->turns =
        take(b, (uint64_t)(h->n_layers + 1) * (uint64_t)e->turns_per_layer * sizeof *e->turns);
}

static llm_status check_params(const llm_model *m, const llm_exec_params *params, llm_error *err) {
    if (params->max_tokens < 1 || params->max_tokens > (1 << 20) || params->max_sequences < 1
        || params->max_sequences > params->max_tokens) {
        return llm_fail(
            err, LLM_E_ARGUMENT,
            "exec: max_tokens %d must be 1 to 1048576, max_sequences %d 1 to max_tokens",
            params->max_tokens, params->max_sequences);
    }
    if (params->n_sampled < 0 || params->n_sampled > m->h.n_vocab) {
        return llm_fail(err, LLM_E_ARGUMENT, "exec: n_sampled is %d, allowed are 0 to %d",
                        params->n_sampled, m->h.n_vocab);
    }
    return LLM_OK;
}

/* All that decides the layout of an executor's buffers. */
static llm_exec sized(const llm_model *m, int32_t kv_dim, int32_t n_threads,
                      const llm_exec_params *params) {
    return (llm_exec){.m = m,
                      .n_threads = n_threads,
                      .max_tokens = params->max_tokens,
                      .max_seqs = params->max_sequences,
                      .n_sampled = params->n_sampled ? params->n_sampled : m->h.n_vocab,
                      .cancel = params->cancel,
                      .progress = params->progress,
                      .dim = kv_dim};
}

llm_status llm_exec_bytes(const llm_model *m, int32_t kv_type, int32_t n_threads,
                          const llm_exec_params *params, uint64_t *n_bytes, llm_error *err) {
    if (!m || !params || !n_bytes || n_threads < 1 || !llm_kv_block_bytes(m, kv_type, 0)) {
        return llm_fail(err, LLM_E_ARGUMENT,
                        "exec: a null argument, %d threads or kv type %d out of range", n_threads,
                        kv_type);
    }
    llm_status s = check_params(m, params, err);
    if (s != LLM_OK) return s;
    llm_exec e = sized(m, llm_kv_dim(m, kv_type), n_threads, params);
    bump measure = {NULL, 0};
    lay_out(&e, &measure);
    *n_bytes = measure.used;
    return LLM_OK;
}

llm_status llm_exec_create(const llm_model *m, llm_kv_pool *p, llm_threads *t,
                           const llm_exec_params *params, llm_exec **out, llm_error *err) {
    if (!m || !p || !t || !params || !out) {
        return llm_fail(err, LLM_E_ARGUMENT, "exec: a null argument");
    }
    if (m->is_plan) return llm_fail(err, LLM_E_ARGUMENT, "exec: the model is a plan, no weights");
    llm_status s = check_params(m, params, err);
    if (s != LLM_OK) return s;
    llm_exec *e = calloc(1, sizeof *e);
    if (!e) return llm_fail(err, LLM_E_MEMORY, "no memory for an executor");
    *e = sized(m, p->group[0].layout.dim, llm_threads_count(t), params);
    e->pool = p;
    e->threads = t;
    bump measure = {NULL, 0};
    lay_out(e, &measure);
    bump region = {llm_os_alloc(measure.used), 0};
    if (!region.base) {
        free(e);
        return llm_fail(err, LLM_E_MEMORY, "the system refused %llu MiB of step buffers",
                        (unsigned long long)(measure.used >> 20));
    }
    e->arena = region.base;
    e->arena_bytes = measure.used;
    lay_out(e, &region);
    *out = e;
    return LLM_OK;
}

void llm_exec_free(llm_exec *e) {
    if (!e) return;
    llm_os_free(e->arena, e->arena_bytes);
    free(e);
}

uint64_t llm_exec_scratch_bytes(const llm_exec *e) { return e->arena_bytes; }

/* The blocks that sequence s reads or writes in a group must be in its table and in the pool. */
static llm_status check_table(const llm_exec *e, const llm_batch *b, int32_t group, int32_t s,
                              llm_error *err) {
    int32_t row = group * b->n_seqs + s;
    int32_t n = b->table_offset[row + 1] - b->table_offset[row];
    int32_t first = b->seq_first_pos[s], window = e->m->group_window[group];
    int32_t first_key = window && first >= window ? first - window + 1 : 0;
    int32_t last = (first + b->seq_n_tokens[s] - 1) / LLM_BLOCK_TOKENS;
    if (b->table_offset[row] < 0 || n <= last) {
        return llm_fail(err, LLM_E_ARGUMENT,
                        "step: sequence %d has %d blocks in group %d, position %d needs %d", s, n,
                        group, first + b->seq_n_tokens[s] - 1, last + 1);
    }
    const int32_t *table = b->block_tables + b->table_offset[row];
    for (int32_t i = first_key / LLM_BLOCK_TOKENS; i <= last; i++) {
        if (table[i] < 0 || table[i] >= e->pool->group[group].n_blocks) {
            return llm_fail(err, LLM_E_ARGUMENT,
                            "step: block %d of sequence %d in group %d is %d, allowed are 0 to %d",
                            i, s, group, table[i], e->pool->group[group].n_blocks - 1);
        }
    }
    return LLM_OK;
}

static llm_status check_batch(const llm_exec *e, const llm_batch *b, llm_error *err) {
    if (b->n_seqs < 1 || b->n_seqs > e->max_seqs) {
        return llm_fail(err, LLM_E_ARGUMENT, "step: %d sequences, allowed are 1 to %d", b->n_seqs,
                        e->max_seqs);
    }
    int64_t total = 0;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        if (b->seq_n_tokens[s] < 1 || b->seq_n_tokens[s] > e->max_tokens || b->seq_first_pos[s] < 0
            || b->seq_first_pos[s] > INT32_MAX - e->max_tokens) {
            return llm_fail(err, LLM_E_ARGUMENT, "step: sequence %d has %d tokens from position %d",
                            s, b->seq_n_tokens[s], b->seq_first_pos[s]);
        }
        total += b->seq_n_tokens[s];
    }
    if (total != b->n_tokens || total > e->max_tokens) {
        return llm_fail(err, LLM_E_ARGUMENT,
                        "step: %d tokens stated, %lld counted, at most %d allowed", b->n_tokens,
                        (long long)total, e->max_tokens);
    }
    for (int32_t i = 0; i < b->n_tokens; i++) {
        if (b->tokens[i] < 0 || b->tokens[i] >= e->m->h.n_vocab) {
            return llm_fail(err, LLM_E_ARGUMENT, "step: token %d is %d, allowed are 0 to %d", i,
                            b->tokens[i], e->m->h.n_vocab - 1);
        }
    }
    for (int32_t group = 0; group < e->m->n_groups; group++) {
        for (int32_t s = 0; s < b->n_seqs; s++) {
            llm_status status = check_table(e, b, group, s, err);
            if (status != LLM_OK) return status;
        }
    }
    return LLM_OK;
}

static void begin_step(llm_exec *e, const llm_batch *b, bool all_logits) {
    e->batch = b;
    e->stopped = false;
    e->n_out = 0;
    int32_t token = 0;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        for (int32_t i = 0; i < b->seq_n_tokens[s]; i++, token++) {
            e->token_pos[token] = b->seq_first_pos[s] + i;
            e->token_seq[token] = s;
            bool last = i == b->seq_n_tokens[s] - 1;
            bool asked = b->next_tokens && b->next_tokens[token] >= 0;
            if (all_logits || asked || (last && b->seq_sample[s])) e->out_row[e->n_out++] = token;
        }
    }
    memset((void *)e->turns, 0,
           (size_t)(e->m->h.n_layers + 1) * (size_t)e->turns_per_layer * sizeof *e->turns);
    llm_plan_attention(e, b);
}

llm_status llm_exec_step(llm_exec *e, const llm_batch *b, int32_t all_logits, int32_t *out_tokens,
                         float *logits, const llm_logprobs *logprobs, llm_error *err) {
    if (!e || !b || !out_tokens || (all_logits && !logits)) {
        return llm_fail(err, LLM_E_ARGUMENT, "step: a null argument");
    }
    if (logits && b->next_tokens) {
        return llm_fail(err, LLM_E_ARGUMENT, "step: logits go with no next_tokens");
    }
    llm_status status = check_batch(e, b, err);
    if (status == LLM_OK) status = llm_prepare_sampling(e, b, logprobs, err);
    if (status != LLM_OK) return status;
    begin_step(e, b, all_logits != 0);
    e->out_logits = all_logits ? logits : e->logits;
    e->part_rows = all_logits ? b->n_tokens : e->max_seqs;
    e->out_tokens = out_tokens;
    e->out_logprobs = logprobs;
    llm_clear_rows(e);
    llm_threads_run(e->threads, llm_forward, e);
    if (e->stopped) return llm_fail(err, LLM_E_CANCELLED, "the step was cancelled");
    if (e->m->mapped) status = llm_gguf_check_unchanged(e->m->mapped, err);
    if (status != LLM_OK) return status;
    int32_t n_parts = (e->n_out + e->part_rows - 1) / e->part_rows;
    int32_t taken = n_parts ? (n_parts - 1) * e->part_rows : 0;
    llm_take_rows(e, taken, e->n_out - taken);
    llm_accept_sampled(e);
    int64_t n_vocab = e->m->h.n_vocab;
    for (int32_t s = 0, row = 0; logits && !all_logits && s < b->n_seqs; s++) {
        if (!b->seq_sample[s]) continue;
        const float *from = e->out_logits + n_vocab * row++;
        memcpy(logits + n_vocab * s, from, sizeof(float) * (size_t)n_vocab);
    }
    return LLM_OK;
}

llm_status llm_exec_decode(llm_exec *e, const llm_batch *b, int32_t k, const int32_t *stop_tokens,
                           int32_t n_stop, int32_t *out_tokens, const llm_logprobs *logprobs,
                           int32_t *n_done, llm_error *err) {
    if (!e || !b || !out_tokens || !n_done || k < 1 || (n_stop > 0 && !stop_tokens)) {
        return llm_fail(err, LLM_E_ARGUMENT, "decode: %d steps asked for, or a null argument", k);
    }
    *n_done = 0;
    if (b->n_seqs < 1 || b->n_tokens != b->n_seqs) {
        return llm_fail(err, LLM_E_ARGUMENT,
                        "decode: %d tokens for %d sequences, one each is needed", b->n_tokens,
                        b->n_seqs);
    }
    size_t n = (size_t)b->n_seqs;
    int32_t *tokens = malloc(3 * n * sizeof *tokens);
    if (!tokens) return llm_fail(err, LLM_E_MEMORY, "no memory for a decode run");
    int32_t *first_pos = tokens + n, *sample = first_pos + n;
    memcpy(tokens, b->tokens, n * sizeof *tokens);
    memcpy(first_pos, b->seq_first_pos, n * sizeof *first_pos);
    for (size_t s = 0; s < n; s++) sample[s] = 1;
    llm_batch step = *b;
    step.tokens = tokens;
    step.seq_first_pos = first_pos;
    step.seq_sample = sample;
    step.next_tokens = NULL;
    llm_logprobs rows = logprobs ? *logprobs : (llm_logprobs){0};
    llm_status status = LLM_OK;
    bool stop = false;
    while (*n_done < k && !stop) {
        int32_t *out = out_tokens + (size_t)*n_done * n;
        status = llm_exec_step(e, &step, 0, out, NULL, logprobs ? &rows : NULL, err);
        if (status != LLM_OK) break;
        ++*n_done;
        if (logprobs) {
            rows.ids += n * (size_t)(1 + rows.n_top);
            rows.values += n * (size_t)(1 + rows.n_top);
            if (rows.ranks) rows.ranks += n;
        }
        for (size_t s = 0; s < n; s++) {
            tokens[s] = out[s];
            first_pos[s]++;
            if (out[s] < 0) stop = true;
            for (int32_t i = 0; i < n_stop; i++) stop = stop || out[s] == stop_tokens[i];
        }
    }
    free(tokens);
    /* A cancel after some steps is not an error: what was sampled counts. */
    return status == LLM_E_CANCELLED && *n_done ? LLM_OK : status;
}
