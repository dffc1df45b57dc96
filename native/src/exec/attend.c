/* attend.c: from q, k, v of a step to the attention output, over the paged pool. */
#include <string.h>

#include "exec/exec.h"

static uint8_t *block_of(const llm_exec *e, int32_t group, int32_t block) {
    const struct llm_kv_group *g = &e->pool->group[group];
    return g->base + g->layout.block_bytes * (uint64_t)block;
}

/* A head as a row of dim floats: itself, or a zero-padded copy. */
static const float *padded(const float *row, int32_t head_dim, int32_t dim, float *copy) {
    if (head_dim == dim) return row;
    memcpy(copy, row, sizeof(float) * (size_t)head_dim);
    memset(copy + head_dim, 0, sizeof(float) * (size_t)(dim - head_dim));
    return copy;
}

static void rotate(const llm_exec *e, const llm_layer *layer, float *head, const float *norm,
                   int32_t token) {
    const llm_hparams *h = &e->m->h;
    int32_t n_pairs = h->n_rot / 2;
    int64_t at = (int64_t)token * n_pairs;
    if (norm) e->m->kernels->rms_norm(head, norm, h->rms_eps, h->head_dim, head);
    e->m->kernels->rope(head, e->cos[layer->rope] + at, e->sin[layer->rope] + at, n_pairs,
                        e->m->arch->rope_halves);
}

void llm_write_head(llm_exec *e, const llm_layer *layer, int32_t token, int32_t head,
                    int32_t thread) {
    const llm_hparams *h = &e->m->h;
    const llm_batch *b = e->batch;
    const llm_kv_layout *layout = &e->pool->group[layer->group].layout;
    if (head < h->n_heads) {
        float *q = e->q + ((int64_t)token * h->n_heads + head) * h->head_dim;
        rotate(e, layer, q, layer->q_norm, token);
        return;
    }
    head -= h->n_heads;
    int64_t at = ((int64_t)token * h->n_kv_heads + head) * h->head_dim;
    rotate(e, layer, e->k + at, layer->k_norm, token);
    int32_t pos = e->token_pos[token];
    const int32_t *table =
        b->block_tables + b->table_offset[layer->group * b->n_seqs + e->token_seq[token]];
    uint8_t *block = block_of(e, layer->group, table[pos / LLM_BLOCK_TOKENS])
                     + llm_kv_head_offset(layout, layer->index_in_group, head);
    llm_thread_scratch *s = &e->scratch[thread];
    e->m->kernels->kv_write(block, block + layout->part_bytes, layout->kv_type, layout->dim,
                            pos % LLM_BLOCK_TOKENS,
                            padded(e->k + at, h->head_dim, layout->dim, s->q),
                            padded(e->v + at, h->head_dim, layout->dim, s->out));
}

static void describe(const llm_exec *e, const llm_layer *layer, const llm_tile *t, int32_t kv_head,
                     llm_thread_scratch *s, llm_attn *a) {
    const llm_hparams *h = &e->m->h;
    const llm_kv_layout *layout = &e->pool->group[layer->group].layout;
    a->pool = e->pool->group[layer->group].base;
    a->block_bytes = layout->block_bytes;
    a->k_offset = llm_kv_head_offset(layout, layer->index_in_group, kv_head);
    a->v_offset = a->k_offset + layout->part_bytes;
    a->table = t->table;
    a->n_table = t->block_end;
    a->kv_type = layout->kv_type;
    a->head_dim = layout->dim;
    a->n_group = h->n_heads / h->n_kv_heads;
    a->n_rows = t->n_tokens * a->n_group;
    a->first_pos = t->first_pos;
    a->window = e->m->group_window[layer->group];
    a->scale = h->attn_scale;
    a->softcap = h->attn_softcap;
    for (int32_t r = 0; r < a->n_rows; r++) {
        int64_t token = t->first_token + r / a->n_group;
        int32_t head = kv_head * a->n_group + r % a->n_group;
        a->q[r] = padded(e->q + (token * h->n_heads + head) * h->head_dim, h->head_dim, a->head_dim,
                         s->q + (int64_t)r * a->head_dim);
    }
}

static void attend_split(const llm_exec *e, const llm_attn *a, const llm_tile *t, int32_t split,
                         llm_attn_state out) {
    int32_t begin = split * LLM_SPLIT_BLOCKS, end = begin + LLM_SPLIT_BLOCKS;
    e->m->kernels->attention(a, begin > t->block_begin ? begin : t->block_begin,
                             end < t->block_end ? end : t->block_end, out);
}

