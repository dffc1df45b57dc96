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
LLM_INLINE vb vb_table(const uint8_t *p) {
    uint8x16_t t = vld1q_u8(p);
    return (vb){t, t, t, t};
}
VF_OP2(vb_lookup, vb, vqtbl1q_u8)

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
LLM_INLINE vb vb_split(vi x, vi y) {
    uint8x16_t a = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(x.a), x.b));
    uint8x16_t b = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(x.c), x.d));
    uint8x16_t c = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(y.a), y.b));
    uint8x16_t d = vreinterpretq_u8_s16(vmovn_high_s32(vmovn_s32(y.c), y.d));
    return (vb){vuzp1q_u8(a, b), vuzp1q_u8(c, d), vuzp2q_u8(a, b), vuzp2q_u8(c, d)};
}
LLM_INLINE vb vb_set4(const void *p) {
    uint8x16_t x = vreinterpretq_u8_s8(vb_four((const int8_t *)p));
    return (vb){x, x, x, x};
}
LLM_INLINE int32x4_t vb_dot_each4(int32x4_t sum, uint8x16_t u, uint8x16_t s) {
    int8x16_t x = vreinterpretq_s8_u8(s);
    int32x4_t back = vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), x), 7);
    return vb_dot4(vaddq_s32(sum, back), veorq_u8(u, vdupq_n_u8(0x80)), x);
}
LLM_INLINE vi vb_dot_each(vi sum, vb u, vb s) {
    return (vi){vb_dot_each4(sum.a, u.a, s.a), vb_dot_each4(sum.b, u.b, s.b),
                vb_dot_each4(sum.c, u.c, s.c), vb_dot_each4(sum.d, u.d, s.d)};
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
