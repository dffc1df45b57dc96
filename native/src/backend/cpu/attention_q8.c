/* attention_q8.c: K and V in blocks of q8_0, and their products with queries and weights as exact
 * integer dots. The arithmetic is in docs/ARITHMETIC.md, the layout of a block in kv/pool.h: four
 * inputs of a dot lie side by side, dims for K and tokens for V, so that 64 bytes are 16 dots of
 * four. Every token of a block is multiplied; the weight of one that a row does not see is 0. */
#include "attention_q8.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "tile_switch.h"
#include "vec_math.h"
#include "vec_quant.h"

enum {
    TOKENS = LLM_BLOCK_TOKENS,
    VECS = LLM_TILE > 12 ? 2 : 1, /* of a register tile, beside LLM_TILE rows */
    U_BYTES = 2 * TOKENS,
};
#define MOST 32767.0f /* weights have 15 bits: the many small ones beside a large one count */

/* How keys and weights meet queries and values: as unsigned bytes, the weights in two of them; or
 * where unsigned bytes would overflow the products, as signed bytes and as words. */
#ifdef LLM_WORD_DOTS
typedef vb_signed key_bytes;
LLM_INLINE key_bytes load_key(const uint8_t *k) { return vb_signed_of(vb_flip(vb_load(k))); }
#define dot_key(acc, key, q) vb_dot_signed(acc, key, vb_set4(q))
#define key_start(start) ((void)(start), 0)
LLM_INLINE void store_weights(uint8_t *u, vi w0, vi w1) {
    vi_store_words(u, w0);
    vi_store_words(u + 32, w1);
}
typedef vb_words value_bytes;
#define load_value(v) vb_words_of(vb_load(v))
#define dot_value(acc, value, u, part, t) vb_dot_words(acc, value, (u) + 2 * (t))
enum { WEIGHT_PARTS = 1 };
#else
typedef vb key_bytes;
#define load_key(k) vb_load(k)
#define dot_key(acc, key, q) vb_dot_each(acc, key, vb_set4(q))
#define key_start(start) (start)
#define store_weights(u, w0, w1) vb_store(u, vb_split(w0, w1))
typedef vb value_bytes;
#define load_value(v) vb_load(v)
#define dot_value(acc, value, u, part, t)                                                          \
    vb_dot_each(acc, vb_set4((u) + TOKENS * (part) + (t)), value)
enum { WEIGHT_PARTS = 2 }; /* low bytes, high bytes */
#endif

/* y = H x / sqrt(32) for the Hadamard matrix H of 32: an outlier among the 32 is shared by all, which
 * the scale then suits better, and products of two rotated vectors are those of the vectors. */
static void rotate_32(const float *x, float *y) {
    float a[32], b[32];
    memcpy(a, x, sizeof a);
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < 16; i++) {
            b[i] = a[i] + a[i + 16];
            b[i + 16] = a[i] - a[i + 16];
        }
        /* the two halves interleaved: after five turns every value has met all */
        for (int i = 0; i < 16; i++) {
            a[2 * i] = b[i];
            a[2 * i + 1] = b[i + 16];
        }
    }
    for (int i = 0; i < 32; i++) y[i] = a[i] * 0x1.6a09e6p-3f;
}

/* 32 values to s8; returns the scale. */
static float quantize_32(const float *x, int8_t *q) {
    float inverse;
    const float d = block_scale(amax_bits32(x), &inverse);
    quantize16(x, inverse, q);
    quantize16(x + 16, inverse, q + 16);
    return d;
}

