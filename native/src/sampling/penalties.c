/* penalties.c: logit bias, tokens that never come, and penalties for tokens that came before. */
#include <math.h>

#include "sampling/sampler.h"

/* Bias: added to the raw logits before anything else (OpenAI's logit_bias); minus infinity bans. */
void llm_apply_bias(llm_sampler *s, llm_candidates *c) {
    if (!s->p.n_bias && !s->p.n_banned) return;
    float *logits = llm_candidates_edit(c);
    for (int32_t i = 0; i < s->p.n_bias; i++) {
        float *l = &logits[s->p.bias_ids[i]], bias = s->p.bias_values[i];
        if (bias == -INFINITY) {
            *l = -INFINITY;
        } else if (isfinite(*l)) {
            *l = llm_finite_logit((double)*l + (double)bias);
        }
    }
    for (int32_t i = 0; i < s->p.n_banned; i++) logits[s->p.banned[i]] = -INFINITY;
}

/* x = logit / T of a token that occurs `count` times in the window. The repetition penalty divides
 * a positive x and multiplies another (Keskar et al. 2019, "CTRL", with the usual repair for
 * negative logits); presence and frequency penalties are OpenAI's: x - presence - count frequency. */
static float penalised(const llm_sampler_params *p, float logit, double t, int32_t count) {
    if (!isfinite(logit)) return logit;
    double x = (double)logit / t, r = (double)p->repeat_penalty;
    x = x > 0 ? x / r : x * r;
    x -= count * (double)p->frequency_penalty + (double)p->presence_penalty;
    return llm_finite_logit(x * t);
}

void llm_apply_penalties(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    const llm_history *h = &s->history;
    if (!h->n_distinct) return;
    if (!c->dense) {
        for (int32_t i = 0; i < c->n; i++) {
            int32_t count = h->count[c->id[i]];
            if (count) c->logit[i] = penalised(&s->p, c->logit[i], c->temperature, count);
        }
        return;
    }
    float *logits = llm_candidates_edit(c);
    for (int32_t i = 0; i < h->n_distinct; i++) {
        int32_t token = h->distinct[i];
        logits[token] = penalised(&s->p, logits[token], c->temperature, h->count[token]);
    }
}
