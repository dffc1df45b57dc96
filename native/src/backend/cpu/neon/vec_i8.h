/* vec_i8.h (neon with dot products): one instruction adds the dots of a quad of rows with four
 * inputs of a token, a lane of the register that holds sixteen. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "vec_bytes.h"

/* sum + the dots of 16 inputs of four rows, w[i] inputs 4i to 4i + 3, with those of one token. */
LLM_INLINE int32x4_t quad_dot(int32x4_t sum, const uint8x16_t *w, int8x16_t x,
                              llm_quad_range range) {
    (void)range;
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[0]), x, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[1]), x, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[2]), x, 2);
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[3]), x, 3);
}

LLM_INLINE int32x4_t vb_dot4(int32x4_t sum, uint8x16_t w, uint8x16_t x) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
}
LLM_INLINE vi vb_dot_pair(vi sum, vb w, vb x) {
    return (vi){vb_dot4(sum.a, w.a, x.a), vb_dot4(sum.b, w.b, x.b), vb_dot4(sum.c, w.c, x.c),
                vb_dot4(sum.d, w.d, x.d)};
}

LLM_INLINE int32x4_t vb_dot_each4(int32x4_t sum, uint8x16_t u, uint8x16_t s) {
    int32x4_t back = vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), vreinterpretq_s8_u8(s));
    sum = vaddq_s32(sum, vshlq_n_s32(back, 7));
    return vb_dot4(sum, veorq_u8(u, vdupq_n_u8(0x80)), s);
}
LLM_INLINE vi vb_dot_each(vi sum, vb u, vb s) {
    return (vi){vb_dot_each4(sum.a, u.a, s.a), vb_dot_each4(sum.b, u.b, s.b),
                vb_dot_each4(sum.c, u.c, s.c), vb_dot_each4(sum.d, u.d, s.d)};
}

#endif
