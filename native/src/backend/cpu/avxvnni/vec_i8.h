/* vec_i8.h (avxvnni: AVX2 and the VEX-encoded VNNI instructions): vectors are those of AVX2, and one
 * instruction multiplies u8 by s8, all of u8, and adds exact 32-bit sums. Meanings are in
 * scalar/vec_i8.h. */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "../avx2/vec_bytes.h"

/* Two products a cycle, each five cycles long, need ten sums under way; twelve, two registers of
 * weights and one of activations are 15 of 16 ymm. */
#define LLM_TILE 6
#define LLM_FUSED 4 /* most tokens of the unpack-in-registers path */

LLM_INLINE vi vb_dot_pair(vi acc, vb w, vb a) {
    return vi_pair(_mm256_dpbusd_avx_epi32(acc.lo, w.lo, a.lo),
                   _mm256_dpbusd_avx_epi32(acc.hi, w.hi, a.hi));
}
LLM_INLINE vi vb_dot_wide(vi acc, vb w, const int8_t *a) {
    __m256i x = vb_four(a);
    return vb_dot_pair(acc, w, vb_pair(x, x));
}
#define vb_dot_each(acc, u, s) vb_dot_pair(acc, u, s)
#define vb_dot(acc, w, a) vb_dot_wide(acc, w, a)

LLM_INLINE vi vi_dot_s16(vi acc, vi pairs, const int16_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    __m256i x = _mm256_set1_epi32(word);
    return vi_pair(_mm256_dpwssd_avx_epi32(acc.lo, pairs.lo, x),
                   _mm256_dpwssd_avx_epi32(acc.hi, pairs.hi, x));
}

#endif
