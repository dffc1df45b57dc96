/* Packing is the inverse of unpack_row, which reads every bit of a panel block once: each type, every
 * number of rows, rows that lie apart and unaligned, padding rows zero, nothing written outside. */
#include "weight_data.h"

enum { BLOCKS = 3, EDGE = 64, GAP = 5 };

static void check_rows(const llm_format *f, int32_t n_rows) {
    const int64_t n_blocks = f->block_elements == 1 ? 37 : BLOCKS; /* with a tail of the lines */
    const int64_t stride = n_blocks * f->block_bytes + GAP;
    const size_t block = (size_t)(16 * f->block_bytes), panel_bytes = block * (size_t)n_blocks;
    /* Exactly as long as the last row, so that a sanitizer sees a read past it. */
    const size_t raw_bytes = (size_t)((n_rows - 1) * stride + n_blocks * f->block_bytes);
    uint8_t *raw = malloc(raw_bytes), *panel = malloc(panel_bytes + 2 * EDGE);
    uint8_t *zero = calloc(1, block);
    for (size_t i = 0; i < raw_bytes; i++) raw[i] = (uint8_t)random_u32();
    memset(panel, 0xa5, panel_bytes + 2 * EDGE);
    f->pack(raw, stride, n_rows, n_blocks, panel + EDGE);
    int32_t n_wrong = 0;
    uint8_t got[256], padding[256];
    for (int64_t b = 0; b < n_blocks; b++) {
        for (int32_t r = 0; r < 16; r++) {
            f->unpack_row(panel + EDGE + b * (int64_t)block, r, got);
            f->unpack_row(zero, r, padding);
            const uint8_t *want = r < n_rows ? raw + r * stride + b * f->block_bytes : padding;
            n_wrong += memcmp(got, want, (size_t)f->block_bytes) != 0;
        }
    }
    EXPECT(!n_wrong, "%s, %d rows: %d of %d blocks differ", f->name, n_rows, n_wrong,
           (int)(16 * n_blocks));
    for (int32_t i = 0; i < EDGE; i++) {
        n_wrong += panel[i] != 0xa5 || panel[EDGE + panel_bytes + (size_t)i] != 0xa5;
    }
    EXPECT(!n_wrong, "%s, %d rows: bytes around the panel were written", f->name, n_rows);
    free(raw);
    free(panel);
    free(zero);
}

/* One set bit in a panel block comes out of exactly one row, at one bit: unpack_row loses none. */
static void check_unpack_reads_all(const llm_format *f) {
    size_t block = (size_t)(16 * f->block_bytes);
    uint8_t *panel = calloc(1, block), one[256], none[256];
    int32_t n_wrong = 0;
    for (size_t bit = 0; bit < 8 * block; bit++) {
        int32_t n_changed = 0;
        for (int32_t r = 0; r < 16; r++) {
            f->unpack_row(panel, r, none);
            panel[bit / 8] ^= (uint8_t)(1 << bit % 8);
            f->unpack_row(panel, r, one);
            panel[bit / 8] ^= (uint8_t)(1 << bit % 8);
            for (int32_t i = 0; i < f->block_bytes; i++) {
                for (int32_t j = 0; j < 8; j++) n_changed += (one[i] ^ none[i]) >> j & 1;
            }
        }
        n_wrong += n_changed != 1;
    }
    EXPECT(!n_wrong, "%s: %d bits of a panel block are not one bit of one row", f->name, n_wrong);
    free(panel);
}

int main(void) {
    for (int32_t i = 0; i < N_NATIVE_TYPES; i++) {
        const llm_format *f = llm_format_of(native_types[i]);
        check_unpack_reads_all(f);
        for (int32_t n_rows = 1; n_rows <= 16; n_rows++) check_rows(f, n_rows);
    }
    return n_failed != 0;
}