void LLM_FN(q8_write)(uint8_t *k_block, uint8_t *v_block, int32_t dim, int32_t slot, const float *k,
                      const float *v) {
    uint16_t *k_scales = (uint16_t *)(void *)(k_block + (int64_t)dim * TOKENS);
    uint16_t *v_scales = (uint16_t *)(void *)(v_block + (int64_t)dim * TOKENS);
    for (int32_t d = 0; d < dim; d += 32) {
        int8_t kq[32], vq[32];
        float rotated[32];
        rotate_32(k + d, rotated);
        k_scales[d + slot] = vf_f32_to_f16_1(quantize_32(rotated, kq));
        v_scales[d + slot] = vf_f32_to_f16_1(quantize_32(v + d, vq));
        for (int i = 0; i < 32; i++) {
            k_block[((d + i) / 4 * TOKENS + slot) * 4 + i % 4] = (uint8_t)kq[i] ^ 0x80;
            v_block[(slot / 4 * dim + d + i) * 4 + slot % 4] = (uint8_t)vq[i];
        }
    }
}

#if defined(LLM_TILES)
static bool use_tiles(int32_t n_rows) { return n_rows >= LLM_TILES; }

/* Tiles of 16 rows that cover [ra, rb), at least 16: the last one may overlap the one before it. */
static int32_t tile_start(int32_t r, int32_t rb) {
    return r + LLM_TILES <= rb ? r : rb - LLM_TILES;
}

static void begin_scores(const llm_q8_pass *s, const llm_q8_block *b, int32_t r, int32_t g) {
    const int32_t row = tile_start(r, b->rb);
    tiles_two_b(s->q + (int64_t)row * s->dim + 32 * g, s->dim, b->k + 32 * TOKENS * g, 4 * TOKENS);
}

/* A product takes long: while one runs, the sums before it become scores. */
static void tile_scores(const llm_q8_pass *s, const llm_q8_block *b) {
    const uint16_t *k_scales = (const uint16_t *)(const void *)(b->k + s->dim * TOKENS);
    _Alignas(64) int32_t dots[2 * LLM_TILES][16];
    begin_scores(s, b, b->ra, 0);
    for (int32_t r0 = b->ra; r0 < b->rb; r0 += LLM_TILES)
        for (int32_t g = 0; g < s->groups; g++) {
            const int32_t row = tile_start(r0, b->rb);
            tiles_store_two(dots);
            if (g + 1 < s->groups)
                begin_scores(s, b, r0, g + 1);
            else if (r0 + LLM_TILES < b->rb)
                begin_scores(s, b, r0 + LLM_TILES, 0);
            const vf low = vf_load_f16(k_scales + TOKENS * g);
            const vf high = vf_load_f16(k_scales + TOKENS * g + 16);
            for (int32_t r = r0; r < row + LLM_TILES; r++) {
                float *p = b->p + r * TOKENS;
                const vi start = vi_set1(s->q_start[r * s->groups + g]);
                const vf scale = vf_set1(s->q_scale[r * s->groups + g]);
                vf x = vi_to_f(vi_add(vi_load(dots[r - row]), start));
                vf y = vi_to_f(vi_add(vi_load(dots[LLM_TILES + r - row]), start));
                vf_store(p, vf_fma(vf_mul(low, scale), x, g ? vf_load(p) : vf_zero()));
                vf_store(p + 16, vf_fma(vf_mul(high, scale), y, g ? vf_load(p + 16) : vf_zero()));
            }
        }
}

static void begin_outputs(const llm_q8_pass *s, const llm_q8_block *b, int32_t at, int32_t r,
                          int32_t g) {
    const int32_t row = tile_start(r, b->rb);
    tiles_two_ab(s->u + U_BYTES * (at + g * s->n_rows + row), U_BYTES, b->v + 4 * 32 * g,
                 4 * (int64_t)s->dim);
}

