/* sampler.c: creation of a sampler with checks of all its parameters, its history, and its use
 * without an executor. */
#include "sampling/sampler.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define MAX_N_VOCAB (1 << 24)
#define MAX_LIST (1 << 20) /* entries of a list in the parameters */

typedef struct float_range {
    const char *name;
    size_t offset;
    float low, high;
} float_range;

static const float_range float_ranges[] = {
    {"temperature", offsetof(llm_sampler_params, temperature), 0, 100},
    {"dynatemp_range", offsetof(llm_sampler_params, dynatemp_range), 0, 100},
    {"dynatemp_exponent", offsetof(llm_sampler_params, dynatemp_exponent), 0.01F, 10},
    {"top_p", offsetof(llm_sampler_params, top_p), 0, 1},
    {"min_p", offsetof(llm_sampler_params, min_p), 0, 1},
    {"typical_p", offsetof(llm_sampler_params, typical_p), 0, 1},
    {"top_n_sigma", offsetof(llm_sampler_params, top_n_sigma), 0, 100},
    {"xtc_probability", offsetof(llm_sampler_params, xtc_probability), 0, 1},
    {"xtc_threshold", offsetof(llm_sampler_params, xtc_threshold), 0, 1},
    {"mirostat_tau", offsetof(llm_sampler_params, mirostat_tau), 0, 20},
    {"mirostat_eta", offsetof(llm_sampler_params, mirostat_eta), 0, 1},
    {"repeat_penalty", offsetof(llm_sampler_params, repeat_penalty), 0.1F, 10},
    {"presence_penalty", offsetof(llm_sampler_params, presence_penalty), -2, 2},
    {"frequency_penalty", offsetof(llm_sampler_params, frequency_penalty), -2, 2},
    {"dry_multiplier", offsetof(llm_sampler_params, dry_multiplier), 0, 100},
    {"dry_base", offsetof(llm_sampler_params, dry_base), 1, 10},
};

typedef struct int_range {
    const char *name;
    size_t offset;
    int32_t low, high;
} int_range;

static const int_range int_ranges[] = {
    {"n_vocab", offsetof(llm_sampler_params, n_vocab), 1, MAX_N_VOCAB},
    {"top_k", offsetof(llm_sampler_params, top_k), 0, INT32_MAX},
    {"repeat_last_n", offsetof(llm_sampler_params, repeat_last_n), -1, INT32_MAX},
    {"dry_allowed_length", offsetof(llm_sampler_params, dry_allowed_length), 1, INT32_MAX},
    {"dry_penalty_last_n", offsetof(llm_sampler_params, dry_penalty_last_n), -1, INT32_MAX},
    {"n_order", offsetof(llm_sampler_params, n_order), 0, LLM_N_SAMPLERS},
    {"n_dry_breakers", offsetof(llm_sampler_params, n_dry_breakers), 0, MAX_LIST},
    {"n_bias", offsetof(llm_sampler_params, n_bias), 0, MAX_LIST},
    {"n_banned", offsetof(llm_sampler_params, n_banned), 0, MAX_LIST},
};

static llm_status check_ranges(const llm_sampler_params *p, llm_error *err) {
    for (size_t i = 0; i < sizeof float_ranges / sizeof float_ranges[0]; i++) {
        const float_range *r = &float_ranges[i];
        float x;
        memcpy(&x, (const char *)p + r->offset, sizeof x);
        if (x >= r->low && x <= r->high) continue; /* false for NaN */
        return llm_fail(err, LLM_E_ARGUMENT, "sampler: %s is %g, allowed are %g to %g", r->name,
                        (double)x, (double)r->low, (double)r->high);
    }
    for (size_t i = 0; i < sizeof int_ranges / sizeof int_ranges[0]; i++) {
        const int_range *r = &int_ranges[i];
        int32_t x;
        memcpy(&x, (const char *)p + r->offset, sizeof x);
        if (x >= r->low && x <= r->high) continue;
        return llm_fail(err, LLM_E_ARGUMENT, "sampler: %s is %d, allowed are %d to %d", r->name, x,
                        r->low, r->high);
    }
    if (p->mirostat != 0 && p->mirostat != 2) {
        return llm_fail(err, LLM_E_ARGUMENT, "sampler: mirostat is %d, allowed are 0 and 2",
                        p->mirostat);
    }
    return LLM_OK;
}

static llm_status check_order(const llm_sampler_params *p, llm_error *err) {
    bool seen[LLM_N_SAMPLERS] = {false};
    for (int32_t i = 0; i < p->n_order; i++) {
        int32_t id = p->order[i];
        if (id < 0 || id >= LLM_N_SAMPLERS) {
            return llm_fail(err, LLM_E_ARGUMENT, "sampler: order[%d] is %d, allowed are 0 to %d", i,
                            id, LLM_N_SAMPLERS - 1);
        }
        if (seen[id]) {
            return llm_fail(err, LLM_E_ARGUMENT,
                            "sampler: %s is in the order twice, once is allowed",
                            llm_sampler_name(id));
        }
        seen[id] = true;
    }
    return LLM_OK;
}

