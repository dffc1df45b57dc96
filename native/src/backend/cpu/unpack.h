/* unpack.h: panel blocks to unsigned bytes and scales in registers.
 *
 * A chunk is 32 inputs of 16 rows: eight vectors of 16 rows x 4 inputs. Each type of weight is one
 * llm_unpacking row; the functions are inlined with that row constant, so that every type gets its
 * own straight code from one source.
 */
#ifndef LLM_UNPACK_H
#define LLM_UNPACK_H

#include <stdbool.h>

#include "quant/layout.h"
#include "vec_i8.h"

enum { LLM_BOOK_NONE, LLM_BOOK_IQ4, LLM_BOOK_MXFP4 };

typedef struct llm_unpacking {
    const llm_layout *layout;
    int zero; /* z: 0, 4, 8, 16, 32, or 128, which also says that bytes may pass 127 */
    int book; /* LLM_BOOK_*: the low plane indexes 16 values, here with 128 added */
    bool mins;
    int group; /* inputs that share a scale: 16 or 32 */
} llm_unpacking;

static const uint8_t llm_book_iq4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t llm_book_mxfp4[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                           128, 127, 126, 125, 124, 122, 120, 116};

#ifndef LLM_QUADS /* these unpack vectors of four rows: neon/quads.h */

LLM_INLINE void unpack_low2(const uint8_t *p, vb w[8]) {
    LLM_UNROLL
    for (int v = 0; v < 2; v++) {
        vb x = vb_load(p + 64 * v);
        w[4 * v] = vb_and1(x, 3);
        w[4 * v + 1] = vb_shr(x, 2, 3);
        w[4 * v + 2] = vb_shr(x, 4, 3);
        w[4 * v + 3] = vb_shr(x, 6, 3);
    }
}

LLM_INLINE void unpack_low4(const uint8_t *p, vb w[8]) {
    LLM_UNROLL
    for (int v = 0; v < 4; v++) {
        vb x = vb_load(p + 64 * v);
        w[2 * v] = vb_and1(x, 15);
        w[2 * v + 1] = vb_shr(x, 4, 15);
    }
}

/* Two bits on top of four. */
LLM_INLINE void unpack_high2(const uint8_t *p, vb w[8]) {
    LLM_UNROLL
    for (int v = 0; v < 2; v++) {
        vb x = vb_load(p + 64 * v);
        w[4 * v] = vb_or(w[4 * v], vb_shl(x, 4, 0x30));
        w[4 * v + 1] = vb_or(w[4 * v + 1], vb_shl(x, 2, 0x30));
        w[4 * v + 2] = vb_or(w[4 * v + 2], vb_and1(x, 0x30));
        w[4 * v + 3] = vb_or(w[4 * v + 3], vb_shr(x, 2, 0x30));
    }
}

/* Chunk c of a panel block. */
LLM_INLINE void unpack_chunk(const llm_unpacking *u, const uint8_t *block, int c, vb w[8]) {
    const llm_layout *l = u->layout;
    const uint8_t *low = block + 64 * l->low_bits * c;
    const uint8_t *high = block + llm_low_bytes(l) + 64 * l->high_bits * c;
    if (l->low_bits == 2) unpack_low2(low, w);
    if (l->low_bits == 4) unpack_low4(low, w);
    if (l->low_bits == 8) {
        LLM_UNROLL
        for (int g = 0; g < 8; g++) w[g] = vb_load(low + 64 * g);
    }
    if (l->high_bits == 2) unpack_high2(high, w);
    if (l->high_bits == 1) {
        LLM_UNROLL
        for (int g = 0; g < 8; g++)
            w[g] = vb_add_where(w[g], high + 8 * g, (uint8_t)(1 << l->low_bits));
    }
    if (u->book != LLM_BOOK_NONE) {
        vb table = vb_table(u->book == LLM_BOOK_IQ4 ? llm_book_iq4 : llm_book_mxfp4);
        LLM_UNROLL
        for (int g = 0; g < 8; g++) w[g] = vb_lookup(table, w[g]);
    }
}

