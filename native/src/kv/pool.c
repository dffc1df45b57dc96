/* pool.c: memory of the paged KV pool; who owns which block is decided in Python. */
#include "kv/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/os_memory.h"
#include "base/status.h"
#include "model/model.h"

static int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

static llm_kv_layout layout_of(const llm_model *m, int32_t kv_type, int32_t group) {
    llm_kv_layout l = {
        .kv_type = kv_type, .n_kv_heads = m->h.n_kv_heads, .n_layers = m->group_n_layers[group]};
    l.dim = round_up(m->h.head_dim, kv_type == LLM_KV_F16 ? 16 : 32);
    /* f16: two bytes an element; q8_0: one, and a two-byte scale for every 32. */
    l.part_bytes = (uint64_t)l.dim * (kv_type == LLM_KV_F16 ? 64 : 34);
    l.block_bytes = 2 * l.part_bytes * (uint64_t)l.n_kv_heads * (uint64_t)l.n_layers;
    return l;
}

int32_t llm_kv_dim(const llm_model *m, int32_t kv_type) { return layout_of(m, kv_type, 0).dim; }

uint64_t llm_kv_block_bytes(const llm_model *m, int32_t kv_type, int32_t group) {
    if (!m || group < 0 || group >= m->n_groups) return 0;
    if (kv_type != LLM_KV_F16 && kv_type != LLM_KV_Q8_0) return 0;
    return layout_of(m, kv_type, group).block_bytes;
}

llm_status llm_kv_pool_create(const llm_model *m, int32_t kv_type, const int32_t *n_blocks,
                              llm_kv_pool **out, llm_error *err) {
    if (!m || !n_blocks || !out) return llm_fail(err, LLM_E_ARGUMENT, "kv pool: a null argument");
    if (kv_type != LLM_KV_F16 && kv_type != LLM_KV_Q8_0) {
        return llm_fail(err, LLM_E_ARGUMENT, "kv type is %d, allowed are %d (f16) and %d (q8_0)",
                        kv_type, LLM_KV_F16, LLM_KV_Q8_0);
    }
    llm_kv_pool *p = calloc(1, sizeof *p);
    if (!p) return llm_fail(err, LLM_E_MEMORY, "no memory for a kv pool");
    p->n_groups = m->n_groups;
    for (int32_t i = 0; i < m->n_groups; i++) {
        struct llm_kv_group *g = &p->group[i];
        g->layout = layout_of(m, kv_type, i);
        g->n_blocks = n_blocks[i];
        llm_status s = LLM_OK;
        if (n_blocks[i] < 1) {
            s = llm_fail(err, LLM_E_ARGUMENT, "kv pool group %d: %d blocks, at least 1 is needed",
                         i, n_blocks[i]);
        } else if (!llm_mul_u64(g->layout.block_bytes, (uint64_t)n_blocks[i], &g->reserved_bytes)
                   || !(g->base = llm_os_alloc(g->reserved_bytes))) {
            g->reserved_bytes = 0;
            s = llm_fail(err, LLM_E_MEMORY,
                         "kv pool group %d: cannot reserve %d blocks of %llu bytes", i, n_blocks[i],
                         (unsigned long long)g->layout.block_bytes);
        }
        if (s != LLM_OK) {
            llm_kv_pool_free(p);
            return s;
        }
    }
    *out = p;
    return LLM_OK;
}

void llm_kv_pool_free(llm_kv_pool *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->n_groups; i++) {
        llm_os_free(p->group[i].base, p->group[i].reserved_bytes);
    }
    free(p);
}

static llm_status check_block(const llm_kv_pool *p, int32_t group, int32_t block, llm_error *err) {
    if (!p || group < 0 || group >= p->n_groups) {
        return llm_fail(err, LLM_E_ARGUMENT, "kv pool: group %d does not exist", group);
    }
    if (block < 0 || block >= p->group[group].n_blocks) {
        return llm_fail(err, LLM_E_ARGUMENT, "kv pool: block %d of group %d, allowed are 0 to %d",
                        block, group, p->group[group].n_blocks - 1);
    }
    return LLM_OK;
}

