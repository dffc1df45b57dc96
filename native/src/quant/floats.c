#include "quant/floats.h"

#include <string.h>

#include "base/half.h"
#include "quant/fields.h"

/* A line of every row at a time: the rows may lie a power of two apart, where all of their lines
 * share one set of the cache. */
#define LINE_BYTES 64

static inline void put_f32(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n,
                           uint8_t *panel) {
    for (int32_t r = 0; r < n_rows; r++)
        for (int64_t k = 0; k < n; k++)
            llm_put_u32(panel + 64 * k + 4 * r, llm_get_u32(src + r * row_stride + 4 * k));
}

/* Two rows side by side are a word: a pair of inputs of either is transposed into two words. */
static inline void put_16bit(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n,
                             uint8_t *panel) {
    for (int32_t r = 0; r < n_rows; r += 2) {
        const uint8_t *even = src + r * row_stride, *odd = even + (r + 1 < n_rows ? row_stride : 0);
        uint32_t mask = r + 1 < n_rows ? 0xffffffffu : 0xffffu;
        int64_t k = 0;
        for (; k + 2 <= n; k += 2) {
            uint32_t a = llm_get_u32(even + 2 * k), b = llm_get_u32(odd + 2 * k);
            llm_put_u32(panel + 32 * k + 2 * r, ((a & 0xffffu) | b << 16) & mask);
            llm_put_u32(panel + 32 * k + 32 + 2 * r, (a >> 16 | (b & 0xffff0000u)) & mask);
        }
        if (k < n) {
            memcpy(panel + 32 * k + 2 * r, even + 2 * k, 2);
            if (r + 1 < n_rows) memcpy(panel + 32 * k + 2 * r + 2, odd + 2 * k, 2);
        }
    }
}

static inline void pack_elements(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n,
                                 int32_t bytes, uint8_t *panel) {
    if (n_rows < 16) memset(panel, 0, (size_t)(16 * n * bytes));
    int64_t step = LINE_BYTES / bytes;
    for (int64_t k = 0; k < n; k += step) {
        int64_t left = n - k < step ? n - k : step;
        const uint8_t *from = src + k * bytes;
        uint8_t *to = panel + 16 * k * bytes;
        if (bytes == 4)
            put_f32(from, row_stride, n_rows, left, to);
        else
            put_16bit(from, row_stride, n_rows, left, to);
    }
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
