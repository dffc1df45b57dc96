/* hparams.c: hyperparameters from GGUF metadata, every one checked against its limits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "gguf/part.h"
#include "model/model.h"

/* Limits far above any real model, low enough that products of two fit in 63 bits. */
#define MAX_LAYERS 1024
#define MAX_HEADS 1024
#define MAX_HEAD_DIM 1024
#define MAX_WIDTH (1 << 20)
#define MAX_VOCAB (1 << 24)
#define MAX_CONTEXT (1 << 27)

typedef struct reader {
    const llm_gguf *g;
    const char *arch;
    llm_error *err;
} reader;

static bool find_key(const reader *r, const char *suffix, char *key, size_t key_size,
                     llm_gguf_value *v) {
    snprintf(key, key_size, "%s.%s", r->arch, suffix);
    int64_t i = llm_gguf_find(r->g, key);
    return i >= 0 && llm_gguf_value_at(r->g, i, v) == LLM_OK;
}

static double element_as_double(int32_t type, const uint8_t *p) {
    switch (type) {
    case LLM_GGUF_U8:
    case LLM_GGUF_BOOL: return *p;
    case LLM_GGUF_I8: return (int8_t)*p;
    case LLM_GGUF_U16: {
        uint16_t x;
        memcpy(&x, p, 2);
        return x;
    }
    case LLM_GGUF_I16: {
        int16_t x;
        memcpy(&x, p, 2);
        return x;
    }
    case LLM_GGUF_U32: {
        uint32_t x;
        memcpy(&x, p, 4);
        return x;
    }
    case LLM_GGUF_I32: {
        int32_t x;
        memcpy(&x, p, 4);
        return x;
    }
    case LLM_GGUF_F32: {
        float x;
        memcpy(&x, p, 4);
        return (double)x;
    }
    case LLM_GGUF_U64: {
        uint64_t x;
        memcpy(&x, p, 8);
        return (double)x;
    }
    case LLM_GGUF_I64: {
        int64_t x;
        memcpy(&x, p, 8);
        return (double)x;
    }
    case LLM_GGUF_F64: {
        double x;
        memcpy(&x, p, 8);
        return x;
    }
    default: return NAN;
    }
}

static bool is_integer_type(int32_t type) {
    return type != LLM_GGUF_F32 && type != LLM_GGUF_F64 && type != LLM_GGUF_STRING
           && type != LLM_GGUF_ARRAY && type != LLM_GGUF_BOOL;
}

/* A value that is one number, or an array in which all layers agree. */
static llm_status read_number(const reader *r, const char *key, const llm_gguf_value *v,
                              bool integer, double *out) {
    int32_t type = v->type == LLM_GGUF_ARRAY ? v->element_type : v->type;
    bool ok = integer ? is_integer_type(type) : (type == LLM_GGUF_F32 || type == LLM_GGUF_F64);
    if (!ok || !v->count) {
        return llm_fail(r->err, LLM_E_FORMAT, "%s has value type %d, expected %s", key, type,
                        integer ? "an integer" : "a float");
    }
    if (v->count > MAX_LAYERS) {
        return llm_fail(r->err, LLM_E_FORMAT, "%s has %llu elements, at most %d layers are allowed",
                        key, (unsigned long long)v->count, MAX_LAYERS);
    }
    uint64_t step = v->data_bytes / v->count;
    *out = element_as_double(type, v->data);
    for (uint64_t i = 1; i < v->count; i++) {
        if (element_as_double(type, v->data + i * step) != *out) {
            return llm_fail(
                r->err, LLM_E_UNSUPPORTED,
                "%s differs between layers; only models with equal layers are supported", key);
        }
    }
    return LLM_OK;
}

/* Reads an integer in [low, high]; absent: fallback, or an error when fallback is negative. */
static llm_status read_int(const reader *r, const char *suffix, int64_t low, int64_t high,
                           int64_t fallback, int32_t *out) {
    char key[256];
    llm_gguf_value v;
    if (!find_key(r, suffix, key, sizeof key, &v)) {
        if (fallback < 0) return llm_fail(r->err, LLM_E_FORMAT, "missing metadata key %s", key);
        *out = (int32_t)fallback;
        return LLM_OK;
    }
    double x = 0.0;
    llm_status s = read_number(r, key, &v, true, &x);
    if (s != LLM_OK) return s;
    if (x < (double)low || x > (double)high) {
        return llm_fail(r->err, LLM_E_FORMAT, "%s is %.0f, allowed are %lld to %lld", key, x,
                        (long long)low, (long long)high);
    }
    *out = (int32_t)x;
    return LLM_OK;
}

