/* vec_i8.h (i8mm: neon and the 8-bit matrix products of ARMv8.6): one instruction multiplies 2
 * rows of 8 inputs with 2 tokens of 8 inputs, both signed or the weights unsigned, and adds
 * exact 32-bit sums. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "../neon/vec_bytes.h"

#define LLM_PAIRS 1 /* tokens by pairs: see neon/quads.h */

/* sum + the dots of 16 inputs of four rows, w[i] inputs 4i to 4i + 3, with those of one token. */
LLM_INLINE int32x4_t quad_dot(int32x4_t sum, const uint8x16_t *w, int8x16_t x,
                              llm_quad_range range) {
    if (range == QUAD_UNSIGNED) {
        sum = vusdotq_laneq_s32(sum, w[0], x, 0);
        sum = vusdotq_laneq_s32(sum, w[1], x, 1);
        sum = vusdotq_laneq_s32(sum, w[2], x, 2);
        return vusdotq_laneq_s32(sum, w[3], x, 3);
    }
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[0]), x, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[1]), x, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[2]), x, 2);
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[3]), x, 3);
}

/* sum [2 rows][2 tokens] */
LLM_INLINE int32x4_t pair_dot(int32x4_t sum, uint8x16_t w, int8x16_t x, llm_quad_range range) {
    return range == QUAD_UNSIGNED ? vusmmlaq_s32(sum, w, x)
                                  : vmmlaq_s32(sum, vreinterpretq_s8_u8(w), x);
}

/* For the roof: matrices here, twice the products of dots. */
LLM_INLINE int32x4_t vb_dot4(int32x4_t sum, uint8x16_t w, uint8x16_t x) {
    return pair_dot(sum, w, vreinterpretq_s8_u8(x), QUAD_SIGNED);
}
LLM_INLINE vi vb_dot_pair(vi sum, vb w, vb x) {
    return (vi){vb_dot4(sum.a, w.a, x.a), vb_dot4(sum.b, w.b, x.b), vb_dot4(sum.c, w.c, x.c),
                vb_dot4(sum.d, w.d, x.d)};
}

LLM_INLINE int32x4_t vb_dot_each4(int32x4_t sum, uint8x16_t u, uint8x16_t s) {
    return vusdotq_s32(sum, u, vreinterpretq_s8_u8(s));
}
LLM_INLINE vi vb_dot_each(vi sum, vb u, vb s) {
    return (vi){vb_dot_each4(sum.a, u.a, s.a), vb_dot_each4(sum.b, u.b, s.b),
                vb_dot_each4(sum.c, u.c, s.c), vb_dot_each4(sum.d, u.d, s.d)};
}

#endif
