/* vec_f32.h (avx2, fma, f16c): two ymm. Meanings are in scalar/vec_f32.h. */
#ifndef LLM_VEC_F32_H
#define LLM_VEC_F32_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/isa.h"

#define VF_LANES 16
#define VF_TILE_ROWS 6 /* 12 accumulators of 16 registers */
#define VF_TILE_VECS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)

typedef struct vf {
    __m256 lo, hi;
} vf;
typedef struct vi {
    __m256i lo, hi;
} vi;
typedef struct vm {
    __m256 lo, hi;
} vm; /* all bits of a lane */

LLM_INLINE float vf_sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
LLM_INLINE uint16_t vf_f32_to_f16_1(float f) { return (uint16_t)_cvtss_sh(f, 0); }

LLM_INLINE vf vf_pair(__m256 lo, __m256 hi) {
    vf r = {lo, hi};
    return r;
}
LLM_INLINE vi vi_pair(__m256i lo, __m256i hi) {
    vi r = {lo, hi};
    return r;
}
LLM_INLINE vi vi_first(int n) { /* all bits in the first n lanes */
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return vi_pair(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane),
                   _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane));
}

LLM_INLINE vf vf_set1(float x) { return vf_pair(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
LLM_INLINE vf vf_zero(void) { return vf_pair(_mm256_setzero_ps(), _mm256_setzero_ps()); }
LLM_INLINE vf vf_load(const float *p) {
    return vf_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
LLM_INLINE void vf_store(float *p, vf a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
LLM_INLINE vf vf_load_n(const float *p, int n) {
    vi m = vi_first(n);
    return vf_pair(_mm256_maskload_ps(p, m.lo),
                   n > 8 ? _mm256_maskload_ps(p + 8, m.hi) : _mm256_setzero_ps());
}
LLM_INLINE void vf_store_n(float *p, vf a, int n) {
    vi m = vi_first(n);
    _mm256_maskstore_ps(p, m.lo, a.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}

#define VF_OP2(name, op)                                                                           \
    LLM_INLINE vf name(vf a, vf b) { return vf_pair(op(a.lo, b.lo), op(a.hi, b.hi)); }
VF_OP2(vf_add, _mm256_add_ps)
VF_OP2(vf_sub, _mm256_sub_ps)
VF_OP2(vf_mul, _mm256_mul_ps)
VF_OP2(vf_div, _mm256_div_ps)
VF_OP2(vf_max, _mm256_max_ps)
VF_OP2(vf_min, _mm256_min_ps)
#undef VF_OP2
LLM_INLINE vf vf_fma(vf a, vf b, vf c) {
    return vf_pair(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
LLM_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return vf_pair(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi));
}

LLM_INLINE vi vf_bits(vf a) {
    return vi_pair(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
}
LLM_INLINE vf vi_as_f(vi a) {
    return vf_pair(_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi));
}
LLM_INLINE vf vf_abs(vf a) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return vf_pair(_mm256_andnot_ps(s, a.lo), _mm256_andnot_ps(s, a.hi));
}
LLM_INLINE vf vf_neg(vf a) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return vf_pair(_mm256_xor_ps(s, a.lo), _mm256_xor_ps(s, a.hi));
}
LLM_INLINE vf vf_copysign(vf magnitude, vf sign) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return vf_pair(_mm256_or_ps(_mm256_andnot_ps(s, magnitude.lo), _mm256_and_ps(s, sign.lo)),
                   _mm256_or_ps(_mm256_andnot_ps(s, magnitude.hi), _mm256_and_ps(s, sign.hi)));
}

LLM_INLINE vi vi_set1(int32_t x) { return vi_pair(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
LLM_INLINE vi vi_load(const int32_t *p) {
    return vi_pair(_mm256_loadu_si256((const __m256i *)p),
                   _mm256_loadu_si256((const __m256i *)(p + 8)));
}
LLM_INLINE void vi_store(int32_t *p, vi a) {
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 8), a.hi);
}
LLM_INLINE vi vi_add(vi a, vi b) {
    return vi_pair(_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi));
}
LLM_INLINE vi vi_sub(vi a, vi b) {
    return vi_pair(_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi));
}
LLM_INLINE vi vi_max(vi a, vi b) {
    return vi_pair(_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi));
}
#define vi_shl(a, n) vi_pair(_mm256_slli_epi32((a).lo, n), _mm256_slli_epi32((a).hi, n))
#define vi_sra(a, n) vi_pair(_mm256_srai_epi32((a).lo, n), _mm256_srai_epi32((a).hi, n))
LLM_INLINE vi vf_absbits_max(vi acc, vf a) { return vi_max(acc, vf_bits(vf_abs(a))); }

LLM_INLINE vf vi_to_f(vi a) { return vf_pair(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)); }
LLM_INLINE vi vf_rint(vf a) { /* the rounding mode is always nearest even */
    return vi_pair(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
}
LLM_INLINE vf vf_load_s8(const int8_t *p) {
    return vi_to_f(vi_pair(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                           _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}
LLM_INLINE vf vf_load_f16(const uint16_t *p) {
    return vf_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
LLM_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
    return vi_as_f(vi_pair(_mm256_slli_epi32(lo, 16), _mm256_slli_epi32(hi, 16)));
}
LLM_INLINE void vf_store_f16(uint16_t *p, vf a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
LLM_INLINE void vi_store_s8(int8_t *p, vi a) {
    /* low bytes of each 128-bit half to its first 4 bytes */
    const __m256i low =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i lo = _mm256_shuffle_epi8(a.lo, low), hi = _mm256_shuffle_epi8(a.hi, low);
    __m128i l = _mm_unpacklo_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
    __m128i h = _mm_unpacklo_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
    _mm_storeu_si128((__m128i *)p, _mm_unpacklo_epi64(l, h));
}

LLM_INLINE vm vm_from_bits(uint32_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i lo = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 255)), lane);
    __m256i hi = _mm256_and_si256(_mm256_set1_epi32((int)(bits >> 8)), lane);
    vm r = {_mm256_castsi256_ps(_mm256_cmpeq_epi32(lo, lane)),
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(hi, lane))};
    return r;
}
LLM_INLINE vm vf_lt(vf a, vf b) {
    vm r = {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
    return r;
}
LLM_INLINE vf vf_select(vm m, vf yes, vf no) {
    return vf_pair(_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi));
}

LLM_INLINE vf vf_swap_pairs(vf a) {
    return vf_pair(_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1));
}
LLM_INLINE vf vf_load_dup8(const float *p) {
    __m256 a = _mm256_loadu_ps(p);
    const __m256i lo = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256i hi = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    return vf_pair(_mm256_permutevar8x32_ps(a, lo), _mm256_permutevar8x32_ps(a, hi));
}

LLM_INLINE float vf_reduce_add(vf a) {
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LLM_INLINE float vf_reduce_max(vf a) {
    __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
LLM_INLINE int32_t vi_reduce_max(vi a) {
    __m256i b = _mm256_max_epi32(a.lo, a.hi);
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
LLM_INLINE int32_t vi_reduce_add(vi a) {
    __m256i b = _mm256_add_epi32(a.lo, a.hi);
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}

#endif
