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

/* Scales as floats, by group; mins as s16 pairs by 32 inputs, one s16 for each 16 inputs. */
typedef struct llm_scales {
    vf d, dmin_negated;
    vf scale[16];
    vi mins[8];
} llm_scales;

/* Side byte i of all rows, shifted right by a literal and masked. */
#define side_bits(u, block, i, shift, mask)                                                        \
    vi_and(vi_sra(vi_load_u8((block) + llm_u8_at((u)->layout, i)), shift), vi_set1(mask))

LLM_INLINE vi twice(vi m) { return vi_or(m, vi_shl(m, 16)); }

LLM_INLINE void unpack_scales_q2_k(const llm_unpacking *u, const uint8_t *block, llm_scales *s) {
    LLM_UNROLL
    for (int g = 0; g < 8; g++) {
        s->scale[2 * g] = vi_to_f(side_bits(u, block, 2 * g, 0, 15));
        s->scale[2 * g + 1] = vi_to_f(side_bits(u, block, 2 * g + 1, 0, 15));
        vi low = side_bits(u, block, 2 * g, 4, 15), high = side_bits(u, block, 2 * g + 1, 4, 15);
        s->mins[g] = vi_or(low, vi_shl(high, 16));
    }
}

LLM_INLINE void unpack_scales_q3_k(const llm_unpacking *u, const uint8_t *block, llm_scales *s) {
    const vi zero = vi_set1(32);
    LLM_UNROLL
    for (int g = 0; g < 4; g++) {
        vi a = side_bits(u, block, g, 0, 15), b = side_bits(u, block, g + 4, 0, 15);
        vi c = side_bits(u, block, g, 4, 15), d = side_bits(u, block, g + 4, 4, 15);
        a = vi_or(a, vi_shl(side_bits(u, block, 8 + g, 0, 3), 4));
        b = vi_or(b, vi_shl(side_bits(u, block, 8 + g, 2, 3), 4));
        c = vi_or(c, vi_shl(side_bits(u, block, 8 + g, 4, 3), 4));
        d = vi_or(d, vi_shl(side_bits(u, block, 8 + g, 6, 3), 4));
        s->scale[g] = vi_to_f(vi_sub(a, zero));
        s->scale[g + 4] = vi_to_f(vi_sub(b, zero));
        s->scale[g + 8] = vi_to_f(vi_sub(c, zero));
        s->scale[g + 12] = vi_to_f(vi_sub(d, zero));
    }
}

LLM_INLINE void unpack_scales_q45_k(const llm_unpacking *u, const uint8_t *block, llm_scales *s) {
    LLM_UNROLL
    for (int g = 0; g < 4; g++) {
        s->scale[g] = vi_to_f(side_bits(u, block, g, 0, 63));
        s->mins[g] = twice(side_bits(u, block, g + 4, 0, 63));
        vi scale = side_bits(u, block, g + 8, 0, 15), min = side_bits(u, block, g + 8, 4, 15);
        s->scale[g + 4] = vi_to_f(vi_or(scale, vi_shl(side_bits(u, block, g, 6, 3), 4)));
        s->mins[g + 4] = twice(vi_or(min, vi_shl(side_bits(u, block, g + 4, 6, 3), 4)));
    }
}

LLM_INLINE void unpack_scales_q6_k(const llm_unpacking *u, const uint8_t *block, llm_scales *s) {
    LLM_UNROLL
    for (int g = 0; g < 16; g++) s->scale[g] = vi_to_f(vi_load_s8(block + llm_u8_at(u->layout, g)));
}

LLM_INLINE void unpack_scales_iq4_xs(const llm_unpacking *u, const uint8_t *block, llm_scales *s) {
    const vi zero = vi_set1(32), two = vi_set1(0x30);
    vi high = vi_load_u16((const uint16_t *)(const void *)(block + llm_u16_at(u->layout, 1)));
#define BOTH(g, low_shift, move)                                                                   \
    s->scale[g] = vi_to_f(                                                                         \
        vi_sub(vi_or(side_bits(u, block, (g) / 2, low_shift, 15), vi_and(move, two)), zero))
    BOTH(0, 0, vi_shl(high, 4));
    BOTH(1, 4, vi_shl(high, 2));
    BOTH(2, 0, high);
    BOTH(3, 4, vi_sra(high, 2));
    BOTH(4, 0, vi_sra(high, 4));
    BOTH(5, 4, vi_sra(high, 6));
    BOTH(6, 0, vi_sra(high, 8));
    BOTH(7, 4, vi_sra(high, 10));
#undef BOTH
}

#endif
