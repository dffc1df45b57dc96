/* load.c: from an open GGUF file to a model that can run. */
#include <stdlib.h>

#include "base/os_memory.h"
#include "base/status.h"
#include "gguf/gguf.h"
#include "model/model.h"

/* A model without weights. */
static llm_status begin(const llm_gguf *g, const llm_model_params *params, llm_model **out,
                        llm_error *err) {
    const llm_kernels *kernels = llm_kernels_of(params ? params->isa : NULL);
    if (!kernels) {
        return llm_fail(err, LLM_E_ARGUMENT,
                        "instruction set \"%.32s\" is not usable here; "
                        "the best one is %s",
                        params->isa, llm_kernels_of(NULL)->isa);
    }
    llm_model *m = calloc(1, sizeof *m);
    if (!m) return llm_fail(err, LLM_E_MEMORY, "no memory for a model");
    m->kernels = kernels;
    *out = m;
    return llm_read_hparams(g, m, err);
}

/* What both kinds of models end with: an error names the file. */
static llm_status end(llm_status s, const llm_gguf *g, llm_model *m, llm_model **out,
                      llm_error *err) {
    if (s == LLM_OK) {
        *out = m;
        return s;
    }
    bool of_file = m != NULL;
    llm_model_free(m);
    if (!err || !of_file) return s;
    llm_error inner = *err;
    return llm_gguf_fail(&g->parts[0], err, s, "%s", inner.message);
}

llm_status llm_model_load(const llm_gguf *g, llm_threads *t, const llm_model_params *params,
                          llm_model **out, llm_error *err) {
    if (!g || !t || !out) return llm_fail(err, LLM_E_ARGUMENT, "model load: a null argument");
    if (g->parts[0].header_only) {
        return llm_gguf_fail(&g->parts[0], err, LLM_E_ARGUMENT,
                             "only its header was opened: it can be planned, not loaded");
    }
    llm_model *m = NULL;
    llm_status s = begin(g, params, &m, err);
    if (s == LLM_OK) s = llm_bind_tensors(g, m, err);
    if (s == LLM_OK) s = llm_place_weights(m, g, t, params, err);
    if (s == LLM_OK && params && params->progress) *(volatile int32_t *)params->progress = 1000;
    return end(s, g, m, out, err);
}

llm_status llm_model_plan(const llm_gguf *g, int32_t n_threads, const llm_model_params *params,
                          uint64_t *load_bytes, llm_model **out, llm_error *err) {
    if (!g || !out || !load_bytes || n_threads < 1) {
        return llm_fail(err, LLM_E_ARGUMENT, "model plan: a null argument, or %d threads",
                        n_threads);
    }
    llm_model *m = NULL;
    llm_status s = begin(g, params, &m, err);
    if (s == LLM_OK) {
        m->is_plan = true;
        s = llm_bind_tensors(g, m, err);
    }
    if (s == LLM_OK) s = llm_plan_weights(m, params, n_threads, load_bytes, err);
    return end(s, g, m, out, err);
}

void llm_model_free(llm_model *m) {
    if (!m) return;
    llm_os_free(m->panels, m->panels ? m->panel_bytes : 0);
    free(m->floats);
    free(m->layers);
    free(m->rope[0].frequency);
    free(m->rope[1].frequency);
    free(m);
}

void llm_model_get_info(const llm_model *m, llm_model_info *out) {
    *out = (llm_model_info){
        .architecture = m->arch->name,
        .isa = m->kernels->isa,
        .n_layers = m->h.n_layers,
        .n_embd = m->h.n_embd,
        .n_heads = m->h.n_heads,
        .n_kv_heads = m->h.n_kv_heads,
        .head_dim = m->h.head_dim,
        .n_vocab = m->h.n_vocab,
        .n_ctx_train = m->h.n_ctx_train,
        .n_groups = m->n_groups,
        .n_params = m->n_params,
        .weight_bytes = m->floats_bytes + m->panel_bytes,
        .mapped_bytes = m->mapped_bytes,
        .was_refused = m->was_refused,
    };
    for (int32_t i = 0; i < m->n_groups; i++) {
        out->group_window[i] = m->group_window[i];
        out->group_n_layers[i] = m->group_n_layers[i];
    }
}