/* Reads a finite float in [low, high]; absent: *out keeps its value. */
static llm_status read_float(const reader *r, const char *suffix, double low, double high,
                             float *out) {
    char key[256];
    llm_gguf_value v;
    if (!find_key(r, suffix, key, sizeof key, &v)) return LLM_OK;
    double x = 0.0;
    llm_status s = read_number(r, key, &v, false, &x);
    if (s != LLM_OK) return s;
    if (!(x >= low && x <= high)) {
        return llm_fail(r->err, LLM_E_FORMAT, "%s is %g, allowed are %g to %g", key, x, low, high);
    }
    *out = (float)x;
    return LLM_OK;
}

static llm_status read_rope(const reader *r, llm_model *m) {
    llm_hparams *h = &m->h;
    h->rope_base = 10000.0F;
    h->rope_factor = 1.0F;
    h->rope_attn_factor = 1.0F;
    h->rope_window_base = m->arch->window_rope_base;
    llm_status s = LLM_OK;
    if ((s = read_float(r, "rope.freq_base", 1.0, 1e12, &h->rope_base))) return s;
    if ((s = read_float(r, "rope.freq_base_swa", 1.0, 1e12, &h->rope_window_base))) return s;
    if ((s = read_int(r, "rope.dimension_count", 2, h->head_dim, h->head_dim, &h->n_rot))) return s;
    if ((s = read_int(r, "rope.scaling.original_context_length", 1, MAX_CONTEXT, h->n_ctx_train,
                      &h->rope_original_ctx))) {
        return s;
    }
    if (h->n_rot % 2) {
        return llm_fail(r->err, LLM_E_FORMAT, "%s.rope.dimension_count is %d, it must be even",
                        r->arch, h->n_rot);
    }
    float factor = 0.0F; /* 0 in a file means: not scaled */
    if ((s = read_float(r, "rope.scale_linear", 0.0, 1e6, &factor))) return s; /* old files */
    if ((s = read_float(r, "rope.scaling.factor", 0.0, 1e6, &factor))) return s;
    if ((s = read_float(r, "rope.scaling.attn_factor", 0.0, 1e6, &h->rope_attn_factor))) return s;
    char key[256];
    llm_gguf_value v;
    if (find_key(r, "rope.scaling.type", key, sizeof key, &v)) {
        if (v.type != LLM_GGUF_STRING) {
            return llm_fail(r->err, LLM_E_FORMAT, "%s has value type %d, expected a string", key,
                            v.type);
        }
        bool none = v.data_bytes == 4 && !memcmp(v.data, "none", 4);
        bool linear = v.data_bytes == 6 && !memcmp(v.data, "linear", 6);
        h->rope_yarn = v.data_bytes == 4 && !memcmp(v.data, "yarn", 4);
        if (!none && !linear && !h->rope_yarn) {
            return llm_fail(r->err, LLM_E_UNSUPPORTED,
                            "%s is %s; supported are none, linear and yarn", key,
                            llm_quote(v.data, v.data_bytes).text);
        }
        if (none) factor = 0.0F;
    }
    if (factor > 0.0F) h->rope_factor = factor;
    return LLM_OK;
}

static llm_status read_vocab(const reader *r, llm_model *m) {
    int64_t i = llm_gguf_find(r->g, "tokenizer.ggml.tokens");
    llm_gguf_value v;
    int64_t n_tokens = 0;
    if (i >= 0 && llm_gguf_value_at(r->g, i, &v) == LLM_OK && v.type == LLM_GGUF_ARRAY) {
        n_tokens = v.count > MAX_VOCAB ? MAX_VOCAB + 1 : (int64_t)v.count;
    }
    return read_int(r, "vocab_size", 1, MAX_VOCAB, n_tokens ? n_tokens : -1, &m->h.n_vocab);
}

/* Layer groups: full attention first, then the window. */
static llm_status set_groups(const reader *r, llm_model *m) {
    llm_hparams *h = &m->h;
    if (m->arch->window_period) {
        llm_status s = read_int(r, "attention.sliding_window", 0, MAX_CONTEXT, 0, &h->window);
        if (s != LLM_OK) return s;
    }
    for (int32_t i = 0; i < h->n_layers; i++) {
        bool full = !h->window || i % m->arch->window_period == m->arch->window_period - 1;
        m->layers[i].rope = full ? 0 : 1;
    }
    for (int32_t kind = 0; kind < 2; kind++) {
        int32_t n = 0;
        for (int32_t i = 0; i < h->n_layers; i++) {
            if (m->layers[i].rope != kind) continue;
            m->layers[i].group = m->n_groups;
            m->layers[i].index_in_group = n++;
        }
        if (!n) continue;
        m->group_window[m->n_groups] = kind ? h->window : 0;
        m->group_n_layers[m->n_groups++] = n;
    }
    return LLM_OK;
}

