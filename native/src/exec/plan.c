/* plan.c: which query rows attend together, and whether the context is cut among threads. */
#include "exec/exec.h"

static int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }

static void add_tiles(const llm_exec *e, const llm_batch *b, int32_t group, llm_attn_plan *p) {
    int32_t n_group = e->m->h.n_heads / e->m->h.n_kv_heads;
    int32_t tile_tokens = max_i32(1, LLM_ATTN_ROWS / n_group);
    int32_t window = e->m->group_window[group];
    int32_t first_token = 0, out = 0;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        for (int32_t i = 0; i < b->seq_n_tokens[s]; i += tile_tokens) {
            llm_tile *t = &p->tiles[p->n_tiles++];
            int32_t left = b->seq_n_tokens[s] - i;
            t->first_token = first_token + i;
            t->n_tokens = left < tile_tokens ? left : tile_tokens;
            t->first_pos = b->seq_first_pos[s] + i;
            while (out < e->n_out && e->out_row[out] < t->first_token) out++;
            t->has_output = out < e->n_out && e->out_row[out] < t->first_token + t->n_tokens;
            t->table = b->block_tables + b->table_offset[group * b->n_seqs + s];
            int32_t first_key = window ? max_i32(0, t->first_pos - window + 1) : 0;
            t->block_begin = first_key / LLM_BLOCK_TOKENS;
            t->block_end = (t->first_pos + t->n_tokens - 1) / LLM_BLOCK_TOKENS + 1;
        }
        first_token += b->seq_n_tokens[s];
    }
}

static void try_splits(const llm_exec *e, llm_attn_plan *p) {
    const llm_hparams *h = &e->m->h;
    p->by_split = false;
    p->n_splits = 0;
    if (p->n_tiles * h->n_kv_heads >= LLM_SPLITS_DONE(e->n_threads)) return; /* enough tasks */
    for (int32_t i = 0; i < p->n_tiles; i++) {
        llm_tile *t = &p->tiles[i];
        t->first_state = p->n_splits;
        int32_t last = (t->block_end - 1) / LLM_SPLIT_BLOCKS;
        for (int32_t s = t->block_begin / LLM_SPLIT_BLOCKS; s <= last; s++) {
            if (p->n_splits == LLM_MAX_SPLITS) return;
            p->split_tile[p->n_splits] = i;
            p->split_number[p->n_splits++] = s;
        }
    }
    int64_t state = (int64_t)LLM_ATTN_ROWS * (e->dim + 2);
    p->by_split =
        p->n_splits > p->n_tiles && state * p->n_splits * h->n_kv_heads <= LLM_STATE_FLOATS;
}

void llm_plan_attention(llm_exec *e, const llm_batch *b) {
    for (int32_t group = 0; group < e->m->n_groups; group++) {
        llm_attn_plan *p = &e->plan[group];
        p->n_tiles = 0;
        add_tiles(e, b, group, p);
        try_splits(e, p);
    }
}
