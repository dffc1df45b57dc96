/* attention.c: writes K and V into cache blocks and attends to them block by block with an online
 * softmax. The arithmetic is in docs/ARITHMETIC.md, the layout of a block in kv/pool.h. The products
 * of q8_0 blocks are in attention_q8.c; those of f16 are here.
 *
 * Both products of a block have one shape, out[row][lane] += sum over k of a[k][lane] * b[row][k]:
 * scores with k over dims and lanes over tokens, outputs with k over tokens and lanes over dims.
 * Every out element is one chain over k ascending, so its bits do not depend on the tile it is
 * computed in. Few rows convert the block's f16 on the fly; more rows convert a chunk of the block
 * to f32 once and share it. */
#include <math.h>
#include <string.h>

#include "attention_q8.h"
#include "backend/cpu/cpu.h"
#include "vec_fold.h"
#include "vec_math.h"

enum {
    TOKENS = LLM_BLOCK_TOKENS,
    K_CHUNK = 128,               /* dims of q and K handled at once */
    V_CHUNK = 256,               /* dims of V converted at once */
    Q_FLOATS = LLM_ATTN_ROWS * K_CHUNK,     /* q of the rows handled in one pass */
    DIRECT_ROWS = 8 < VF_TILE_ROWS ? 8 : VF_TILE_ROWS, /* up to so many rows convert on the fly */
    MAX_BLOCKS = 4, /* of a run */
    RUN_UNITS = 16, /* a run has so many units, or one block */
    UNITS = LLM_ATTN_ROWS /* a unit is a row and a block */
};

typedef enum source { SRC_F32, SRC_F16 } source;

/* One kv head of one block, and the rows [ra, rb) that see some of it. */
typedef struct block {
    const uint8_t *k, *v;
    const uint8_t *k_ahead, *v_ahead; /* of the block in this place of the next run, or itself */
    int32_t ra, rb;
} block;

/* Work of one pass over at most 64 rows. Rows ascend in position, so that the rows that see a block
 * are a contiguous range, and first[], end[] (the tokens a row sees) never fall inside a block.
 *
 * A pass takes a run of blocks at a time: the scores of all, the weights of all, the outputs of
 * all. Few rows take many blocks, so that there are always units to fill vectors and pipelines. */
typedef struct pass {
    const llm_attn *a;
    int32_t row0, n_rows, max_blocks, n_blocks;
    int64_t part_bytes;
    llm_attn_state s; /* of row row0 */
    block blocks[MAX_BLOCKS];
    /* Aligned: a 64-byte load across two cache lines costs two. */
    _Alignas(64) float q[Q_FLOATS];  /* [chunk][n_rows][K_CHUNK] */
    _Alignas(64) float p[UNITS * TOKENS]; /* scores, then weights, [block][row][32] */
    _Alignas(64) float fold[16 * 16];     /* of 16 units, a vector of 16 each to reduce */
    _Alignas(64) float wide[TOKENS * V_CHUNK];    /* K [dim][32] or V [32][V_CHUNK] as f32 */
    float most[UNITS], m_old[UNITS], m_new[UNITS], grow[UNITS], sum[UNITS];
    int32_t first[UNITS], end[UNITS];
    llm_q8_pass q8; /* instead of q, wide */
} pass;

LLM_INLINE vf load_source(source from, const void *p, int64_t i) {
    if (from == SRC_F32) return vf_load((const float *)p + i);
    return vf_load_f16((const uint16_t *)p + i);
}

LLM_INLINE int64_t bytes_of(source from, int64_t n) { return n * (from == SRC_F32 ? 4 : 2); }

/* Scores of `rows` rows and the tokens [16 * vec0, 16 * (vec0 + vecs)): n dims more of the chain.
 * ahead: the same of a later block, which is asked of memory at the pace at which k is used; all at
 * once would stall the products. */
