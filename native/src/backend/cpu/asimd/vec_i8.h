/* vec_i8.h (asimd: ARMv8.0, without dot products, such as a Raspberry Pi 4): products of 16
 * bits, of which as many are added as surely fit. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "../neon/vec_bytes.h"

/* Products of the same inputs of two rows, [2 rows][4 inputs]. */
typedef struct llm_products {
    int16x8_t low, high;
} llm_products;

LLM_INLINE llm_products products(uint8x16_t w, int8x16_t x) {
    int8x16_t s = vreinterpretq_s8_u8(w);
    return (llm_products){vmull_s8(vget_low_s8(s), vget_low_s8(x)), vmull_high_s8(s, x)};
}
LLM_INLINE llm_products more_products(llm_products p, uint8x16_t w, int8x16_t x) {
    int8x16_t s = vreinterpretq_s8_u8(w);
    return (llm_products){vmlal_s8(p.low, vget_low_s8(s), vget_low_s8(x)),
                          vmlal_high_s8(p.high, s, x)};
}
LLM_INLINE int32x4_t add_products(int32x4_t sum, llm_products p) {
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(p.low), vpaddlq_s16(p.high)));
}

/* Inputs 4i to 4i + 3 of a token, four times. */
#define QUAD_INPUTS(x, i) vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), i))

/* sum + the dots of 16 inputs of four rows, w[i] inputs 4i to 4i + 3, with those of one token. Four
 * products of 64 by 127 fit, and two of 128 by 127. */
LLM_INLINE int32x4_t quad_dot(int32x4_t sum, const uint8x16_t *w, int8x16_t x,
                              llm_quad_range range) {
    llm_products p = more_products(products(w[0], QUAD_INPUTS(x, 0)), w[1], QUAD_INPUTS(x, 1));
    if (range == QUAD_SMALL) {
        p = more_products(p, w[2], QUAD_INPUTS(x, 2));
        return add_products(sum, more_products(p, w[3], QUAD_INPUTS(x, 3)));
    }
    sum = add_products(sum, p);
    p = more_products(products(w[2], QUAD_INPUTS(x, 2)), w[3], QUAD_INPUTS(x, 3));
    return add_products(sum, p);
}

LLM_INLINE int32x4_t vb_dot4(int32x4_t sum, uint8x16_t w, uint8x16_t x) {
    return add_products(sum, products(w, vreinterpretq_s8_u8(x)));
}
LLM_INLINE vi vb_dot_pair(vi sum, vb w, vb x) {
    return (vi){vb_dot4(sum.a, w.a, x.a), vb_dot4(sum.b, w.b, x.b), vb_dot4(sum.c, w.c, x.c),
                vb_dot4(sum.d, w.d, x.d)};
}

LLM_INLINE int32x4_t vb_dot_each4(int32x4_t sum, uint8x16_t u, uint8x16_t s) {
    int32x4_t back = vpaddlq_s16(vpaddlq_s8(vreinterpretq_s8_u8(s)));
    sum = vaddq_s32(sum, vshlq_n_s32(back, 7));
    return vb_dot4(sum, veorq_u8(u, vdupq_n_u8(0x80)), s);
}
LLM_INLINE vi vb_dot_each(vi sum, vb u, vb s) {
    return (vi){vb_dot_each4(sum.a, u.a, s.a), vb_dot_each4(sum.b, u.b, s.b),
                vb_dot_each4(sum.c, u.c, s.c), vb_dot_each4(sum.d, u.d, s.d)};
}

#endif
