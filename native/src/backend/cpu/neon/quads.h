/* quads.h (neon, i8mm, asimd): products by quads, vectors of 4 rows x 4 inputs, of two or four
 * quads of rows at a time, so that the sums of all tokens are registers from one end of a
 * superblock to the other.
 *
 * neon, asimd: 16 inputs of a token are one register, whose four lanes multiply four quads.
 * i8mm: with four tokens, and whatever is unpacked before, one instruction multiplies 2 rows x 8
 * inputs with 2 tokens x 8 inputs; tokens lie as pairs then, [8 inputs of the first][8 of the
 * second]. */
#ifndef LLM_QUADS_H
#define LLM_QUADS_H

#include "backend/cpu/tile.h"

/* How the weights of a product come. */
typedef struct llm_quad_form {
    bool ready; /* unpacked before, in slots [half][quad of rows][4][16 bytes] */
    bool centred; /* signed, less the zero point */
    bool pairs; /* two rows of eight inputs, for tokens by pairs */
} llm_quad_form;

#ifdef LLM_PAIRS
enum { QUAD_PAIRS = 1 };
#else
enum { QUAD_PAIRS = 0 };
#endif

LLM_INLINE llm_quad_form quads_ready(void) { return (llm_quad_form){true, true, QUAD_PAIRS}; }

/* From a panel, for n tokens. To centre a codebook costs nothing; what needs all of u8 must be
 * where there are no unsigned products. Making pairs costs an instruction for every vector. */
LLM_INLINE llm_quad_form quads_of_panel(const llm_unpacking *u, const int n) {
    bool centred = u->book != LLM_BOOK_NONE || (u->zero == 128 && !QUAD_PAIRS);
    return (llm_quad_form){false, centred, QUAD_PAIRS && n >= 4};
}

/* Quads of rows of a part, for n tokens: both kinds of sums, activations and weights are
 * registers. */
LLM_INLINE int quads_of_part(llm_quad_form f, const int n) { return n <= 2 && !f.pairs ? 4 : 2; }

LLM_INLINE uint8x16_t quad_mask(uint8x16_t x, uint8_t mask) {
    return vandq_u8(x, vdupq_n_u8(mask));
}

/* Six bits: the other two of each quad lie in one byte, over or under where they belong. */
LLM_INLINE void quad_six_bits(uint8x16_t low0, uint8x16_t low1, uint8x16_t high, uint8x16_t w[4]) {
    w[0] = quad_mask(vsliq_n_u8(low0, high, 4), 63);
    w[1] = quad_mask(vsriq_n_u8(vshlq_n_u8(high, 2), low0, 4), 63);
    w[2] = quad_mask(vbslq_u8(vdupq_n_u8(15), low1, high), 63);
    w[3] = vsriq_n_u8(vshrq_n_u8(high, 2), low1, 4);
}

/* Adds `value` where the quad's bits are set: those of 16 rows x 16 inputs are 32 bytes at p, the
 * bits of row r and r + 1 of a quad one byte. */
LLM_INLINE void quad_high_bit(const uint8_t *p, int r, uint8_t value, uint8x16_t w[4]) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    const uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
    uint8x16_t even = vaddq_u8(first, vdupq_n_u8((uint8_t)(2 * r)));
    uint8x16_t odd = vaddq_u8(even, vdupq_n_u8(8));
    uint8x16_t bits[2] = {vld1q_u8(p), vld1q_u8(p + 16)};
    LLM_UNROLL
    for (int i = 0; i < 4; i++) {
        uint8x16_t set = vtstq_u8(vqtbl1q_u8(bits[i / 2], i % 2 ? odd : even), bit);
        w[i] = vorrq_u8(w[i], quad_mask(set, value));
    }
}

