/* matmul.c: walks the panels of a matrix; the int8 roof of this instruction set. */
#include "backend/cpu/tile.h"

uint64_t LLM_FN(matmul_scratch)(int64_t k) {
    (void)k; /* a superblock at a time, whatever the width */
    return (sizeof(llm_scratch) + 63) / 64 * 64;
}

void LLM_FN(matmul)(const llm_weight *w, const llm_acts *x, int64_t panel_begin, int64_t panel_end,
                    float *y, int64_t ldy, uint8_t *scratch) {
    for (int64_t p = panel_begin; p < panel_end; p += LLM_GROUP) {
        int32_t n_panels = panel_end - p < LLM_GROUP ? (int32_t)(panel_end - p) : LLM_GROUP;
        llm_panel_job job = {w, x, p, n_panels, y + p * LLM_PANEL_ROWS, ldy, scratch};
        switch (w->format->act) {
        case LLM_ACT_Q32: LLM_FN(panels_q32)(&job); break;
        case LLM_ACT_Q256: LLM_FN(panels_q256)(&job); break;
        default: LLM_FN(panels_float)(&job); break;
        }
    }
}

/* All stays in registers, unlike in a product: the roof that products are held against. As many sums
 * as a tile has, which fit. */
double LLM_FN(int8_ops)(int64_t n_iterations) {
    uint8_t bytes[64];
    for (int i = 0; i < 64; i++) bytes[i] = (uint8_t)i;
    vb w = vb_load(bytes), a = vb_load(bytes);
    vi acc[LLM_TILE];
    LLM_UNROLL
    for (int c = 0; c < LLM_TILE; c++) acc[c] = vi_set1(0);
    for (int64_t i = 0; i < n_iterations; i++) {
        LLM_UNROLL
        for (int c = 0; c < LLM_TILE; c++) {
            w = vb_opaque(w);
            acc[c] = vb_dot_pair(acc[c], w, a);
        }
    }
    LLM_UNROLL
    for (int c = 1; c < LLM_TILE; c++) acc[0] = vi_add(acc[0], acc[c]);
    int32_t out[16];
    vi_store(out, acc[0]);
    /* Every lane: the compiler drops a register that nobody reads. */
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum ^= out[i];
    volatile int32_t keep = sum;
    (void)keep;
    return (double)n_iterations * LLM_TILE * 128.0; /* 64 products, 64 sums */
}