static void tile_outputs(const llm_q8_pass *s, const llm_q8_block *b, int32_t at, const float *grow,
                         float *o) {
    _Alignas(64) int32_t dots[4 * LLM_TILES][16];
    begin_outputs(s, b, at, b->ra, 0);
    for (int32_t r0 = b->ra; r0 < b->rb; r0 += LLM_TILES)
        for (int32_t g = 0; g < s->groups; g++) {
            const int32_t row = tile_start(r0, b->rb);
            tiles_store_four(dots);
            if (g + 1 < s->groups)
                begin_outputs(s, b, at, r0, g + 1);
            else if (r0 + LLM_TILES < b->rb)
                begin_outputs(s, b, at, r0 + LLM_TILES, 0);
            for (int32_t r = r0; r < row + LLM_TILES; r++) {
                float *to = o + (int64_t)r * s->dim + 32 * g;
                const vf scale = vf_set1(s->u_scale[at + g * s->n_rows + r]), c = vf_set1(grow[r]);
                const int32_t (*low)[16] = dots + (r - row), (*high)[16] = low + 2 * LLM_TILES;
                for (int i = 0; i < 2; i++, low += LLM_TILES, high += LLM_TILES, to += 16) {
                    vi sum = vi_add(vi_load(*low), vi_shl(vi_load(*high), 8));
                    vf_store(to, vf_fma(vi_to_f(sum), scale, vf_mul(vf_load(to), c)));
                }
            }
        }
}
#else
#define use_tiles(n_rows) ((void)(n_rows), false)
#define tile_scores(s, b) ((void)0)
#define tile_outputs(s, b, at, grow, o) ((void)0)
#define tiles_open_pairs() ((void)0)
#define tiles_close() ((void)0)
#endif

void LLM_FN(q8_queries)(llm_q8_pass *s, const float *const *q, int32_t n_rows, int32_t dim) {
    s->n_rows = n_rows;
    s->dim = dim;
    s->groups = dim / 32;
    for (int32_t r = 0, i = 0; r < n_rows; r++)
        for (int32_t d = 0; d < dim; d += 32, i++) {
            int8_t *to = s->q + (int64_t)r * dim + d;
            float rotated[32];
            rotate_32(q[r] + d, rotated);
            s->q_scale[i] = quantize_32(rotated, to);
            int32_t sum = 0;
            for (int j = 0; j < 32; j++) sum += to[j];
            s->q_start[i] = -128 * sum;
        }
    if (use_tiles(n_rows)) tiles_open_pairs();
}

void LLM_FN(q8_finish)(const llm_q8_pass *s) {
    if (use_tiles(s->n_rows)) tiles_close();
}

/* Spreads what is asked of memory over the tiles of a block: all at once would stall them. */
LLM_INLINE const uint8_t *read_ahead(const uint8_t *ahead, int32_t n_lines) {
    if (!ahead) return NULL;
    for (int32_t i = 0; i < n_lines; i++) LLM_PREFETCH_L2(ahead + 64 * i);
    return ahead + (int64_t)64 * n_lines;
}
static int32_t lines_of_tile(const llm_q8_pass *s, int32_t n_rows) {
    const int32_t tiles = (n_rows + LLM_TILE - 1) / LLM_TILE;
    return (s->dim * TOKENS / 32 * 34 / 64 + tiles - 1) / tiles;
}

/* The next tile of n rows: as equal ones as LLM_TILE allows. */
static int32_t rows_of_tile(int32_t n) {
    const int32_t tiles = (n + LLM_TILE - 1) / LLM_TILE;
    return (n + tiles - 1) / tiles;
}

