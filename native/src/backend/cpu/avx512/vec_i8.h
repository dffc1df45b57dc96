/* vec_i8.h (avx512: F, BW, DQ, VL, VNNI): one zmm. Meanings are in scalar/vec_i8.h. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include <string.h>

#include "vec_f32.h"

#define LLM_TILE 14  /* 14 integer and 14 float accumulators, weights and scales: 31 of 32 zmm */
#define LLM_FUSED 8 /* most tokens of the unpack-in-registers path */

typedef struct vb {
    __m512i v;
} vb;

LLM_INLINE vb vb_of(__m512i v) {
    vb r = {v};
    return r;
}
LLM_INLINE vb vb_load(const uint8_t *p) { return vb_of(_mm512_loadu_si512(p)); }
/* Compilers would put the load into each instruction that uses it. */
#if defined(__GNUC__)
LLM_INLINE vb vb_load_once(const uint8_t *p) {
    vb a = vb_load(p);
    __asm__("" : "+v"(a.v));
    return a;
}
#else
#define vb_load_once(p) vb_load(p)
#endif
LLM_INLINE void vb_store(uint8_t *p, vb a) { _mm512_storeu_si512(p, a.v); }
LLM_INLINE vb vb_and1(vb a, uint8_t mask) {
    return vb_of(_mm512_and_si512(a.v, _mm512_set1_epi8((char)mask)));
}
LLM_INLINE vb vb_or(vb a, vb b) { return vb_of(_mm512_or_si512(a.v, b.v)); }
#define vb_shl(a, n, mask) vb_and1(vb_of(_mm512_slli_epi16((a).v, n)), mask)
#define vb_shr(a, n, mask) vb_and1(vb_of(_mm512_srli_epi16((a).v, n)), mask)
LLM_INLINE vb vb_add_where(vb a, const uint8_t *p, uint8_t value) {
    uint64_t bits;
    memcpy(&bits, p, 8);
    return vb_of(_mm512_mask_add_epi8(a.v, bits, a.v, _mm512_set1_epi8((char)value)));
}
LLM_INLINE vb vb_minus(vb a, uint8_t value) {
    return vb_of(_mm512_sub_epi8(a.v, _mm512_set1_epi8((char)value)));
}
LLM_INLINE vb vb_nibbles(const uint16_t *p) {
    __m256i words = _mm256_loadu_si256((const __m256i *)p);
    __m128i low = _mm256_cvtepi16_epi8(words);
    __m128i high = _mm256_cvtepi16_epi8(_mm256_srli_epi16(words, 8));
    __m512i twice =
        _mm512_inserti64x4(_mm512_broadcast_i32x4(low), _mm256_broadcastsi128_si256(high), 1);
    const __m512i by = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0,
                                        0x0004000400040004, 0x0004000400040004, 0, 0);
    return vb_and1(vb_of(_mm512_srlv_epi16(twice, by)), 15);
}
LLM_INLINE vb vb_table(const uint8_t *p) {
    return vb_of(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)));
}
LLM_INLINE vb vb_lookup(vb table, vb index) { return vb_of(_mm512_shuffle_epi8(table.v, index.v)); }

LLM_INLINE vi vi_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
LLM_INLINE vi vi_load_pairs(const uint8_t *p) {
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_permutexvar_epi16(zip, words);
}

LLM_INLINE vb vb_set4(const void *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return vb_of(_mm512_set1_epi32(word));
}
LLM_INLINE vb vb_split(vi a, vi b) {
    /* bytes of a lane: two of a, two of b; four lanes to low a, low b, high a, high b */
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15));
    const __m512i turn = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16));
    return vb_of(_mm512_permutexvar_epi32(turn, _mm512_shuffle_epi8(both, order)));
}
LLM_INLINE vi vb_dot_each(vi acc, vb u, vb s) { return _mm512_dpbusd_epi32(acc, u.v, s.v); }
LLM_INLINE vi vb_dot_pair(vi acc, vb w, vb a) { return _mm512_dpbusd_epi32(acc, w.v, a.v); }
#if defined(__GNUC__)
/* Compilers do not fold the broadcast into the dot product, which costs an instruction each. */
LLM_INLINE vi vb_dot_wide(vi acc, vb w, const int8_t *a) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(w.v), "m"(*(const int8_t (*)[4])(const void *)a));
    return acc;
}
LLM_INLINE vi vi_dot_s16(vi acc, vi pairs, const int16_t *p) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(pairs), "m"(*(const int16_t (*)[2])(const void *)p));
    return acc;
}
#else
LLM_INLINE vi vb_dot_wide(vi acc, vb w, const int8_t *a) {
    int32_t word;
    memcpy(&word, a, 4);
    return _mm512_dpbusd_epi32(acc, w.v, _mm512_set1_epi32(word));
}
LLM_INLINE vi vi_dot_s16(vi acc, vi pairs, const int16_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return _mm512_dpwssd_epi32(acc, pairs, _mm512_set1_epi32(word));
}
#endif
#define vb_dot(acc, w, a) vb_dot_wide(acc, w, a)

LLM_INLINE void vb_prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
LLM_INLINE void vb_prefetch_l2(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#if defined(__GNUC__)
LLM_INLINE vb vb_opaque(vb a) {
    __asm__ volatile("" : "+v"(a.v));
    return a;
}
#else
#define vb_opaque(a) (a)
#endif

#endif
