/* vec_bytes.h (avx2, fma, f16c): bytes as two ymm, rows 0..7 and 8..15; all of vec_i8.h but the
 * products. Meanings are in scalar/vec_i8.h. */
#ifndef LLM_VEC_BYTES_H
#define LLM_VEC_BYTES_H

#include "vec_f32.h"

#define LLM_FEW_REGISTERS 1 /* 16, and a vector of ours takes two */

typedef struct vb {
    __m256i lo, hi;
} vb;

LLM_INLINE vb vb_pair(__m256i lo, __m256i hi) {
    vb r = {lo, hi};
    return r;
}
LLM_INLINE vb vb_load(const uint8_t *p) {
    return vb_pair(_mm256_loadu_si256((const __m256i *)p),
                   _mm256_loadu_si256((const __m256i *)(p + 32)));
}
/* 16 registers are too few to keep it. */
#define vb_load_once(p) vb_load(p)
LLM_INLINE void vb_store(uint8_t *p, vb a) {
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 32), a.hi);
}
LLM_INLINE vb vb_and1(vb a, uint8_t mask) {
    __m256i m = _mm256_set1_epi8((char)mask);
    return vb_pair(_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m));
}
LLM_INLINE vb vb_or(vb a, vb b) {
    return vb_pair(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi));
}
#define vb_shl(a, n, mask)                                                                         \
    vb_and1(vb_pair(_mm256_slli_epi16((a).lo, n), _mm256_slli_epi16((a).hi, n)), mask)
#define vb_shr(a, n, mask)                                                                         \
    vb_and1(vb_pair(_mm256_srli_epi16((a).lo, n), _mm256_srli_epi16((a).hi, n)), mask)

/* 32 bits to 32 bytes of 0 or value */
LLM_INLINE __m256i vb_spread(const uint8_t *p, uint8_t value) {
    int32_t bits;
    memcpy(&bits, p, 4);
    const __m256i from =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i b = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), from), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(b, bit), _mm256_set1_epi8((char)value));
}
LLM_INLINE vb vb_add_where(vb a, const uint8_t *p, uint8_t value) {
    return vb_pair(_mm256_or_si256(a.lo, vb_spread(p, value)),
                   _mm256_or_si256(a.hi, vb_spread(p + 4, value)));
}
LLM_INLINE vb vb_minus(vb a, uint8_t value) {
    __m256i v = _mm256_set1_epi8((char)value);
    return vb_pair(_mm256_sub_epi8(a.lo, v), _mm256_sub_epi8(a.hi, v));
}
/* u8 less 128 as s8, and back. */
LLM_INLINE vb vb_flip(vb a) {
    const __m256i top = _mm256_set1_epi8((char)0x80);
    return vb_pair(_mm256_xor_si256(a.lo, top), _mm256_xor_si256(a.hi, top));
}
LLM_INLINE vb vb_nibbles(const uint16_t *p) {
    __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 8));
    __m128i byte = _mm_set1_epi16(255);
    __m128i low = _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte));
    __m128i high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    return vb_and1(vb_pair(_mm256_set_m128i(_mm_srli_epi16(low, 4), low),
                           _mm256_set_m128i(_mm_srli_epi16(high, 4), high)),
                   15);
}
LLM_INLINE vb vb_table(const uint8_t *p) {
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return vb_pair(t, t);
}
LLM_INLINE vb vb_lookup(vb table, vb index) {
    return vb_pair(_mm256_shuffle_epi8(table.lo, index.lo),
                   _mm256_shuffle_epi8(table.hi, index.hi));
}

LLM_INLINE vi vi_load_u8(const uint8_t *p) {
    return vi_pair(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                   _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
}
LLM_INLINE vi vi_load_pairs(const uint8_t *p) {
    __m128i low = _mm_loadu_si128((const __m128i *)p);
    __m128i high = _mm_loadu_si128((const __m128i *)(p + 16));
    return vi_pair(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high)),
                   _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(low, high)));
}

LLM_INLINE __m256i vb_four(const int8_t *a) {
    int32_t word;
    memcpy(&word, a, 4);
    return _mm256_set1_epi32(word);
}
/* low bytes of 16 lanes, then their second bytes */
LLM_INLINE __m256i vb_split1(vi a) {
    const __m256i order =
        _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, 1,
                         5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i lo = _mm256_shuffle_epi8(a.lo, order), hi = _mm256_shuffle_epi8(a.hi, order);
    /* dwords: low 0..3, high 0..3, low 8..11, high 8..11; the other half with 4..7 and 12..15 */
    __m256i both = _mm256_unpacklo_epi64(lo, hi);
    return _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}
LLM_INLINE vb vb_split(vi a, vi b) {
    __m256i x = vb_split1(a), y = vb_split1(b);
    return vb_pair(_mm256_permute2x128_si256(x, y, 0x20), _mm256_permute2x128_si256(x, y, 0x31));
}
LLM_INLINE vb vb_set4(const void *p) {
    __m256i x = vb_four((const int8_t *)p);
    return vb_pair(x, x);
}

LLM_INLINE void vb_prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
LLM_INLINE void vb_prefetch_l2(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#if defined(__GNUC__)
LLM_INLINE vb vb_opaque(vb a) {
    __asm__ volatile("" : "+x"(a.lo), "+x"(a.hi));
    return a;
}
#else
#define vb_opaque(a) (a)
#endif

#endif
