#include "quant/blocks256.h"

#include "base/half.h"
#include "quant/planes.h"

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* ---- planes of the raw block ---- */

/* n bytes carrying 8 / bits runs of n elements, from the low bits up, or-ed in at bit `at`. */
static inline void split_runs(const uint8_t *raw, int32_t n, int32_t bits, int32_t at, uint8_t *q) {
    int32_t mask = (1 << bits) - 1;
    for (int32_t j = 0; j < 8 / bits; j++)
        for (int32_t i = 0; i < n; i++)
            q[j * n + i] = (uint8_t)((at ? q[j * n + i] : 0) | (raw[i] >> bits * j & mask) << at);
}

static inline void join_runs(const uint8_t *q, int32_t n, int32_t bits, int32_t at, uint8_t *raw) {
    int32_t mask = (1 << bits) - 1;
    memset(raw, 0, (size_t)n);
    for (int32_t j = 0; j < 8 / bits; j++)
        for (int32_t i = 0; i < n; i++)
            raw[i] |= (uint8_t)((q[j * n + i] >> at & mask) << bits * j);
}

static void split_q2_k(const uint8_t *raw, llm_row_block *b) {
    memcpy(b->u8, raw, 16);
    for (int32_t h = 0; h < 2; h++) split_runs(raw + 16 + 32 * h, 32, 2, 0, b->q + 128 * h);
    b->u16[0] = llm_load_u16(raw + 80);
    b->u16[1] = llm_load_u16(raw + 82);
}

static void join_q2_k(const llm_row_block *b, uint8_t *raw) {
    memcpy(raw, b->u8, 16);
    for (int32_t h = 0; h < 2; h++) join_runs(b->q + 128 * h, 32, 2, 0, raw + 16 + 32 * h);
    put_u16(raw + 80, b->u16[0]);
    put_u16(raw + 82, b->u16[1]);
}

static void split_q3_k(const uint8_t *raw, llm_row_block *b) {
    for (int32_t h = 0; h < 2; h++) split_runs(raw + 32 + 32 * h, 32, 2, 0, b->q + 128 * h);
    split_runs(raw, 32, 1, 2, b->q);
    memcpy(b->u8, raw + 96, 12);
    b->u16[0] = llm_load_u16(raw + 108);
}

static void join_q3_k(const llm_row_block *b, uint8_t *raw) {
    for (int32_t h = 0; h < 2; h++) join_runs(b->q + 128 * h, 32, 2, 0, raw + 32 + 32 * h);
    join_runs(b->q, 32, 1, 2, raw);
    memcpy(raw + 96, b->u8, 12);
    put_u16(raw + 108, b->u16[0]);
}

static void split_q4_k(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    b->u16[1] = llm_load_u16(raw + 2);
    memcpy(b->u8, raw + 4, 12);
    for (int32_t c = 0; c < 4; c++) split_runs(raw + 16 + 32 * c, 32, 4, 0, b->q + 64 * c);
}

static void join_q4_k(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    put_u16(raw + 2, b->u16[1]);
    memcpy(raw + 4, b->u8, 12);
    for (int32_t c = 0; c < 4; c++) join_runs(b->q + 64 * c, 32, 4, 0, raw + 16 + 32 * c);
}

static void split_q5_k(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    b->u16[1] = llm_load_u16(raw + 2);
    memcpy(b->u8, raw + 4, 12);
    for (int32_t c = 0; c < 4; c++) split_runs(raw + 48 + 32 * c, 32, 4, 0, b->q + 64 * c);
    split_runs(raw + 16, 32, 1, 4, b->q);
}

static void join_q5_k(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    put_u16(raw + 2, b->u16[1]);
    memcpy(raw + 4, b->u8, 12);
    join_runs(b->q, 32, 1, 4, raw + 16);
    for (int32_t c = 0; c < 4; c++) join_runs(b->q + 64 * c, 32, 4, 0, raw + 48 + 32 * c);
}

