/* vec_f32.h (avx512: F, BW, DQ, VL): one zmm. Meanings are in scalar/vec_f32.h. */
#ifndef LLM_VEC_F32_H
#define LLM_VEC_F32_H

#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/isa.h"

#define VF_LANES 16
#define VF_TILE_ROWS 12 /* 24 accumulators of 32 registers */
#define VF_TILE_VECS(rows) ((rows) <= 6 ? 4 : 2)

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

LLM_INLINE float vf_sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
LLM_INLINE uint16_t vf_f32_to_f16_1(float f) { return (uint16_t)_cvtss_sh(f, 0); }

LLM_INLINE __mmask16 vm_first(int n) { return (__mmask16)((1u << n) - 1); }

LLM_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
LLM_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
LLM_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
LLM_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
LLM_INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
LLM_INLINE void vf_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, vm_first(n), a); }

LLM_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
LLM_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
LLM_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
LLM_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
LLM_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LLM_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
LLM_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
LLM_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }

LLM_INLINE vi vf_bits(vf a) { return _mm512_castps_si512(a); }
LLM_INLINE vf vi_as_f(vi a) { return _mm512_castsi512_ps(a); }
LLM_INLINE vf vf_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
LLM_INLINE vf vf_neg(vf a) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), a); }
LLM_INLINE vf vf_copysign(vf magnitude, vf sign) {
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(sign), _mm512_castps_si512(magnitude),
        0xca)); /* bitwise first ? second : third */
}

LLM_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
LLM_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
LLM_INLINE void vi_store(int32_t *p, vi a) { _mm512_storeu_si512(p, a); }
LLM_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
LLM_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
LLM_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_sra(a, n) _mm512_srai_epi32(a, n)
LLM_INLINE vi vf_absbits_max(vi acc, vf a) { return vi_max(acc, vf_bits(vf_abs(a))); }

LLM_INLINE vf vi_to_f(vi a) { return _mm512_cvtepi32_ps(a); }
LLM_INLINE vi vf_rint(vf a) {
    return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
LLM_INLINE vf vf_load_s8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LLM_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
LLM_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
LLM_INLINE void vf_store_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
LLM_INLINE void vi_store_s8(int8_t *p, vi a) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}

LLM_INLINE vm vm_from_bits(uint32_t bits) { return (vm)bits; }
LLM_INLINE vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LLM_INLINE vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }

LLM_INLINE vf vf_swap_pairs(vf a) { return _mm512_permute_ps(a, 0xb1); }
LLM_INLINE vf vf_load_dup8(const float *p) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}

LLM_INLINE float vf_reduce_add(vf a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LLM_INLINE float vf_reduce_max(vf a) {
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
/* For vec_fold.h: units p, p + 4, p + 8 and p + 12 become the four lanes of 128 bits, then four such
 * vectors become one. */
#define VF_REDUCE16(name, op)                                                                      \
    LLM_INLINE vf name##_4(const float *v) {                                                       \
        vf a = vf_load(v), b = vf_load(v + 64), c = vf_load(v + 128), d = vf_load(v + 192);        \
        vf e = op(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));             \
        vf f = op(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));             \
        return op(_mm512_shuffle_f32x4(e, f, 0x88), _mm512_shuffle_f32x4(e, f, 0xdd));             \
    }                                                                                              \
    LLM_INLINE vf name##_8(const float *v) {                                                       \
        __m512d a = _mm512_castps_pd(name##_4(v)), b = _mm512_castps_pd(name##_4(v + 16));         \
        return op(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),                                      \
                  _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));                                     \
    }                                                                                              \
    LLM_INLINE vf name(const float *v) {                                                           \
        vf a = name##_8(v), b = name##_8(v + 32);                                                  \
        return op(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));                   \
    }
VF_REDUCE16(vf_reduce_add16, vf_add)
VF_REDUCE16(vf_reduce_max16, vf_max)
LLM_INLINE int32_t vi_reduce_max(vi a) { return _mm512_reduce_max_epi32(a); }
LLM_INLINE int32_t vi_reduce_add(vi a) { return _mm512_reduce_add_epi32(a); }

#endif
