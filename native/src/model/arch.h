/* arch.h: an architecture is a row of data, read by one loader and one forward function. */
#ifndef LLM_ARCH_H
#define LLM_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum llm_activation { LLM_SWIGLU, LLM_GEGLU } llm_activation;

typedef struct llm_arch {
    const char *name;     /* general.architecture */
    bool rope_halves;     /* rotate pairs (i, i + n/2); else (2i, 2i + 1) */
    bool qkv_bias;        /* attn_{q,k,v}.bias must be there (where false they may be) */
    bool qk_norm;         /* RMS norm of every q and k head before rope */
    bool post_norms;      /* RMS norm of the attention and FFN outputs before they are added */
    bool scale_embedding; /* token embedding times sqrt(n_embd) */
    llm_activation activation;
    int32_t window_period; /* with a sliding window: every window_period-th layer is full; 0: no
                                 layer of this architecture has a window */
    float window_rope_base; /* rope base of the layers with a window */
    int32_t embd_scale_layers; /* models of this many layers scale scores by
                                  1 / sqrt(n_embd / n_heads) and not 1 / sqrt(head_dim); 0: none */
} llm_arch;

const llm_arch *llm_arch_find(const char *name, uint64_t name_bytes); /* NULL: unknown */
void llm_arch_names(char *out, size_t n_bytes); /* "llama, qwen2, ..." for messages */

#endif
