/* cpu.h: what the kernel files of one instruction set show to each other and to table.c. */
#ifndef LLM_CPU_H
#define LLM_CPU_H

#include "backend/cpu/isa.h"
#include "backend/kernels.h"
#include "base/half.h"

/* act.c */
void LLM_FN(quantize)(llm_acts *a, llm_act_kind kind, int32_t t, int64_t begin, int64_t end);

/* matmul.c */
void LLM_FN(matmul)(const llm_weight *w, const llm_acts *x, int64_t panel_begin, int64_t panel_end,
                    float *y, int64_t ldy, uint8_t *scratch);
uint64_t LLM_FN(matmul_scratch)(void);
double LLM_FN(int8_ops)(int64_t n_iterations);

/* A run of up to LLM_GROUP panels for tokens [first, end) of x, at most LLM_STRIP. */
typedef struct llm_panel_job {
    const llm_weight *w;
    const llm_acts *x;
    int64_t panel; /* the first */
    int32_t n_panels, first, end;
    float *y; /* of row 16 * panel */
    int64_t ldy;
    uint8_t *scratch;
} llm_panel_job;

/* matmul_q32.c, matmul_q256.c, matmul_float.c */
void LLM_FN(panels_q32)(const llm_panel_job *job);
void LLM_FN(panels_q256)(const llm_panel_job *job);
void LLM_FN(panels_float)(const llm_panel_job *job);
double LLM_FN(f32_ops)(int64_t n_iterations);

/* attention.c */
void LLM_FN(kv_write)(uint8_t *k_block, uint8_t *v_block, int32_t kv_type, int32_t head_dim,
                      int32_t slot, const float *k, const float *v);
void LLM_FN(attention)(const llm_attn *a, int32_t block_begin, int32_t block_end,
                       llm_attn_state out);
void LLM_FN(attention_merge)(int32_t n_rows, int32_t head_dim, llm_attn_state into,
                             llm_attn_state part);
void LLM_FN(attention_finish)(int32_t n_rows, int32_t head_dim, llm_attn_state s, float **out);

/* elementwise.c */
void LLM_FN(rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
void LLM_FN(add)(float *y, const float *x, int64_t n);
void LLM_FN(scale)(float *y, float s, int64_t n);
void LLM_FN(swiglu)(const float *gate, const float *up, int64_t n, float *y);
void LLM_FN(geglu)(const float *gate, const float *up, int64_t n, float *y);
void LLM_FN(softcap)(float *y, float cap, int64_t n);
void LLM_FN(rope)(float *x, const float *cos, const float *sin, int32_t n_pairs, int32_t halves);

/* stream.c */
int32_t LLM_FN(read_sum)(const uint8_t *p, uint64_t n_bytes, int32_t n_streams,
                         uint64_t ahead_bytes);

extern const llm_kernels LLM_FN(llm_kernels);

#endif