static llm_status read_attention(const reader *r, llm_model *m) {
    llm_hparams *h = &m->h;
    llm_status s = LLM_OK;
    if ((s = read_int(r, "attention.head_count", 1, MAX_HEADS, -1, &h->n_heads))) return s;
    if ((s = read_int(r, "attention.head_count_kv", 1, MAX_HEADS, h->n_heads, &h->n_kv_heads))) {
        return s;
    }
    if (h->n_kv_heads > h->n_heads || h->n_heads % h->n_kv_heads) {
        return llm_fail(r->err, LLM_E_FORMAT,
                        "%s.attention.head_count_kv is %d, it must divide head_count %d", r->arch,
                        h->n_kv_heads, h->n_heads);
    }
    if (h->n_heads / h->n_kv_heads > LLM_ATTN_ROWS) {
        return llm_fail(r->err, LLM_E_UNSUPPORTED,
                        "%d query heads share a kv head, the limit is %d",
                        h->n_heads / h->n_kv_heads, LLM_ATTN_ROWS);
    }
    int32_t value_dim;
    if ((s = read_int(r, "attention.key_length", 1, MAX_HEAD_DIM, h->n_embd / h->n_heads,
                      &h->head_dim))) {
        return s;
    }
    if ((s = read_int(r, "attention.value_length", 1, MAX_HEAD_DIM, h->head_dim, &value_dim))) {
        return s;
    }
    if (value_dim != h->head_dim || h->head_dim < 2 || h->head_dim > MAX_HEAD_DIM) {
        return llm_fail(r->err, LLM_E_UNSUPPORTED,
                        "head size is %d for keys and %d for values; they must be equal, 2 to %d",
                        h->head_dim, value_dim, MAX_HEAD_DIM);
    }
    if ((s = read_float(r, "attn_logit_softcapping", 0.0, 1e6, &h->attn_softcap))) return s;
    if ((s = read_float(r, "final_logit_softcapping", 0.0, 1e6, &h->final_softcap))) return s;
    bool by_embd = m->arch->embd_scale_layers && h->n_layers == m->arch->embd_scale_layers;
    h->attn_scale = 1.0F / sqrtf((float)(by_embd ? h->n_embd / h->n_heads : h->head_dim));
    return LLM_OK;
}

llm_status llm_read_hparams(const llm_gguf *g, llm_model *m, llm_error *err) {
    llm_gguf_value v;
    int64_t i = llm_gguf_find(g, "general.architecture");
    if (i < 0 || llm_gguf_value_at(g, i, &v) != LLM_OK || v.type != LLM_GGUF_STRING) {
        return llm_fail(err, LLM_E_FORMAT, "missing metadata string general.architecture");
    }
    m->arch = llm_arch_find((const char *)v.data, v.data_bytes);
    if (!m->arch) {
        char names[256];
        llm_arch_names(names, sizeof names);
        return llm_fail(err, LLM_E_UNSUPPORTED,
                        "architecture %s is not supported; this build runs %s",
                        llm_quote(v.data, v.data_bytes).text, names);
    }
    reader r = {g, m->arch->name, err};
    llm_hparams *h = &m->h;
    int32_t n_experts;
    llm_status s = LLM_OK;
    if ((s = read_int(&r, "block_count", 1, MAX_LAYERS, -1, &h->n_layers))) return s;
    if ((s = read_int(&r, "embedding_length", 1, MAX_WIDTH, -1, &h->n_embd))) return s;
    if ((s = read_int(&r, "feed_forward_length", 1, MAX_WIDTH, -1, &h->n_ff))) return s;
    if ((s = read_int(&r, "context_length", 1, MAX_CONTEXT, -1, &h->n_ctx_train))) return s;
    if ((s = read_int(&r, "expert_count", 0, 1 << 16, 0, &n_experts))) return s;
    if (n_experts) {
        return llm_fail(err, LLM_E_UNSUPPORTED,
                        "%s.expert_count is %d; mixture-of-experts models are not supported yet",
                        r.arch, n_experts);
    }
    h->rms_eps = 0.0F;
    if ((s = read_float(&r, "attention.layer_norm_rms_epsilon", 1e-30, 1.0, &h->rms_eps))) return s;
    if (h->rms_eps == 0.0F) {
        return llm_fail(err, LLM_E_FORMAT,
                        "missing metadata key %s.attention.layer_norm_rms_epsilon", r.arch);
    }
    if ((s = read_attention(&r, m))) return s;
    if ((s = read_rope(&r, m))) return s;
    if ((s = read_vocab(&r, m))) return s;
    m->layers = calloc((size_t)h->n_layers, sizeof *m->layers);
    if (!m->layers) return llm_fail(err, LLM_E_MEMORY, "no memory for %d layers", h->n_layers);
    return set_groups(&r, m);
}
