/* vec_f32.h (scalar): 16 lanes as plain C. This file defines what every operation means; the other
 * instruction sets give the same bits (NaN payloads aside).
 *
 *   vf: 16 f32 lanes   vi: 16 s32 lanes   vm: 16 booleans
 *
 * Loads and stores take any alignment. *_n touch the first n lanes only (0 <= n <= 16) and load
 * zero into the rest. Every arithmetic operation rounds once, to nearest even. */
#ifndef LLM_VEC_F32_H
#define LLM_VEC_F32_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/isa.h"
#include "base/half.h"

#define VF_LANES 16
/* Register tile of the dense float kernels: at most TILE_ROWS rows, and for so many rows how many
 * vectors of accumulators each. */
#define VF_TILE_ROWS 1
#define VF_TILE_VECS(rows) 1

typedef struct vf {
    float v[16];
} vf;
typedef struct vi {
    int32_t v[16];
} vi;
typedef uint16_t vm;

#define VF_EACH for (int i = 0; i < 16; i++)

/* a * b + c rounded once. Without a fast instruction: the product is exact in double, the sum is
 * rounded to odd there, which makes the second rounding, to float, the only one that counts. (The
 * C library's fmaf is not trusted: not every one rounds once.) */
LLM_INLINE float vf_fma1(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * (double)b, d = (double)c;
    double s = p + d, back = s - p;
    double error = (p - (s - back)) + (d - back);
    uint64_t u;
    memcpy(&u, &s, 8);
    uint64_t grow = (error > 0) == (s > 0);
    /* An even last bit is moved towards the exact sum; error is 0 when exact, NaN when s is not
     * finite. */
    if ((error > 0 || error < 0) && (u & 1) == 0) u = grow ? u + 1 : u - 1;
    memcpy(&s, &u, 8);
    return (float)s;
#endif
}

LLM_INLINE float vf_sqrt1(float x) { return sqrtf(x); }

LLM_INLINE float vf_f16_to_f32_1(uint16_t h) { return llm_f16_to_f32(h); }
LLM_INLINE uint16_t vf_f32_to_f16_1(float f) { return llm_f32_to_f16(f); }

/* Nearest even; INT32_MIN for NaN and what does not fit. */
LLM_INLINE int32_t vf_rint1(float x) {
    if (!(x >= -2147483648.0f && x < 2147483648.0f)) return INT32_MIN;
    double d = (double)x + 6755399441055744.0; /* 1.5 * 2^52: the low word is the integer */
    uint64_t u;
    memcpy(&u, &d, 8);
    return (int32_t)(uint32_t)u;
}

LLM_INLINE vf vf_set1(float x) {
    vf r;
    VF_EACH r.v[i] = x;
    return r;
}
LLM_INLINE vf vf_zero(void) { return vf_set1(0.0f); }
LLM_INLINE vf vf_load(const float *p) {
    vf r;
    memcpy(r.v, p, 64);
    return r;
}
LLM_INLINE void vf_store(float *p, vf a) { memcpy(p, a.v, 64); }
LLM_INLINE vf vf_load_n(const float *p, int n) {
    vf r = vf_zero();
    for (int i = 0; i < n; i++) r.v[i] = p[i];
    return r;
}
LLM_INLINE void vf_store_n(float *p, vf a, int n) {
    for (int i = 0; i < n; i++) p[i] = a.v[i];
}

#define VF_BINARY(name, e)                                                                         \
    LLM_INLINE vf name(vf a, vf b) {                                                               \
        VF_EACH a.v[i] = e;                                                                        \
        return a;                                                                                  \
    }
