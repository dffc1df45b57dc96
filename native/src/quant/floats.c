#include "quant/floats.h"

#include <string.h>

#include "base/half.h"

static inline void pack_elements(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n,
                                 int32_t bytes, uint8_t *panel) {
    if (n_rows < 16) memset(panel, 0, (size_t)(16 * n * bytes));
    for (int64_t k = 0; k < n; k++)
        for (int32_t r = 0; r < n_rows; r++)
            memcpy(panel + (16 * k + r) * bytes, src + r * row_stride + k * bytes, (size_t)bytes);
}

void llm_pack_f32(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks,
                  uint8_t *panel) {
    pack_elements(src, row_stride, n_rows, n_blocks, 4, panel);
}

void llm_pack_f16(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks,
                  uint8_t *panel) {
    pack_elements(src, row_stride, n_rows, n_blocks, 2, panel);
}

void llm_pack_bf16(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks,
                   uint8_t *panel) {
    pack_elements(src, row_stride, n_rows, n_blocks, 2, panel);
}

void llm_unpack_row_f32(const uint8_t *panel, int32_t row, uint8_t *raw) {
    memcpy(raw, panel + 4 * row, 4);
}

void llm_unpack_row_f16(const uint8_t *panel, int32_t row, uint8_t *raw) {
    memcpy(raw, panel + 2 * row, 2);
}

void llm_unpack_row_bf16(const uint8_t *panel, int32_t row, uint8_t *raw) {
    memcpy(raw, panel + 2 * row, 2);
}

void llm_dequantize_f32(const uint8_t *src, float *dst, int64_t n) {
    memcpy(dst, src, (size_t)n * 4);
}

void llm_dequantize_f16(const uint8_t *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = llm_load_f16(src + 2 * i);
}

void llm_dequantize_bf16(const uint8_t *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = llm_bf16_to_f32(llm_load_u16(src + 2 * i));
}