LLM_INLINE void score_tile(int rows, int vecs, int vec0, source from, const void *k, int n,
                           const float *q, float *out, const uint8_t *ahead) {
    vf acc[VF_TILE_ROWS][2];
    k = (const uint8_t *)k + bytes_of(from, vec0 * 16);
    out += 16 * vec0;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) acc[r][v] = vf_load(out + r * TOKENS + 16 * v);
    for (int d = 0; d < n; d++) {
        vf kv[2];
        if (ahead) LLM_PREFETCH_L2(ahead + bytes_of(from, (int64_t)d * TOKENS));
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) kv[v] = load_source(from, k, (int64_t)d * TOKENS + 16 * v);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf x = vf_set1(q[r * K_CHUNK + d]);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) acc[r][v] = vf_fma(kv[v], x, acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) vf_store(out + r * TOKENS + 16 * v, acc[r][v]);
}

/* The tokens [t0, t1) added to the outputs of `rows` rows in dims [dim0, dim0 + 16 * vecs) of the
 * source: out = out * grow, then the chain. step: elements between tokens. ahead: as for
 * score_tile. */
LLM_INLINE void output_tile(int rows, int vecs, source from, const void *v, int64_t step, int dim0,
                            int t0, int t1, const float *p, const float *grow, float *out,
                            int64_t out_step, const uint8_t *ahead) {
    vf acc[VF_TILE_ROWS][4];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < vecs; i++)
            acc[r][i] = vf_mul(vf_load(out + r * out_step + 16 * i), vf_set1(grow[r]));
    for (int t = t0; t < t1; t++) {
        vf vv[4];
#pragma GCC unroll 4
        for (int i = 0; i < vecs; i++) {
            const int64_t at = t * step + dim0 + 16 * i;
            if (ahead && bytes_of(from, 16 * i) % 64 == 0)
                LLM_PREFETCH_L2(ahead + bytes_of(from, at));
            vv[i] = load_source(from, v, at);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf x = vf_set1(p[r * TOKENS + t]);
#pragma GCC unroll 4
            for (int i = 0; i < vecs; i++) acc[r][i] = vf_fma(vv[i], x, acc[r][i]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < vecs; i++) vf_store(out + r * out_step + 16 * i, acc[r][i]);
}

/* The row counts that exist as tiles; a count between two is split. */
static int tile_rows(int n) {
#if VF_TILE_ROWS >= 12
    static const int8_t first[12] = {0, 1, 2, 3, 4, 5, 6, 4, 8, 5, 5, 6};
    return n >= 12 ? 12 : first[n];
#elif VF_TILE_ROWS >= 6
    static const int8_t first[12] = {0, 1, 2, 3, 4, 5, 6, 4, 4, 5, 5, 6};
    return n >= 12 ? 6 : first[n];
#else
    return n ? 1 : 0;
#endif
}

#if VF_TILE_ROWS >= 12
#define FOR_TILE_SIZES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(8) CASE(12)
#elif VF_TILE_ROWS >= 6
#define FOR_TILE_SIZES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#else
#define FOR_TILE_SIZES(CASE) CASE(1)
#endif

LLM_INLINE void scores_from(source from, int rows, const void *k, int n, const float *q, float *out,
                            const uint8_t *ahead) {
    switch (rows) {
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        if (VF_TILE_VECS(R) >= 2) {                                                                \
            score_tile(R, 2, 0, from, k, n, q, out, ahead);                                        \
        } else {                                                                                   \
            score_tile(R, 1, 0, from, k, n, q, out, ahead);                                        \
            score_tile(R, 1, 1, from, k, n, q, out, NULL);                                         \
        }                                                                                          \
        break;
        FOR_TILE_SIZES(CASE)
#undef CASE
    }
}

LLM_INLINE void outputs_from(source from, int rows, const void *v, int64_t step, int n_dims, int t0,
                             int t1, const float *p, const float *grow, float *out,
                             int64_t out_step, const uint8_t *ahead) {
    switch (rows) {
#define TILE(R, V)                                                                                 \
    for (; d + 16 * (V) <= n_dims; d += 16 * (V))                                                  \
        output_tile(R, V, from, v, step, d, t0, t1, p, grow, out + d, out_step, ahead);
#define CASE(R)                                                                                    \
    case R: {                                                                                      \
        int d = 0;                                                                                 \
        if (VF_TILE_VECS(R) >= 4) {                                                                \
            TILE(R, 4)                                                                             \
        }                                                                                          \
        if (VF_TILE_VECS(R) >= 2) {                                                                \
            TILE(R, 2)                                                                             \
        }                                                                                          \
        TILE(R, 1)                                                                                 \
        break;                                                                                     \
    }
        FOR_TILE_SIZES(CASE)
#undef CASE
#undef TILE
    }
}

static void scores_f32(int rows, const float *k, int n, const float *q, float *out) {
    scores_from(SRC_F32, rows, k, n, q, out, NULL);
}
static void scores_f16(int rows, const uint8_t *k, int n, const float *q, float *out,
                       const uint8_t *ahead) {
    scores_from(SRC_F16, rows, k, n, q, out, ahead);
}

/* V of a chunk of dims: what the outputs are computed from. */
typedef struct values {
    source from;
    const void *data;
    int64_t step; /* elements between tokens */
    int32_t n_dims;
    const uint8_t *ahead;
} values;

static void outputs_f32(int rows, const values *v, int t0, int t1, const float *p,
                        const float *grow, float *out, int64_t out_step) {
    outputs_from(SRC_F32, rows, v->data, v->step, v->n_dims, t0, t1, p, grow, out, out_step, NULL);
}
static void outputs_f16(int rows, const values *v, int t0, int t1, const float *p,
                        const float *grow, float *out, int64_t out_step) {
    outputs_from(SRC_F16, rows, v->data, v->step, v->n_dims, t0, t1, p, grow, out, out_step,
                 v->ahead);
}

static void outputs(int rows, const values *v, int t0, int t1, const float *p, const float *grow,
                    float *out, int64_t out_step) {
    if (v->from == SRC_F32)
        outputs_f32(rows, v, t0, t1, p, grow, out, out_step);
    else
        outputs_f16(rows, v, t0, t1, p, grow, out, out_step);
}

/* Raw q . k with the 32 tokens of block j, into s->p. Lanes of tokens that a row does not see may
 * hold anything. */
static void block_scores(pass *s, int j) {
    const llm_attn *a = s->a;
    const block *b = &s->blocks[j];
    const int ra = b->ra, rb = b->rb;
    const bool direct = rb - ra <= DIRECT_ROWS;
    float *p = s->p + j * s->n_rows * TOKENS;
    memset(p + ra * TOKENS, 0, sizeof(float) * TOKENS * (size_t)(rb - ra));
    for (int d0 = 0; d0 < a->head_dim; d0 += K_CHUNK) {
        const int n = a->head_dim - d0 < K_CHUNK ? a->head_dim - d0 : K_CHUNK;
        const int64_t at = bytes_of(SRC_F16, (int64_t)d0 * TOKENS);
        const uint8_t *k = b->k + at, *ahead = b->k_ahead + at;
        if (!direct)
            for (int i = 0; i < n * TOKENS; i += 16) {
                LLM_PREFETCH_L2(ahead + bytes_of(SRC_F16, i));
                vf_store(s->wide + i, load_source(SRC_F16, k, i));
            }
        for (int r = ra, rows; r < rb; r += rows) {
            rows = tile_rows(rb - r);
            const float *q = s->q + (int64_t)d0 * s->n_rows + r * K_CHUNK;
            float *out = p + r * TOKENS;
            if (direct)
                scores_f16(rows, k, n, q, out, ahead);
            else
                scores_f32(rows, s->wide, n, q, out);
        }
    }
}

LLM_INLINE vf final_score(vf raw, const llm_attn *a) {
    vf x = vf_mul(raw, vf_set1(a->scale));
    if (a->softcap != 0)
        x = vf_mul(vf_tanh(vf_mul(x, vf_set1(1.0f / a->softcap))), vf_set1(a->softcap));
    return x;
}

/* Raw scores to final ones, those of unseen tokens to -inf, and the largest of each unit. */
static void largest_scores(pass *s, int n_units) {
    const vf nothing = vf_set1(-INFINITY);
    for (int u0 = 0; u0 < n_units; u0 += 16) {
        const int n = n_units - u0 < 16 ? n_units - u0 : 16;
        for (int u = u0; u < u0 + n; u++) {
            float *p = s->p + u * TOKENS;
            const uint32_t seen = llm_seen_tokens(s->first[u], s->end[u]);
            vf x0 = final_score(vf_load(p), s->a), x1 = final_score(vf_load(p + 16), s->a);
            if (seen != UINT32_MAX) {
                x0 = vf_select(vm_from_bits(seen & 0xffff), x0, nothing);
                x1 = vf_select(vm_from_bits(seen >> 16), x1, nothing);
            }
            vf_store(p, x0);
            vf_store(p + 16, x1);
            vf_store(s->fold + (u - u0) * 16, vf_max(x0, x1));
        }
        vf_store(s->most + u0, vf_reduce_max16(s->fold));
    }
}

/* Final scores to weights, and their sum in each unit. */
static void weights_of_scores(pass *s, int n_units) {
    for (int u0 = 0; u0 < n_units; u0 += 16) {
        const int n = n_units - u0 < 16 ? n_units - u0 : 16;
        for (int u = u0; u < u0 + n; u++) {
            float *p = s->p + u * TOKENS;
            const uint32_t seen = llm_seen_tokens(s->first[u], s->end[u]);
            const vf m = vf_set1(s->m_new[u]);
            vf p0 = vf_exp(vf_sub(vf_load(p), m)), p1 = vf_exp(vf_sub(vf_load(p + 16), m));
            if (seen != UINT32_MAX) {
                p0 = vf_select(vm_from_bits(seen & 0xffff), p0, vf_zero());
                p1 = vf_select(vm_from_bits(seen >> 16), p1, vf_zero());
            }
            vf_store(p, p0);
            vf_store(p + 16, p1);
            vf_store(s->fold + (u - u0) * 16, vf_add(p0, p1));
        }
        vf_store(s->sum + u0, vf_reduce_add16(s->fold));
    }
}

/* Raw scores of the run to weights; updates m and l and leaves the factors of o in s->grow. A row
 * that sees nothing of a block keeps its state: the maximum stays, the factor is 1, the sum 0. */
static void run_weights(pass *s) {
    const int rows = s->n_rows, n_units = rows * s->n_blocks;
    largest_scores(s, n_units);
    for (int u0 = 0; u0 < n_units; u0 += rows)
        for (int r = 0; r < rows; r += 16) {
            const int n = rows - r < 16 ? rows - r : 16;
            const vf m = vf_load_n(s->s.m + r, n);
            const vf m_new = vf_max(vf_load_n(s->most + u0 + r, n), m);
            vf_store_n(s->m_old + u0 + r, m, n);
            vf_store_n(s->m_new + u0 + r, m_new, n);
            vf_store_n(s->s.m + r, m_new, n);
        }
    for (int u = 0; u < n_units; u += 16) {
        const vf m = vf_load(s->m_old + u), m_new = vf_load(s->m_new + u);
        vf_store(s->grow + u, vf_select(vf_lt(m, m_new), vf_exp(vf_sub(m, m_new)), vf_set1(1.0f)));
    }
    weights_of_scores(s, n_units);
    for (int u0 = 0; u0 < n_units; u0 += rows)
        for (int r = 0; r < rows; r += 16) {
            const int n = rows - r < 16 ? rows - r : 16;
            const vf l = vf_mul(vf_load_n(s->s.l + r, n), vf_load_n(s->grow + u0 + r, n));
            vf_store_n(s->s.l + r, vf_add(l, vf_load_n(s->sum + u0 + r, n)), n);
        }
}

/* V of dims [d0, d0 + n) and tokens [t0, t1): in place, or as f32 in s->wide. */
static values block_values(pass *s, const block *b, bool direct, int d0, int n, int t0, int t1) {
    const int dim = s->a->head_dim;
    const uint16_t *v = (const uint16_t *)(const void *)b->v + d0;
    const uint8_t *ahead = b->v_ahead + bytes_of(SRC_F16, d0);
    if (direct) return (values){SRC_F16, v, dim, n, ahead};
    for (int t = t0; t < t1; t++)
        for (int i = 0; i < n; i += 16) {
            LLM_PREFETCH_L2(ahead + bytes_of(SRC_F16, t * dim + i));
            vf_store(s->wide + t * n + i, vf_load_f16(v + t * dim + i));
        }
    return (values){SRC_F32, s->wide, n, n, NULL};
}

/* o of rows [r, r + rows) over one chunk of dims; unit is row r in the block. The tokens that all of
 * them see run as one tile; the ones before and after only for the rows that see them: what a row
 * does not see may be NaN. */
static void tile_outputs(pass *s, const values *v, int unit, int rows, float *o) {
    const int64_t dim = s->a->head_dim;
    const float *p = s->p + unit * TOKENS;
    const int32_t *first = s->first + unit, *end = s->end + unit;
    const int t0 = first[rows - 1], t1 = end[0] > t0 ? end[0] : t0;
    float grow[VF_TILE_ROWS];
    for (int i = 0; i < rows; i++) {
        grow[i] = s->grow[unit + i];
        const int before = t0 < end[i] ? t0 : end[i];
        if (first[i] == before) continue;
        outputs(1, v, first[i], before, p + i * TOKENS, grow + i, o + i * dim, dim);
        grow[i] = 1.0f;
    }
    outputs(rows, v, t0, t1, p, grow, o, dim);
    const float one = 1.0f;
    for (int i = 0; i < rows; i++)
        if (end[i] > t1) outputs(1, v, t1, end[i], p + i * TOKENS, &one, o + i * dim, dim);
}

static void block_outputs(pass *s, int j) {
    const block *b = &s->blocks[j];
    const int dim = s->a->head_dim, ra = b->ra, rb = b->rb, unit0 = j * s->n_rows;
    const bool direct = rb - ra <= DIRECT_ROWS;
    for (int d0 = 0; d0 < dim; d0 += V_CHUNK) {
        const int n = dim - d0 < V_CHUNK ? dim - d0 : V_CHUNK;
        values v = block_values(s, b, direct, d0, n, s->first[unit0 + ra], s->end[unit0 + rb - 1]);
        for (int r = ra, rows; r < rb; r += rows) {
            rows = tile_rows(rb - r);
            tile_outputs(s, &v, unit0 + r, rows, s->s.o + (int64_t)r * dim + d0);
        }
    }
}

/* Sets first, end of every row for an absolute block; the rows that see some of it are [*ra, *rb). */
static void visible_rows(const pass *s, int64_t number, int32_t *first, int32_t *end, int *ra,
                         int *rb) {
    const llm_attn *a = s->a;
    const int64_t start = number * TOKENS;
    *ra = *rb = 0;
    for (int r = 0; r < s->n_rows; r++) {
        const int64_t pos = (int64_t)a->first_pos + (s->row0 + r) / a->n_group;
        int64_t to = pos + 1 - start, from = a->window ? to - a->window : 0;
        to = to < 0 ? 0 : to > TOKENS ? TOKENS : to;
        from = from < 0 ? 0 : from > to ? to : from;
        first[r] = (int32_t)from;
        end[r] = (int32_t)to;
        if (from == to) continue;
        if (*ra == *rb) *ra = r;
        *rb = r + 1;
    }
}

static const uint8_t *k_of_block(const llm_attn *a, int32_t number) {
    return a->pool + (uint64_t)a->table[number] * a->block_bytes + a->k_offset;
}

/* Block `number` takes the place of b in the next run. Scales of q8_0, some lines, are asked for at
 * once. */
static void look_ahead(const pass *s, block *b, int32_t number) {
    const llm_attn *a = s->a;
    if (a->table[number] < 0) return;
    b->k_ahead = k_of_block(a, number);
    b->v_ahead = b->k_ahead - a->k_offset + a->v_offset;
    for (int64_t at = (int64_t)a->head_dim * TOKENS;
         a->kv_type == LLM_KV_Q8_0 && at < s->part_bytes; at += 64) {
        LLM_PREFETCH_L2(b->k_ahead + at);
        LLM_PREFETCH_L2(b->v_ahead + at);
    }
}

/* Fills s->blocks with the next ones that some row sees, from block i on; returns where to go on. */
static int32_t take_run(pass *s, int32_t i, int32_t block_end) {
    const llm_attn *a = s->a;
    s->n_blocks = 0;
    for (; i < block_end && s->n_blocks < s->max_blocks; i++) {
        if (a->table[i] < 0) continue;
        const int32_t unit0 = s->n_blocks * s->n_rows;
        int ra, rb;
        visible_rows(s, i, s->first + unit0, s->end + unit0, &ra, &rb);
        if (ra == rb) continue;
        const uint8_t *k = k_of_block(a, i), *v = k - a->k_offset + a->v_offset;
        s->blocks[s->n_blocks++] = (block){k, v, k, v, ra, rb};
    }
    for (int32_t j = 0; j < s->n_blocks && i + j < a->n_table; j++)
        look_ahead(s, &s->blocks[j], i + j);
    return i;
}

static void run_f16(pass *s) {
    for (int j = 0; j < s->n_blocks; j++) block_scores(s, j);
    run_weights(s);
    for (int j = 0; j < s->n_blocks; j++) block_outputs(s, j);
}

static void run_q8(pass *s) {
    llm_q8_block blocks[MAX_BLOCKS];
    for (int j = 0; j < s->n_blocks; j++) {
        const block *b = &s->blocks[j];
        const int32_t unit0 = j * s->n_rows;
        blocks[j] = (llm_q8_block){
            b->k, b->v, b->ra, b->rb, s->p + unit0 * TOKENS, s->first + unit0, s->end + unit0};
        LLM_FN(q8_scores)(&s->q8, &blocks[j], b->v);
    }
    run_weights(s);
    LLM_FN(q8_weights)(&s->q8, blocks, s->n_blocks, s->most, s->m_new);
    for (int j = 0; j < s->n_blocks; j++) LLM_FN(q8_outputs)
    (&s->q8, &blocks[j], j, s->grow + j * s->n_rows, s->s.o, s->blocks[j].k_ahead);
}

static void attend_pass(pass *s, int32_t block_begin, int32_t block_end) {
    const llm_attn *a = s->a;
    const int64_t dim = a->head_dim;
    const bool q8 = a->kv_type == LLM_KV_Q8_0;
    for (int r = 0; r < s->n_rows; r++) {
        s->s.m[r] = -INFINITY;
        s->s.l[r] = 0;
        memset(s->s.o + r * dim, 0, sizeof(float) * (size_t)dim);
        for (int64_t d0 = 0; d0 < dim && !q8; d0 += K_CHUNK) {
            const int64_t n = dim - d0 < K_CHUNK ? dim - d0 : K_CHUNK;
            memcpy(s->q + d0 * s->n_rows + r * K_CHUNK, a->q[s->row0 + r] + d0,
                   sizeof(float) * (size_t)n);
        }
    }
    if (q8) LLM_FN(q8_queries)(&s->q8, a->q + s->row0, s->n_rows, a->head_dim);
    for (int32_t i = block_begin; i < block_end;) {
        i = take_run(s, i, block_end);
        if (s->n_blocks == 0) continue;
        if (q8)
            run_q8(s);
        else
            run_f16(s);
    }
    if (q8) LLM_FN(q8_finish)(&s->q8);
}

void LLM_FN(attention)(const llm_attn *a, int32_t block_begin, int32_t block_end,
                       llm_attn_state out) {
    pass s;
    const int32_t chunks = (a->head_dim + K_CHUNK - 1) / K_CHUNK;
    const int32_t per_pass = Q_FLOATS / (chunks * K_CHUNK);
    s.a = a;
    s.part_bytes = (int64_t)a->head_dim * TOKENS * 2;
    if (a->kv_type == LLM_KV_Q8_0) s.part_bytes = (int64_t)a->head_dim * TOKENS / 32 * 34;
    memset(s.p, 0, sizeof s.p); /* unseen lanes, never used, but defined */
    memset(s.fold, 0, sizeof s.fold);
    memset(s.m_old, 0, sizeof s.m_old);
    memset(s.m_new, 0, sizeof s.m_new);
    for (int32_t r = 0; r < a->n_rows; r += per_pass) {
        s.row0 = r;
        s.n_rows = a->n_rows - r < per_pass ? a->n_rows - r : per_pass;
        s.max_blocks = RUN_UNITS / s.n_rows;
        if (s.max_blocks < 1) s.max_blocks = 1;
        if (s.max_blocks > MAX_BLOCKS) s.max_blocks = MAX_BLOCKS;
        if (a->kv_type == LLM_KV_Q8_0) {
            const int32_t most = llm_q8_run_blocks(s.n_rows, a->head_dim);
            if (s.max_blocks > most) s.max_blocks = most;
        }
        s.s = (llm_attn_state){out.o + (int64_t)r * a->head_dim, out.m + r, out.l + r};
        attend_pass(&s, block_begin, block_end);
    }
}

void LLM_FN(attention_merge)(int32_t n_rows, int32_t head_dim, llm_attn_state into,
                             llm_attn_state part) {
    for (int32_t r = 0; r < n_rows; r++) {
        float *o = into.o + (int64_t)r * head_dim;
        const float *po = part.o + (int64_t)r * head_dim;
        const float m = into.m[r], pm = part.m[r];
        if (pm == -INFINITY) continue; /* saw nothing */
        if (m == -INFINITY) {
            memcpy(o, po, sizeof(float) * (size_t)head_dim);
            into.m[r] = pm;
            into.l[r] = part.l[r];
            continue;
        }
        const float m_new = pm > m ? pm : m;
        vf c = vf_exp(vf_set1(m - m_new)), pc = vf_exp(vf_set1(pm - m_new));
        for (int32_t d = 0; d < head_dim; d += 16)
            vf_store(o + d, vf_fma(vf_load(po + d), pc, vf_mul(vf_load(o + d), c)));
        float l[16];
        vf_store(l, vf_fma(vf_set1(part.l[r]), pc, vf_mul(vf_set1(into.l[r]), c)));
        into.m[r] = m_new;
        into.l[r] = l[0];
    }
}

void LLM_FN(attention_finish)(int32_t n_rows, int32_t head_dim, llm_attn_state s, float **out) {
    for (int32_t r = 0; r < n_rows; r++) {
        const float *o = s.o + (int64_t)r * head_dim;
        vf inverse = vf_set1(s.l[r] == 0 ? 0.0f : 1.0f / s.l[r]);
        for (int32_t d = 0; d < head_dim; d += 16)
            vf_store(out[r] + d, vf_mul(vf_load(o + d), inverse));
    }
}

void LLM_FN(kv_write)(uint8_t *k_block, uint8_t *v_block, int32_t kv_type, int32_t head_dim,
                      int32_t slot, const float *k, const float *v) {
    if (kv_type == LLM_KV_Q8_0) {
        LLM_FN(q8_write)(k_block, v_block, head_dim, slot, k, v);
        return;
    }
    uint16_t *k16 = (uint16_t *)(void *)k_block, *v16 = (uint16_t *)(void *)v_block;
    for (int32_t d = 0; d < head_dim; d += 16) {
        uint16_t h[16];
        vf_store_f16(h, vf_load(k + d));
        for (int i = 0; i < 16; i++) k16[(d + i) * TOKENS + slot] = h[i];
        vf_store_f16(v16 + (int64_t)slot * head_dim + d, vf_load(v + d));
    }
}
