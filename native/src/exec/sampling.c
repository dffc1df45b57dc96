/* sampling.c: from the logits of a step to tokens, each sequence with its own sampler. */
#include <math.h>

#include "base/status.h"
#include "exec/exec.h"
#include "sampling/sample.h"
#include "sampling/sampler.h"

static llm_status check_next(const llm_exec *e, const llm_batch *b, llm_error *err) {
    const llm_logprobs *out = b->next_logprobs;
    if (!out || !out->ids || !out->values) {
        return llm_fail(err, LLM_E_ARGUMENT, "step: no place for the logprobs of next tokens");
    }
    for (int32_t i = 0; i < b->n_tokens; i++) {
        if (b->next_tokens[i] >= -1 && b->next_tokens[i] < e->n_sampled) continue;
        return llm_fail(err, LLM_E_ARGUMENT,
                        "step: next token %d is %d, allowed are -1 (none) to %d", i,
                        b->next_tokens[i], e->n_sampled - 1);
    }
    return llm_logprobs_check(out, err);
}

llm_status llm_prepare_sampling(llm_exec *e, const llm_batch *b, const llm_logprobs *logprobs,
                                llm_error *err) {
    if (logprobs) {
        llm_status status = llm_logprobs_check(logprobs, err);
        if (status != LLM_OK) return status;
        if (!logprobs->ids || !logprobs->values) {
            return llm_fail(err, LLM_E_ARGUMENT, "step: no place for the logprobs");
        }
    }
    if (b->next_tokens) {
        llm_status status = check_next(e, b, err);
        if (status != LLM_OK) return status;
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

void llm_clear_rows(const llm_exec *e) {
    const llm_logprobs *out = e->out_logprobs;
    for (int32_t s = 0; s < e->batch->n_seqs; s++) e->out_tokens[s] = -1;
    for (int32_t s = 0; out && out->ranks && s < e->batch->n_seqs; s++) out->ranks[s] = 0;
    for (int64_t i = 0; out && i < (int64_t)e->batch->n_seqs * (1 + out->n_top); i++) {
        out->ids[i] = -1;
        out->values[i] = -INFINITY;
    }
}

static void sample_row(llm_exec *e, int32_t s, const float *logits) {
    const llm_batch *b = e->batch;
    int32_t token, position = b->seq_first_pos[s] + b->seq_n_tokens[s];
    llm_sampler *sampler = b->seq_samplers ? b->seq_samplers[s] : NULL;
    if (sampler) {
        token = llm_sampler_run(sampler, &e->candidates, logits, position);
    } else {
        token = llm_sample(logits, e->n_sampled, 0, 0, position);
    }
    e->out_tokens[s] = token;
    if (e->out_logprobs) llm_logprobs_of(&e->candidates, logits, token, e->out_logprobs, s);
}

void llm_take_rows(llm_exec *e, int32_t first, int32_t n) {
    const llm_batch *b = e->batch;
    for (int32_t row = 0; row < n; row++) {
        const float *logits = e->out_logits + (int64_t)row * e->m->h.n_vocab;
        int32_t token = e->out_row[first + row], s = e->token_seq[token];
        bool is_last = token == b->n_tokens - 1 || e->token_seq[token + 1] != s;
        if (b->next_tokens && b->next_tokens[token] >= 0) {
            llm_logprobs_of(&e->candidates, logits, b->next_tokens[token], b->next_logprobs, token);
        }
        if (is_last && b->seq_sample[s]) sample_row(e, s, logits);
        llm_note_progress(e, 0);
    }
}

void llm_accept_sampled(const llm_exec *e) {
    const llm_batch *b = e->batch;
    for (int32_t s = 0; b->seq_samplers && s < b->n_seqs; s++) {
        if (b->seq_samplers[s] && e->out_tokens[s] >= 0)
            llm_sampler_push(b->seq_samplers[s], e->out_tokens[s]);
    }
}