/* Rows [row, row + n). */
LLM_INLINE void score_rows(const llm_q8_pass *s, const llm_q8_block *b, int32_t row, const int n) {
    const uint16_t *k_scales = (const uint16_t *)(const void *)(b->k + s->dim * TOKENS);
    for (int g = 0; g < s->groups; g++)
        for (int vec = 0; vec < 2; vec += VECS) {
            const uint8_t *k = b->k + 32 * TOKENS * g + 64 * vec;
            const int8_t *q = s->q + (int64_t)row * s->dim + 32 * g;
            const int32_t at = row * s->groups + g;
            vi acc[LLM_TILE][VECS];
            LLM_UNROLL
            for (int r = 0; r < n; r++) LLM_UNROLL
            for (int v = 0; v < VECS; v++)
                acc[r][v] = vi_set1(key_start(s->q_start[at + r * s->groups]));
            for (int i = 0; i < 8; i++) {
                key_bytes kv[VECS];
                LLM_UNROLL
                for (int v = 0; v < VECS; v++) kv[v] = load_key(k + 4 * TOKENS * i + 64 * v);
                LLM_UNROLL
                for (int r = 0; r < n; r++) LLM_UNROLL
                for (int v = 0; v < VECS; v++)
                    acc[r][v] = dot_key(acc[r][v], kv[v], q + (int64_t)r * s->dim + 4 * i);
            }
            LLM_UNROLL
            for (int v = 0; v < VECS; v++) {
                const vf scale = vf_load_f16(k_scales + TOKENS * g + 16 * (vec + v));
                LLM_UNROLL
                for (int r = 0; r < n; r++) {
                    float *p = b->p + (row + r) * TOKENS + 16 * (vec + v);
                    vf sum = g ? vf_load(p) : vf_zero();
                    vf both = vf_mul(scale, vf_set1(s->q_scale[at + r * s->groups]));
                    vf_store(p, vf_fma(both, vi_to_f(acc[r][v]), sum));
                }
            }
        }
}

void LLM_FN(q8_scores)(const llm_q8_pass *s, const llm_q8_block *b, const uint8_t *ahead) {
    const int32_t lines = lines_of_tile(s, b->rb - b->ra);
    if (use_tiles(b->rb - b->ra)) {
        tile_scores(s, b);
        return;
    }
    for (int32_t r = b->ra, n; r < b->rb; r += n) {
        n = rows_of_tile(b->rb - r);
        ahead = read_ahead(ahead, lines);
        LLM_TILE_SWITCH(n, score_rows, s, b, r)
    }
}

/* How the scales of V of one group of dims share a scale: a weight of the largest one becomes MOST. */
typedef struct ratios {
    vf low, high; /* of tokens 0..15 and 16..31 */
    float step; /* the scale of 1 */
} ratios;

LLM_INLINE ratios ratios_of(vf low, vf high) {
    const vi bits = vf_absbits_max(vf_absbits_max(vi_set1(0), low), high);
    const float most = llm_bits_f32((uint32_t)vi_reduce_max(bits));
    if (most == 0) return (ratios){vf_zero(), vf_zero(), 0};
    if (!(most < INFINITY)) return (ratios){vf_zero(), vf_zero(), NAN};
    const vf inverse = vf_set1(MOST / most);
    return (ratios){vf_mul(low, inverse), vf_mul(high, inverse), most / MOST};
}

/* Weights of one block and group of dims. */
LLM_INLINE void group_weights(llm_q8_pass *s, const llm_q8_block *b, const uint16_t *v_scales,
                              int32_t unit0, int32_t at) {
    const vf low = vf_load_f16(v_scales), high = vf_load_f16(v_scales + 16);
    const ratios all = ratios_of(low, high);
    for (int32_t r = b->ra; r < b->rb; r++) {
        const uint32_t seen = llm_seen_tokens(b->first[r], b->end[r]);
        ratios x = all;
        if (seen != UINT32_MAX) /* what a row does not see may be NaN */
            x = ratios_of(vf_select(vm_from_bits(seen & 0xffff), low, vf_zero()),
                          vf_select(vm_from_bits(seen >> 16), high, vf_zero()));
        const float *p = b->p + r * TOKENS;
        const vf inverse = vf_set1(s->inverse[unit0 + r]);
        vi w0 = vf_rint(vf_mul(vf_mul(vf_load(p), inverse), x.low));
        vi w1 = vf_rint(vf_mul(vf_mul(vf_load(p + 16), inverse), x.high));
        store_weights(s->u + U_BYTES * (at + r), w0, w1);
        s->u_scale[at + r] = s->peak[unit0 + r] * x.step;
    }
}

