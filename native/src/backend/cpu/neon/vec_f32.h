/* vec_f32.h (neon; i8mm and asimd have the same): four q registers, lanes 0..3 in a.
 * Meanings are in scalar/vec_f32.h. */
#ifndef LLM_VEC_F32_H
#define LLM_VEC_F32_H

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/isa.h"
#include "base/half.h"

#define VF_LANES 16
#define VF_TILE_ROWS 6 /* 24 accumulators of 32 registers */
#define VF_TILE_VECS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)

typedef struct vf {
    float32x4_t a, b, c, d;
} vf;
typedef struct vi {
    int32x4_t a, b, c, d;
} vi;
typedef struct vm { /* all bits of a lane */
    uint32x4_t a, b, c, d;
} vm;

LLM_INLINE float vf_sqrt1(float x) { return sqrtf(x); }
LLM_INLINE uint16_t vf_f32_to_f16_1(float f) { return llm_f32_to_f16(f); }

LLM_INLINE vf vf_set1(float x) {
    float32x4_t v = vdupq_n_f32(x);
    return (vf){v, v, v, v};
}
LLM_INLINE vf vf_zero(void) { return vf_set1(0.0f); }
LLM_INLINE vf vf_load(const float *p) {
    return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
LLM_INLINE void vf_store(float *p, vf x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
LLM_INLINE vf vf_load_n(const float *p, int n) {
    float copy[16] = {0};
    memcpy(copy, p, sizeof(float) * (size_t)n);
    return vf_load(copy);
}
LLM_INLINE void vf_store_n(float *p, vf x, int n) {
    float copy[16];
    vf_store(copy, x);
    memcpy(p, copy, sizeof(float) * (size_t)n);
}

#define VF_OP1(name, to, from, op)                                                                 \
    LLM_INLINE to name(from x) { return (to){op(x.a), op(x.b), op(x.c), op(x.d)}; }
#define VF_OP2(name, type, op)                                                                     \
    LLM_INLINE type name(type x, type y) {                                                         \
        return (type){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};                     \
    }
VF_OP2(vf_add, vf, vaddq_f32)
VF_OP2(vf_sub, vf, vsubq_f32)
VF_OP2(vf_mul, vf, vmulq_f32)
VF_OP2(vf_div, vf, vdivq_f32)
/* The machine's own max orders zeros and spreads NaN. */
LLM_INLINE float32x4_t vf_max4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
LLM_INLINE float32x4_t vf_min4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcltq_f32(x, y), x, y);
}
VF_OP2(vf_max, vf, vf_max4)
VF_OP2(vf_min, vf, vf_min4)
LLM_INLINE vf vf_fma(vf x, vf y, vf z) {
    return (vf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                vfmaq_f32(z.d, x.d, y.d)};
}
LLM_INLINE vf vf_fnma(vf x, vf y, vf z) {
    return (vf){vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b), vfmsq_f32(z.c, x.c, y.c),
                vfmsq_f32(z.d, x.d, y.d)};
}

VF_OP1(vf_bits, vi, vf, vreinterpretq_s32_f32)
VF_OP1(vi_as_f, vf, vi, vreinterpretq_f32_s32)
VF_OP1(vf_abs, vf, vf, vabsq_f32)
VF_OP1(vf_neg, vf, vf, vnegq_f32)
LLM_INLINE float32x4_t vf_copysign4(float32x4_t magnitude, float32x4_t sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000), sign, magnitude);
}
VF_OP2(vf_copysign, vf, vf_copysign4)

