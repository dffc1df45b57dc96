/* mirostat.c: mirostat 2 (Basu et al. 2020, "Mirostat: a neural text decoding algorithm that directly
 * controls perplexity", algorithm 2): candidates with more than mu bits of surprise are removed, and
 * after the token came, mu moves by the learning rate eta times how far its surprise was from tau.
 *
 * As in the paper and its authors' program, that surprise is in the distribution before the removal:
 * it is what tau promises. (llama.cpp takes it after, which lets the text drift above tau.)
 */
#include <math.h>

#include "sampling/portable_math.h"
#include "sampling/sample.h"
#include "sampling/sampler.h"

void llm_apply_mirostat(llm_sampler *s, llm_candidates *c) {
    llm_candidates_list(c, -INFINITY);
    s->weight_sum = c->weight[0] = 1;
    if (c->n < 2) return;
    llm_sums sums = llm_weigh(c);
    s->weight_sum = sums.weight;
    /* -log2 p = (log Z - x) / ln 2 <= mu. The likeliest token always stays. */
    double lowest = llm_portable_log(sums.weight) - s->mu * LLM_LN2;
    if (lowest > 0) {
        llm_keep_only(c, llm_largest(c->logit, 0, c->n));
    } else {
        llm_keep_at_least(c, (double)sums.max + lowest * c->temperature);
    }
}

double llm_mirostat_surprise(const llm_sampler *s, const llm_candidates *c, int32_t token) {
    int32_t i = 0;
    while (c->id[i] != token) i++;
    return llm_portable_log(s->weight_sum / c->weight[i]) / LLM_LN2;
}
