/* weight_data.h: seeded raw blocks of every native type whose scales are ordinary numbers. */
#ifndef LLM_WEIGHT_DATA_H
#define LLM_WEIGHT_DATA_H

#include "kernel_check.h"

static const int32_t native_types[] = {
    LLM_F32,  LLM_F16,  LLM_Q4_0, LLM_Q4_1, LLM_Q5_0, LLM_Q5_1,   LLM_Q8_0,   LLM_Q2_K,
    LLM_Q3_K, LLM_Q4_K, LLM_Q5_K, LLM_Q6_K, LLM_BF16, LLM_IQ4_NL, LLM_IQ4_XS, LLM_MXFP4};
enum { N_NATIVE_TYPES = sizeof native_types / sizeof *native_types };

/* Offsets of the f16 fields of a block; -1: none. */
static inline void f16_fields(int32_t type, int32_t at[2]) {
    at[0] = type == LLM_Q2_K ? 80 : type == LLM_Q3_K ? 108 : type == LLM_Q6_K ? 208 : 0;
    at[1] = type == LLM_Q4_1 || type == LLM_Q5_1 || type == LLM_Q4_K || type == LLM_Q5_K ? 2
            : type == LLM_Q2_K                                                           ? 82
                                                                                         : -1;
    if (type == LLM_F32 || type == LLM_BF16 || type == LLM_MXFP4) at[0] = -1;
}

/* Magnitudes 2^-9 to 2^-1, either sign; one in eight is a subnormal or zero. */
static inline uint16_t random_scale(void) {
    uint32_t r = random_u32();
    uint32_t exponent = r >> 20 & 7 ? 6 + (r >> 16 & 7) : 0;
    return (uint16_t)((r >> 15 & 1) << 15 | exponent << 10 | (r & 1023));
}

static inline void random_blocks(const llm_format *f, uint8_t *raw, int64_t n_blocks) {
    int32_t at[2];
    f16_fields(f->type, at);
    for (int64_t b = 0; b < n_blocks; b++, raw += f->block_bytes) {
        for (int32_t i = 0; i < f->block_bytes; i++) raw[i] = (uint8_t)random_u32();
        for (int32_t i = 0; i < 2; i++) {
            uint16_t h = random_scale();
            if (at[i] >= 0) memcpy(raw + at[i], &h, 2);
        }
        if (f->type == LLM_MXFP4) raw[0] = (uint8_t)(118 + random_u32() % 12);
        if (f->type == LLM_BF16) raw[1] = (uint8_t)((raw[1] & 0x80) | (60 + random_u32() % 4));
        if (f->type == LLM_F32) {
            float x = random_float(1.0f);
            memcpy(raw, &x, 4);
        }
    }
}

#endif
