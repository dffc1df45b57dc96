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

LLM_INLINE void tile_float(int32_t type, const uint8_t *p, int64_t n_inputs, const float *x,
                           int64_t ldx, float (*sums)[16], const int n) {
    const int bytes = type == LLM_F32 ? 64 : 32;
    vf acc[LLM_TILE];
    LLM_UNROLL
    for (int t = 0; t < n; t++) acc[t] = vf_load(sums[t]);
    for (int64_t k = 0; k < n_inputs; k++, p += bytes) {
        vb_prefetch(p + LLM_AHEAD);
        vf w = load_weights(type, p);
        LLM_UNROLL
        for (int t = 0; t < n; t++) acc[t] = vf_fma(w, vf_set1(x[t * ldx + k]), acc[t]);
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++) vf_store(sums[t], acc[t]);
}

LLM_INLINE void panels_of(int32_t type, const llm_panel_job *job) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    int64_t k = job->w->n_cols;
    for (int32_t first = 0; first < x->n; first += LLM_STRIP) {
        int32_t n = x->n - first < LLM_STRIP ? x->n - first : LLM_STRIP;
        clear_sums(job, n);
        for (int32_t j = 0; j < job->n_panels; j++) {
            for (int64_t i = 0; i < k; i += 256) {
                int64_t n_inputs = k - i < 256 ? k - i : 256;
                const uint8_t *p = panel_superblock(job, j, i / 256, n_inputs);
                const float *from = x->x + first * x->ldx + i;
                for (int32_t t = 0, size; t < n; t += size) {
                    size = tile_size(n - t);
                    LLM_TILE_SWITCH(size, tile_float, type, p, n_inputs, from + t * x->ldx, x->ldx,
                                    s->sums[j] + t)
                }
            }
        }
        store_strip(job, first, n);
    }
}

void LLM_FN(panels_float)(const llm_panel_job *job) {
    switch (job->w->format->type) {
    case LLM_F32: panels_of(LLM_F32, job); break;
    case LLM_F16: panels_of(LLM_F16, job); break;
    case LLM_BF16: panels_of(LLM_BF16, job); break;
    }
}