LLM_INLINE vi vi_set1(int32_t x) {
    int32x4_t v = vdupq_n_s32(x);
    return (vi){v, v, v, v};
}
LLM_INLINE vi vi_load(const int32_t *p) {
    return (vi){vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
LLM_INLINE void vi_store(int32_t *p, vi x) {
    vst1q_s32(p, x.a);
    vst1q_s32(p + 4, x.b);
    vst1q_s32(p + 8, x.c);
    vst1q_s32(p + 12, x.d);
}
VF_OP2(vi_add, vi, vaddq_s32)
VF_OP2(vi_sub, vi, vsubq_s32)
VF_OP2(vi_max, vi, vmaxq_s32)
#define vi_shl(x, n)                                                                               \
    ((vi){vshlq_n_s32((x).a, n), vshlq_n_s32((x).b, n), vshlq_n_s32((x).c, n),                     \
          vshlq_n_s32((x).d, n)})
#define vi_sra(x, n) vi_sra_(x, -(n)) /* an immediate shift would exclude 0 */
LLM_INLINE vi vi_sra_(vi x, int left) {
    int32x4_t n = vdupq_n_s32(left);
    return (vi){vshlq_s32(x.a, n), vshlq_s32(x.b, n), vshlq_s32(x.c, n), vshlq_s32(x.d, n)};
}
LLM_INLINE vi vf_absbits_max(vi most, vf x) { return vi_max(most, vf_bits(vf_abs(x))); }

VF_OP1(vi_to_f, vf, vi, vcvtq_f32_s32)
/* The machine saturates and turns NaN into 0. */
LLM_INLINE int32x4_t vf_rint4(float32x4_t x) {
    uint32x4_t fits = vcltq_f32(vabsq_f32(x), vdupq_n_f32(2147483648.0f));
    return vbslq_s32(fits, vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN));
}
VF_OP1(vf_rint, vi, vf, vf_rint4)
LLM_INLINE vi vi_widen_s8(int8x16_t x) {
    int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_high_s8(x);
    return (vi){vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)),
                vmovl_high_s16(hi)};
}
LLM_INLINE vf vf_load_s8(const int8_t *p) { return vi_to_f(vi_widen_s8(vld1q_s8(p))); }
LLM_INLINE vf vf_load_f16(const uint16_t *p) {
    float16x8_t lo = vreinterpretq_f16_u16(vld1q_u16(p));
    float16x8_t hi = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return (vf){vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo),
                vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)};
}
LLM_INLINE float32x4_t vf_bf16_4(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
LLM_INLINE vf vf_load_bf16(const uint16_t *p) {
    return (vf){vf_bf16_4(vld1_u16(p)), vf_bf16_4(vld1_u16(p + 4)), vf_bf16_4(vld1_u16(p + 8)),
                vf_bf16_4(vld1_u16(p + 12))};
}
LLM_INLINE void vf_store_f16(uint16_t *p, vf x) {
    float16x8_t lo = vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b);
    float16x8_t hi = vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d);
    vst1q_u16(p, vreinterpretq_u16_f16(lo));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(hi));
}
LLM_INLINE void vi_store_s8(int8_t *p, vi x) {
    int16x8_t lo = vmovn_high_s32(vmovn_s32(x.a), x.b), hi = vmovn_high_s32(vmovn_s32(x.c), x.d);
    vst1q_s8(p, vmovn_high_s16(vmovn_s16(lo), hi));
}

LLM_INLINE vm vm_from_bits(uint32_t bits) {
    static const uint32_t lane_bits[4] = {1, 2, 4, 8};
    const uint32x4_t lane = vld1q_u32(lane_bits);
    return (vm){vtstq_u32(vdupq_n_u32(bits), lane), vtstq_u32(vdupq_n_u32(bits >> 4), lane),
                vtstq_u32(vdupq_n_u32(bits >> 8), lane), vtstq_u32(vdupq_n_u32(bits >> 12), lane)};
}
LLM_INLINE vm vf_lt(vf x, vf y) {
    return (vm){vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c), vcltq_f32(x.d, y.d)};
}
LLM_INLINE vf vf_select(vm m, vf yes, vf no) {
    return (vf){vbslq_f32(m.a, yes.a, no.a), vbslq_f32(m.b, yes.b, no.b),
                vbslq_f32(m.c, yes.c, no.c), vbslq_f32(m.d, yes.d, no.d)};
}

VF_OP1(vf_swap_pairs, vf, vf, vrev64q_f32)
LLM_INLINE vf vf_load_dup8(const float *p) {
    float32x4_t lo = vld1q_f32(p), hi = vld1q_f32(p + 4);
    return (vf){vzip1q_f32(lo, lo), vzip2q_f32(lo, lo), vzip1q_f32(hi, hi), vzip2q_f32(hi, hi)};
}

LLM_INLINE float vf_reduce_add(vf x) {
    float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
LLM_INLINE float vf_reduce_max(vf x) {
    float32x4_t q = vf_max4(vf_max4(x.a, x.c), vf_max4(x.b, x.d));
    q = vf_max4(q, vextq_f32(q, q, 2));
    return vgetq_lane_f32(vf_max4(q, vdupq_laneq_f32(q, 1)), 0);
}
LLM_INLINE int32_t vi_reduce_max(vi x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d)));
}
LLM_INLINE int32_t vi_reduce_add(vi x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}

#endif
