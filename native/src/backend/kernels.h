/* kernels.h: the table of CPU kernels; one row per instruction set, filled by backend/cpu.
 *
 * docs/ARITHMETIC.md defines each op to the bit: which sums run in which order, where a fused
 * multiply-add stands. Every instruction set must produce those same bits, so a fast kernel is
 * tested against the scalar one with ==.
 */
#ifndef LLM_KERNELS_H
#define LLM_KERNELS_H

#include "quant/formats.h"

/* What a matmul needs beside the s8 values of 256 inputs of one token. z is a weight's zero point:
 * an integer dot that starts at -z * sum(q) is the dot with q - z for free. */
typedef struct llm_act32 { /* LLM_ACT_Q32: eight blocks of 32 */
    float d[8];            /* scale */
    float dsum[8];         /* d * (float)sum(q) */
    int32_t neg8[8], neg16[8], neg128[8]; /* -z * sum(q) */
} llm_act32;

typedef struct llm_act256 { /* LLM_ACT_Q256: one block of 256 */
    float d;
    float norm;        /* sum of q * q */
    int16_t sum[16];   /* sum(q) over each 16 inputs */
    int16_t sum32[8];  /* over each 32 */
    int32_t neg32[16]; /* -32 * sum(q) */
} llm_act256;

/* Activations of n tokens over k inputs. Superblock-major: the values of 256 inputs of one token
 * are contiguous, tokens of one superblock follow each other, so that a kernel addresses a tile of
 * tokens with constant offsets. A last superblock that k does not fill keeps its stride. */
typedef struct llm_acts {
    int32_t n; /* tokens */
    int64_t k; /* inputs */
    const float *x; /* [n][k], LLM_ACT_F32 */
    int64_t ldx;    /* floats between rows of x */
    int8_t *q[LLM_N_ACT_KINDS]; /* per kind (Q32, Q256): [ceil(k / 256)][n][256] */
    llm_act32 *a32;   /* [ceil(k / 256)][n] */
    llm_act256 *a256; /* [k / 256][n] */
} llm_acts;

/* Bytes of one kind of quantized activations (0 for LLM_ACT_F32), a multiple of 64; and the
 * placement of that kind into 64-aligned memory for n tokens of k inputs (sets n, k too). */
uint64_t llm_acts_bytes(llm_act_kind kind, int32_t n, int64_t k);
void llm_acts_place(llm_acts *a, llm_act_kind kind, int32_t n, int64_t k, uint8_t *memory);

#define LLM_ATTN_ROWS 64

/* Attention of a tile of query rows of one sequence and one kv head. A row is one (token, head of
 * the group): row r asks for token first_pos + r / n_group. */
typedef struct llm_attn {
    const uint8_t *pool;  /* base of the layer group's pool */
    uint64_t block_bytes; /* bytes from one block to the next */
    uint64_t k_offset, v_offset; /* of this layer and kv head inside a block, see kv/pool.h */
    const int32_t *table; /* [n] block id by absolute block number */
    int32_t n_table;      /* entries of table: blocks up to there may be read ahead */
    int32_t kv_type;      /* LLM_KV_* */
    int32_t head_dim;     /* a multiple of 16 (rows are padded to it) */
    int32_t n_group;      /* query heads per kv head */
    int32_t n_rows;       /* at most LLM_ATTN_ROWS */
    int32_t first_pos;    /* position of the token of row 0 */
    int32_t window;       /* 0: all; else a query at p sees p - window < key <= p */
    float scale;          /* on q . k */
    float softcap;        /* 0: none; else c * tanh(s / c) */
    const float *q[LLM_ATTN_ROWS]; /* [n_rows] pointers to [head_dim] */
} llm_attn;

/* Online-softmax state of n rows: o [n][head_dim] unnormalized, m [n] maximum, l [n] sum. */
typedef struct llm_attn_state {
    float *o, *m, *l;
} llm_attn_state;

typedef struct llm_kernels {
    const char *isa;

    /* act.c. Quantizes inputs [begin, end) of token t of x->x (row t) into x->q[kind] and so on;
     * both are multiples of the kind's 32 or 256 inputs. */
    void (*quantize)(llm_acts *x, llm_act_kind kind, int32_t t, int64_t begin, int64_t end);
    /* matmul.c. */
    /* y[t * ldy + r] for tokens 0..n-1 and the rows of panels [panel_begin, panel_end). scratch:
     * matmul_scratch() bytes, 64-aligned, one per thread. */
    void (*matmul)(const llm_weight *w, const llm_acts *x, int64_t panel_begin, int64_t panel_end,
                   float *y, int64_t ldy, uint8_t *scratch);
    uint64_t (*matmul_scratch)(void);

    /* attention.c. Writes one token's head into a block; slot is pos % 32. */
    void (*kv_write)(uint8_t *k_block, uint8_t *v_block, int32_t kv_type, int32_t head_dim,
                     int32_t slot, const float *k, const float *v);
    /* Attends to absolute blocks [block_begin, block_end) from the empty state. */
    void (*attention)(const llm_attn *a, int32_t block_begin, int32_t block_end,
                      llm_attn_state out);
    /* into := into merged with part, n rows; then o / l. */
    void (*attention_merge)(int32_t n_rows, int32_t head_dim, llm_attn_state into,
                            llm_attn_state part);
    void (*attention_finish)(int32_t n_rows, int32_t head_dim, llm_attn_state s, float **out);

    /* elementwise.c, over n values each.
     * rms_norm: y = x / rms(x) * w (w may be NULL); add: y += x; scale: y *= s
     * swiglu: y = silu(gate) * up; geglu: y = gelu_tanh(gate) * up
     * softcap: y = cap * tanh(y / cap) */
    void (*rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
    void (*add)(float *y, const float *x, int64_t n);
    void (*scale)(float *y, float s, int64_t n);
    void (*swiglu)(const float *gate, const float *up, int64_t n, float *y);
    void (*geglu)(const float *gate, const float *up, int64_t n, float *y);
    void (*softcap)(float *y, float cap, int64_t n);
    /* Rotates a head of 2 * n_pairs leading values; cos, sin [n_pairs]. Pairs are (2i, 2i + 1), or
     * (i, i + n_pairs) when halves is 1. */
    void (*rope)(float *x, const float *cos, const float *sin, int32_t n_pairs, int32_t halves);

    /* Register-resident int8 dots, f32 multiply-adds; each returns ops done. */
    double (*int8_ops)(int64_t n_iterations);
    double (*f32_ops)(int64_t n_iterations);

    /* stream.c. Sums n_bytes (whole 256-byte steps) from p, as n_streams (1, 2, 4, 8) interleaved
     * streams that prefetch ahead_bytes, 0 for none: the bandwidth roof. */
    int32_t (*read_sum)(const uint8_t *p, uint64_t n_bytes, int32_t n_streams,
                        uint64_t ahead_bytes);
} llm_kernels;

/* The kernels of an instruction set by name, NULL for the best one; NULL if it is not compiled in
 * or the CPU lacks it. */
const llm_kernels *llm_kernels_of(const char *isa);

#endif
