/* planes.h: one row of a block into the bit planes of a panel block and back (see layout.h). */
#ifndef LLM_PLANES_H
#define LLM_PLANES_H

#include <stdbool.h>
#include <string.h>

#include "quant/fields.h"
#include "quant/layout.h"

/* A block of one row, cut open. */
typedef struct llm_row_block {
    uint8_t q[256];
    uint16_t u16[2];
    uint8_t u8[16];
} llm_row_block;

typedef void (*llm_put_row)(const uint8_t *raw, int32_t row, uint8_t *panel);
typedef void (*llm_put_pair)(const uint8_t *even, const uint8_t *odd, int32_t pair,
                             uint8_t *high_plane);
typedef void (*llm_split)(const uint8_t *raw, llm_row_block *out);
typedef void (*llm_join)(const llm_row_block *in, uint8_t *raw);

/* `bits` wide fields of a plane's vectors to groups of 4 inputs, or-ed in from bit `shift`. */
static inline void llm_get_plane(const llm_layout *l, uint8_t *q, int32_t shift, int32_t bits,
                                 int32_t row, const uint8_t *plane) {
    int32_t per_vector = 8 / bits;
    uint32_t mask = bits == 8 ? 0xffffffffu : 0x01010101u * ((1u << bits) - 1);
    for (int32_t v = 0; v < l->elements / 4 / per_vector; v++) {
        uint32_t word = llm_get_u32(plane + 64 * v + 4 * row);
        for (int32_t j = 0; j < per_vector; j++) {
            uint8_t *group = q + 4 * (v * per_vector + j);
            uint32_t old = shift ? llm_get_u32(group) : 0;
            llm_put_u32(group, old | (word >> (bits * j) & mask) << shift);
        }
    }
}

static inline void llm_get_bits(const llm_layout *l, uint8_t *q, int32_t shift, int32_t row,
                                const uint8_t *plane) {
    for (int32_t g = 0; g < l->elements / 4; g++) {
        uint32_t nibble = plane[8 * g + row / 2] >> (row % 2 * 4) & 15u;
        for (int32_t i = 0; i < 4; i++) q[4 * g + i] |= (uint8_t)((nibble >> i & 1u) << shift);
    }
}

/* The body of every type's pack: inlined so that the layout's numbers become constants. put_row
 * stores all of a row but a 1-bit plane, where put_pair stores two rows in one byte. */
static inline void llm_pack_blocks(const llm_layout *l, llm_put_row put_row, llm_put_pair put_pair,
                                   const uint8_t *src, int64_t row_stride, int32_t n_rows,
                                   int64_t n_blocks, uint8_t *panel) {
    static const uint8_t no_row[256];
    for (int64_t b = 0; b < n_blocks; b++, src += l->bytes, panel += 16 * l->bytes) {
        if (n_rows < 16) memset(panel, 0, (size_t)(16 * l->bytes));
        for (int32_t r = 0; r < n_rows; r++) put_row(src + r * row_stride, r, panel);
        if (!put_pair) continue;
        for (int32_t r = 0; r < n_rows; r += 2) {
            const uint8_t *even = src + r * row_stride;
            put_pair(even, r + 1 < n_rows ? even + row_stride : no_row, r / 2,
                     panel + llm_low_bytes(l));
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

/* n_u16 values of 2 bytes at `u16` and n_u8 bytes at `u8` of a raw block to the side arrays. */
static inline void llm_put_sides(const llm_layout *l, const uint8_t *u16, const uint8_t *u8,
                                 int32_t row, uint8_t *panel) {
    for (int32_t i = 0; i < l->n_u16; i++)
        memcpy(panel + llm_u16_at(l, i) + 2 * row, u16 + 2 * i, 2);
    for (int32_t i = 0; i < l->n_u8; i++) panel[llm_u8_at(l, i) + row] = u8[i];
}

/* Defines llm_pack_<name> and llm_unpack_row_<name> from put_<name>, pair (a function or NULL) and
 * join_<name>. */
#define LLM_DEFINE_PANELS(name, pair)                                                              \
    void llm_pack_##name(const uint8_t *src, int64_t row_stride, int32_t n_rows, int64_t n_blocks, \
                         uint8_t *panel) {                                                         \
        llm_pack_blocks(&llm_layout_##name, put_##name, pair, src, row_stride, n_rows, n_blocks,   \
                        panel);                                                                    \
    }                                                                                              \
    void llm_unpack_row_##name(const uint8_t *panel, int32_t row, uint8_t *raw) {                  \
        llm_unpack_block(&llm_layout_##name, join_##name, panel, row, raw);                        \
    }

#endif
