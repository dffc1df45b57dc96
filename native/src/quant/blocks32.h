/* blocks32.h: the types with blocks of 32 elements. Raw layouts, all little-endian:
 *   Q4_0    f16 d, 16 bytes: low nibbles are elements 0..15, high ones 16..31; d (q - 8)
 *   Q4_1    f16 d, f16 m, nibbles;                                             d q + m
 *   Q5_0    f16 d, 32 fifth bits, nibbles;                                     d (q - 16)
 *   Q5_1    f16 d, f16 m, 32 fifth bits, nibbles;                              d q + m
 *   Q8_0    f16 d, 32 s8;                                                      d q
 *   IQ4_NL  f16 d, nibbles into a codebook;                                    d book[q]
 *   MXFP4   u8 e, nibbles into a codebook;                                     2^(e - 128) book[q]
 */
#ifndef LLM_BLOCKS32_H
#define LLM_BLOCKS32_H

#include "quant/formats.h"

#define LLM_DECLARE_FORMAT(name)                                                                   \
    void llm_dequantize_##name(const uint8_t *src, float *dst, int64_t n);                         \
    void llm_pack_##name(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks, \
                         uint8_t *panel);                                                          \
    void llm_unpack_row_##name(const uint8_t *panel, int32_t row, uint8_t *raw);

LLM_DECLARE_FORMAT(q4_0)
LLM_DECLARE_FORMAT(q4_1)
LLM_DECLARE_FORMAT(q5_0)
LLM_DECLARE_FORMAT(q5_1)
LLM_DECLARE_FORMAT(q8_0)
LLM_DECLARE_FORMAT(iq4_nl)
LLM_DECLARE_FORMAT(mxfp4)

#endif
