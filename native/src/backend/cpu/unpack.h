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
        vb x = vb_load_once(p + 64 * v);
        w[4 * v] = vb_and1(x, 3);
        w[4 * v + 1] = vb_shr(x, 2, 3);
        w[4 * v + 2] = vb_shr(x, 4, 3);
        w[4 * v + 3] = vb_shr(x, 6, 3);
    }
}

LLM_INLINE void unpack_low4(const uint8_t *p, vb w[8]) {
    LLM_UNROLL
    for (int v = 0; v < 4; v++) {
        vb x = vb_load_once(p + 64 * v);
        w[2 * v] = vb_and1(x, 15);
        w[2 * v + 1] = vb_shr(x, 4, 15);
    }
}

/* Two bits on top of four. */
LLM_INLINE void unpack_high2(const uint8_t *p, vb w[8]) {
    LLM_UNROLL
    for (int v = 0; v < 2; v++) {
        vb x = vb_load_once(p + 64 * v);
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

/* Scale d of a block of 32. MXFP4's 2^(e - 128) may be subnormal: the exact product of two powers of
 * two that are not, e / 2 - 64 and the rest. */
LLM_INLINE vf unpack_scale32(const llm_unpacking *u, const uint8_t *block) {
    if (u->book != LLM_BOOK_MXFP4) return unpack_u16(u, block, 0);
    vi e = vi_load_u8(block + llm_u8_at(u->layout, 0)), half = vi_sra(e, 1), bias = vi_set1(63);
    vi rest = vi_add(vi_sub(e, half), bias);
    return vf_mul(vi_as_f(vi_shl(vi_add(half, bias), 23)), vi_as_f(vi_shl(rest, 23)));
}

/* ---- blocks of 256 ---- */

/* Scales of the groups as s8 and as floats; mins as pairs of s16, those of groups 2i (low) and
 * 2i + 1. */
typedef struct llm_scales {
    float d[16], dmin_negated[16];
    float scale[16][16];
    int32_t mins[8][16];
    uint8_t scale_bytes[16][16], min_bytes[16][16];
} llm_scales;

LLM_INLINE void decode_q2_k(const uint8_t *side, llm_scales *s) {
    LLM_UNROLL
    for (int v = 0; v < 4; v++) {
        vb x = vb_load(side + 64 * v);
        vb_store(s->scale_bytes[4 * v], vb_and1(x, 15));
        vb_store(s->min_bytes[4 * v], vb_shr(x, 4, 15));
    }
}

/* Groups g and g + 8 share a byte of the low parts, groups g, g + 4 and so on one of the high. */
LLM_INLINE void decode_q3_k(const uint8_t *side, llm_scales *s) {
    vb a = vb_load(side), b = vb_load(side + 64), high = vb_load(side + 128);
    vb v[4] = {vb_or(vb_and1(a, 15), vb_shl(high, 4, 0x30)),
               vb_or(vb_and1(b, 15), vb_shl(high, 2, 0x30)),
               vb_or(vb_shr(a, 4, 15), vb_and1(high, 0x30)),
               vb_or(vb_shr(b, 4, 15), vb_shr(high, 2, 0x30))};
    LLM_UNROLL
    for (int i = 0; i < 4; i++) vb_store(s->scale_bytes[4 * i], vb_minus(v[i], 32));
}

LLM_INLINE void decode_q45_k(const uint8_t *side, llm_scales *s) {
    vb a = vb_load(side), b = vb_load(side + 64), c = vb_load(side + 128);
    vb_store(s->scale_bytes[0], vb_and1(a, 63));
    vb_store(s->scale_bytes[4], vb_or(vb_and1(c, 15), vb_shr(a, 2, 0x30)));
    vb_store(s->min_bytes[0], vb_and1(b, 63));
    vb_store(s->min_bytes[4], vb_or(vb_shr(c, 4, 15), vb_shr(b, 2, 0x30)));
}

/* The low parts of groups 2i and 2i + 1 share byte array i; the high ones of a row are one u16. */
LLM_INLINE void decode_iq4_xs(const uint16_t *high, const uint8_t *side, llm_scales *s) {
    vb low = vb_load(side), top = vb_nibbles(high);
    uint8_t even[4][16], odd[4][16];
    vb_store(even[0], vb_minus(vb_or(vb_and1(low, 15), vb_shl(top, 4, 0x30)), 32));
    vb_store(odd[0], vb_minus(vb_or(vb_shr(low, 4, 15), vb_shl(top, 2, 0x30)), 32));
    LLM_UNROLL
    for (int i = 0; i < 4; i++) {
        memcpy(s->scale_bytes[2 * i], even[i], 16);
        memcpy(s->scale_bytes[2 * i + 1], odd[i], 16);
    }
}

/* All of s but the floats of the scales. Returns the scales as s8 [groups][16 rows]. */
LLM_INLINE const int8_t *decode_scales(const llm_unpacking *u, int32_t type, const uint8_t *block,
                                       llm_scales *s) {
    const uint8_t *side = block + llm_u8_at(u->layout, 0);
    vf_store(s->d, unpack_u16(u, block, 0));
    if (u->mins) vf_store(s->dmin_negated, vf_neg(unpack_u16(u, block, 1)));
    if (type == LLM_Q6_K) return (const int8_t *)side;
    if (type == LLM_Q2_K) decode_q2_k(side, s);
    if (type == LLM_Q3_K) decode_q3_k(side, s);
    if (type == LLM_Q4_K || type == LLM_Q5_K) decode_q45_k(side, s);
    if (type == LLM_IQ4_XS) {
        const uint8_t *high = block + llm_u16_at(u->layout, 1);
        decode_iq4_xs((const uint16_t *)(const void *)high, side, s);
    }
    if (u->mins) {
        LLM_UNROLL
        for (int i = 0; i < 128 / u->group; i++)
            vi_store(s->mins[i], vi_load_pairs(s->min_bytes[2 * i]));
    }
    return (const int8_t *)s->scale_bytes;
}

#endif
