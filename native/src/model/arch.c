#include "model/arch.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const llm_arch archs[] = {
    /* Llama, Mistral, SmolLM and everything converted as such */
    {.name = "llama", .activation = LLM_SWIGLU},
    {.name = "qwen2", .rope_halves = true, .qkv_bias = true, .activation = LLM_SWIGLU},
    {.name = "qwen3", .rope_halves = true, .qk_norm = true, .activation = LLM_SWIGLU},
    {.name = "gemma3",
     .rope_halves = true,
     .qk_norm = true,
     .post_norms = true,
     .scale_embedding = true,
     .activation = LLM_GEGLU,
     .window_period = 6,
     .window_rope_base = 10000.0F,
     .embd_scale_layers = 62},
};

const llm_arch *llm_arch_find(const char *name, uint64_t name_bytes) {
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        if (strlen(archs[i].name) == name_bytes && !memcmp(archs[i].name, name, name_bytes)) {
            return &archs[i];
        }
    }
    return NULL;
}

void llm_arch_names(char *out, size_t n_bytes) {
    size_t at = 0;
    if (n_bytes) out[0] = 0;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0] && at < n_bytes; i++) {
        int n = snprintf(out + at, n_bytes - at, "%s%s", i ? ", " : "", archs[i].name);
        at += n > 0 ? (size_t)n : 0;
    }
}
