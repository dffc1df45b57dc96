/* matmul.c: walks the panels of a matrix; the int8 roof of this instruction set. */
#include "backend/cpu/tile.h"

uint64_t LLM_FN(matmul_scratch)(void) { return (sizeof(llm_scratch) + 63) / 64 * 64; }

#define LLM_STRIP_BYTES (1 << 20) /* of a strip's activations, if they are more than the least */
#define LLM_LEAST_STRIP 64        /* tokens */

/* Tokens that walk all panels together: as many as the second-level cache keeps, each strip but the
 * last of whole tiles. Weights are unpacked once a strip, which costs little from 64 tokens on. */
static int32_t strip_size(llm_act_kind kind, const llm_acts *x) {
    int64_t bytes = kind == LLM_ACT_Q32    ? 256 + (int64_t)sizeof(llm_act32)
                    : kind == LLM_ACT_Q256 ? 256 + (int64_t)sizeof(llm_act256)
                                           : 256 * (int64_t)sizeof(float);
    int64_t most = LLM_STRIP_BYTES / (bytes * ((x->k + 255) / 256));
    most = most < LLM_LEAST_STRIP ? LLM_LEAST_STRIP : most > LLM_STRIP ? LLM_STRIP : most;
    int32_t n = tile_size_of(x->n, (int32_t)most);
    n = (n + LLM_MOST_TOKENS - 1) / LLM_MOST_TOKENS * LLM_MOST_TOKENS;
    return n < LLM_STRIP ? n : LLM_STRIP;
}

void LLM_FN(matmul)(const llm_weight *w, const llm_acts *x, int64_t panel_begin, int64_t panel_end,
                    float *y, int64_t ldy, uint8_t *scratch) {
    int32_t n_tokens = strip_size(w->format->act, x);
    for (int32_t first = 0; first < x->n; first += n_tokens) {
        int32_t end = x->n - first < n_tokens ? x->n : first + n_tokens;
        for (int64_t p = panel_begin; p < panel_end; p += LLM_GROUP) {
            int32_t n_panels = panel_end - p < LLM_GROUP ? (int32_t)(panel_end - p) : LLM_GROUP;
            llm_panel_job job = {w,   x,      p, n_panels, first, end, y + p * LLM_PANEL_ROWS,
                                 ldy, scratch};
            switch (w->format->act) {
            case LLM_ACT_Q32: LLM_FN(panels_q32)(&job); break;
            case LLM_ACT_Q256: LLM_FN(panels_q256)(&job); break;
            default: LLM_FN(panels_float)(&job); break;
            }
        }
    }
}

#ifdef LLM_PAIRS
#define PAIR_OPS 256.0 /* 2 rows by 2 tokens */
#else
#define PAIR_OPS 128.0 /* 64 products, 64 sums */
#endif

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
    return (double)n_iterations * LLM_TILE * PAIR_OPS;
}
