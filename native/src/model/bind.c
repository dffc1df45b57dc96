/* bind.c: finds every tensor of the architecture in the file and checks its shape.
 *
 * One table says which tensors a layer has. All faults of a file (missing, misshapen, of a type
 * without kernels, not known) are collected into one error, so that a user sees the whole picture.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "gguf/gguf.h"
#include "model/model.h"

typedef enum dim { ONE, EMBD, HEADS, KV_HEADS, HEAD, FF, VOCAB } dim;
typedef enum need { ALWAYS, MAYBE, IF_QK_NORM, IF_POST_NORMS, BIAS_QKV } need;

typedef struct tensor_row {
    const char *name;
    size_t offset;   /* of the llm_weight or const float * to set */
    dim rows, cols;  /* rows ONE: a vector of cols, kept as f32 */
    need need;
} tensor_row;

#define LAYER(field) offsetof(llm_layer, field)
static const tensor_row layer_rows[] = {
    {"attn_norm.weight", LAYER(attn_norm), ONE, EMBD, ALWAYS},
    {"attn_q.weight", LAYER(q), HEADS, EMBD, ALWAYS},
    {"attn_k.weight", LAYER(k), KV_HEADS, EMBD, ALWAYS},
    {"attn_v.weight", LAYER(v), KV_HEADS, EMBD, ALWAYS},
    {"attn_q.bias", LAYER(q_bias), ONE, HEADS, BIAS_QKV},
    {"attn_k.bias", LAYER(k_bias), ONE, KV_HEADS, BIAS_QKV},
    {"attn_v.bias", LAYER(v_bias), ONE, KV_HEADS, BIAS_QKV},
    {"attn_q_norm.weight", LAYER(q_norm), ONE, HEAD, IF_QK_NORM},
    {"attn_k_norm.weight", LAYER(k_norm), ONE, HEAD, IF_QK_NORM},
    {"attn_output.weight", LAYER(o), EMBD, HEADS, ALWAYS},
    {"attn_output.bias", LAYER(o_bias), ONE, EMBD, MAYBE},
    {"post_attention_norm.weight", LAYER(attn_post_norm), ONE, EMBD, IF_POST_NORMS},
    {"ffn_norm.weight", LAYER(ffn_norm), ONE, EMBD, ALWAYS},
    {"ffn_gate.weight", LAYER(gate), FF, EMBD, ALWAYS},
    {"ffn_up.weight", LAYER(up), FF, EMBD, ALWAYS},
    {"ffn_down.weight", LAYER(down), EMBD, FF, ALWAYS},
    {"ffn_gate.bias", LAYER(gate_bias), ONE, FF, MAYBE},
    {"ffn_up.bias", LAYER(up_bias), ONE, FF, MAYBE},
    {"ffn_down.bias", LAYER(down_bias), ONE, EMBD, MAYBE},
    {"post_ffw_norm.weight", LAYER(ffn_post_norm), ONE, EMBD, IF_POST_NORMS},
};

#define MODEL(field) offsetof(llm_model, field)
static const tensor_row model_rows[] = {
    {"token_embd.weight", MODEL(token_embd), VOCAB, EMBD, ALWAYS},
    {"output_norm.weight", MODEL(output_norm), ONE, EMBD, ALWAYS},
    {"output.weight", MODEL(output), VOCAB, EMBD, MAYBE},
    {"output.bias", MODEL(output_bias), ONE, VOCAB, MAYBE},
};

#define N_ROWS(table) ((int32_t)(sizeof(table) / sizeof((table)[0])))
#define MAX_FAULTS_SHOWN 12

typedef struct binder {
    const llm_gguf *g;
    llm_model *m;
    bool fill;           /* false: the first pass, which counts the floats and finds all faults */
    float *next_float;
    uint64_t n_floats;
    uint8_t *used;       /* [n_tensors] */
    int32_t n_faults;
    llm_status status;
    llm_error read_error; /* of the second pass */
    size_t length;
    char faults[1600];
} binder;

