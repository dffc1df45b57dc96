#include "model/arch.h"

#include <stddef.h>
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

const char *llm_arch_names(void) { return "llama, qwen2, qwen3, gemma3"; }
