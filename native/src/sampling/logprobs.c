#include <math.h>

#include "base/float_env.h"
#include "base/status.h"
#include "sampling/portable_math.h"
#include "sampling/sampler.h"

llm_status llm_logprobs_check(const llm_logprobs *out, llm_error *err) {
    if (out->n_top >= 0 && out->n_top <= LLM_MAX_TOP_LOGPROBS) return LLM_OK;
    return llm_fail(err, LLM_E_ARGUMENT, "logprobs: n_top is %d, allowed are 0 to %d", out->n_top,
                    LLM_MAX_TOP_LOGPROBS);
}

static float logprob_of(float logit, float max, double log_sum) {
    if (!(logit > -INFINITY)) return -INFINITY;
    if (max == INFINITY) return logit == INFINITY ? 0.0F : -INFINITY;
    return (float)((double)logit - (double)max - log_sum);
}

/* Sorts the list by logit, larger first; equal ones stay in the order of their ids. */
static void sort_list(llm_candidates *c) {
    for (int32_t i = 1; i < c->n; i++) {
        int32_t id = c->id[i], j = i;
        float logit = c->logit[i];
        for (; j > 0 && c->logit[j - 1] < logit; j--) {
            c->id[j] = c->id[j - 1];
            c->logit[j] = c->logit[j - 1];
        }
        c->id[j] = id;
        c->logit[j] = logit;
    }
}

/* A NaN is as unlikely as minus infinity: as many as all tokens are at least as likely. */
static int32_t rank_of(const float *logits, int32_t n_vocab, float logit) {
    if (!(logit > -INFINITY)) return n_vocab;
    int32_t rank = 0;
    for (int32_t i = 0; i < n_vocab; i++) rank += logits[i] >= logit;
    return rank;
}

void llm_logprobs_of(llm_candidates *c, const float *logits, int32_t token, const llm_logprobs *out,
                     int64_t row) {
    int32_t n_top = out->n_top, *ids = out->ids + row * (1 + n_top);
    float *values = out->values + row * (1 + n_top);
    uint64_t mode = llm_float_env_get();
    llm_float_env_set(LLM_FLOAT_ENV_DEFAULT);
    llm_candidates_begin(c, logits);
    float max = llm_candidates_max(c);
    bool finite = max < INFINITY && max > -INFINITY;
    double log_sum = finite ? llm_portable_log(llm_dense_sum(logits, c->n_vocab, max)) : 0;
    if (out->ranks) out->ranks[row] = token >= 0 ? rank_of(logits, c->n_vocab, logits[token]) : 0;
    ids[0] = token;
    values[0] = token >= 0 ? logprob_of(logits[token], max, log_sum) : -INFINITY;
    llm_candidates_list_top(c, n_top > 0 ? n_top : 1);
    if (c->n > n_top && n_top > 0) {
        llm_key_by_logit(c);
        llm_keep_first(c, NULL, n_top);
    }
    sort_list(c);
    for (int32_t i = 0; i < n_top; i++) {
        ids[1 + i] = i < c->n ? c->id[i] : -1;
        values[1 + i] = i < c->n ? logprob_of(c->logit[i], max, log_sum) : -INFINITY;
    }
    llm_float_env_set(mode);
}
