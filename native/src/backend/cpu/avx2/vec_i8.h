/* vec_i8.h (avx2, fma, f16c): products by vpmaddubsw. Meanings are in scalar/vec_i8.h. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "vec_bytes.h"

#define LLM_TILE 4
#define LLM_FUSED 4 /* most tokens of the unpack-in-registers path */

/* Two s16 sums of two products each: below 2 * 127 * 127, so nothing saturates. */
LLM_INLINE __m256i vb_dot_half(__m256i w, __m256i a) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1));
}
LLM_INLINE vi vb_dot(vi acc, vb w, const int8_t *a) {
    __m256i x = vb_four(a);
    return vi_pair(_mm256_add_epi32(acc.lo, vb_dot_half(w.lo, x)),
                   _mm256_add_epi32(acc.hi, vb_dot_half(w.hi, x)));
}
LLM_INLINE vi vb_dot_pair(vi acc, vb w, vb a) {
    return vi_pair(_mm256_add_epi32(acc.lo, vb_dot_half(w.lo, a.lo)),
                   _mm256_add_epi32(acc.hi, vb_dot_half(w.hi, a.hi)));
}
/* The top bit apart: 2 * 128 * 127 still fits s16, 2 * 255 * 127 would not. */
LLM_INLINE __m256i vb_dot_split(__m256i w, __m256i x) {
    const __m256i low = _mm256_set1_epi8(0x7f), ones = _mm256_set1_epi16(1);
    __m256i l = _mm256_maddubs_epi16(_mm256_and_si256(w, low), x);
    __m256i h = _mm256_maddubs_epi16(_mm256_andnot_si256(low, w), x);
    return _mm256_add_epi32(_mm256_madd_epi16(l, ones), _mm256_madd_epi16(h, ones));
}
LLM_INLINE vi vb_dot_wide(vi acc, vb w, const int8_t *a) {
    __m256i x = vb_four(a);
    return vi_pair(_mm256_add_epi32(acc.lo, vb_dot_split(w.lo, x)),
                   _mm256_add_epi32(acc.hi, vb_dot_split(w.hi, x)));
}
LLM_INLINE vi vb_dot_each(vi acc, vb u, vb s) {
    return vi_pair(_mm256_add_epi32(acc.lo, vb_dot_split(u.lo, s.lo)),
                   _mm256_add_epi32(acc.hi, vb_dot_split(u.hi, s.hi)));
}

LLM_INLINE vi vi_dot_s16(vi acc, vi pairs, const int16_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    __m256i x = _mm256_set1_epi32(word);
    return vi_pair(_mm256_add_epi32(acc.lo, _mm256_madd_epi16(pairs.lo, x)),
                   _mm256_add_epi32(acc.hi, _mm256_madd_epi16(pairs.hi, x)));
}

#endif
