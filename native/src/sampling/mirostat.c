/* mirostat.c: mirostat 2 (Basu et al. 2020, "Mirostat: a neural text decoding algorithm that directly
 * controls perplexity", algorithm 2): candidates with more than mu bits of surprise are removed, and
 * after the token came, mu moves by the learning rate eta times how far its surprise was from tau. */
#include <math.h>

#include "sampling/portable_math.h"
#include "sampling/sample.h"
#include "sampling/sampler.h"

void llm_apply_mirostat(llm_sampler *s, llm_candidates *c) {
    llm_candidates_list(c, -INFINITY);
    if (c->n < 2) return;
    llm_sums sums = llm_weigh(c);
    /* -log2 p = (log Z - x) / ln 2 <= mu. The likeliest token always stays. */
    double lowest = llm_portable_log(sums.weight) - s->mu * LLM_LN2;
    if (lowest > 0) {
        llm_keep_only(c, llm_largest(c->logit, 0, c->n));
    } else {
        llm_keep_at_least(c, (double)sums.max + lowest * c->temperature);
    }
}

double llm_mirostat_surprise(llm_candidates *c, int32_t token) {
    if (c->n < 2) return 0;
    double sum = 0, max = (double)llm_candidates_max(c), x = 0;
    for (int32_t i = 0; i < c->n; i++) {
        sum += c->weight[i];
        if (c->id[i] == token) x = ((double)c->logit[i] - max) / c->temperature;
    }
    return (llm_portable_log(sum) - x) / LLM_LN2;
}