llm_status llm_kv_copy_block(llm_kv_pool *p, int32_t group, int32_t src, int32_t dst,
                             llm_error *err) {
    llm_status s = check_block(p, group, src, err);
    if (s == LLM_OK) s = check_block(p, group, dst, err);
    if (s != LLM_OK) return s;
    const struct llm_kv_group *g = &p->group[group];
    uint64_t n = g->layout.block_bytes;
    if (src != dst) memcpy(g->base + n * (uint64_t)dst, g->base + n * (uint64_t)src, (size_t)n);
    return LLM_OK;
}

/* The first n of 32 tokens of one K part and one V part stay. */
static void clear_tokens_f16(uint8_t *k, uint8_t *v, size_t dim, size_t n) {
    for (size_t d = 0; d < dim; d++) memset(k + 64 * d + 2 * n, 0, 64 - 2 * n);
    memset(v + 2 * dim * n, 0, 2 * dim * (32 - n));
}

static void clear_tokens_q8_0(uint8_t *k, uint8_t *v, size_t dim, size_t n) {
    for (size_t d = 0; d < dim / 4; d++) memset(k + 128 * d + 4 * n, 0, 128 - 4 * n);
    for (size_t d = 0; d < dim; d++) {
        uint8_t *quad = v + n / 4 * 4 * dim + 4 * d;
        if (n % 4) memset(quad + n % 4, 0, 4 - n % 4);
    }
    size_t whole = (n + 3) / 4 * 4;
    memset(v + whole * dim, 0, (32 - whole) * dim);
    for (size_t i = 0; i < dim / 32; i++) {
        memset(k + 32 * dim + 64 * i + 2 * n, 0, 64 - 2 * n);
        memset(v + 32 * dim + 64 * i + 2 * n, 0, 64 - 2 * n);
    }
}

llm_status llm_kv_read_block(const llm_kv_pool *p, int32_t group, int32_t block, int32_t n_tokens,
                             uint8_t *data, llm_error *err) {
    llm_status s = check_block(p, group, block, err);
    if (s != LLM_OK) return s;
    if (!data) return llm_fail(err, LLM_E_ARGUMENT, "kv block: a null argument");
    if (n_tokens < 0 || n_tokens > 32) {
        return llm_fail(err, LLM_E_ARGUMENT, "kv block: %d tokens, allowed are 0 to 32", n_tokens);
    }
    const llm_kv_layout *l = &p->group[group].layout;
    memcpy(data, p->group[group].base + l->block_bytes * (uint64_t)block, (size_t)l->block_bytes);
    if (n_tokens == 32) return LLM_OK;
    for (uint64_t at = 0; at < l->block_bytes; at += 2 * l->part_bytes) {
        uint8_t *k = data + at, *v = k + l->part_bytes;
        if (l->kv_type == LLM_KV_F16) {
            clear_tokens_f16(k, v, (size_t)l->dim, (size_t)n_tokens);
        } else {
            clear_tokens_q8_0(k, v, (size_t)l->dim, (size_t)n_tokens);
        }
    }
    return LLM_OK;
}

llm_status llm_kv_write_block(llm_kv_pool *p, int32_t group, int32_t block, const uint8_t *data,
                              llm_error *err) {
    llm_status s = check_block(p, group, block, err);
    if (s != LLM_OK) return s;
    if (!data) return llm_fail(err, LLM_E_ARGUMENT, "kv block: a null argument");
    const struct llm_kv_group *g = &p->group[group];
    uint64_t n = g->layout.block_bytes;
    memcpy(g->base + n * (uint64_t)block, data, (size_t)n);
    return LLM_OK;
}

llm_status llm_kv_release_blocks(llm_kv_pool *p, int32_t group, const int32_t *blocks, int32_t n,
                                 llm_error *err) {
    for (int32_t i = 0; i < n; i++) {
        llm_status s = check_block(p, group, blocks[i], err);
        if (s != LLM_OK) return s;
        const struct llm_kv_group *g = &p->group[group];
        llm_os_discard(g->base + g->layout.block_bytes * (uint64_t)blocks[i],
                       g->layout.block_bytes);
    }
    return LLM_OK;
}
