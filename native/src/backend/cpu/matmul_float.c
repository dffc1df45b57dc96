/* matmul_float.c: F32, F16 and BF16 weights against f32 activations; the f32 roof of this instruction
 * set.
 *
 * Per output one chain acc = fma(w, x, acc) over all inputs, ascending from 0; 16-bit weights are
 * widened in registers, which is exact.
 */
#include "backend/cpu/tile.h"

LLM_INLINE vf load_weights(int32_t type, const uint8_t *p) {
    if (type == LLM_F32) return vf_load((const float *)(const void *)p);
    const uint16_t *h = (const uint16_t *)(const void *)p;
    return type == LLM_F16 ? vf_load_f16(h) : vf_load_bf16(h);
}

/* Input k of a panel at p, with n tokens. */
LLM_INLINE void add_input(int32_t type, const uint8_t *p, float (*x)[256], int64_t k, vf *acc,
                          const int n) {
    vf w = load_weights(type, p);
    LLM_UNROLL
    for (int t = 0; t < n; t++) acc[t] = vf_fma(w, vf_set1(x[t][k]), acc[t]);
}

/* Inputs [256 i, 256 i + n_inputs) of n tokens. Rows of x are often a power of two apart, where they
 * would share one set of the cache. */
LLM_OUTLINE void copy_inputs(const llm_panel_job *job, int64_t i, int64_t n_inputs, int32_t first,
                             int32_t n) {
    for (int32_t t = 0; t < n; t++) {
        const float *from = job->x->x + (first + t) * job->x->ldx + 256 * i;
        float *to = scratch_of(job)->x[t];
        int64_t k = 0;
        for (; k + 16 <= n_inputs; k += 16) vf_store(to + k, vf_load(from + k));
        memcpy(to + k, from + k, (size_t)(n_inputs - k) * sizeof(float));
    }
}

/* A superblock of the n panels of the job that are listed, in place or packed into scratch. */
LLM_OUTLINE void superblocks(const llm_panel_job *job, const int32_t *list, int32_t n, int64_t sb,
                             int64_t n_inputs, const uint8_t **panels) {
    llm_scratch *s = scratch_of(job);
    for (int32_t j = 0; j < n; j++) {
        panels[j] = panel_superblock(job, list[j], sb, n_inputs);
        if (job->w->panels) continue;
        memcpy(s->panels[j], panels[j], sizeof s->panel);
        panels[j] = s->panels[j];
    }
}

/* 256 or fewer inputs of a pair of panels with n tokens, whose activations are in scratch. One chain
 * waits four cycles for itself, so both run side by side; a panel alone is its own second one. */
LLM_INLINE void pair_float(int32_t type, const llm_panel_job *job, int32_t first, int64_t sb,
                           int64_t n_inputs, const int n) {
    const int bytes = type == LLM_F32 ? 64 : 32, per_line = 64 / bytes;
    llm_scratch *s = scratch_of(job);
    const int32_t pair[LLM_STREAMS] = {first, first + 1 < job->n_panels ? first + 1 : first};
    const uint8_t *p[LLM_STREAMS], *far[LLM_STREAMS];
    vf acc[LLM_STREAMS][LLM_FUSED];
    superblocks(job, pair, LLM_STREAMS, sb, n_inputs, p);
    LLM_UNROLL
    for (int j = 0; j < LLM_STREAMS; j++) {
        far[j] = far_of(job, p[j], 256 * bytes * sb, bytes * job->w->n_cols);
        LLM_UNROLL
        for (int t = 0; t < n; t++) acc[j][t] = vf_load(s->sums[pair[j]][t]);
    }
    int64_t k = 0;
    for (; k + per_line <= n_inputs; k += per_line) {
        LLM_UNROLL
        for (int j = 0; j < LLM_STREAMS; j++) {
            ask_ahead(p[j] + bytes * k, far[j] + bytes * k, 64);
            LLM_UNROLL
            for (int i = 0; i < per_line; i++)
                add_input(type, p[j] + bytes * (k + i), s->x, k + i, acc[j], n);
        }
    }
    if (k < n_inputs) { /* half a line */
        LLM_UNROLL
        for (int j = 0; j < LLM_STREAMS; j++) add_input(type, p[j] + bytes * k, s->x, k, acc[j], n);
    }
    LLM_UNROLL
    for (int j = 0; j < LLM_STREAMS; j++) {
        LLM_UNROLL
        for (int t = 0; t < n; t++) vf_store(s->sums[pair[j]][t], acc[j][t]);
    }
}