VF_BINARY(vf_add, a.v[i] + b.v[i])
VF_BINARY(vf_sub, a.v[i] - b.v[i])
VF_BINARY(vf_mul, a.v[i] * b.v[i])
VF_BINARY(vf_div, a.v[i] / b.v[i])
/* the second operand when one is NaN or both are zero */
VF_BINARY(vf_max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
VF_BINARY(vf_min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
/* a * b + c and c - a * b */
LLM_INLINE vf vf_fma(vf a, vf b, vf c) {
    VF_EACH c.v[i] = vf_fma1(a.v[i], b.v[i], c.v[i]);
    return c;
}
LLM_INLINE vf vf_fnma(vf a, vf b, vf c) {
    VF_EACH c.v[i] = vf_fma1(-a.v[i], b.v[i], c.v[i]);
    return c;
}

/* bits */
LLM_INLINE vi vf_bits(vf a) {
    vi r;
    memcpy(r.v, a.v, 64);
    return r;
}
LLM_INLINE vf vi_as_f(vi a) {
    vf r;
    memcpy(r.v, a.v, 64);
    return r;
}
LLM_INLINE vf vf_abs(vf a) {
    VF_EACH a.v[i] = llm_bits_f32(llm_f32_bits(a.v[i]) & 0x7fffffff);
    return a;
}
LLM_INLINE vf vf_neg(vf a) {
    VF_EACH a.v[i] = llm_bits_f32(llm_f32_bits(a.v[i]) ^ 0x80000000);
    return a;
}
LLM_INLINE vf vf_copysign(vf magnitude, vf sign) {
    VF_EACH magnitude.v[i] = llm_bits_f32((llm_f32_bits(magnitude.v[i]) & 0x7fffffff)
                                          | (llm_f32_bits(sign.v[i]) & 0x80000000));
    return magnitude;
}

/* integer lanes; add and sub wrap */
LLM_INLINE vi vi_set1(int32_t x) {
    vi r;
    VF_EACH r.v[i] = x;
    return r;
}
LLM_INLINE vi vi_load(const int32_t *p) {
    vi r;
    memcpy(r.v, p, 64);
    return r;
}
LLM_INLINE void vi_store(int32_t *p, vi a) { memcpy(p, a.v, 64); }
LLM_INLINE vi vi_add(vi a, vi b) {
    VF_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]);
    return a;
}
LLM_INLINE vi vi_sub(vi a, vi b) {
    VF_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]);
    return a;
}
LLM_INLINE vi vi_max(vi a, vi b) {
    VF_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
#define vi_shl(a, n) vi_shl_(a, n) /* by a literal */
LLM_INLINE vi vi_shl_(vi a, int n) {
    VF_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] << n);
    return a;
}
#define vi_sra(a, n) vi_sra_(a, n) /* by a literal, sign kept */
LLM_INLINE vi vi_sra_(vi a, int n) {
    VF_EACH a.v[i] = a.v[i] >> n;
    return a;
}
/* max(acc, |a| as integer bits): orders finite values, then inf, then NaN */
LLM_INLINE vi vf_absbits_max(vi acc, vf a) { return vi_max(acc, vf_bits(vf_abs(a))); }

/* conversions */
LLM_INLINE vf vi_to_f(vi a) {
    vf r;
    VF_EACH r.v[i] = (float)a.v[i];
    return r;
}
LLM_INLINE vi vf_rint(vf a) {
    vi r;
    VF_EACH r.v[i] = vf_rint1(a.v[i]);
    return r;
}
LLM_INLINE vf vf_load_s8(const int8_t *p) {
    vf r;
    VF_EACH r.v[i] = (float)p[i];
    return r;
}
LLM_INLINE vf vf_load_f16(const uint16_t *p) {
    vf r;
    VF_EACH r.v[i] = vf_f16_to_f32_1(p[i]);
    return r;
}
LLM_INLINE vf vf_load_bf16(const uint16_t *p) {
    vf r;
    VF_EACH r.v[i] = llm_bf16_to_f32(p[i]);
    return r;
}
LLM_INLINE void vf_store_f16(uint16_t *p, vf a) { VF_EACH p[i] = vf_f32_to_f16_1(a.v[i]); }
/* low byte of every lane */
LLM_INLINE void vi_store_s8(int8_t *p, vi a) { VF_EACH p[i] = (int8_t)(uint8_t)a.v[i]; }

/* masks; bit i is lane i */
LLM_INLINE vm vm_from_bits(uint32_t bits) { return (vm)bits; }
LLM_INLINE vm vf_lt(vf a, vf b) {
    vm m = 0;
    VF_EACH m |= (vm)((a.v[i] < b.v[i]) << i);
    return m;
}
LLM_INLINE vf vf_select(vm m, vf yes, vf no) {
    VF_EACH no.v[i] = m >> i & 1 ? yes.v[i] : no.v[i];
    return no;
}

/* lane moves for rotations: x[1], x[0], x[3], x[2], ...; and p[0], p[0], p[1], p[1], ... p[7] */
LLM_INLINE vf vf_swap_pairs(vf a) {
    vf r;
    VF_EACH r.v[i] = a.v[i ^ 1];
    return r;
}
LLM_INLINE vf vf_load_dup8(const float *p) {
    vf r;
    VF_EACH r.v[i] = p[i / 2];
    return r;
}

/* the tree: lane i with lane i + 8, then + 4, + 2, + 1 */
LLM_INLINE float vf_reduce_add(vf a) {
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a.v[i] = a.v[i] + a.v[i + h];
    return a.v[0];
}
LLM_INLINE float vf_reduce_max(vf a) {
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a.v[i] = a.v[i] > a.v[i + h] ? a.v[i] : a.v[i + h];
    return a.v[0];
}
LLM_INLINE int32_t vi_reduce_max(vi a) {
    int32_t m = a.v[0];
    for (int i = 1; i < 16; i++) m = a.v[i] > m ? a.v[i] : m;
    return m;
}
LLM_INLINE int32_t vi_reduce_add(vi a) {
    uint32_t s = 0;
    VF_EACH s += (uint32_t)a.v[i];
    return (int32_t)s;
}

#endif
