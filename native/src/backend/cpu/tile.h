/* tile.h: the frame that the three matmul files share.
 *
 * Few tokens: a chunk is unpacked into registers and multiplied with all tokens at once. Many
 * tokens: a superblock (256 inputs) of a group of panels is unpacked into slots in the first-level
 * cache and walked by tiles of tokens, whose sums wait in scratch between superblocks. A tile's
 * activations are read once for the whole group. Every order does the same operations per output,
 * so the bits are the same.
 */
#ifndef LLM_TILE_H
#define LLM_TILE_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/tile_switch.h"
#include "backend/cpu/unpack.h"

/* Once a superblock: a call costs nothing there, copies in every caller cost compile time. */
#if defined(__GNUC__)
#define LLM_OUTLINE static __attribute__((noinline, unused))
#else
#define LLM_OUTLINE static
#endif

#define LLM_AHEAD 2048 /* bytes between a weight read and its prefetch */
#define LLM_STREAMS 2  /* panels that few tokens read side by side */
#define LLM_FAR 3072   /* what few tokens ask of memory at the least, into the second level */
#define LLM_NEAR 256   /* and from there into the first */
#define LLM_GROUP 4    /* panels that share a walk over the tokens */
#define LLM_STRIP 512  /* tokens whose sums wait in scratch, at most */
#ifdef LLM_TILES
#define LLM_MOST_TOKENS LLM_TILES
#else
#define LLM_MOST_TOKENS LLM_TILE
#endif
#define LLM_SUM_ROWS (LLM_STRIP + LLM_MOST_TOKENS) /* every tile has whole rows */

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
    llm_unpacked unpacked[LLM_GROUP];
    float sums[LLM_GROUP][LLM_SUM_ROWS][16];
#ifdef LLM_TILES
    int32_t dots[8][LLM_TILES][16]; /* by group of 32 inputs; see folded_sum */
    uint8_t high[LLM_GROUP][64 * 64]; /* with scales folded in: the high bytes, and */
    float norm[LLM_GROUP];            /* the most of a row's sum of squares */
    llm_unpacked by_groups;           /* a superblock without */
#endif
#ifdef LLM_PAIRS
    int8_t pairs[LLM_FUSED / 2][512]; /* activations of a tile: see neon/quads.h */
#endif
    float x[LLM_TILE][256];                 /* activations of a tile, float weights */
    uint8_t panel[256 * 16 * 4];            /* a superblock packed from raw rows */
    uint8_t panels[LLM_GROUP][256 * 16 * 4]; /* the same of all panels, float weights */
} llm_scratch;

/* Tokens of the next tile when `left` remain: tiles of equal size, none above `most`. */
static inline int32_t tile_size_of(int32_t left, int32_t most) {
    return (left - 1) / ((left + most - 1) / most) + 1;
}

static inline int32_t tile_size(int32_t left) { return tile_size_of(left, LLM_TILE); }

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

#ifndef LLM_QUADS

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

#endif

/* A tile: tokens [first, first + n), of which the first `skipped` belong to the tile before too;
 * their sums are rows [row, row + n) of scratch. */
typedef struct llm_token_tile {
    int32_t first, n, skipped, row;
} llm_token_tile;

/* How a job's tokens are cut: into tiles of up to `most`, or exactly that many if `whole`. */
typedef struct llm_cut {
    int32_t most;
    bool whole; /* on AMX tiles */
} llm_cut;

/* The tile of the tokens from `at` on, at < end. AMX tiles are always whole: the last one computes
 * some tokens again. */
static inline llm_token_tile tile_at(int32_t at, int32_t end, int32_t row, llm_cut cut) {
    int32_t left = end - at, n = cut.whole ? cut.most : tile_size_of(left, cut.most);
    int32_t skipped = n > left ? n - left : 0;
    return (llm_token_tile){at - skipped, n, skipped, row};
}

/* The tile after t, or t itself when that is the last. */
static inline llm_token_tile tile_after(llm_token_tile t, int32_t end, llm_cut cut) {
    return t.first + t.n < end ? tile_at(t.first + t.n, end, t.row + t.n, cut) : t;
}

/* The job's finished sums. */
static inline void store_tiles(const llm_panel_job *job, llm_cut cut) {
    const llm_scratch *s = scratch_of(job);
    llm_token_tile t = tile_at(job->first, job->end, 0, cut);
    for (int32_t at = job->first; at < job->end;
         at = t.first + t.n, t = tile_after(t, job->end, cut))
        for (int32_t j = t.skipped; j < t.n; j++)
            for (int32_t i = 0; i < job->n_panels; i++)
                store_rows(job, i, t.first + j, vf_load(s->sums[i][t.row + j]));
}

/* Part i of n_parts of the lines of n_bytes from p on; they need not exist. */
LLM_INLINE void prefetch_part(const void *p, int64_t n_bytes, int32_t i, int32_t n_parts) {
    const uint8_t *from = p;
    int64_t n_lines = n_bytes / 64 + 1;
    for (int64_t l = n_lines * i / n_parts; l < n_lines * (i + 1) / n_parts; l++)
        LLM_PREFETCH(from + 64 * l);
}

/* A core has few buffers for lines on their way into its first level. So few tokens ask for weights
 * twice: far ahead, into the second level, and from there into the first. Beyond the end of a panel, a
 * stream goes on with the one LLM_STREAMS further. p: byte `at` of a panel. */
LLM_INLINE const uint8_t *far_of(const llm_panel_job *job, const uint8_t *p, int64_t at,
                                 int64_t panel_bytes) {
    if (!job->w->panels) return p; /* in scratch */
    const llm_format *f = job->w->format;
    /* Past the superblock that is being read: its other lines are on their way. */
    const int64_t superblock = f->block_elements == 256 ? LLM_PANEL_ROWS * f->block_bytes : 0;
    const int64_t far = superblock * 4 / 3 > LLM_FAR ? superblock * 4 / 3 : LLM_FAR;
    return p + far + (at + far < panel_bytes ? 0 : (LLM_STREAMS - 1) * panel_bytes);
}

LLM_INLINE void ask_ahead(const uint8_t *p, const uint8_t *far, int n_bytes) {
    for (int at = 0; at < n_bytes; at += 64) vb_prefetch_l2(far + at);
    for (int at = 0; at < n_bytes; at += 64) vb_prefetch(p + LLM_NEAR + at);
}

/* f(..., first, last, n) for each run of up to LLM_STREAMS panels, n tokens in all; ends the sums. */
#define LLM_FEW_PANELS(job, f, ...)                                                                \
    {                                                                                              \
        for (int32_t first = 0, last; first < (job)->n_panels; first = last) {                     \
            last = first + LLM_STREAMS < (job)->n_panels ? first + LLM_STREAMS : (job)->n_panels;  \
            LLM_FUSED_SWITCH((job)->x->n, f, __VA_ARGS__, first, last)                             \
        }                                                                                          \
        store_strip(job, 0, (job)->x->n);                                                          \
    }

#ifndef LLM_QUADS
/* Four inputs of 16 rows with the same four inputs of n tokens. */
LLM_INLINE void dot_tokens(const llm_unpacking *u, vi *s, vb w, const int8_t *q, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) s[t] = unpack_dot(u, s[t], w, q + 256 * t);
}
#endif

#endif