static void split_q6_k(const uint8_t *raw, llm_row_block *b) {
    for (int32_t h = 0; h < 2; h++) {
        split_runs(raw + 64 * h, 64, 4, 0, b->q + 128 * h);
        split_runs(raw + 128 + 32 * h, 32, 2, 4, b->q + 128 * h);
    }
    memcpy(b->u8, raw + 192, 16);
    b->u16[0] = llm_load_u16(raw + 208);
}

static void join_q6_k(const llm_row_block *b, uint8_t *raw) {
    for (int32_t h = 0; h < 2; h++) {
        join_runs(b->q + 128 * h, 64, 4, 0, raw + 64 * h);
        join_runs(b->q + 128 * h, 32, 2, 4, raw + 128 + 32 * h);
    }
    memcpy(raw + 192, b->u8, 16);
    put_u16(raw + 208, b->u16[0]);
}

static void split_iq4_xs(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    b->u16[1] = llm_load_u16(raw + 2);
    memcpy(b->u8, raw + 4, 4);
    for (int32_t c = 0; c < 8; c++) split_runs(raw + 8 + 16 * c, 16, 4, 0, b->q + 32 * c);
}

static void join_iq4_xs(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    put_u16(raw + 2, b->u16[1]);
    memcpy(raw + 4, b->u8, 4);
    for (int32_t c = 0; c < 8; c++) join_runs(b->q + 32 * c, 16, 4, 0, raw + 8 + 16 * c);
}

/* ---- rows of a block to a panel ---- */

static void put_q2_k(const uint8_t *raw, int32_t r, uint8_t *panel) {
    for (int32_t h = 0; h < 2; h++) llm_put_quarters(raw + 16 + 32 * h, r, panel + 512 * h);
    llm_put_sides(&llm_layout_q2_k, raw + 80, raw, r, panel);
}

static void put_q3_k(const uint8_t *raw, int32_t r, uint8_t *panel) {
    for (int32_t h = 0; h < 2; h++) llm_put_quarters(raw + 32 + 32 * h, r, panel + 512 * h);
    llm_put_sides(&llm_layout_q3_k, raw + 108, raw + 96, r, panel);
}

static void put_q4_k(const uint8_t *raw, int32_t r, uint8_t *panel) {
    for (int32_t c = 0; c < 4; c++) llm_put_nibbles(raw + 16 + 32 * c, 4, r, panel + 512 * c);
    llm_put_sides(&llm_layout_q4_k, raw, raw + 4, r, panel);
}

static void put_q5_k(const uint8_t *raw, int32_t r, uint8_t *panel) {
    for (int32_t c = 0; c < 4; c++) llm_put_nibbles(raw + 48 + 32 * c, 4, r, panel + 512 * c);
    llm_put_sides(&llm_layout_q5_k, raw, raw + 4, r, panel);
}

static void put_q6_k(const uint8_t *raw, int32_t r, uint8_t *panel) {
    uint8_t *high = panel + llm_low_bytes(&llm_layout_q6_k);
    for (int32_t h = 0; h < 2; h++) {
        llm_put_nibbles(raw + 64 * h, 8, r, panel + 1024 * h);
        llm_put_quarters(raw + 128 + 32 * h, r, high + 512 * h);
    }
    llm_put_sides(&llm_layout_q6_k, raw + 208, raw + 192, r, panel);
}

static void put_iq4_xs(const uint8_t *raw, int32_t r, uint8_t *panel) {
    for (int32_t c = 0; c < 8; c++) llm_put_nibbles(raw + 8 + 16 * c, 2, r, panel + 256 * c);
    llm_put_sides(&llm_layout_iq4_xs, raw, raw + 4, r, panel);
}

static void pair_q3_k(const uint8_t *even, const uint8_t *odd, int32_t pair, uint8_t *high) {
    llm_put_bits256(even, odd, pair, high);
}

static void pair_q5_k(const uint8_t *even, const uint8_t *odd, int32_t pair, uint8_t *high) {
    llm_put_bits256(even + 16, odd + 16, pair, high);
}

