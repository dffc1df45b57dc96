/* planes.h: one row of a block into the bit planes of a panel block and back (see layout.h). */
#ifndef LLM_PLANES_H
#define LLM_PLANES_H

#include <stdbool.h>
#include <string.h>

#include "quant/layout.h"

/* A block of one row, cut open. */
typedef struct llm_row_block {
    uint8_t q[256];
    uint16_t u16[2];
    uint8_t u8[16];
} llm_row_block;

typedef void (*llm_split)(const uint8_t *raw, llm_row_block *out);
typedef void (*llm_join)(const llm_row_block *in, uint8_t *raw);

static inline uint32_t llm_get_word(const uint8_t *p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

static inline void llm_put_word(uint8_t *p, uint32_t w) { memcpy(p, &w, 4); }

/* Groups of 4 inputs to vectors: `bits` wide fields taken from bit `shift` of each q. */
static inline void llm_put_plane(const llm_layout *l, const uint8_t *q, int32_t shift, int32_t bits,
                                 int32_t row, uint8_t *plane) {
    int32_t per_vector = 8 / bits;
    uint32_t mask = bits == 8 ? 0xffffffffu : 0x01010101u * ((1u << bits) - 1);
    for (int32_t v = 0; v < l->elements / 4 / per_vector; v++) {
        uint32_t word = 0;
        for (int32_t j = 0; j < per_vector; j++)
            word |= (llm_get_word(q + 4 * (v * per_vector + j)) >> shift & mask) << (bits * j);
        llm_put_word(plane + 64 * v + 4 * row, word);
    }
}

static inline void llm_get_plane(const llm_layout *l, uint8_t *q, int32_t shift, int32_t bits,
                                 int32_t row, const uint8_t *plane) {
    int32_t per_vector = 8 / bits;
    uint32_t mask = bits == 8 ? 0xffffffffu : 0x01010101u * ((1u << bits) - 1);
    for (int32_t v = 0; v < l->elements / 4 / per_vector; v++) {
        uint32_t word = llm_get_word(plane + 64 * v + 4 * row);
        for (int32_t j = 0; j < per_vector; j++) {
            uint8_t *group = q + 4 * (v * per_vector + j);
            uint32_t old = shift ? llm_get_word(group) : 0;
            llm_put_word(group, old | (word >> (bits * j) & mask) << shift);
        }
    }
}

/* One-bit plane; the panel block must be zero before its first row. */
static inline void llm_put_bits(const llm_layout *l, const uint8_t *q, int32_t shift, int32_t row,
                                uint8_t *plane) {
    for (int32_t g = 0; g < l->elements / 4; g++) {
        uint32_t ones = llm_get_word(q + 4 * g) >> shift & 0x01010101u;
        uint32_t nibble = ones * 0x01020408u >> 24 & 15u; /* bit i of byte i, gathered */
        plane[8 * g + row / 2] |= (uint8_t)(nibble << (row % 2 * 4));
    }
}

static inline void llm_get_bits(const llm_layout *l, uint8_t *q, int32_t shift, int32_t row,
                                const uint8_t *plane) {
    for (int32_t g = 0; g < l->elements / 4; g++) {
        uint32_t nibble = plane[8 * g + row / 2] >> (row % 2 * 4) & 15u;
        for (int32_t i = 0; i < 4; i++) q[4 * g + i] |= (uint8_t)((nibble >> i & 1u) << shift);
    }
}

/* The body of every type's pack: inlined so that the layout's numbers become constants. */
static inline void llm_pack_blocks(const llm_layout *l, llm_split split, const uint8_t *src,
                                   int64_t row_stride, int32_t n_rows, int64_t n_blocks,
                                   uint8_t *panel) {
    llm_row_block row;
    int32_t high = llm_low_bytes(l);
    for (int64_t b = 0; b < n_blocks; b++, panel += 16 * l->bytes) {
        if (n_rows < 16)
            memset(panel, 0, (size_t)(16 * l->bytes));
        else if (l->high_bits == 1)
            memset(panel + high, 0, (size_t)llm_high_bytes(l));
        for (int32_t r = 0; r < n_rows; r++) {
            split(src + r * row_stride + b * l->bytes, &row);
            llm_put_plane(l, row.q, 0, l->low_bits, r, panel);
            if (l->high_bits == 2) llm_put_plane(l, row.q, l->low_bits, 2, r, panel + high);
            if (l->high_bits == 1) llm_put_bits(l, row.q, l->low_bits, r, panel + high);
            for (int32_t i = 0; i < l->n_u16; i++)
                memcpy(panel + llm_u16_at(l, i) + 2 * r, &row.u16[i], 2);
            for (int32_t i = 0; i < l->n_u8; i++) panel[llm_u8_at(l, i) + r] = row.u8[i];
        }
    }
}

static inline void llm_unpack_block(const llm_layout *l, llm_join join, const uint8_t *panel,
                                    int32_t r, uint8_t *raw) {
    llm_row_block row;
    int32_t high = llm_low_bytes(l);
    llm_get_plane(l, row.q, 0, l->low_bits, r, panel);
    if (l->high_bits == 2) llm_get_plane(l, row.q, l->low_bits, 2, r, panel + high);
    if (l->high_bits == 1) llm_get_bits(l, row.q, l->low_bits, r, panel + high);
    for (int32_t i = 0; i < l->n_u16; i++) memcpy(&row.u16[i], panel + llm_u16_at(l, i) + 2 * r, 2);
    for (int32_t i = 0; i < l->n_u8; i++) row.u8[i] = panel[llm_u8_at(l, i) + r];
    join(&row, raw);
}

/* Defines llm_pack_<name> and llm_unpack_row_<name> from split_<name> and join_<name>. */
#define LLM_DEFINE_PANELS(name)                                                                    \
    void llm_pack_##name(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks, \
                         uint8_t *panel) {                                                         \
        llm_pack_blocks(&llm_layout_##name, split_##name, src, row_stride, n_rows, n_blocks,       \
                        panel);                                                                    \
    }                                                                                              \
    void llm_unpack_row_##name(const uint8_t *panel, int32_t row, uint8_t *raw) {                  \
        llm_unpack_block(&llm_layout_##name, join_##name, panel, row, raw);                        \
    }

#endif
