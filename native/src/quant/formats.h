/* formats.h: the one table of quantization formats, and the panel layout built from it.
 *
 * Operand contract (all types but F32, F16, BF16): a weight is w = d * s_g * (q - z) - dmin * m_g
 * (for K types; q unsigned, z the type's zero point, s_g and m_g the integer scale and min of its
 * group of `group` elements) or w = d * (q - z) + m (for 32-element types; m may be absent).
 * Activations are s8 with one f32 scale per 32 (types of 32) or per 256 (types of 256) elements.
 *
 * A panel holds PANEL_ROWS = 16 rows, byte-size neutral: per block of block_elements inputs, first
 * the planes of quant bits, vector-major so that 64 bytes are 16 rows x 4 consecutive inputs, then
 * the side bytes (scales, mins), each stored for the 16 rows side by side. Rows past the last are
 * zero bytes. Element k of row r is byte [k / 4][r][k % 4] of the unpacked tile.
 */
#ifndef LLM_FORMATS_H
#define LLM_FORMATS_H

#include <stdbool.h>

#include "localllm.h"

#define LLM_PANEL_ROWS 16

/* GGML type numbers. */
/* clang-format off */
enum {
       LLM_F32 = 0,
       LLM_F16 = 1,
       LLM_Q4_0 = 2,
       LLM_Q4_1 = 3,
       LLM_Q5_0 = 6,
       LLM_Q5_1 = 7,
       LLM_Q8_0 = 8,
       LLM_Q2_K = 10,
       LLM_Q3_K = 11,
       LLM_Q4_K = 12,
       LLM_Q5_K = 13,
       LLM_Q6_K = 14,
       LLM_IQ4_NL = 20,
       LLM_IQ4_XS = 23,
       LLM_BF16 = 30,
       LLM_MXFP4 = 39
};
/* clang-format on */

/* What a matmul over a weight of this format needs of its activations. */
typedef enum llm_act_kind {
    LLM_ACT_F32 = 0,  /* the f32 values */
    LLM_ACT_Q32 = 1,  /* s8, a scale per 32 */
    LLM_ACT_Q256 = 2, /* s8, a scale per 256 */
    LLM_N_ACT_KINDS = 3
} llm_act_kind;

typedef struct llm_format {
    const char *name;
    int32_t type;
    int32_t block_elements;
    int32_t block_bytes;
    bool native;
    llm_act_kind act;
    void (*dequantize)(const uint8_t *src, float *dst, int64_t n); /* NULL when not native */
    /* A run of n_blocks blocks of 16 rows, raw rows row_stride bytes apart (n_rows of them, the
     * rest zero), to panel blocks of 16 * block_bytes; one row of a panel block to a raw block. */
    void (*pack)(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks,
                 uint8_t *panel_blocks);
    void (*unpack_row)(const uint8_t *panel_block, int32_t row, uint8_t *raw_block);
} llm_format;

const llm_format *llm_format_of(int32_t type); /* NULL: unknown type number */

/* Bytes of n elements, n a multiple of block_elements (else 0). */
uint64_t llm_row_bytes(const llm_format *f, int64_t n);

/* A matrix of n_rows outputs and n_cols inputs. panels or raw is set, never both. */
typedef struct llm_weight {
    const llm_format *format;
    int64_t n_rows, n_cols;
    const uint8_t *raw; /* [n_rows][row_bytes], file order */
    const uint8_t *panels; /* [ceil(n_rows / 16)][n_cols / block_elements][16 * block_bytes] */
} llm_weight;

/* Packs rows of panels [panel_begin, panel_end) from w->raw into dst (start of panel 0). */
void llm_pack_panels(const llm_weight *w, int64_t panel_begin, int64_t panel_end, uint8_t *dst);
uint64_t llm_panel_bytes(const llm_weight *w); /* all panels, padding rows included */

/* One row as f32 [n_cols], from either layout, same bits as the scalar dequantization. */
void llm_weight_row(const llm_weight *w, int64_t row, float *dst);

#endif
