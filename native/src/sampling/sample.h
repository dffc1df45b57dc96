/* sample.h: picks a token from logits, whole or in shares that threads pick from side by side. */
#ifndef LLM_SAMPLE_H
#define LLM_SAMPLE_H

#include "localllm.h"

/* The best token so far. Start from {-INFINITY, -1}; that state also means "no token can be
 * picked": every logit was NaN or minus infinity. */
typedef struct llm_pick {
    double value; /* logit / T + noise, or the logit when greedy */
    int32_t token;
} llm_pick;

/* Picks from tokens [begin, end) of logits [n_vocab], starting from *pick. Shares may run in any
 * order or apart and be merged: the result is the same. */
void llm_pick_range(const float *logits, int32_t begin, int32_t end, float temperature,
                    uint64_t seed, int32_t position, llm_pick *pick);
void llm_pick_merge(llm_pick *into, const llm_pick *other);

/* The Gumbel noise of one token, and the natural logarithm that it is made with: both the same
 * bits on every platform. x must be positive, finite and normal. */
double llm_gumbel(uint64_t seed, int32_t position, int32_t token);
double llm_portable_log(double x);

#endif
