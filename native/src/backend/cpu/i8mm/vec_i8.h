/* vec_i8.h (i8mm: neon and the 8-bit matrix products of ARMv8.6). One instruction multiplies 2 rows of
 * 8 inputs with 2 tokens of 8 inputs, both signed or the weights unsigned, and adds exact 32-bit
 * sums. */
#ifndef LLM_I8MM_VEC_I8_H
#define LLM_I8MM_VEC_I8_H

#include <stdbool.h>

#define LLM_PAIRS 1 /* tokens by pairs: see quads.h */
#include "../neon/vec_i8.h"

/* As quad_dot, weights all of u8. */
LLM_INLINE int32x4_t quad_dot_wide(int32x4_t sum, const uint8x16_t *w, int8x16_t x) {
    sum = vusdotq_laneq_s32(sum, w[0], x, 0);
    sum = vusdotq_laneq_s32(sum, w[1], x, 1);
    sum = vusdotq_laneq_s32(sum, w[2], x, 2);
    return vusdotq_laneq_s32(sum, w[3], x, 3);
}

/* [2 rows][2 tokens] */
LLM_INLINE int32x4_t pair_dot(int32x4_t sum, uint8x16_t w, int8x16_t x, const bool wide) {
    return wide ? vusmmlaq_s32(sum, w, x) : vmmlaq_s32(sum, vreinterpretq_s8_u8(w), x);
}

/* For the roof: twice the products of a dot by lanes. */
LLM_INLINE vi vb_dot_pair(vi sum, vb w, vb x) {
    return (vi){pair_dot(sum.a, w.a, vreinterpretq_s8_u8(x.a), false),
                pair_dot(sum.b, w.b, vreinterpretq_s8_u8(x.b), false),
                pair_dot(sum.c, w.c, vreinterpretq_s8_u8(x.c), false),
                pair_dot(sum.d, w.d, vreinterpretq_s8_u8(x.d), false)};
}

#endif