static void add_fault(binder *b, llm_status status, const char *text) {
    b->n_faults++;
    if (b->status != LLM_E_FORMAT) b->status = status;
    if (b->n_faults > MAX_FAULTS_SHOWN) return;
    int n = snprintf(b->faults + b->length, sizeof b->faults - b->length, "%s%s",
                     b->length ? "; " : "", text);
    if (n > 0 && (size_t)n < sizeof b->faults - b->length)
        b->length += (size_t)n;
    else
        b->faults[b->length] = 0;
}

static int64_t size_of(const llm_hparams *h, dim d) {
    switch (d) {
    case ONE: return 1;
    case EMBD: return h->n_embd;
    case HEADS: return (int64_t)h->n_heads * h->head_dim;
    case KV_HEADS: return (int64_t)h->n_kv_heads * h->head_dim;
    case HEAD: return h->head_dim;
    case FF: return h->n_ff;
    case VOCAB: return h->n_vocab;
    }
    return 0;
}

static bool is_needed(const llm_arch *a, need n) {
    return n == ALWAYS || (n == IF_QK_NORM && a->qk_norm) || (n == IF_POST_NORMS && a->post_norms)
           || (n == BIAS_QKV && a->qkv_bias);
}

/* A tensor that the architecture has no place for must stay unused, so that it is reported. */
static bool is_allowed(const llm_arch *a, need n) {
    return is_needed(a, n) || n == MAYBE || n == BIAS_QKV;
}

/* cols values to next_float; the first failure is kept in read_error. */
static void read_vector(binder *b, const llm_format *f, const llm_tensor_info *t, int64_t cols) {
    if (b->read_error.status != LLM_OK || b->m->is_plan) return;
    uint8_t *raw = malloc((size_t)t->n_bytes + 1);
    if (!raw) {
        llm_fail(&b->read_error, LLM_E_MEMORY, "no memory for %s", t->name);
    } else if (llm_gguf_read(b->g, t->data, t->n_bytes, raw, &b->read_error) == LLM_OK) {
        f->dequantize(raw, b->next_float, cols);
    }
    free(raw);
}

static void bind_one(binder *b, const tensor_row *row, const char *name, uint8_t *base) {
    char text[320];
    int64_t i = is_allowed(b->m->arch, row->need) ? llm_gguf_find_tensor(b->g, name) : -1;
    if (i < 0) {
        if (is_needed(b->m->arch, row->need)) {
            snprintf(text, sizeof text, "%s is missing", name);
            add_fault(b, LLM_E_FORMAT, text);
        }
        return;
    }
    llm_tensor_info t;
    if (llm_gguf_tensor_at(b->g, i, &t) != LLM_OK) return;
    b->used[i] = 1;
    int64_t rows = size_of(&b->m->h, row->rows), cols = size_of(&b->m->h, row->cols);
    if (t.dims[0] != cols || t.dims[1] != rows || t.dims[2] != 1 || t.dims[3] != 1) {
        snprintf(text, sizeof text, "%s is [%lld, %lld, %lld, %lld], expected [%lld, %lld]", name,
                 (long long)t.dims[0], (long long)t.dims[1], (long long)t.dims[2],
                 (long long)t.dims[3], (long long)cols, (long long)rows);
        add_fault(b, LLM_E_FORMAT, text);
        return;
    }
    const llm_format *f = llm_format_of(t.type);
    if (!f || !f->native) {
        snprintf(text, sizeof text, "%s has type %s, which has no kernels here", name,
                 f ? f->name : "unknown");
        add_fault(b, LLM_E_UNSUPPORTED, text);
        return;
    }
    if (!b->fill) {
        b->m->n_params += (uint64_t)(rows * cols);
        if (row->rows == ONE) b->n_floats += (uint64_t)cols;
        return;
    }
    if (row->rows == ONE) {
        read_vector(b, f, &t, cols);
        const float *vector = b->next_float;
        memcpy(base + row->offset, &vector, sizeof vector);
        b->next_float += cols;
    } else {
        llm_weight w = {.format = f, .n_rows = rows, .n_cols = cols, .raw = t.data};
        memcpy(base + row->offset, &w, sizeof w);
    }
}

