/* tile.h: the frame that the three matmul files share.
 *
 * Few tokens: a chunk is unpacked into registers and multiplied with all tokens at once. Many
 * tokens: superblocks (256 inputs) of a group of panels are unpacked once into slots in the
 * second-level cache; then every tile of tokens walks them, LLM_DEPTH superblocks of its
 * activations at a time, which stay in the first-level cache for all panels. Sums wait in scratch
 * between those steps, and in y when a group has more superblocks than there are slots. Every
 * order does the same operations per output, so the bits are the same.
 */
#ifndef LLM_TILE_H
#define LLM_TILE_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/unpack.h"

/* Once a superblock: a call costs nothing there, copies in every caller cost compile time. */
#if defined(__GNUC__)
#define LLM_OUTLINE static __attribute__((noinline, unused))
#else
#define LLM_OUTLINE static
#endif

#define LLM_AHEAD 2048 /* bytes between a weight read and its prefetch */
#define LLM_STREAMS 4  /* panels that few tokens read side by side */
#define LLM_GROUP 8    /* panels that share a walk over the tokens */
#define LLM_SLOTS 128  /* unpacked superblocks in scratch */
#define LLM_DEPTH 2    /* superblocks of a tile's activations used at a time */
#define LLM_STRIP 98   /* tokens whose sums wait in scratch, float weights */
#ifdef LLM_TILES
#define LLM_MOST_TOKENS LLM_TILES
#else
#define LLM_MOST_TOKENS LLM_TILE
#endif

/* A superblock of one panel, ready for the tiles. */
typedef struct llm_unpacked {
    uint8_t w[64 * 64]; /* [k / 4][16 rows][4]; signed, less the zero point, for AMX tiles */
    union {
        struct {
            float d[8][16], m[8][16]; /* scales and mins of blocks of 32 */
        };
        llm_scales scales; /* of a block of 256 */
    };
} llm_unpacked;

typedef struct llm_scratch {
    llm_unpacked unpacked[LLM_SLOTS];
    float sums[LLM_GROUP][LLM_STRIP][16];
    float tile_sums[LLM_GROUP][LLM_MOST_TOKENS][16];
#ifdef LLM_TILES
    int32_t dots[8][LLM_TILES][16]; /* by group of 32 inputs */
#endif
    float x[LLM_TILE][256];      /* activations of a tile, float weights */
    uint8_t panel[256 * 16 * 4]; /* a superblock packed from raw rows */
} llm_scratch;

/* Tokens of the next tile when `left` remain: tiles of equal size, none above LLM_TILE. */
static inline int32_t tile_size(int32_t left) {
    int32_t n_tiles = (left + LLM_TILE - 1) / LLM_TILE;
    return (left + n_tiles - 1) / n_tiles;
}

static inline llm_scratch *scratch_of(const llm_panel_job *job) {
    return (llm_scratch *)(void *)job->scratch;
}

static inline int32_t rows_of(const llm_panel_job *job, int32_t i) {
    int64_t rows = job->w->n_rows - (job->panel + i) * LLM_PANEL_ROWS;
    return rows < LLM_PANEL_ROWS ? (int32_t)rows : LLM_PANEL_ROWS;
}

/* Elements [256 sb, 256 sb + n_elements) of the job's panel i: in place, or packed into scratch. */
LLM_OUTLINE const uint8_t *panel_superblock(const llm_panel_job *job, int32_t i, int64_t sb,
                                            int64_t n_elements) {
    const llm_format *f = job->w->format;
    /* Blocks have 1, 32 or 256 elements: shifts, as a division would show in the time of a
     * superblock. */
    const int shift = f->block_elements == 256 ? 8 : f->block_elements == 32 ? 5 : 0;
    int64_t row_bytes = (job->w->n_cols >> shift) * f->block_bytes;
    int64_t at = LLM_PANEL_ROWS * (job->panel + i) * row_bytes;
    int64_t first = (sb << (8 - shift)) * f->block_bytes;
    if (job->w->panels) return job->w->panels + at + LLM_PANEL_ROWS * first;
    uint8_t *panel = scratch_of(job)->panel;
    f->pack(job->w->raw + at + first, row_bytes, rows_of(job, i), n_elements >> shift, panel);
    return panel;
}

static inline void store_rows(const llm_panel_job *job, int32_t i, int32_t t, vf sum) {
    float *y = job->y + LLM_PANEL_ROWS * i + t * job->ldy;
    int32_t n_rows = rows_of(job, i);
    if (n_rows == LLM_PANEL_ROWS)
        vf_store(y, sum);
    else
        vf_store_n(y, sum, n_rows);
}

/* The finished sums of n tokens, the first of which is token `first` of the job. */
static inline void store_strip(const llm_panel_job *job, int32_t first, int32_t n) {
    const llm_scratch *s = scratch_of(job);
    for (int32_t i = 0; i < job->n_panels; i++)
        for (int32_t t = 0; t < n; t++) store_rows(job, i, first + t, vf_load(s->sums[i][t]));
}

static inline void clear_sums(const llm_panel_job *job, int32_t n) {
    for (int32_t i = 0; i < job->n_panels; i++)
        memset(scratch_of(job)->sums[i], 0, (size_t)n * sizeof scratch_of(job)->sums[0][0]);
}