/* All inputs of a pair of panels, then those of the next: two streams of weights, which memory serves
 * better than one, or than streams that change every few kilobytes. */
LLM_INLINE void few_floats(int32_t type, const llm_panel_job *job, const int n) {
    const int64_t n_cols = job->w->n_cols;
    for (int32_t first = 0; first < job->n_panels; first += LLM_STREAMS) {
        for (int64_t sb = 0; 256 * sb < n_cols; sb++) {
            int64_t n_inputs = n_cols - 256 * sb < 256 ? n_cols - 256 * sb : 256;
            copy_inputs(job, sb, n_inputs, 0, n);
            pair_float(type, job, first, sb, n_inputs, n);
        }
    }
}

/* 256 or fewer inputs of a panel with n tokens. */
LLM_INLINE void tile_float(int32_t type, const uint8_t *p, int64_t n_inputs, float (*x)[256],
                           float (*sums)[16], const int n) {
    const int bytes = type == LLM_F32 ? 64 : 32;
    vf acc[LLM_TILE];
    LLM_UNROLL
    for (int t = 0; t < n; t++) acc[t] = vf_load(sums[t]);
    for (int64_t k = 0; k < n_inputs; k++) {
        vb_prefetch(p + bytes * (k + 256));
        add_input(type, p + bytes * k, x, k, acc, n);
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++) vf_store(sums[t], acc[t]);
}

LLM_INLINE void many_floats(int32_t type, const llm_panel_job *job) {
    llm_scratch *s = scratch_of(job);
    const int64_t k = job->w->n_cols;
    static const int32_t all[LLM_GROUP] = {0, 1, 2, 3};
    const uint8_t *panels[LLM_GROUP];
    const int32_t n = job->end - job->first;
    for (int64_t sb = 0; 256 * sb < k; sb++) {
        int64_t n_inputs = k - 256 * sb < 256 ? k - 256 * sb : 256;
        superblocks(job, all, job->n_panels, sb, n_inputs, panels);
        for (int32_t t = 0, size; t < n; t += size) {
            size = tile_size(n - t);
            copy_inputs(job, sb, n_inputs, job->first + t, size);
            for (int32_t j = 0; j < job->n_panels; j++)
                LLM_TILE_SWITCH(size, tile_float, type, panels[j], n_inputs, s->x, s->sums[j] + t)
        }
    }
}

LLM_INLINE void panels_of(int32_t type, const llm_panel_job *job) {
    const int32_t n = job->end - job->first;
    clear_sums(job, n);
    if (job->x->n > LLM_FUSED)
        many_floats(type, job);
    else
        LLM_FUSED_SWITCH(job->x->n, few_floats, type, job)
    store_strip(job, job->first, n);
}

void LLM_FN(panels_float)(const llm_panel_job *job) {
    switch (job->w->format->type) {
    case LLM_F32: panels_of(LLM_F32, job); break;
    case LLM_F16: panels_of(LLM_F16, job); break;
    case LLM_BF16: panels_of(LLM_BF16, job); break;
    }
}

/* As int8_ops, with as many sums as attention has rows in a tile. The lanes differ and are unknown:
 * the compiler would merge equal halves, and fold what it knows. */
double LLM_FN(f32_ops)(int64_t n_iterations) {
    volatile float unknown = 0.5F;
    float lanes[16], sum = 0;
    for (int i = 0; i < 16; i++) lanes[i] = unknown + (float)i;
    vf w = vf_load(lanes), x = vf_set1(unknown), acc[VF_TILE_ROWS];
    LLM_UNROLL
    for (int c = 0; c < VF_TILE_ROWS; c++) acc[c] = vf_add(w, vf_set1((float)c));
    for (int64_t i = 0; i < n_iterations; i++) {
        LLM_UNROLL
        for (int c = 0; c < VF_TILE_ROWS; c++) acc[c] = vf_fma(w, x, acc[c]);
    }
    LLM_UNROLL
    for (int c = 1; c < VF_TILE_ROWS; c++) acc[0] = vf_add(acc[0], acc[c]);
    vf_store(lanes, acc[0]);
    for (int i = 0; i < 16; i++) sum += lanes[i];
    unknown = sum;
    return (double)n_iterations * VF_TILE_ROWS * 32.0; /* 16 products, 16 sums */
}
