/* blocks256.h: the types with blocks of 256 elements. Raw layouts, all little-endian, where "32 x
 * 2 bits" means that byte l carries elements l, l + 32, l + 64, l + 96 from its low bits up:
 *   Q2_K    16 bytes scale | min << 4 per 16 elements, 2 x (32 x 2 bits), f16 d, f16 dmin;
 *           d s q - dmin m
 *   Q3_K    32 bytes of third bits (byte l, bit j: element 32 j + l), 2 x (32 x 2 bits), 12 bytes
 *           of 16 scales of 6 bits, f16 d;                                   d (s - 32) (q - 4)
 *   Q4_K    f16 d, f16 dmin, 12 bytes of 8 scales and 8 mins of 6 bits, 4 x 32 bytes of nibbles
 *           (low: 32 elements, high: the next 32);                           d s q - dmin m
 *   Q5_K    the same with 32 bytes of fifth bits (as in Q3_K) before the nibbles
 *   Q6_K    2 x 64 bytes of nibbles (low: 64 elements, high: the next 64), 2 x (32 x 2 bits) of
 *           upper bits, 16 s8 scales, f16 d;                                 d s (q - 32)
 *   IQ4_XS  f16 d, u16 of 8 x 2 upper scale bits, 4 bytes of 8 scale nibbles, 8 x 16 bytes of
 *           nibbles into a codebook, each as in IQ4_NL;                      d (s - 32) book[q]
 */
#ifndef LLM_BLOCKS256_H
#define LLM_BLOCKS256_H

#include "quant/blocks32.h"

LLM_DECLARE_FORMAT(q2_k)
LLM_DECLARE_FORMAT(q3_k)
LLM_DECLARE_FORMAT(q4_k)
LLM_DECLARE_FORMAT(q5_k)
LLM_DECLARE_FORMAT(q6_k)
LLM_DECLARE_FORMAT(iq4_xs)

#endif
