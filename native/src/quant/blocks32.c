#include "quant/blocks32.h"

#include "base/half.h"
#include "quant/planes.h"

static void split_nibbles(const uint8_t *raw, uint8_t *q) {
    for (int32_t i = 0; i < 16; i++) {
        q[i] = raw[i] & 15;
        q[i + 16] = raw[i] >> 4;
    }
}

static void join_nibbles(const uint8_t *q, uint8_t *raw) {
    for (int32_t i = 0; i < 16; i++) raw[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
}

/* Bit i of the 4 bytes is added to q[i] as 16, eight at a time. */
static void add_fifth_bits(const uint8_t *raw, uint8_t *q) {
    for (int32_t i = 0; i < 4; i++) {
        uint64_t bytes,
            bit = (raw[i] * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
        uint64_t ones = (bit + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
        memcpy(&bytes, q + 8 * i, 8);
        bytes |= ones << 4;
        memcpy(q + 8 * i, &bytes, 8);
    }
}

static void join_fifth_bits(const uint8_t *q, uint8_t *raw) {
    memset(raw, 0, 4);
    for (int32_t i = 0; i < 32; i++) raw[i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
}

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* ---- 4 and 5 bits ---- */

static void split_q4_0(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    split_nibbles(raw + 2, b->q);
}

static void join_q4_0(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    join_nibbles(b->q, raw + 2);
}

static void split_q4_1(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    b->u16[1] = llm_load_u16(raw + 2);
    split_nibbles(raw + 4, b->q);
}

static void join_q4_1(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    put_u16(raw + 2, b->u16[1]);
    join_nibbles(b->q, raw + 4);
}

static void split_q5_0(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    split_nibbles(raw + 6, b->q);
    add_fifth_bits(raw + 2, b->q);
}

static void join_q5_0(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    join_fifth_bits(b->q, raw + 2);
    join_nibbles(b->q, raw + 6);
}

static void split_q5_1(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    b->u16[1] = llm_load_u16(raw + 2);
    split_nibbles(raw + 8, b->q);
    add_fifth_bits(raw + 4, b->q);
}

static void join_q5_1(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    put_u16(raw + 2, b->u16[1]);
    join_fifth_bits(b->q, raw + 4);
    join_nibbles(b->q, raw + 8);
}

/* ---- 8 bits ---- */

static void split_q8_0(const uint8_t *raw, llm_row_block *b) {
    b->u16[0] = llm_load_u16(raw);
    for (int32_t i = 0; i < 32; i++) b->q[i] = raw[2 + i] ^ 0x80; /* s8 + 128 */
}

static void join_q8_0(const llm_row_block *b, uint8_t *raw) {
    put_u16(raw, b->u16[0]);
    for (int32_t i = 0; i < 32; i++) raw[2 + i] = b->q[i] ^ 0x80;
}

/* ---- codebooks ---- */

#define split_iq4_nl split_q4_0
#define join_iq4_nl join_q4_0

static void split_mxfp4(const uint8_t *raw, llm_row_block *b) {
    b->u8[0] = raw[0];
    split_nibbles(raw + 1, b->q);
}

static void join_mxfp4(const llm_row_block *b, uint8_t *raw) {
    raw[0] = b->u8[0];
    join_nibbles(b->q, raw + 1);
}

/* ---- rows of a block to a panel ---- */

static void put_q4_0(const uint8_t *raw, int32_t r, uint8_t *panel) {
    llm_put_nibbles(raw + 2, 2, r, panel);
    llm_put_sides(&llm_layout_q4_0, raw, NULL, r, panel);
}

static void put_q4_1(const uint8_t *raw, int32_t r, uint8_t *panel) {
    llm_put_nibbles(raw + 4, 2, r, panel);
    llm_put_sides(&llm_layout_q4_1, raw, NULL, r, panel);
}

static void put_q5_0(const uint8_t *raw, int32_t r, uint8_t *panel) {
    llm_put_nibbles(raw + 6, 2, r, panel);
    llm_put_sides(&llm_layout_q5_0, raw, NULL, r, panel);
}

static void put_q5_1(const uint8_t *raw, int32_t r, uint8_t *panel) {
    llm_put_nibbles(raw + 8, 2, r, panel);
    llm_put_sides(&llm_layout_q5_1, raw, NULL, r, panel);
}

static void put_mxfp4(const uint8_t *raw, int32_t r, uint8_t *panel) {
    llm_put_nibbles(raw + 1, 2, r, panel);
    llm_put_sides(&llm_layout_mxfp4, NULL, raw, r, panel);
}

static void put_q8_0(const uint8_t *raw, int32_t r, uint8_t *panel) {
    for (int32_t i = 0; i < 8; i++) /* s8 + 128 */
        llm_put_u32(panel + 64 * i + 4 * r, llm_get_u32(raw + 2 + 4 * i) ^ 0x80808080u);
    llm_put_sides(&llm_layout_q8_0, raw, NULL, r, panel);
}

#define put_iq4_nl put_q4_0

static void pair_q5_0(const uint8_t *even, const uint8_t *odd, int32_t pair, uint8_t *high) {
    llm_put_bits32(even + 2, odd + 2, pair, high);
}

static void pair_q5_1(const uint8_t *even, const uint8_t *odd, int32_t pair, uint8_t *high) {
    llm_put_bits32(even + 4, odd + 4, pair, high);
}

LLM_DEFINE_PANELS(q4_0, NULL)
LLM_DEFINE_PANELS(q4_1, NULL)
LLM_DEFINE_PANELS(q5_0, pair_q5_0)
LLM_DEFINE_PANELS(q5_1, pair_q5_1)
LLM_DEFINE_PANELS(q8_0, NULL)
LLM_DEFINE_PANELS(iq4_nl, NULL)
LLM_DEFINE_PANELS(mxfp4, NULL)

/* ---- f32 ---- */

/* w = d * (q - zero) */
static inline void scaled(const uint8_t *src, float *dst, int64_t n, int32_t bytes, int32_t zero,
                          llm_split split) {
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 32, src += bytes) {
        split(src, &b);
        float d = llm_f16_to_f32(b.u16[0]);
        for (int32_t j = 0; j < 32; j++) dst[i + j] = d * (float)(b.q[j] - zero);
    }
}

/* w = d * q + m */
static inline void scaled_min(const uint8_t *src, float *dst, int64_t n, int32_t bytes,
                              llm_split split) {
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 32, src += bytes) {
        split(src, &b);
        float d = llm_f16_to_f32(b.u16[0]), m = llm_f16_to_f32(b.u16[1]);
        for (int32_t j = 0; j < 32; j++) dst[i + j] = d * (float)b.q[j] + m;
    }
}

void llm_dequantize_q4_0(const uint8_t *src, float *dst, int64_t n) {
    scaled(src, dst, n, 18, 8, split_q4_0);
}

void llm_dequantize_q4_1(const uint8_t *src, float *dst, int64_t n) {
    scaled_min(src, dst, n, 20, split_q4_1);
}

void llm_dequantize_q5_0(const uint8_t *src, float *dst, int64_t n) {
    scaled(src, dst, n, 22, 16, split_q5_0);
}

void llm_dequantize_q5_1(const uint8_t *src, float *dst, int64_t n) {
    scaled_min(src, dst, n, 24, split_q5_1);
}

void llm_dequantize_q8_0(const uint8_t *src, float *dst, int64_t n) {
    scaled(src, dst, n, 34, 128, split_q8_0);
}

void llm_dequantize_iq4_nl(const uint8_t *src, float *dst, int64_t n) {
    static const int8_t book[16] = LLM_IQ4_VALUES;
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 32, src += 18) {
        split_iq4_nl(src, &b);
        float d = llm_f16_to_f32(b.u16[0]);
        for (int32_t j = 0; j < 32; j++) dst[i + j] = d * (float)book[b.q[j]];
    }
}

void llm_dequantize_mxfp4(const uint8_t *src, float *dst, int64_t n) {
    static const int8_t book[16] = LLM_MXFP4_VALUES;
    llm_row_block b;
    for (int64_t i = 0; i < n; i += 32, src += 17) {
        split_mxfp4(src, &b);
        float d = llm_bits_f32(llm_mxfp4_scale_bits(b.u8[0]));
        for (int32_t j = 0; j < 32; j++) dst[i + j] = d * (float)book[b.q[j]];
    }
}
