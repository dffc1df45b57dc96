/* vec_bytes.h (neon, i8mm, asimd): what their vec_i8.h share. Products go by quads of rows
 * (quads.h): a quad is a q register, [4 rows][4 inputs]. Meanings of the other names are in
 * scalar/vec_i8.h. */
#ifndef LLM_VEC_BYTES_H
#define LLM_VEC_BYTES_H

#include "vec_f32.h"

#define LLM_QUADS 1
#define LLM_TILE 4 /* with 8 rows at a time, 8 sums of each kind */
#define LLM_FUSED 4 /* most tokens of the unpack-in-registers path */

typedef struct vb {
    uint8x16_t a, b, c, d;
} vb;

LLM_INLINE vb vb_load(const uint8_t *p) {
    return (vb){vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
}

LLM_INLINE void vb_store(uint8_t *p, vb x) {
    vst1q_u8(p, x.a);
    vst1q_u8(p + 16, x.b);
    vst1q_u8(p + 32, x.c);
    vst1q_u8(p + 48, x.d);
}
LLM_INLINE vb vb_and1(vb x, uint8_t mask) {
    uint8x16_t m = vdupq_n_u8(mask);
    return (vb){vandq_u8(x.a, m), vandq_u8(x.b, m), vandq_u8(x.c, m), vandq_u8(x.d, m)};
}
VF_OP2(vb_or, vb, vorrq_u8)
#define vb_shl(x, n, mask)                                                                         \
    vb_and1((vb){vshlq_n_u8((x).a, n), vshlq_n_u8((x).b, n), vshlq_n_u8((x).c, n),                 \
                 vshlq_n_u8((x).d, n)},                                                            \
            mask)
#define vb_shr(x, n, mask)                                                                         \
    vb_and1((vb){vshrq_n_u8((x).a, n), vshrq_n_u8((x).b, n), vshrq_n_u8((x).c, n),                 \
                 vshrq_n_u8((x).d, n)},                                                            \
            mask)

LLM_INLINE vb vb_minus(vb x, uint8_t value) {
    uint8x16_t v = vdupq_n_u8(value);
    return (vb){vsubq_u8(x.a, v), vsubq_u8(x.b, v), vsubq_u8(x.c, v), vsubq_u8(x.d, v)};
}
LLM_INLINE vb vb_nibbles(const uint16_t *p) {
    uint16x8_t a = vld1q_u16(p), b = vld1q_u16(p + 8);
    uint8x16_t low = vcombine_u8(vmovn_u16(a), vmovn_u16(b));
    uint8x16_t high = vcombine_u8(vshrn_n_u16(a, 8), vshrn_n_u16(b, 8)), mask = vdupq_n_u8(15);
    return (vb){vandq_u8(low, mask), vshrq_n_u8(low, 4), vandq_u8(high, mask), vshrq_n_u8(high, 4)};
}

LLM_INLINE vi vi_load_pairs(const uint8_t *p) {
    uint8x16_t low = vld1q_u8(p), high = vld1q_u8(p + 16);
    uint8x16_t a = vzip1q_u8(low, high), b = vzip2q_u8(low, high);
    return (vi){
        vreinterpretq_s32_u16(vmovl_u8(vget_low_u8(a))), vreinterpretq_s32_u16(vmovl_high_u8(a)),
        vreinterpretq_s32_u16(vmovl_u8(vget_low_u8(b))), vreinterpretq_s32_u16(vmovl_high_u8(b))};
}
LLM_INLINE vi vi_load_u8(const uint8_t *p) {
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(x)), hi = vmovl_high_u8(x);
    return (vi){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))),
                vreinterpretq_s32_u32(vmovl_high_u16(lo)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))),
                vreinterpretq_s32_u32(vmovl_high_u16(hi))};
}

LLM_INLINE vb vb_split(vi x, vi y) {
    uint8x16_t a = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(x.a), x.b));
    uint8x16_t b = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(x.c), x.d));
    uint8x16_t c = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(y.a), y.b));
    uint8x16_t d = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(y.c), y.d));
    return (vb){vuzp1q_u8(a, b), vuzp1q_u8(c, d), vuzp2q_u8(a, b), vuzp2q_u8(c, d)};
}
LLM_INLINE vb vb_set4(const void *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    uint8x16_t x = vreinterpretq_u8_u32(vdupq_n_u32(word));
    return (vb){x, x, x, x};
}

LLM_INLINE void vb_prefetch(const uint8_t *p) { __builtin_prefetch(p); }
LLM_INLINE void vb_prefetch_l2(const uint8_t *p) { LLM_PREFETCH_L2(p); }

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