/* Half h (16 inputs) of a chunk of quad r of rows. low, high: the chunk's planes in a panel. */
LLM_INLINE void quad_bytes(const llm_unpacking *u, const uint8_t *low, const uint8_t *high, int r,
                           const int h, uint8x16_t w[4]) {
    const llm_layout *l = u->layout;
    low += 16 * r + 32 * l->low_bits * h;
    if (l->low_bits == 2) {
        uint8x16_t x = vld1q_u8(low);
        w[0] = quad_mask(x, 3);
        w[1] = quad_mask(vshrq_n_u8(x, 2), 3);
        w[2] = quad_mask(vshrq_n_u8(x, 4), 3);
        w[3] = vshrq_n_u8(x, 6);
    }
    if (l->low_bits == 4) {
        uint8x16_t x = vld1q_u8(low), y = vld1q_u8(low + 64);
        if (l->high_bits == 2) {
            quad_six_bits(x, y, vld1q_u8(high + 64 * h + 16 * r), w);
        } else {
            w[0] = quad_mask(x, 15);
            w[1] = vshrq_n_u8(x, 4);
            w[2] = quad_mask(y, 15);
            w[3] = vshrq_n_u8(y, 4);
        }
    }
    if (l->low_bits == 8) {
        LLM_UNROLL
        for (int i = 0; i < 4; i++) w[i] = vld1q_u8(low + 64 * i);
    }
    if (l->high_bits == 1) quad_high_bit(high + 32 * h, r, (uint8_t)(1 << l->low_bits), w);
}

LLM_INLINE void quad_weights(const llm_unpacking *u, llm_quad_form f, const uint8_t *low,
                             const uint8_t *high, int r, const int h, uint8x16_t w[4]) {
    if (f.ready) {
        LLM_UNROLL
        for (int i = 0; i < 4; i++) w[i] = vld1q_u8(low + 256 * h + 64 * r + 16 * i);
        return;
    }
    quad_bytes(u, low, high, r, h, w);
    uint8x16_t zero = vdupq_n_u8(f.centred ? (uint8_t)u->zero : 0);
    if (u->book != LLM_BOOK_NONE) {
        uint8x16_t book = vld1q_u8(u->book == LLM_BOOK_IQ4 ? llm_book_iq4 : llm_book_mxfp4);
        book = vsubq_u8(book, zero);
        LLM_UNROLL
        for (int i = 0; i < 4; i++) w[i] = vqtbl1q_u8(book, w[i]);
    } else if (f.centred && u->zero != 0) {
        LLM_UNROLL
        for (int i = 0; i < 4; i++) w[i] = vsubq_u8(w[i], zero);
    }
    if (!f.pairs) return;
    LLM_UNROLL
    for (int i = 0; i < 4; i += 2) {
        uint32x4_t x = vreinterpretq_u32_u8(w[i]), y = vreinterpretq_u32_u8(w[i + 1]);
        w[i] = vreinterpretq_u8_u32(vzip1q_u32(x, y)); /* rows 0, 1 */
        w[i + 1] = vreinterpretq_u8_u32(vzip2q_u32(x, y));
    }
}

/* A chunk of a panel into a slot. */
LLM_INLINE void quads_store(const llm_unpacking *u, const uint8_t *low, const uint8_t *high,
                            uint8_t *to) {
    const llm_quad_form f = {false, true, QUAD_PAIRS};
    for (int r = 0; r < 4; r++) {
        LLM_UNROLL
        for (int h = 0; h < 2; h++) {
            uint8x16_t w[4];
            quad_weights(u, f, low, high, r, h, w);
            LLM_UNROLL
            for (int i = 0; i < 4; i++) vst1q_u8(to + 256 * h + 64 * r + 16 * i, w[i]);
        }
    }
}

/* The sums of a part: [token][quad of rows]; by pairs those of tokens 2i, 2i + 1 are [rows 0, 1]
 * and [rows 2, 3], each [row][token], until quads_end. */
typedef int32x4_t llm_quad_sums[LLM_FUSED][4];

LLM_INLINE void quads_begin(llm_quad_form f, const int32x4_t *start, llm_quad_sums dot,
                            const int quads, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t += f.pairs ? 2 : 1) {
        int32x4_t s = f.pairs ? vzip1q_s32(start[t], start[t + 1 < n ? t + 1 : t]) : start[t];
        LLM_UNROLL
        for (int v = 0; v < quads; v++) {
            dot[t][v] = s;
            if (f.pairs) dot[t + 1][v] = s;
        }
    }
}

