/* matmul_float.c: F32, F16 and BF16 weights against f32 activations.
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

/* 256 or fewer inputs of n_panels panels with n tokens. One chain waits four cycles for itself, so
 * several panels run side by side where there are few tokens: n_panels * n >= 8. */
LLM_INLINE void tile_float(int32_t type, const uint8_t *const *panels, int64_t n_inputs,
                           float (*x)[256], int32_t t, float (*sums)[LLM_SUM_ROWS][16],
                           const int n_panels, const int n) {
    const int bytes = type == LLM_F32 ? 64 : 32;
    vf acc[16];
    LLM_UNROLL
    for (int i = 0; i < n_panels * n; i++) acc[i] = vf_load(sums[i / n][t + i % n]);
    for (int64_t k = 0; k < n_inputs; k++) {
        LLM_UNROLL
        for (int j = 0; j < n_panels; j++) {
            const uint8_t *p = panels[j] + bytes * k;
            vb_prefetch(p + 256 * bytes);
            vf w = load_weights(type, p);
            LLM_UNROLL
            for (int i = 0; i < n; i++)
                acc[j * n + i] = vf_fma(w, vf_set1(x[i][k]), acc[j * n + i]);
        }
    }
    LLM_UNROLL
    for (int i = 0; i < n_panels * n; i++) vf_store(sums[i / n][t + i % n], acc[i]);
}

/* A superblock of all panels of the job, in place or packed into scratch. */
LLM_INLINE void superblocks(const llm_panel_job *job, int64_t sb, int64_t n_inputs,
                            const uint8_t **panels) {
    llm_scratch *s = scratch_of(job);
    for (int32_t j = 0; j < job->n_panels; j++) {
        panels[j] = panel_superblock(job, j, sb, n_inputs);
        if (job->w->panels) continue;
        memcpy(s->panels[j], panels[j], sizeof s->panel);
        panels[j] = s->panels[j];
    }
}

/* The activations of a tile are copied together: rows of x are often a power of two apart, where
 * they would share one set of the cache. */
LLM_INLINE void panels_of(int32_t type, const llm_panel_job *job) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    int64_t k = job->w->n_cols;
    const uint8_t *panels[LLM_GROUP];
    const int32_t first = job->first, n = job->end - first;
    clear_sums(job, n);
    for (int64_t i = 0; i < k; i += 256) {
        int64_t n_inputs = k - i < 256 ? k - i : 256;
        superblocks(job, i / 256, n_inputs, panels);
        for (int32_t t = 0, size; t < n; t += size) {
            size = tile_size(n - t);
            for (int32_t r = 0; r < size; r++)
                memcpy(s->x[r], x->x + (first + t + r) * x->ldx + i,
                       (size_t)n_inputs * sizeof(float));
            int32_t j = 0;
            if (size <= 2)
                for (; j + 4 <= job->n_panels; j += 4) {
                    if (size == 1)
                        tile_float(type, panels + j, n_inputs, s->x, t, s->sums + j, 4, 1);
                    else
                        tile_float(type, panels + j, n_inputs, s->x, t, s->sums + j, 4, 2);
                }
            for (; j < job->n_panels; j++)
                LLM_TILE_SWITCH(size, tile_float, type, panels + j, n_inputs, s->x, t, s->sums + j,
                                1)
        }
    }
    store_strip(job, first, n);
}

void LLM_FN(panels_float)(const llm_panel_job *job) {
    switch (job->w->format->type) {
    case LLM_F32: panels_of(LLM_F32, job); break;
    case LLM_F16: panels_of(LLM_F16, job); break;
    case LLM_BF16: panels_of(LLM_BF16, job); break;
    }
}
