/* sampling.c: from the logits of a step to tokens, each sequence with its own sampler. */
#include <math.h>

#include "base/status.h"
#include "exec/exec.h"
#include "sampling/sample.h"
#include "sampling/sampler.h"

llm_status llm_prepare_sampling(llm_exec *e, const llm_batch *b, const llm_logprobs *logprobs,
                                llm_error *err) {
    if (logprobs) {
        llm_status status = llm_logprobs_check(logprobs, err);
        if (status != LLM_OK) return status;
        if (!logprobs->ids || !logprobs->values) {
            return llm_fail(err, LLM_E_ARGUMENT, "step: no place for the logprobs");
        }
    }
    if (!b->seq_samplers) return LLM_OK;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        llm_sampler *sampler = b->seq_samplers[s];
        if (!sampler || !b->seq_sample[s]) continue;
        if (sampler->p.n_vocab != e->n_sampled) {
            return llm_fail(err, LLM_E_ARGUMENT,
                            "step: the sampler of sequence %d is for %d tokens, not %d", s,
                            sampler->p.n_vocab, e->n_sampled);
        }
        for (int32_t i = 0; i < s; i++) {
            if (b->seq_samplers[i] != sampler) continue;
            return llm_fail(err, LLM_E_ARGUMENT,
                            "step: sequences %d and %d share a sampler, each needs its own", i, s);
        }
        if (!llm_sampler_reserve(sampler, 1)) {
            return llm_fail(err, LLM_E_MEMORY, "no memory for one more token of a sampler");
        }
    }
    return LLM_OK;
}

static void fill_logprobs(llm_exec *e, int32_t s, const float *logits, int32_t token,
                          const llm_logprobs *out) {
    int32_t width = 1 + out->n_top;
    int32_t *ids = out->ids + (int64_t)s * width;
    float *values = out->values + (int64_t)s * width;
    if (logits) {
        llm_logprobs_of(&e->candidates, logits, token, out->n_top, ids, values);
        return;
    }
    for (int32_t i = 0; i < width; i++) {
        ids[i] = -1;
        values[i] = -INFINITY;
    }
}

int32_t llm_sample_row(llm_exec *e, const llm_batch *b, int32_t s, const float *logits,
                       const llm_logprobs *logprobs) {
    int32_t token = -1, position = b->seq_first_pos[s] + b->seq_n_tokens[s];
    llm_sampler *sampler = b->seq_samplers ? b->seq_samplers[s] : NULL;
    if (logits && sampler) {
        token = llm_sampler_run(sampler, &e->candidates, logits, position);
        if (token >= 0) llm_sampler_push(sampler, token);
    } else if (logits) {
        token = llm_sample(logits, e->n_sampled, 0, 0, position);
    }
    if (logprobs) fill_logprobs(e, s, logits, token, logprobs);
    return token;
}