void LLM_FN(q8_weights)(llm_q8_pass *s, const llm_q8_block *blocks, int32_t n_blocks,
                        const float *most, const float *m) {
    const int32_t rows = s->n_rows;
    for (int32_t u = 0; u < n_blocks * rows; u += 16) {
        const vf peak = vf_exp(vf_sub(vf_load(most + u), vf_load(m + u)));
        const vm some = vf_lt(vf_zero(), peak);
        vf_store(s->peak + u, peak);
        vf_store(s->inverse + u, vf_select(some, vf_div(vf_set1(1.0f), peak), vf_zero()));
    }
    for (int32_t j = 0; j < n_blocks; j++) {
        const uint16_t *v_scales = (const uint16_t *)(const void *)(blocks[j].v + s->dim * TOKENS);
        for (int32_t g = 0; g < s->groups; g++)
            group_weights(s, blocks + j, v_scales + TOKENS * g, j * rows,
                          (j * s->groups + g) * rows);
    }
}

/* Rows [row, row + n); at: their first weight in the run. */
LLM_INLINE void output_rows(const llm_q8_pass *s, const llm_q8_block *b, int32_t row, int32_t at,
                            const float *grow, float *o, const int n) {
    for (int g = 0; g < s->groups; g++, at += s->n_rows)
        for (int vec = 0; vec < 2; vec += VECS) {
            const uint8_t *v = b->v + 4 * 32 * g + 64 * vec, *u = s->u + U_BYTES * at;
            vi acc[LLM_TILE][VECS];
            LLM_UNROLL
            for (int r = 0; r < n; r++) LLM_UNROLL
            for (int i = 0; i < VECS; i++) acc[r][i] = vi_set1(0);
            for (int part = WEIGHT_PARTS - 1; part >= 0; part--) {
                for (int t = 0; t < TOKENS; t += 4) {
                    value_bytes vv[VECS];
                    LLM_UNROLL
                    for (int i = 0; i < VECS; i++)
                        vv[i] = load_value(v + (int64_t)s->dim * t + 64 * i);
                    LLM_UNROLL
                    for (int r = 0; r < n; r++) LLM_UNROLL
                    for (int i = 0; i < VECS; i++)
                        acc[r][i] = dot_value(acc[r][i], vv[i], u + U_BYTES * r, part, t);
                }
                if (part) LLM_UNROLL
                for (int r = 0; r < n; r++) LLM_UNROLL
                for (int i = 0; i < VECS; i++) acc[r][i] = vi_shl(acc[r][i], 8);
            }
            LLM_UNROLL
            for (int r = 0; r < n; r++) LLM_UNROLL
            for (int i = 0; i < VECS; i++) {
                float *to = o + (int64_t)(row + r) * s->dim + 32 * g + 16 * (vec + i);
                vf grown = vf_mul(vf_load(to), vf_set1(grow[row + r]));
                vf_store(to, vf_fma(vi_to_f(acc[r][i]), vf_set1(s->u_scale[at + r]), grown));
            }
        }
}

void LLM_FN(q8_outputs)(const llm_q8_pass *s, const llm_q8_block *b, int32_t j, const float *grow,
                        float *o, const uint8_t *ahead) {
    const int32_t lines = lines_of_tile(s, b->rb - b->ra), at = j * s->groups * s->n_rows;
    if (use_tiles(b->rb - b->ra)) {
        tile_outputs(s, b, at, grow, o);
        return;
    }
    for (int32_t r = b->ra, n; r < b->rb; r += n) {
        n = rows_of_tile(b->rb - r);
        ahead = read_ahead(ahead, lines);
        LLM_TILE_SWITCH(n, output_rows, s, b, r, at + r, grow, o)
    }
}
