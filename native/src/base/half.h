/* half.h: f16 and bf16 to f32 and back in plain C, exact, subnormals and infinities included.
 *
 * A NaN stays a quiet NaN with its leading payload bits, as the CPU's own conversions give it, so
 * that scalar and vector code agree to the bit.
 */
#ifndef LLM_HALF_H
#define LLM_HALF_H

#include <stdint.h>
#include <string.h>

static inline float llm_bits_f32(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t llm_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float llm_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;
    if (exponent == 31) {
        uint32_t quiet = mantissa ? 0x400000u : 0;
        return llm_bits_f32(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact in f32 */
        float f = (float)mantissa * 0x1p-24f;
        return llm_bits_f32(sign | llm_f32_bits(f));
    }
    return llm_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Rounds to nearest, ties to even; past 65520 it gives infinity. */
static inline uint16_t llm_f32_to_f16(float f) {
    uint32_t bits = llm_f32_bits(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 */
        float r = llm_bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (llm_f32_bits(r) - 0x3f000000u));
    }
    a += 0xc8000fffu + (a >> 13 & 1u); /* rebias the exponent by -112 and round */
    return (uint16_t)(sign | a >> 13);
}

static inline float llm_bf16_to_f32(uint16_t h) { return llm_bits_f32((uint32_t)h << 16); }

static inline uint16_t llm_load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static inline float llm_load_f16(const uint8_t *p) { return llm_f16_to_f32(llm_load_u16(p)); }

#endif
