/* vec_bytes.h (neon, i8mm, asimd): what their vec_i8.h share. Products go by quads of rows
 * (quads.h): a quad is a q register, [4 rows][4 inputs]. Meanings of the other names are in
 * scalar/vec_i8.h. */
#ifndef LLM_VEC_BYTES_H
#define LLM_VEC_BYTES_H

#include "vec_f32.h"

#define LLM_QUADS 1
#define LLM_TILE 4 /* with 8 rows at a time, 8 sums of each kind */
#define LLM_FUSED 4 /* most tokens of the unpack-in-registers path */

/* Arrays of vectors are registers only if every index is a constant. */
#if defined(__clang__)
#define LLM_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define LLM_UNROLL _Pragma("GCC unroll 16")
#else
#define LLM_UNROLL
#endif

typedef struct vb {
    uint8x16_t a, b, c, d;
} vb;

LLM_INLINE vb vb_load(const uint8_t *p) {
    return (vb){vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
}

LLM_INLINE void vb_prefetch(const uint8_t *p) { __builtin_prefetch(p); }

LLM_INLINE vb vb_opaque(vb x) {
    __asm__ volatile("" : "+w"(x.a), "+w"(x.b), "+w"(x.c), "+w"(x.d));
    return x;
}

/* What the weights of a product are: within -64 to 63, all of s8, all of u8 (i8mm only). */
typedef enum llm_quad_range { QUAD_SMALL, QUAD_SIGNED, QUAD_UNSIGNED } llm_quad_range;

/* Low and high halves apart, which many tokens share. */
LLM_INLINE vi vi_dot_s16(vi sum, vi pairs, const int16_t *p) {
    int16x8_t a = vreinterpretq_s16_s32(pairs.a), b = vreinterpretq_s16_s32(pairs.b);
    int16x8_t c = vreinterpretq_s16_s32(pairs.c), d = vreinterpretq_s16_s32(pairs.d);
    int16x8_t low_ab = vuzp1q_s16(a, b), high_ab = vuzp2q_s16(a, b);
    int16x8_t low_cd = vuzp1q_s16(c, d), high_cd = vuzp2q_s16(c, d);
    int16_t low = p[0], high = p[1];
    sum.a = vmlal_n_s16(sum.a, vget_low_s16(low_ab), low);
    sum.b = vmlal_high_n_s16(sum.b, low_ab, low);
    sum.c = vmlal_n_s16(sum.c, vget_low_s16(low_cd), low);
    sum.d = vmlal_high_n_s16(sum.d, low_cd, low);
    sum.a = vmlal_n_s16(sum.a, vget_low_s16(high_ab), high);
    sum.b = vmlal_high_n_s16(sum.b, high_ab, high);
    sum.c = vmlal_n_s16(sum.c, vget_low_s16(high_cd), high);
    sum.d = vmlal_high_n_s16(sum.d, high_cd, high);
    return sum;
}

#endif
