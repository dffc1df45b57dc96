/* sample.h: the token with the largest logit / T + noise, of all tokens (whole or in shares that
 * threads pick from side by side) or of a list of them. */
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
 * order or apart and be merged: the result is the same. temperature <= 0 or NaN: greedy. */
void llm_pick_range(const float *logits, int32_t begin, int32_t end, double temperature,
                    uint64_t seed, int32_t position, llm_pick *pick);
void llm_pick_merge(llm_pick *into, const llm_pick *other);
/* The same for tokens ids [n], ascending, with logits [n]. */
void llm_pick_list(const int32_t *ids, const float *logits, int32_t n, double temperature,
                   uint64_t seed, int32_t position, llm_pick *pick);

/* First of the largest logits in [begin, end), -1 when all are NaN or minus infinity. */
int32_t llm_largest(const float *logits, int32_t begin, int32_t end);

/* All tokens [0, n_vocab): the picked one, or -1. */
int32_t llm_sample(const float *logits, int32_t n_vocab, double temperature, uint64_t seed,
                   int32_t position);

/* The Gumbel noise of one token: the same bits on every platform. */
double llm_gumbel(uint64_t seed, int32_t position, int32_t token);

#endif
