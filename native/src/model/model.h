/* model.h: a loaded model: hyperparameters, and where its weights are. */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "backend/kernels.h"
#include "model/arch.h"

/* Rope angles of one kind of layer: angle = pos * frequency, cos and sin times magnitude. */
typedef struct llm_rope {
    double *frequency; /* [n_rot / 2] */
    float magnitude;
} llm_rope;

typedef struct llm_hparams {
    int32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx_train;
    int32_t n_rot; /* leading values of a head that are rotated */
    float rms_eps;
    float attn_scale, attn_softcap, final_softcap; /* a cap of 0: none */
    int32_t window;                                /* 0: no layer has one */
    float rope_base, rope_window_base;
    float rope_factor;      /* linear or YaRN context extension, 1: none */
    float rope_attn_factor; /* on the magnitude of cos and sin */
    bool rope_yarn;
    int32_t rope_original_ctx;
} llm_hparams;

typedef struct llm_layer {
    const float *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm; /* [n_embd] */
    const float *q_norm, *k_norm;                                      /* [head_dim] or NULL */
    const float *q_bias, *k_bias, *v_bias, *o_bias;                    /* or NULL */
    const float *gate_bias, *up_bias, *down_bias;                      /* or NULL */
    llm_weight q, k, v, o, gate, up, down;
    int32_t group;          /* layer group */
    int32_t index_in_group;
    int32_t rope;           /* index into llm_model.rope */
} llm_layer;

struct llm_model {
    const llm_arch *arch;
    const llm_kernels *kernels;
    llm_hparams h;
    int32_t n_groups;
    int32_t group_window[LLM_MAX_GROUPS];
    int32_t group_n_layers[LLM_MAX_GROUPS];
    llm_layer *layers;
    llm_weight token_embd, output; /* output equals token_embd when the head is tied */
    const float *output_norm, *output_bias;
    llm_rope rope[2]; /* full attention, windows */
    float *floats;    /* norms and biases as f32, one block */
    uint64_t floats_bytes;
    uint8_t *panels;  /* arena of all panels, NULL on the raw path */
    uint64_t panel_bytes;
    uint64_t mapped_bytes;
    const llm_gguf *mapped; /* where weights are looked at; NULL: nowhere */
    bool was_refused; /* see llm_model_info */
    uint64_t n_params;
    bool tied;     /* output is token_embd */
    bool is_plan;  /* there are no weights, only their sizes */
};

/* hparams.c */
llm_status llm_read_hparams(const llm_gguf *g, llm_model *m, llm_error *err);
/* rope.c: fills m->rope; factors [n_rot / 2] or NULL divide the frequencies of full attention. */
llm_status llm_rope_init(llm_model *m, const float *factors, llm_error *err);
/* bind.c: points every weight at the mapped file and converts the vectors to f32. */
llm_status llm_bind_tensors(const llm_gguf *g, llm_model *m, llm_error *err);
/* panels.c: packs every bound matrix into the arena; or leaves them all in the mapped file, if that
 * was asked for or the panels do not fit into memory. */
llm_status llm_place_weights(llm_model *m, const llm_gguf *g, llm_threads *t,
                             const llm_model_params *params, llm_error *err);
/* The sizes of that, for as many panels as there are, whatever the free memory. */
llm_status llm_plan_weights(llm_model *m, const llm_model_params *params, int32_t n_threads,
                            uint64_t *load_bytes, llm_error *err);

#endif
