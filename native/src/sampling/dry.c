/* dry.c: DRY ("don't repeat yourself") by P. E. Weidmann: oobabooga/text-generation-webui pull
 * request 5677, with llama.cpp's details (pull request 9702).
 *
 * A token that would make the end of the text repeat an earlier stretch of n tokens, n >= the allowed
 * length, loses multiplier * base^(n - allowed length). The longest such n counts. A repeat does not
 * reach across a breaker, and breakers themselves are never penalised.
 */
#include <math.h>

#include "sampling/portable_math.h"
#include "sampling/sampler.h"

/* match[k]: how many of the last tokens, read backwards, equal those read backwards from the k-th
 * before the last (the Z function of the reversed window, in linear time). */
static void match_backwards(const llm_history *h, int32_t n, int32_t *match) {
    int32_t left = 0, right = 0; /* the stretch [left, right) equals [0, right - left) */
    for (int32_t k = 1; k < n; k++) {
        int32_t same = 0;
        if (k < right) same = match[k - left] < right - k ? match[k - left] : right - k;
        while (k + same < n && llm_history_back(h, same) == llm_history_back(h, k + same)) same++;
        match[k] = same;
        if (k + same > right) {
            left = k;
            right = k + same;
        }
    }
}

static float penalised(const llm_sampler_params *p, float logit, double t, int32_t repeat) {
    if (!isfinite(logit)) return logit;
    double power = llm_whole_power((double)p->dry_base, repeat - p->dry_allowed_length);
    return llm_finite_logit(((double)logit / t - (double)p->dry_multiplier * power) * t);
}

/* Takes the penalty of every token in s->repeat, which the last n tokens name, and clears it. */
static void penalise(llm_sampler *s, llm_candidates *c, int32_t n) {
    float *logits = c->dense ? llm_candidates_edit(c) : NULL;
    for (int32_t i = 0; i < c->n; i++) {
        int32_t repeat = s->repeat[c->id[i]];
        if (repeat) c->logit[i] = penalised(&s->p, c->logit[i], c->temperature, repeat);
    }
    for (int32_t k = 0; k < n; k++) {
        int32_t token = llm_history_back(&s->history, k), repeat = s->repeat[token];
        if (!repeat) continue;
        if (logits) logits[token] = penalised(&s->p, logits[token], c->temperature, repeat);
        s->repeat[token] = 0;
    }
}

void llm_apply_dry(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    const llm_history *h = &s->history;
    int32_t last_n = s->p.dry_penalty_last_n, allowed = s->p.dry_allowed_length;
    int32_t n = last_n < 0 || last_n > h->n ? h->n : last_n;
    int32_t reach = 0; /* tokens since the last breaker */
    while (reach < n && !s->is_breaker[llm_history_back(h, reach)]) reach++;
    if (reach < allowed) return;
    match_backwards(h, n, s->match);
    bool found = false;
    for (int32_t k = 1; k < n; k++) {
        int32_t repeat = s->match[k] < reach ? s->match[k] : reach;
        int32_t next = llm_history_back(h, k - 1); /* what followed the earlier stretch */
        if (repeat < allowed || s->is_breaker[next]) continue;
        if (repeat > s->repeat[next]) s->repeat[next] = repeat;
        found = true;
    }
    if (found) penalise(s, c, n);
}