/* Sums of n tokens from token t on, for all panels of the job: 0, or what earlier superblocks left
 * in y. */
static inline void open_sums(const llm_panel_job *job, int32_t t, int32_t n, bool fresh) {
    llm_scratch *s = scratch_of(job);
    for (int32_t i = 0; i < job->n_panels; i++) {
        const float *y = job->y + LLM_PANEL_ROWS * i + t * job->ldy;
        int32_t n_rows = rows_of(job, i);
        for (int32_t j = 0; j < n; j++, y += job->ldy)
            vf_store(s->tile_sums[i][j], fresh                      ? vf_zero()
                                         : n_rows == LLM_PANEL_ROWS ? vf_load(y)
                                                                    : vf_load_n(y, n_rows));
    }
}

/* Sums of n tokens from token t on to y, but for the first `skipped`. */
static inline void close_sums(const llm_panel_job *job, int32_t t, int32_t n, int32_t skipped) {
    const llm_scratch *s = scratch_of(job);
    for (int32_t i = 0; i < job->n_panels; i++)
        for (int32_t j = skipped; j < n; j++)
            store_rows(job, i, t + j, vf_load(s->tile_sums[i][j]));
}

/* Chunk c of a panel block as a tile reads it: less the zero point if `centred`. */
LLM_INLINE void unpack_to(const llm_unpacking *u, const uint8_t *block, int c, bool centred,
                          uint8_t *to) {
    vb w[8];
    unpack_chunk(u, block, c, w);
    LLM_UNROLL
    for (int g = 0; g < 8; g++) {
#ifdef LLM_TILES
        if (centred) w[g] = vb_minus(w[g], u->zero);
#else
        (void)centred;
#endif
        vb_store(to + 64 * g, w[g]);
    }
}

/* The superblock behind the last that fits into the slots, from `first` on. */
static inline int64_t slots_end(const llm_panel_job *job, int64_t first, int64_t n_sb) {
    int64_t most = LLM_SLOTS / job->n_panels;
    return n_sb - first < most ? n_sb : first + most;
}

/* Tokens [first, first + n) of a tile; the first `skipped` of them belong to the tile before. */
typedef struct llm_token_run {
    int32_t first, n, skipped;
} llm_token_run;

/* The next tile of the job's tokens, from {0} on; false when there is none. AMX tiles are always
 * whole: the last one computes some tokens again. */
static inline bool next_run(const llm_panel_job *job, bool on_tiles, llm_token_run *r) {
    int32_t at = r->first + r->n, left = job->x->n - at;
    if (left <= 0) return false;
    int32_t n = on_tiles ? LLM_MOST_TOKENS : tile_size(left);
    int32_t skipped = n > left ? n - left : 0;
    *r = (llm_token_run){at - skipped, n, skipped};
    return true;
}

/* Whether the job goes through AMX tiles, which are set up then. */
LLM_INLINE bool tiles_begin(const llm_panel_job *job, const int group) {
#ifdef LLM_TILES
    if (job->x->n < LLM_TILES) return false;
    tiles_open(group, LLM_TILES);
    return true;
#else
    (void)job, (void)group;
    return false;
#endif
}

LLM_INLINE void tiles_end(bool on_tiles) {
#ifdef LLM_TILES
    if (on_tiles) tiles_close();
#else
    (void)on_tiles;
#endif
}

/* Four inputs of 16 rows with the same four inputs of n tokens. */
LLM_INLINE void dot_tokens(const llm_unpacking *u, vi *s, vb w, const int8_t *q, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) s[t] = unpack_dot(u, s[t], w, q + 256 * t);
}

/* Calls f(..., n) with n as a constant, 1 <= n <= LLM_TILE. */
/* clang-format off */
#define LLM_CASE(n, f, ...) case n: f(__VA_ARGS__, n); break;
#if LLM_TILE == 14
#define LLM_TILE_SWITCH(n, f, ...)                                                 \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
        LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__)                    \
        LLM_CASE(7, f, __VA_ARGS__) LLM_CASE(8, f, __VA_ARGS__)                    \
        LLM_CASE(9, f, __VA_ARGS__) LLM_CASE(10, f, __VA_ARGS__)                   \
        LLM_CASE(11, f, __VA_ARGS__) LLM_CASE(12, f, __VA_ARGS__)                  \
        LLM_CASE(13, f, __VA_ARGS__) LLM_CASE(14, f, __VA_ARGS__)                  \
    }
#elif LLM_TILE == 4
#define LLM_TILE_SWITCH(n, f, ...)                                                 \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
    }
#elif LLM_TILE == 1
#define LLM_TILE_SWITCH(n, f, ...) f(__VA_ARGS__, 1);
#endif

/* The same for 1 <= n <= LLM_FUSED. */
#if LLM_FUSED == 8
#define LLM_FUSED_SWITCH(n, f, ...)                                                \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
        LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__)                    \
        LLM_CASE(7, f, __VA_ARGS__) LLM_CASE(8, f, __VA_ARGS__)                    \
    }
#elif LLM_FUSED == 4
#define LLM_FUSED_SWITCH(n, f, ...)                                                \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
    }
#else
#define LLM_FUSED_SWITCH(n, f, ...) f(__VA_ARGS__, 1);
#endif
/* clang-format on */

#endif