static void bind_all(binder *b) {
    for (int32_t i = 0; i < N_ROWS(model_rows); i++) {
        bind_one(b, &model_rows[i], model_rows[i].name, (uint8_t *)b->m);
    }
    for (int32_t layer = 0; layer < b->m->h.n_layers; layer++) {
        for (int32_t i = 0; i < N_ROWS(layer_rows); i++) {
            char name[128];
            snprintf(name, sizeof name, "blk.%d.%s", layer, layer_rows[i].name);
            bind_one(b, &layer_rows[i], name, (uint8_t *)&b->m->layers[layer]);
        }
    }
}

/* Llama 3.1's divisors of the rope frequencies, or *out = NULL. The caller frees. */
static llm_status read_rope_factors(binder *b, float **out, llm_error *err) {
    *out = NULL;
    int64_t i = llm_gguf_find_tensor(b->g, "rope_freqs.weight");
    llm_tensor_info t;
    if (i < 0 || llm_gguf_tensor_at(b->g, i, &t) != LLM_OK) return LLM_OK;
    b->used[i] = 1;
    if (b->m->is_plan) return LLM_OK;
    int32_t n = b->m->h.n_rot / 2;
    if (t.type != LLM_F32 || t.dims[0] != n || t.n_bytes != (uint64_t)n * 4) {
        return llm_fail(err, LLM_E_FORMAT, "rope_freqs.weight is not F32 [%d]", n);
    }
    *out = malloc((size_t)n * sizeof(float));
    if (!*out) return llm_fail(err, LLM_E_MEMORY, "no memory for rope factors");
    llm_status s = llm_gguf_read(b->g, t.data, t.n_bytes, (uint8_t *)*out, err);
    if (s != LLM_OK) return s;
    for (int32_t j = 0; j < n; j++) {
        if (!((*out)[j] > 0.0F && (*out)[j] < 1e6F)) {
            return llm_fail(err, LLM_E_FORMAT, "rope_freqs.weight[%d] is %g, it must be above 0", j,
                            (double)(*out)[j]);
        }
    }
    return LLM_OK;
}

static llm_status report_faults(binder *b, llm_error *err) {
    int64_t n = llm_gguf_n_tensors(b->g);
    for (int64_t i = 0; i < n; i++) {
        llm_tensor_info t;
        if (b->used[i] || llm_gguf_tensor_at(b->g, i, &t) != LLM_OK) continue;
        char text[200];
        snprintf(text, sizeof text, "%.100s is not known to this architecture", t.name);
        add_fault(b, LLM_E_UNSUPPORTED, text);
    }
    if (!b->n_faults) return LLM_OK;
    int32_t hidden = b->n_faults - MAX_FAULTS_SHOWN;
    char more[48] = "";
    if (hidden > 0) snprintf(more, sizeof more, "; and %d more", hidden);
    return llm_fail(err, b->status, "%d tensor fault%s for architecture %s: %s%s", b->n_faults,
                    b->n_faults == 1 ? "" : "s", b->m->arch->name, b->faults, more);
}

llm_status llm_bind_tensors(const llm_gguf *g, llm_model *m, llm_error *err) {
    binder b = {.g = g, .m = m, .status = LLM_E_UNSUPPORTED};
    float *factors = NULL;
    b.used = calloc((size_t)llm_gguf_n_tensors(g) + 1, 1);
    if (!b.used) return llm_fail(err, LLM_E_MEMORY, "no memory to bind tensors");
    llm_status s = read_rope_factors(&b, &factors, err);
    if (s == LLM_OK) {
        bind_all(&b);
        s = report_faults(&b, err);
    }
    if (s == LLM_OK) {
        m->floats_bytes = b.n_floats * sizeof(float);
        m->floats = malloc((size_t)m->floats_bytes + 1);
        if (!m->floats) s = llm_fail(err, LLM_E_MEMORY, "no memory for the norms");
    }
    if (s == LLM_OK) {
        b.fill = true;
        b.next_float = m->floats;
        bind_all(&b);
        m->tied = !m->output.format;
        if (m->tied) m->output = m->token_embd;
        if (b.read_error.status != LLM_OK) {
            s = llm_fail(err, b.read_error.status, "%s", b.read_error.message);
        } else {
            s = llm_rope_init(m, factors, err);
        }
    }
    free(factors);
    free(b.used);
    return s;
}
