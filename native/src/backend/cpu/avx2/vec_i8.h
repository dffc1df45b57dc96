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

/* Attention over q8_0 takes these in place of vb_dot_each, which would have to split every product. */
#define LLM_WORD_DOTS 1

/* Signed bytes as magnitudes, and themselves: 2 * 127 * 127 fits s16. */
typedef struct vb_signed {
    vb size, sign;
} vb_signed;

LLM_INLINE vb_signed vb_signed_of(vb x) {
    return (vb_signed){{_mm256_abs_epi8(x.lo), _mm256_abs_epi8(x.hi)}, x};
}
LLM_INLINE vi vb_dot_signed(vi acc, vb_signed a, vb b) {
    return vi_pair(
        _mm256_add_epi32(acc.lo, vb_dot_half(a.size.lo, _mm256_sign_epi8(b.lo, a.sign.lo))),
        _mm256_add_epi32(acc.hi, vb_dot_half(a.size.hi, _mm256_sign_epi8(b.hi, a.sign.hi))));
}

/* Signed bytes 0, 2 and 1, 3 of each four as words. */
typedef struct vb_words {
    vi even, odd;
} vb_words;

LLM_INLINE vb_words vb_words_of(vb x) {
    __m256i lo = _mm256_slli_epi16(x.lo, 8), hi = _mm256_slli_epi16(x.hi, 8);
    return (vb_words){vi_pair(_mm256_srai_epi16(lo, 8), _mm256_srai_epi16(hi, 8)),
                      vi_pair(_mm256_srai_epi16(x.lo, 8), _mm256_srai_epi16(x.hi, 8))};
}
/* Four words at p, of inputs 0, 2, 1, 3. */
LLM_INLINE vi vb_dot_words(vi acc, vb_words a, const uint8_t *p) {
    int32_t even, odd;
    memcpy(&even, p, 4);
    memcpy(&odd, p + 4, 4);
    __m256i x = _mm256_set1_epi32(even), y = _mm256_set1_epi32(odd);
    acc = vi_pair(_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.even.lo, x)),
                  _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.even.hi, x)));
    return vi_pair(_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.odd.lo, y)),
                   _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.odd.hi, y)));
}
/* 16 numbers from 0 to 32767 as vb_dot_words takes them: 32 bytes. */
LLM_INLINE void vi_store_words(uint8_t *p, vi x) {
    const __m256i order =
        _mm256_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 8, 9, 4, 5,
                         12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i lo = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x.lo, order), 0x08);
    __m256i hi = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x.hi, order), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(lo));
    _mm_storeu_si128((__m128i *)(p + 16), _mm256_castsi256_si128(hi));
}

LLM_INLINE vi vi_dot_s16(vi acc, vi pairs, const int16_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    __m256i x = _mm256_set1_epi32(word);
    return vi_pair(_mm256_add_epi32(acc.lo, _mm256_madd_epi16(pairs.lo, x)),
                   _mm256_add_epi32(acc.hi, _mm256_madd_epi16(pairs.hi, x)));
}

#endif