static llm_status check_ids(const llm_sampler_params *p, const char *name, const int32_t *ids,
                            int32_t n, llm_error *err) {
    if (n && !ids) return llm_fail(err, LLM_E_ARGUMENT, "sampler: %s is null", name);
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < p->n_vocab) continue;
        return llm_fail(err, LLM_E_ARGUMENT, "sampler: %s[%d] is token %d, allowed are 0 to %d",
                        name, i, ids[i], p->n_vocab - 1);
    }
    return LLM_OK;
}

#define MAX_BIAS 100.0F

static llm_status check_params(const llm_sampler_params *p, llm_error *err) {
    llm_status status = check_ranges(p, err);
    if (status == LLM_OK && ((p->n_order && !p->order) || (p->n_bias && !p->bias_values))) {
        status = llm_fail(err, LLM_E_ARGUMENT, "sampler: order or logit_bias is null");
    }
    if (status == LLM_OK) status = check_order(p, err);
    if (status == LLM_OK) {
        status = check_ids(p, "dry_breakers", p->dry_breakers, p->n_dry_breakers, err);
    }
    if (status == LLM_OK) status = check_ids(p, "logit_bias", p->bias_ids, p->n_bias, err);
    if (status == LLM_OK) status = check_ids(p, "banned", p->banned, p->n_banned, err);
    for (int32_t i = 0; status == LLM_OK && i < p->n_bias; i++) {
        float x = p->bias_values[i];
        if (x == -INFINITY || (x >= -MAX_BIAS && x <= MAX_BIAS)) continue;
        status = llm_fail(err, LLM_E_ARGUMENT,
                          "sampler: logit_bias[%d] is %g, allowed are %g to %g and minus infinity",
                          i, (double)x, (double)-MAX_BIAS, (double)MAX_BIAS);
    }
    return status;
}

/* A copy of n elements; *ok becomes false without memory. */
static void *copy_of(const void *from, int32_t n, size_t element_bytes, bool *ok) {
    if (!n) return NULL;
    void *to = malloc((size_t)n * element_bytes);
    if (to) memcpy(to, from, (size_t)n * element_bytes);
    *ok = *ok && to;
    return to;
}

static bool own_arrays(llm_sampler_params *p) {
    bool ok = true;
    p->order = copy_of(p->order, p->n_order, sizeof *p->order, &ok);
    p->dry_breakers = copy_of(p->dry_breakers, p->n_dry_breakers, sizeof *p->dry_breakers, &ok);
    p->bias_ids = copy_of(p->bias_ids, p->n_bias, sizeof *p->bias_ids, &ok);
    p->bias_values = copy_of(p->bias_values, p->n_bias, sizeof *p->bias_values, &ok);
    p->banned = copy_of(p->banned, p->n_banned, sizeof *p->banned, &ok);
    return ok;
}

static bool runs(const llm_sampler *s, int32_t id) {
    for (int32_t i = 0; i < s->n_steps; i++) {
        if (s->steps[i]->id == id) return true;
    }
    return false;
}

/* Memory for what the steps look back on. */
static bool make_history(llm_sampler *s) {
    const llm_sampler_params *p = &s->p;
    int32_t window = 0, limit = 0;
    if (runs(s, LLM_SAMPLER_PENALTIES)) {
        window = p->repeat_last_n < 0 ? INT32_MAX : p->repeat_last_n;
    }
    if (runs(s, LLM_SAMPLER_DRY)) {
        limit = p->dry_penalty_last_n < 0 ? INT32_MAX : p->dry_penalty_last_n;
        s->repeat = calloc((size_t)p->n_vocab, sizeof *s->repeat);
        s->is_breaker = calloc((size_t)p->n_vocab, 1);
        if (!s->repeat || !s->is_breaker) return false;
        for (int32_t i = 0; i < p->n_dry_breakers; i++) s->is_breaker[p->dry_breakers[i]] = 1;
    }
    limit = window > limit ? window : limit;
    return llm_history_init(&s->history, p->n_vocab, window, limit);
}

llm_status llm_sampler_create(const llm_sampler_params *params, llm_sampler **out, llm_error *err) {
    if (!params || !out) return llm_fail(err, LLM_E_ARGUMENT, "sampler: a null argument");
    *out = NULL;
    llm_status status = check_params(params, err);
    if (status != LLM_OK) return status;
    llm_sampler *s = calloc(1, sizeof *s);
    if (!s) return llm_fail(err, LLM_E_MEMORY, "no memory for a sampler");
    s->p = *params;
    bool ok = own_arrays(&s->p);
    if (ok) {
        llm_sampler_set_steps(s);
        ok = make_history(s);
    }
    if (!ok) {
        llm_sampler_free(s);
        return llm_fail(err, LLM_E_MEMORY, "no memory for a sampler of %d tokens", params->n_vocab);
    }
    s->mu = 2 * (double)s->p.mirostat_tau;
    s->picked = -1;
    *out = s;
    return LLM_OK;
}

