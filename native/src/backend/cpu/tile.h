/* tile.h: the frame that the three matmul files share.
 *
 * Few tokens: a chunk is unpacked into registers and multiplied with all tokens at once. Many
 * tokens: a superblock (256 inputs x 16 rows) is unpacked into scratch in the first-level cache and
 * walked by tiles of up to LLM_TILE tokens, whose sums wait in scratch between superblocks. Both
 * orders do the same operations per output, so the bits are the same.
 */
#ifndef LLM_TILE_H
#define LLM_TILE_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/unpack.h"

#define LLM_AHEAD 2048 /* bytes between a weight read and its prefetch */
#define LLM_STRIP 240  /* most tokens whose sums wait in scratch */
#define LLM_STRIP_BYTES (1 << 20) /* activations of a strip, which should stay in the L2 cache */

typedef struct llm_scratch {
    uint8_t w[64 * 64];          /* a superblock: [k / 4][16 rows][4] */
    float d[8][16], m[8][16];    /* scales and mins of blocks of 32 */
    llm_scales scales;           /* of a block of 256 */
    float sums[LLM_STRIP][16];
    uint8_t panel[256 * 16 * 4]; /* a superblock packed from raw rows */
} llm_scratch;

/* Tokens of the next tile when `left` remain: tiles of equal size, none above LLM_TILE. */
static inline int32_t tile_size(int32_t left) {
    int32_t n_tiles = (left + LLM_TILE - 1) / LLM_TILE;
    return (left + n_tiles - 1) / n_tiles;
}

static inline int32_t strip_size(int64_t bytes_per_token) {
    int64_t n = LLM_STRIP_BYTES / bytes_per_token / LLM_TILE * LLM_TILE;
    return n > LLM_STRIP ? LLM_STRIP : n < LLM_TILE ? LLM_TILE : (int32_t)n;
}

/* Elements [256 sb, 256 sb + 32 n_chunks) of a panel: in place, or packed into scratch. */
static inline const uint8_t *panel_superblock(const llm_panel_job *job, int64_t sb,
                                              int64_t n_elements) {
    const llm_format *f = job->w->format;
    int64_t row_bytes = job->w->n_cols / f->block_elements * f->block_bytes;
    int64_t first = sb * 256 / f->block_elements * f->block_bytes;
    if (job->w->panels) return job->w->panels + 16 * (job->panel * row_bytes + first);
    uint8_t *panel = ((llm_scratch *)(void *)job->scratch)->panel;
    f->pack(job->w->raw + 16 * job->panel * row_bytes + first, row_bytes, job->n_rows,
            n_elements / f->block_elements, panel);
    return panel;
}

static inline void store_rows(const llm_panel_job *job, int32_t t, vf sum) {
    float *y = job->y + t * job->ldy;
    if (job->n_rows == 16)
        vf_store(y, sum);
    else
        vf_store_n(y, sum, job->n_rows);
}

static inline void store_strip(const llm_panel_job *job, const float (*sums)[16], int32_t first,
                               int32_t n) {
    for (int32_t t = 0; t < n; t++) store_rows(job, first + t, vf_load(sums[t]));
}

/* Four inputs of 16 rows with the same four inputs of n tokens. */
LLM_INLINE void dot_tokens(const llm_unpacking *u, vi *s, vb w, const int8_t *q, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) s[t] = unpack_dot(u, s[t], w, q + 256 * t);
}

/* Calls f(..., n) with n as a constant, 1 <= n <= LLM_TILE. */
#define LLM_CASE(n, f, ...)                                                                        \
    case n: f(__VA_ARGS__, n); break;
#if LLM_TILE == 12
#define LLM_TILE_SWITCH(n, f, ...)                                                                 \
    switch (n) {                                                                                   \
        LLM_CASE(1, f, __VA_ARGS__)                                                                \
        LLM_CASE(2, f, __VA_ARGS__) LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)        \
            LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__) LLM_CASE(7, f, __VA_ARGS__)    \
                LLM_CASE(8, f, __VA_ARGS__) LLM_CASE(9, f, __VA_ARGS__)                            \
                    LLM_CASE(10, f, __VA_ARGS__) LLM_CASE(11, f, __VA_ARGS__)                      \
                        LLM_CASE(12, f, __VA_ARGS__)                                               \
    }
#elif LLM_TILE == 4
#define LLM_TILE_SWITCH(n, f, ...)                                                                 \
    switch (n) {                                                                                   \
        LLM_CASE(1, f, __VA_ARGS__)                                                                \
        LLM_CASE(2, f, __VA_ARGS__) LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)        \
    }
#elif LLM_TILE == 1
#define LLM_TILE_SWITCH(n, f, ...) f(__VA_ARGS__, 1);
#endif

/* The same for 1 <= n <= LLM_FUSED, and what to do for more. */
#if LLM_FUSED == 4
#define LLM_FUSED_SWITCH(n, more, f, ...)                                                          \
    switch (n) {                                                                                   \
        LLM_CASE(1, f, __VA_ARGS__)                                                                \
        LLM_CASE(2, f, __VA_ARGS__) LLM_CASE(3, f, __VA_ARGS__)                                    \
            LLM_CASE(4, f, __VA_ARGS__) default : more;                                            \
    }
#else
#define LLM_FUSED_SWITCH(n, more, f, ...)                                                          \
    if (n == 1)                                                                                    \
        f(__VA_ARGS__, 1);                                                                         \
    else                                                                                           \
        more;
#endif

#endif