static void finish(const llm_exec *e, const llm_attn *a, const llm_tile *t, int32_t kv_head,
                   llm_attn_state sum, llm_thread_scratch *s) {
    const llm_hparams *h = &e->m->h;
    float *rows[LLM_ATTN_ROWS];
    bool direct = h->head_dim == a->head_dim;
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t r = 0; r < a->n_rows; r++) {
            int64_t token = t->first_token + r / a->n_group;
            int32_t head = kv_head * a->n_group + r % a->n_group;
            float *to = e->att + (token * h->n_heads + head) * h->head_dim;
            float *padded_row = s->out + (int64_t)r * a->head_dim;
            if (pass == 0)
                rows[r] = direct ? to : padded_row;
            else
                memcpy(to, padded_row, sizeof(float) * (size_t)h->head_dim);
        }
        if (pass == 0) e->m->kernels->attention_finish(a->n_rows, a->head_dim, sum, rows);
        if (direct) return;
    }
}

static llm_attn_state state_at(const llm_exec *e, int64_t index) {
    float *base = e->states + index * LLM_ATTN_ROWS * (e->dim + 2);
    return (llm_attn_state){.o = base,
                            .m = base + (int64_t)LLM_ATTN_ROWS * e->dim,
                            .l = base + (int64_t)LLM_ATTN_ROWS * (e->dim + 1)};
}

/* A kv head's tasks follow each other: its K and V stay in the cache, and where heads become ready
 * one after another, the first ones are. */
static void attend_tiles(llm_exec *e, const llm_layer *layer, const llm_attn_plan *p,
                         atomic_int *next, int32_t thread, bool outputs_only) {
    llm_thread_scratch *s = &e->scratch[thread];
    int32_t n_tasks = p->n_tiles * e->m->h.n_kv_heads;
    for (int32_t i; (i = atomic_fetch_add(next, 1)) < n_tasks;) {
        /* Later tiles see more keys: taking them first leaves small tasks for the end. */
        const llm_tile *t = &p->tiles[p->n_tiles - 1 - i % p->n_tiles];
        int32_t kv_head = i / p->n_tiles;
        if (outputs_only && !t->has_output) continue;
        llm_attn a;
        llm_await_head(e, layer, kv_head, thread);
        describe(e, layer, t, kv_head, s, &a);
        int32_t first = t->block_begin / LLM_SPLIT_BLOCKS;
        int32_t last = (t->block_end - 1) / LLM_SPLIT_BLOCKS;
        attend_split(e, &a, t, first, s->sum);
        for (int32_t split = first + 1; split <= last; split++) {
            attend_split(e, &a, t, split, s->part);
            e->m->kernels->attention_merge(a.n_rows, a.head_dim, s->sum, s->part);
            llm_note_progress(e, thread);
        }
        finish(e, &a, t, kv_head, s->sum, s);
        llm_note_progress(e, thread);
    }
}

/* All splits of a tile and kv head are there: their sum, in the order of the splits. */
static void merge_splits(llm_exec *e, const llm_attn *a, const llm_tile *t, int32_t n_splits,
                         int32_t kv_head, llm_thread_scratch *s) {
    int32_t n_kv = e->m->h.n_kv_heads;
    llm_attn_state sum = state_at(e, (int64_t)t->first_state * n_kv + kv_head);
    for (int32_t split = 1; split < n_splits; split++) {
        e->m->kernels->attention_merge(
            a->n_rows, a->head_dim, sum,
            state_at(e, (int64_t)(t->first_state + split) * n_kv + kv_head));
    }
    finish(e, a, t, kv_head, sum, s);
}

/* The heads of a split follow each other, as they do in the blocks: memory is read in one go. */
static void attend_splits(llm_exec *e, const llm_layer *layer, const llm_attn_plan *p,
                          const llm_layer_turns *turns, int32_t thread, bool outputs_only) {
    llm_thread_scratch *s = &e->scratch[thread];
    int32_t n_kv = e->m->h.n_kv_heads;
    for (int32_t i; (i = atomic_fetch_add(turns->attend, 1)) < p->n_splits * n_kv;) {
        int32_t split = i / n_kv, kv_head = i % n_kv, tile = p->split_tile[split];
        const llm_tile *t = &p->tiles[tile];
        if (outputs_only && !t->has_output) continue;
        llm_attn a;
        llm_await_head(e, layer, kv_head, thread);
        describe(e, layer, t, kv_head, s, &a);
        attend_split(e, &a, t, p->split_number[split], state_at(e, i));
        int32_t n = (tile + 1 < p->n_tiles ? t[1].first_state : p->n_splits) - t->first_state;
        atomic_int *done = &turns->split_done[tile * n_kv + kv_head];
        if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) == n - 1)
            merge_splits(e, &a, t, n, kv_head, s);
        llm_note_progress(e, thread);
    }
}

void llm_attend(llm_exec *e, const llm_layer *layer, int32_t thread, bool outputs_only) {
    const llm_attn_plan *p = &e->plan[layer->group];
    llm_layer_turns turns = llm_turns_of(e, (int32_t)(layer - e->m->layers));
    if (p->by_split)
        attend_splits(e, layer, p, &turns, thread, outputs_only);
    else
        attend_tiles(e, layer, p, turns.attend, thread, outputs_only);
}