void llm_sampler_free(llm_sampler *s) {
    if (!s) return;
    llm_history_free(&s->history);
    const void *owned[] = {s->p.order,  s->p.dry_breakers, s->p.bias_ids, s->p.bias_values,
                           s->p.banned, s->is_breaker,     s->repeat,     s->match};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) free((void *)owned[i]);
    free(s);
}

bool llm_sampler_reserve(llm_sampler *s, int32_t n) {
    if (!s->history.limit) return true;
    if (!llm_history_reserve(&s->history, n)) return false;
    if (!s->repeat || s->match_capacity == s->history.capacity) return true;
    int32_t *grown = realloc(s->match, (size_t)s->history.capacity * sizeof *grown);
    if (!grown) return false;
    s->match = grown;
    s->match_capacity = s->history.capacity;
    return true;
}

void llm_sampler_push(llm_sampler *s, int32_t token) {
    if (token == s->picked && s->p.mirostat && !s->greedy) {
        s->mu -= (double)s->p.mirostat_eta * (s->surprise - (double)s->p.mirostat_tau);
    }
    s->picked = -1;
    llm_history_push(&s->history, token);
}

llm_status llm_sampler_accept(llm_sampler *s, const int32_t *tokens, int32_t n, llm_error *err) {
    if (!s || n < 0 || (n && !tokens)) {
        return llm_fail(err, LLM_E_ARGUMENT, "sampler: %d tokens to accept, or a null argument", n);
    }
    llm_status status = check_ids(&s->p, "tokens", tokens, n, err);
    if (status != LLM_OK) return status;
    if (!llm_sampler_reserve(s, n)) {
        return llm_fail(err, LLM_E_MEMORY, "no memory for %d more tokens of a sampler", n);
    }
    for (int32_t i = 0; i < n; i++) llm_sampler_push(s, tokens[i]);
    return LLM_OK;
}

llm_status llm_sampler_clone(const llm_sampler *s, llm_sampler **out, llm_error *err) {
    if (!s || !out) return llm_fail(err, LLM_E_ARGUMENT, "sampler: a null argument");
    llm_status status = llm_sampler_create(&s->p, out, err);
    if (status != LLM_OK) return status;
    if (!llm_sampler_reserve(*out, s->history.n)) {
        llm_sampler_free(*out);
        *out = NULL;
        return llm_fail(err, LLM_E_MEMORY, "no memory for a copy of a sampler");
    }
    for (int32_t i = s->history.n - 1; i >= 0; i--) {
        llm_history_push(&(*out)->history, llm_history_back(&s->history, i));
    }
    (*out)->mu = s->mu;
    (*out)->picked = s->picked;
    (*out)->surprise = s->surprise;
    return LLM_OK;
}

static llm_status work_memory(int32_t n_vocab, void **memory, llm_candidates *c, llm_error *err) {
    uint64_t n_bytes = llm_candidates_bytes(n_vocab);
    *memory = malloc(n_bytes);
    if (!*memory) {
        return llm_fail(err, LLM_E_MEMORY, "no memory for the %llu KiB to sample in",
                        (unsigned long long)(n_bytes >> 10));
    }
    llm_candidates_init(c, n_vocab, *memory);
    return LLM_OK;
}

llm_status llm_sampler_pick(llm_sampler *s, const float *logits, int32_t position, int32_t *token,
                            llm_error *err) {
    if (!s || !logits || !token) return llm_fail(err, LLM_E_ARGUMENT, "sampler: a null argument");
    void *memory;
    llm_candidates c;
    llm_status status = work_memory(s->p.n_vocab, &memory, &c, err);
    if (status != LLM_OK) return status;
    *token = llm_sampler_run(s, &c, logits, position);
    free(memory);
    return LLM_OK;
}

llm_status llm_logprobs_from(const float *logits, int32_t n_vocab, int32_t token,
                             const llm_logprobs *out, llm_error *err) {
    if (!logits || !out || !out->ids || !out->values) {
        return llm_fail(err, LLM_E_ARGUMENT, "logprobs: a null argument");
    }
    if (n_vocab < 1 || n_vocab > MAX_N_VOCAB || token < -1 || token >= n_vocab) {
        return llm_fail(err, LLM_E_ARGUMENT, "logprobs: token %d of %d, at most %d tokens", token,
                        n_vocab, MAX_N_VOCAB);
    }
    llm_status status = llm_logprobs_check(out, err);
    void *memory;
    llm_candidates c;
    if (status == LLM_OK) status = work_memory(n_vocab, &memory, &c, err);
    if (status != LLM_OK) return status;
    llm_logprobs_of(&c, logits, token, out, 0);
    free(memory);
    return LLM_OK;
}
