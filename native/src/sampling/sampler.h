/* sampler.h: the state of a sampler and the samplers that its chain is made of. */
#ifndef LLM_SAMPLER_H
#define LLM_SAMPLER_H

#include "sampling/candidates.h"
#include "sampling/history.h"

/* Changes logits, removes candidates or sets the temperature. Never removes the last candidate. */
typedef void (*llm_sampler_apply)(llm_sampler *s, llm_candidates *c, int32_t position);

typedef struct llm_sampler_row {
    int32_t id; /* LLM_SAMPLER_* */
    const char *name;
    bool (*changes)(const llm_sampler_params *p); /* false: these parameters make it do nothing */
    llm_sampler_apply apply;
} llm_sampler_row;

struct llm_sampler {
    llm_sampler_params p; /* its arrays belong to the sampler */
    const llm_sampler_row *steps[LLM_N_SAMPLERS];
    int32_t n_steps;
    bool greedy;
    llm_history history;
    uint8_t *is_breaker; /* [n_vocab], only with DRY */
    int32_t *repeat; /* [n_vocab] scratch of DRY: longest repeat that a token would extend */
    int32_t *match; /* [history.capacity] scratch of DRY */
    int32_t match_capacity;

    double mu; /* mirostat: the largest surprise allowed, in bits */
    int32_t picked; /* the token of the last pick, until a token is accepted; -1: none */
    double surprise; /* its surprise in bits, only with mirostat */
    double weight_sum; /* of all candidates of the current pick, only with mirostat */
};

/* chain.c */
void llm_sampler_set_steps(llm_sampler *s);
/* The next token of logits [n_vocab], -1 when none can be picked. */
int32_t llm_sampler_run(llm_sampler *s, llm_candidates *c, const float *logits, int32_t position);

/* sampler.c: room for n more tokens, so that llm_sampler_push cannot fail. */
bool llm_sampler_reserve(llm_sampler *s, int32_t n);
void llm_sampler_push(llm_sampler *s, int32_t token);

/* penalties.c */
void llm_apply_bias(llm_sampler *s, llm_candidates *c);
void llm_apply_penalties(llm_sampler *s, llm_candidates *c, int32_t position);
/* dry.c */
void llm_apply_dry(llm_sampler *s, llm_candidates *c, int32_t position);
/* truncate.c */
void llm_apply_top_n_sigma(llm_sampler *s, llm_candidates *c, int32_t position);
void llm_apply_top_k(llm_sampler *s, llm_candidates *c, int32_t position);
void llm_apply_typical_p(llm_sampler *s, llm_candidates *c, int32_t position);
void llm_apply_top_p(llm_sampler *s, llm_candidates *c, int32_t position);
void llm_apply_min_p(llm_sampler *s, llm_candidates *c, int32_t position);
void llm_apply_xtc(llm_sampler *s, llm_candidates *c, int32_t position);
/* temperature.c */
void llm_apply_temperature(llm_sampler *s, llm_candidates *c, int32_t position);
/* mirostat.c */
void llm_apply_mirostat(llm_sampler *s, llm_candidates *c);
/* Bits of surprise of one of the tokens that llm_apply_mirostat left. */
double llm_mirostat_surprise(const llm_sampler *s, const llm_candidates *c, int32_t token);

/* logprobs.c: natural logarithms of the probabilities of logits [n_vocab] without any sampler: of
 * `token`, then of the n_top likeliest, into row `row`. Places that no token fills get -1 and minus
 * infinity. */
llm_status llm_logprobs_check(const llm_logprobs *out, llm_error *err);
void llm_logprobs_of(llm_candidates *c, const float *logits, int32_t token, const llm_logprobs *out,
                     int64_t row);

#endif