LLM_DEFINE_PANELS(q2_k, NULL)
LLM_DEFINE_PANELS(q3_k, pair_q3_k)
LLM_DEFINE_PANELS(q4_k, NULL)
LLM_DEFINE_PANELS(q5_k, pair_q5_k)
LLM_DEFINE_PANELS(q6_k, NULL)
LLM_DEFINE_PANELS(iq4_xs, NULL)

/* ---- scales ---- */

/* Q4_K, Q5_K: bytes 0..3 hold scales 0..3, bytes 4..7 mins 0..3, each with two bits of scale or
 * min 4..7 on top; bytes 8..11 the low nibbles of scale (low) and min (high) 4..7. */
static int32_t scale_q4_k(const uint8_t *s, int32_t g) {
    return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
}

static int32_t min_q4_k(const uint8_t *s, int32_t g) {
    return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
}

/* Q3_K: bytes 0..7 the low nibbles of scales 0..7 (low) and 8..15 (high); bytes 8..11 two upper
 * bits each of scales j, j + 4, j + 8, j + 12. */
static int32_t scale_q3_k(const uint8_t *s, int32_t g) {
    return ((s[g % 8] >> g / 8 * 4 & 15) | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
}

/* ---- f32 ---- */

void llm_dequantize_q2_k(const uint8_t *src, float *dst, int64_t n) {
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 256, src += 84) {
        split_q2_k(src, &b);
        float d = llm_f16_to_f32(b.u16[0]), dmin = llm_f16_to_f32(b.u16[1]);
        for (int32_t j = 0; j < 256; j++) {
            float scale = d * (float)(b.u8[j / 16] & 15), min = dmin * (float)(b.u8[j / 16] >> 4);
            dst[i + j] = scale * (float)b.q[j] - min;
        }
    }
}

void llm_dequantize_q3_k(const uint8_t *src, float *dst, int64_t n) {
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 256, src += 110) {
        split_q3_k(src, &b);
        float d = llm_f16_to_f32(b.u16[0]);
        for (int32_t j = 0; j < 256; j++)
            dst[i + j] = d * (float)scale_q3_k(b.u8, j / 16) * (float)(b.q[j] - 4);
    }
}

static inline void dequantize_q45_k(const uint8_t *src, float *dst, int64_t n, int32_t bytes,
                                    llm_split split) {
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 256, src += bytes) {
        split(src, &b);
        float d = llm_f16_to_f32(b.u16[0]), dmin = llm_f16_to_f32(b.u16[1]);
        for (int32_t g = 0; g < 8; g++) {
            float scale = d * (float)scale_q4_k(b.u8, g), min = dmin * (float)min_q4_k(b.u8, g);
            for (int32_t j = 32 * g; j < 32 * g + 32; j++) dst[i + j] = scale * (float)b.q[j] - min;
        }
    }
}

void llm_dequantize_q4_k(const uint8_t *src, float *dst, int64_t n) {
    dequantize_q45_k(src, dst, n, 144, split_q4_k);
}

void llm_dequantize_q5_k(const uint8_t *src, float *dst, int64_t n) {
    dequantize_q45_k(src, dst, n, 176, split_q5_k);
}

void llm_dequantize_q6_k(const uint8_t *src, float *dst, int64_t n) {
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 256, src += 210) {
        split_q6_k(src, &b);
        float d = llm_f16_to_f32(b.u16[0]);
        for (int32_t j = 0; j < 256; j++)
            dst[i + j] = d * (float)(int8_t)b.u8[j / 16] * (float)(b.q[j] - 32);
    }
}

void llm_dequantize_iq4_xs(const uint8_t *src, float *dst, int64_t n) {
    static const int8_t book[16] = LLM_IQ4_VALUES;
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 256, src += 136) {
        split_iq4_xs(src, &b);
        float d = llm_f16_to_f32(b.u16[0]);
        for (int32_t g = 0; g < 8; g++) {
            int32_t low = b.u8[g / 2] >> g % 2 * 4 & 15, high = b.u16[1] >> 2 * g & 3;
            float scale = d * (float)((low | high << 4) - 32);
            for (int32_t j = 32 * g; j < 32 * g + 32; j++) dst[i + j] = scale * (float)book[b.q[j]];
        }
    }
}
