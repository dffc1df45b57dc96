/* localllm_sampling.h: the second part of localllm.h, under the same rules.
 *
 * An llm_sampler belongs to one sequence: it holds the parameters, the tokens that came so far as
 * far as they matter, and the state of mirostat. Steps and picks with it take turns.
 */
#ifndef LOCALLLM_SAMPLING_H
#define LOCALLLM_SAMPLING_H

#include "localllm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LLM_MAX_TOP_LOGPROBS 20

/* clang-format off */
enum {
    LLM_SAMPLER_PENALTIES = 0, LLM_SAMPLER_DRY = 1, LLM_SAMPLER_TOP_N_SIGMA = 2,
    LLM_SAMPLER_TOP_K = 3, LLM_SAMPLER_TYPICAL_P = 4, LLM_SAMPLER_TOP_P = 5,
    LLM_SAMPLER_MIN_P = 6, LLM_SAMPLER_XTC = 7, LLM_SAMPLER_TEMPERATURE = 8, LLM_N_SAMPLERS = 9
};
/* clang-format on */

/* Logit bias and bans come first, then the samplers of `order`; what is not in it does not run. The
 * pick is the argmax of logit / T + Gumbel noise keyed by (seed, position, token id). Temperature 0:
 * the largest after bias, penalties and DRY. mirostat 2 takes the place of all samplers but
 * penalties, DRY and temperature. Ranges are checked and named in errors. */
typedef struct llm_sampler_params {
    uint64_t seed;
    int32_t n_vocab; /* only ids below it are sampled */
    const int32_t *order; /* [n_order] LLM_SAMPLER_*, each at most once */
    int32_t n_order;
    float temperature, dynatemp_range, dynatemp_exponent;
    int32_t top_k; /* 0: off */
    float top_p, min_p, typical_p, top_n_sigma, xtc_probability, xtc_threshold;
    int32_t mirostat; /* 0 or 2 */
    float mirostat_tau, mirostat_eta; /* tau in bits */
    float repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base;
    int32_t repeat_last_n, dry_penalty_last_n; /* tokens looked back on; -1: all, 0: none */
    int32_t dry_allowed_length, n_dry_breakers;
    const int32_t *dry_breakers;
    int32_t n_bias, n_banned;
    const int32_t *bias_ids;
    const float *bias_values;
    const int32_t *banned; /* [n_banned] ids that never come */
} llm_sampler_params;

llm_status llm_sampler_create(const llm_sampler_params *params, llm_sampler **out, llm_error *err);
void llm_sampler_free(llm_sampler *s);
llm_status llm_sampler_clone(const llm_sampler *s, llm_sampler **out, llm_error *err);
const char *llm_sampler_name(int32_t id); /* "top_k"; NULL: no such */
/* Tokens that came: those of a prompt, or a pick that llm_sampler_pick gave. */
llm_status llm_sampler_accept(llm_sampler *s, const int32_t *tokens, int32_t n, llm_error *err);
/* logits [n_vocab] are only read. token: -1 when each is NaN, minus infinity or banned. */
llm_status llm_sampler_pick(llm_sampler *s, const float *logits, int32_t position, int32_t *token,
                            llm_error *err);

/* Natural logarithms of probabilities, from the logits before any sampler. */
struct llm_logprobs {
    int32_t n_top; /* 0 to LLM_MAX_TOP_LOGPROBS */
    int32_t *ids; /* rows of [1 + n_top]: the token, then the likeliest; -1: none */
    float *values; /* as ids */
    int32_t *ranks; /* NULL, or [rows]: how many tokens are at least as likely as the token, itself
                       among them: 1 for the likeliest; 0: no token */
};

/* One row. */
llm_status llm_logprobs_from(const float *logits, int32_t n_vocab, int32_t token,
                             const llm_logprobs *out, llm_error *err);

#ifdef __cplusplus
}
#endif
#endif
