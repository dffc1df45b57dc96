#include "quant/formats.h"

void llm_pack_panels(const llm_weight *w, int64_t panel_begin, int64_t panel_end, uint8_t *dst) {
    const llm_format *f = w->format;
    int64_t n_blocks = w->n_cols / f->block_elements, row_bytes = n_blocks * f->block_bytes;
    for (int64_t p = panel_begin; p < panel_end; p++) {
        int64_t rows = w->n_rows - p * LLM_PANEL_ROWS;
        if (rows > LLM_PANEL_ROWS) rows = LLM_PANEL_ROWS;
        f->pack(w->raw + p * LLM_PANEL_ROWS * row_bytes, row_bytes, (int32_t)rows, n_blocks,
                dst + p * LLM_PANEL_ROWS * row_bytes);
    }
}

uint64_t llm_panel_bytes(const llm_weight *w) {
    uint64_t n_panels = ((uint64_t)w->n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS;
    return n_panels * LLM_PANEL_ROWS * llm_row_bytes(w->format, w->n_cols);
}

void llm_weight_row(const llm_weight *w, int64_t row, float *dst) {
    const llm_format *f = w->format;
    int64_t n_blocks = w->n_cols / f->block_elements, row_bytes = n_blocks * f->block_bytes;
    if (w->raw) {
        f->dequantize(w->raw + row * row_bytes, dst, w->n_cols);
        return;
    }
    uint8_t raw[256];
    const uint8_t *panel = w->panels + row / LLM_PANEL_ROWS * LLM_PANEL_ROWS * row_bytes;
    for (int64_t b = 0; b < n_blocks; b++) {
        f->unpack_row(panel, (int32_t)(row % LLM_PANEL_ROWS), raw);
        f->dequantize(raw, dst + b * f->block_elements, f->block_elements);
        panel += LLM_PANEL_ROWS * f->block_bytes;
    }
}
