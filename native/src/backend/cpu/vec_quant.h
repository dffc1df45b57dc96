/* vec_quant.h: 32 or 256 floats to s8 with one scale, the rule that activations and the q8_0 cache
 * share (docs/ARITHMETIC.md).
 *
 * amax is compared as integer bits, which orders finite values, infinity and NaN. A block with an
 * infinity or a NaN gets scale NaN and zero values, so that exactly what it is part of is NaN.
 */
#ifndef LLM_VEC_QUANT_H
#define LLM_VEC_QUANT_H

#include "base/half.h"
#include "vec_fold.h"

#define LLM_INFINITY_BITS 0x7f800000
#define LLM_SMALLEST_BITS 0x05000000 /* 2^-117: 127 / amax is still finite; below counts as 0 */

/* Scale and its inverse for a block whose largest magnitude has these bits. */
LLM_INLINE float block_scale(int32_t amax_bits, float *inverse) {
    *inverse = 0.0f;
    if (amax_bits < LLM_SMALLEST_BITS) return 0.0f;
    if (amax_bits >= LLM_INFINITY_BITS) return llm_bits_f32(0x7fc00000);
    float amax = llm_bits_f32((uint32_t)amax_bits);
    *inverse = 127.0f / amax;
    return amax / 127.0f;
}

/* The bits of the largest magnitude of 32 values. */
LLM_INLINE int32_t amax_bits32(const float *x) {
    return vi_reduce_max(vf_absbits_max(vf_absbits_max(vi_set1(0), vf_load(x)), vf_load(x + 16)));
}

/* q = rint(x * inverse); an inverse of 0 must give 0 even for a NaN x. */
LLM_INLINE vi quantize16(const float *x, float inverse, int8_t *q) {
    vi v = inverse == 0.0f ? vi_set1(0) : vf_rint(vf_mul(vf_load(x), vf_set1(inverse)));
    vi_store_s8(q, v);
    return v;
}

#endif
