/* vec_i8.h (neon with dot products): four q registers of four rows each. Meanings are in
 * scalar/vec_i8.h. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "vec_f32.h"

#define LLM_TILE 4
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

/* 16 bits to 16 bytes of 0 or value */
LLM_INLINE uint8x16_t vb_spread(const uint8_t *p, uint8_t value) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    uint8x16_t bits = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
    return vandq_u8(vtstq_u8(bits, bit), vdupq_n_u8(value));
}
LLM_INLINE vb vb_add_where(vb x, const uint8_t *p, uint8_t value) {
    return (vb){vaddq_u8(x.a, vb_spread(p, value)), vaddq_u8(x.b, vb_spread(p + 2, value)),
                vaddq_u8(x.c, vb_spread(p + 4, value)), vaddq_u8(x.d, vb_spread(p + 6, value))};
}
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
LLM_INLINE vb vb_table(const uint8_t *p) {
    uint8x16_t t = vld1q_u8(p);
    return (vb){t, t, t, t};
}
VF_OP2(vb_lookup, vb, vqtbl1q_u8)

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

LLM_INLINE int8x16_t vb_four(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
LLM_INLINE int32x4_t vb_dot4(int32x4_t sum, uint8x16_t w, int8x16_t x) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(w), x);
}
LLM_INLINE vi vb_dot(vi sum, vb w, const int8_t *p) {
    int8x16_t x = vb_four(p);
    return (vi){vb_dot4(sum.a, w.a, x), vb_dot4(sum.b, w.b, x), vb_dot4(sum.c, w.c, x),
                vb_dot4(sum.d, w.d, x)};
}
LLM_INLINE vi vb_dot_pair(vi sum, vb w, vb x) {
    return (vi){vb_dot4(sum.a, w.a, vreinterpretq_s8_u8(x.a)),
                vb_dot4(sum.b, w.b, vreinterpretq_s8_u8(x.b)),
                vb_dot4(sum.c, w.c, vreinterpretq_s8_u8(x.c)),
                vb_dot4(sum.d, w.d, vreinterpretq_s8_u8(x.d))};
}
/* The dot product is of signed bytes: w - 128, and 128 times the sum of the activations. */
LLM_INLINE vi vb_dot_wide(vi sum, vb w, const int8_t *p) {
    int8x16_t x = vb_four(p);
    int32x4_t back = vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), x), 7);
    uint8x16_t top = vdupq_n_u8(0x80);
    return (vi){vb_dot4(vaddq_s32(sum.a, back), veorq_u8(w.a, top), x),
                vb_dot4(vaddq_s32(sum.b, back), veorq_u8(w.b, top), x),
                vb_dot4(vaddq_s32(sum.c, back), veorq_u8(w.c, top), x),
                vb_dot4(vaddq_s32(sum.d, back), veorq_u8(w.d, top), x)};
}

LLM_INLINE int32x4_t vi_dot_s16_4(int32x4_t sum, int32x4_t pairs, int16x8_t x) {
    int16x8_t s = vreinterpretq_s16_s32(pairs);
    int32x4_t lo = vmull_s16(vget_low_s16(s), vget_low_s16(x)), hi = vmull_high_s16(s, x);
    return vaddq_s32(sum, vpaddq_s32(lo, hi));
}
LLM_INLINE vi vi_dot_s16(vi sum, vi pairs, const int16_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    int16x8_t x = vreinterpretq_s16_s32(vdupq_n_s32(word));
    return (vi){vi_dot_s16_4(sum.a, pairs.a, x), vi_dot_s16_4(sum.b, pairs.b, x),
                vi_dot_s16_4(sum.c, pairs.c, x), vi_dot_s16_4(sum.d, pairs.d, x)};
}

LLM_INLINE void vb_prefetch(const uint8_t *p) { __builtin_prefetch(p); }

LLM_INLINE vb vb_opaque(vb x) {
    __asm__ volatile("" : "+w"(x.a), "+w"(x.b), "+w"(x.c), "+w"(x.d));
    return x;
}

#endif