LLM_INLINE void quads_end(llm_quad_form f, llm_quad_sums dot, const int quads, const int n) {
    if (!f.pairs) return;
    LLM_UNROLL
    for (int t = 0; t < n; t += 2) {
        LLM_UNROLL
        for (int v = 0; v < quads; v++) {
            int32x4_t first = vuzp1q_s32(dot[t][v], dot[t + 1][v]);
            dot[t + 1][v] = vuzp2q_s32(dot[t][v], dot[t + 1][v]);
            dot[t][v] = first;
        }
    }
}

/* Half h of a chunk: quads [r, r + quads) of rows with n tokens, whose inputs of the chunk are
 * at q. */
LLM_INLINE void quads_dot(const llm_unpacking *u, llm_quad_form f, const uint8_t *low,
                          const uint8_t *high, int r, const int h, const int8_t *q,
                          llm_quad_sums dot, const int quads, const int n) {
    const llm_quad_range range = u->zero != 128 ? QUAD_SMALL
                                 : f.centred    ? QUAD_SIGNED
                                                : QUAD_UNSIGNED;
    int8x16_t x[LLM_FUSED];
    LLM_UNROLL
    for (int t = 0; t < n; t += f.pairs ? 2 : 1) {
        x[t] = vld1q_s8(q + 256 * t + (f.pairs ? 32 : 16) * h);
        if (f.pairs) x[t + 1] = vld1q_s8(q + 256 * t + 32 * h + 16);
    }
    LLM_UNROLL
    for (int v = 0; v < quads; v++) {
        uint8x16_t w[4];
        quad_weights(u, f, low, high, r + v, h, w);
        LLM_UNROLL
        for (int t = 0; t < n; t += f.pairs ? 2 : 1) {
#ifdef LLM_PAIRS
            if (f.pairs) {
                dot[t][v] = pair_dot(dot[t][v], w[0], x[t], range);
                dot[t + 1][v] = pair_dot(dot[t + 1][v], w[1], x[t], range);
                dot[t][v] = pair_dot(dot[t][v], w[2], x[t + 1], range);
                dot[t + 1][v] = pair_dot(dot[t + 1][v], w[3], x[t + 1], range);
                continue;
            }
#endif
            dot[t][v] = quad_dot(dot[t][v], w, x[t], range);
        }
    }
}

/* 256 inputs of n tokens as the products of form f read them; c chunks further on they are at
 * quads_chunk. */
LLM_INLINE const int8_t *quads_tokens(llm_quad_form f, llm_scratch *s, const int8_t *q, int n) {
#ifdef LLM_PAIRS
    if (!f.pairs) return q;
    for (int t = 0; t < n; t += 2) {
        for (int k = 0; k < 256; k += 16) {
            int64x2_t x = vreinterpretq_s64_s8(vld1q_s8(q + 256 * t + k)), y = vdupq_n_s64(0);
            if (t + 1 < n) y = vreinterpretq_s64_s8(vld1q_s8(q + 256 * t + 256 + k));
            vst1q_s8(s->pairs[t / 2] + 2 * k, vreinterpretq_s8_s64(vzip1q_s64(x, y)));
            vst1q_s8(s->pairs[t / 2] + 2 * k + 16, vreinterpretq_s8_s64(vzip2q_s64(x, y)));
        }
    }
    return s->pairs[0];
#else
    (void)f, (void)s, (void)n;
    return q;
#endif
}
LLM_INLINE const int8_t *quads_chunk(llm_quad_form f, const int8_t *q, int c) {
    return q + (f.pairs ? 64 : 32) * c;
}

/* Asks for part i of n_parts of the n_bytes at p. */
LLM_INLINE void quads_ahead(const uint8_t *p, const int n_bytes, int i, const int n_parts) {
    for (int at = 64 * i; at < n_bytes; at += 64 * n_parts) vb_prefetch(p + at);
}

#endif
