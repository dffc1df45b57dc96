/* layout.h: how a block of each quantized type is cut into planes of bits and side values.
 *
 * Every type is an unsigned integer q of low_bits + high_bits bits per element, plus some side
 * values per block. A panel block of 16 rows and n = block_elements inputs holds, in this order:
 *   low plane   2, 4 or 8 bits. A vector is 64 bytes, [16 rows][4 inputs]. It carries 8 / low_bits
 *               groups of 4 inputs: group 8 / low_bits * v + j in bits [j * low_bits, ...) of
 *               vector v.
 *   high plane  0, 1 or 2 bits. 2 bits: vectors as above, four groups each. 1 bit: one 64-bit
 *               little-endian word per group of 4 inputs, bit 4 * row + input.
 *   side u16    n_u16 arrays of [16 rows]
 *   side u8     n_u8 arrays of [16 rows]
 * which is 16 * block_bytes again.
 */
#ifndef LLM_LAYOUT_H
#define LLM_LAYOUT_H

#include <stdint.h>

typedef struct llm_layout {
    int32_t elements; /* 32 or 256 */
    int32_t bytes;    /* of one raw block */
    int32_t low_bits, high_bits;
    int32_t n_u16, n_u8;
} llm_layout;

static const llm_layout llm_layout_q4_0 = {32, 18, 4, 0, 1, 0};    /* d */
static const llm_layout llm_layout_q4_1 = {32, 20, 4, 0, 2, 0};    /* d, m */
static const llm_layout llm_layout_q5_0 = {32, 22, 4, 1, 1, 0};    /* d */
static const llm_layout llm_layout_q5_1 = {32, 24, 4, 1, 2, 0};    /* d, m */
static const llm_layout llm_layout_q8_0 = {32, 34, 8, 0, 1, 0};    /* d; q = value + 128 */
static const llm_layout llm_layout_iq4_nl = {32, 18, 4, 0, 1, 0};  /* d; q indexes a codebook */
static const llm_layout llm_layout_mxfp4 = {32, 17, 4, 0, 0, 1};   /* exponent; q indexes */
static const llm_layout llm_layout_q2_k = {256, 84, 2, 0, 2, 16};  /* d, dmin; scale | min << 4 */
static const llm_layout llm_layout_q3_k = {256, 110, 2, 1, 1, 12}; /* d; 6-bit scales */
static const llm_layout llm_layout_q4_k = {256, 144, 4, 0, 2, 12}; /* d, dmin; scales and mins */
static const llm_layout llm_layout_q5_k = {256, 176, 4, 1, 2, 12}; /* the same */
static const llm_layout llm_layout_q6_k = {256, 210, 4, 2, 1, 16}; /* d; s8 scales */
static const llm_layout llm_layout_iq4_xs = {256, 136, 4, 0, 2, 4}; /* d, scales_h; scales_l */

static inline int32_t llm_low_bytes(const llm_layout *l) {
    return 16 * l->elements * l->low_bits / 8;
}

static inline int32_t llm_high_bytes(const llm_layout *l) {
    return 16 * l->elements * l->high_bits / 8;
}

/* Start of u16 side array i, and of u8 side array i. */
static inline int32_t llm_u16_at(const llm_layout *l, int32_t i) {
    return llm_low_bytes(l) + llm_high_bytes(l) + 32 * i;
}

static inline int32_t llm_u8_at(const llm_layout *l, int32_t i) {
    return llm_u16_at(l, l->n_u16) + 16 * i;
}

/* Codebooks of the non-linear 4-bit types (facts of the formats). */
#define LLM_IQ4_VALUES {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
#define LLM_MXFP4_VALUES {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

/* MXFP4's shared exponent e: 2^(e - 128), which with the doubled codebook is 2^(e - 127). */
static inline uint32_t llm_mxfp4_scale_bits(uint8_t e) {
    return e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
}

#endif
