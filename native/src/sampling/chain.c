/* chain.c: which samplers run, in which order, and the pick at their end. */
#include <math.h>
#include <string.h>

#include "base/float_env.h"
#include "sampling/sample.h"
#include "sampling/sampler.h"

static bool has_penalties(const llm_sampler_params *p) {
    return p->repeat_last_n
           && (p->repeat_penalty != 1.0F || p->presence_penalty != 0.0F
               || p->frequency_penalty != 0.0F);
}

static bool has_dry(const llm_sampler_params *p) {
    return p->dry_multiplier > 0.0F && p->dry_penalty_last_n;
}

static bool has_top_n_sigma(const llm_sampler_params *p) { return p->top_n_sigma > 0.0F; }

static bool has_top_k(const llm_sampler_params *p) { return p->top_k > 0 && p->top_k < p->n_vocab; }

static bool has_typical_p(const llm_sampler_params *p) { return p->typical_p < 1.0F; }

static bool has_top_p(const llm_sampler_params *p) { return p->top_p < 1.0F; }

static bool has_min_p(const llm_sampler_params *p) { return p->min_p > 0.0F; }

static bool has_xtc(const llm_sampler_params *p) {
    return p->xtc_probability > 0.0F && p->xtc_threshold <= 0.5F;
}

static bool has_temperature(const llm_sampler_params *p) {
    return p->temperature != 1.0F || p->dynatemp_range > 0.0F;
}

static const llm_sampler_row rows[LLM_N_SAMPLERS] = {
    {LLM_SAMPLER_PENALTIES, "penalties", has_penalties, llm_apply_penalties},
    {LLM_SAMPLER_DRY, "dry", has_dry, llm_apply_dry},
    {LLM_SAMPLER_TOP_N_SIGMA, "top_n_sigma", has_top_n_sigma, llm_apply_top_n_sigma},
    {LLM_SAMPLER_TOP_K, "top_k", has_top_k, llm_apply_top_k},
    {LLM_SAMPLER_TYPICAL_P, "typical_p", has_typical_p, llm_apply_typical_p},
    {LLM_SAMPLER_TOP_P, "top_p", has_top_p, llm_apply_top_p},
    {LLM_SAMPLER_MIN_P, "min_p", has_min_p, llm_apply_min_p},
    {LLM_SAMPLER_XTC, "xtc", has_xtc, llm_apply_xtc},
    {LLM_SAMPLER_TEMPERATURE, "temperature", has_temperature, llm_apply_temperature},
};

const char *llm_sampler_name(int32_t id) {
    return id >= 0 && id < LLM_N_SAMPLERS ? rows[id].name : NULL;
}

static void add_step(llm_sampler *s, int32_t id) {
    if (rows[id].changes(&s->p)) s->steps[s->n_steps++] = &rows[id];
}

static bool in_order(const llm_sampler_params *p, int32_t id) {
    for (int32_t i = 0; i < p->n_order; i++) {
        if (p->order[i] == id) return true;
    }
    return false;
}

void llm_sampler_set_steps(llm_sampler *s) {
    static const int32_t with_mirostat[] = {LLM_SAMPLER_PENALTIES, LLM_SAMPLER_DRY,
                                            LLM_SAMPLER_TEMPERATURE};
    s->greedy = s->p.temperature == 0.0F && in_order(&s->p, LLM_SAMPLER_TEMPERATURE);
    s->n_steps = 0;
    if (s->p.mirostat && !s->greedy) {
        for (int32_t i = 0; i < 3; i++) {
            if (in_order(&s->p, with_mirostat[i])) add_step(s, with_mirostat[i]);
        }
        return;
    }
    for (int32_t i = 0; i < s->p.n_order; i++) {
        int32_t id = s->p.order[i];
        if (!s->greedy || id == LLM_SAMPLER_PENALTIES || id == LLM_SAMPLER_DRY) add_step(s, id);
    }
}

int32_t llm_sampler_run(llm_sampler *s, llm_candidates *c, const float *logits, int32_t position) {
    uint64_t mode = llm_float_env_get();
    llm_float_env_set(LLM_FLOAT_ENV_DEFAULT);
    llm_candidates_begin(c, logits);
    llm_apply_bias(s, c);
    for (int32_t i = 0; i < s->n_steps; i++) s->steps[i]->apply(s, c, position);
    bool mirostat = s->p.mirostat && !s->greedy;
    if (mirostat) llm_apply_mirostat(s, c);

    llm_pick pick = {-INFINITY, -1};
    double t = s->greedy ? 0 : c->temperature;
    if (c->dense) {
        llm_pick_range(c->dense, 0, c->n_vocab, t, s->p.seed, position, &pick);
    } else {
        llm_pick_list(c->id, c->logit, c->n, t, s->p.seed, position, &pick);
    }
    s->picked = pick.token;
    if (mirostat && pick.token >= 0) s->surprise = llm_mirostat_surprise(s, c, pick.token);
    llm_float_env_set(mode);
    return pick.token;
}
