/* truncate.c: the samplers that remove candidates. x is logit / T, p the softmax of x over the
 * candidates that are left; ties go by id, so that every set is well defined. */
#include <math.h>

#include "sampling/noise.h"
#include "sampling/sampler.h"

/* Top-n-sigma (Tang et al. 2024, "Top-n-sigma: Not All Logits Are You Need"): x at least the largest
 * x minus n standard deviations of all x. T cancels out. */
void llm_apply_top_n_sigma(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    llm_candidates_list(c, -INFINITY);
    if (c->n < 2) return;
    double sum = 0, square = 0;
    for (int32_t i = 0; i < c->n; i++) sum += (double)c->logit[i];
    double mean = sum / c->n;
    for (int32_t i = 0; i < c->n; i++) {
        double d = (double)c->logit[i] - mean;
        square += d * d;
    }
    double max = (double)llm_candidates_max(c);
    llm_keep_at_least(c, max - (double)s->p.top_n_sigma * sqrt(square / c->n));
}

/* Top-k (Fan et al. 2018, "Hierarchical Neural Story Generation"): the k largest x. */
void llm_apply_top_k(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    llm_candidates_list_top(c, s->p.top_k);
    if (c->n <= s->p.top_k) return;
    llm_key_by_logit(c);
    llm_keep_first(c, NULL, s->p.top_k);
}

/* Locally typical sampling (Meister et al. 2022): the tokens whose surprise -log p is nearest to the
 * entropy, as many as it takes to reach p. As -log p = log Z - x, and the entropy is log Z minus the
 * mean of x, that distance is |x - mean|. */
void llm_apply_typical_p(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    llm_candidates_list(c, -INFINITY);
    if (c->n < 2) return;
    llm_sums sums = llm_weigh(c);
    double mean = sums.x / sums.weight;
    for (int32_t i = 0; i < c->n; i++) {
        double x = ((double)c->logit[i] - (double)sums.max) / c->temperature;
        c->key[i] = llm_ascending_key(fabs(x - mean));
    }
    llm_keep_first(c, c->weight, (double)s->p.typical_p * sums.weight);
}

/* Top-p (Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration"): the likeliest
 * tokens, as many as it takes to reach p. */
void llm_apply_top_p(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    llm_candidates_list(c, -INFINITY);
    if (c->n < 2) return;
    llm_sums sums = llm_weigh(c);
    llm_key_by_logit(c);
    llm_keep_first(c, c->weight, (double)s->p.top_p * sums.weight);
}

/* Min-p (Nguyen et al. 2024, "Turning Up the Heat"): p at least min_p times the largest p, which is
 * x at least the largest x + log min_p. */
void llm_apply_min_p(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    double max = (double)llm_candidates_max(c);
    double floor = max + c->temperature * llm_portable_log((double)s->p.min_p);
    if (c->dense) {
        llm_candidates_list(c, floor);
    } else if (c->n > 1) {
        llm_keep_at_least(c, floor);
    }
}

/* XTC, "exclude top choices" (P. E. Weidmann, oobabooga/text-generation-webui pull request 6335):
 * now and then, of the tokens with p at least the threshold all but the least likely are removed. */
void llm_apply_xtc(llm_sampler *s, llm_candidates *c, int32_t position) {
    if (llm_position_coin(s->p.seed, position) >= (double)s->p.xtc_probability) return;
    llm_candidates_list(c, -INFINITY);
    if (c->n < 2) return;
    double floor = (double)s->p.xtc_threshold * llm_weigh(c).weight;
    int32_t least = -1, n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if (c->weight[i] < floor) continue;
        if (least < 0 || c->logit[i] <= c->logit[least]) least = i;
    }
    for (int32_t i = 0; i < c->n; i++) {
        if (c->weight[i] < floor || i == least) llm_keep_item(c, n++, i);
    }
    c->n = n;
}