LLM_INLINE vi unpack_dot(const llm_unpacking *u, vi acc, vb w, const int8_t *q) {
    return u->zero == 128 ? vb_dot_wide(acc, w, q) : vb_dot(acc, w, q);
}

#endif

LLM_INLINE vf unpack_u16(const llm_unpacking *u, const uint8_t *block, int i) {
    return vf_load_f16((const uint16_t *)(const void *)(block + llm_u16_at(u->layout, i)));
}

/* Scale d of a block of 32. */
LLM_INLINE vf unpack_scale32(const llm_unpacking *u, const uint8_t *block) {
    if (u->book != LLM_BOOK_MXFP4) return unpack_u16(u, block, 0);
    int32_t bits[16];
    for (int r = 0; r < 16; r++)
        bits[r] = (int32_t)llm_mxfp4_scale_bits(block[llm_u8_at(u->layout, 0) + r]);
    return vi_as_f(vi_load(bits));
}

/* ---- blocks of 256 ---- */

/* Scales as floats, by group; mins as pairs of s16, those of groups 2i (low) and 2i + 1. Plain C over
 * the 16 rows, which compilers turn into vectors: vector types would be quicker by nothing that
 * shows and take minutes to compile with sanitizers. */
typedef struct llm_scales {
    float d[16], dmin_negated[16];
    float scale[16][16];
    int32_t mins[8][16];
} llm_scales;

#define EACH_ROW for (int r = 0; r < 16; r++)

static inline void unpack_scales_q2_k(const uint8_t *restrict side, llm_scales *restrict s) {
    for (int g = 0; g < 16; g++) {
        EACH_ROW s->scale[g][r] = (float)(side[16 * g + r] & 15);
    }
    for (int g = 0; g < 8; g++) {
        EACH_ROW s->mins[g][r] = side[32 * g + r] >> 4 | side[32 * g + 16 + r] >> 4 << 16;
    }
}

static inline void unpack_scales_q3_k(const uint8_t *restrict side, llm_scales *restrict s) {
    /* Shifts that are no constants keep gcc from making vectors of the rows. */
    LLM_UNROLL
    for (int g = 0; g < 16; g++) {
        const uint8_t *low = side + 16 * (g % 8), *high = side + 16 * (8 + g % 4);
        int low_shift = g / 8 * 4, high_shift = g / 4 * 2;
        EACH_ROW s->scale[g][r] =
            (float)(((low[r] >> low_shift & 15) | (high[r] >> high_shift & 3) << 4) - 32);
    }
}

static inline void unpack_scales_q45_k(const uint8_t *restrict side, llm_scales *restrict s) {
    for (int g = 0; g < 4; g++) {
        const uint8_t *a = side + 16 * g, *c = a + 128;
        EACH_ROW s->scale[g][r] = (float)(a[r] & 63);
        EACH_ROW s->scale[g + 4][r] = (float)((c[r] & 15) | a[r] >> 6 << 4);
    }
    for (int g = 0; g < 2; g++) {
        const uint8_t *b = side + 64 + 32 * g, *c = b + 64;
        EACH_ROW s->mins[g][r] = (b[r] & 63) | (b[r + 16] & 63) << 16;
        EACH_ROW s->mins[g + 2][r] =
            (c[r] >> 4 | b[r] >> 6 << 4) | (c[r + 16] >> 4 | b[r + 16] >> 6 << 4) << 16;
    }
}

static inline void unpack_scales_q6_k(const uint8_t *restrict side, llm_scales *restrict s) {
    for (int g = 0; g < 16; g++) {
        EACH_ROW s->scale[g][r] = (float)(int8_t)side[16 * g + r];
    }
}

static inline void unpack_scales_iq4_xs(const uint16_t *restrict high, const uint8_t *restrict side,
                                        llm_scales *restrict s) {
    LLM_UNROLL
    for (int g = 0; g < 8; g++) {
        const uint8_t *low = side + 16 * (g / 2);
        int low_shift = g % 2 * 4, high_shift = 2 * g;
        EACH_ROW s->scale[g][r] =
            (float)(((low[r] >> low_shift & 15) | (high[r] >> high_shift & 3) << 4) - 32);
    }
}

#undef EACH_ROW

#endif
