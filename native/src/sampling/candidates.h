/* candidates.h: the tokens that may still be picked, and the memory to work on them.
 *
 * The set starts dense: all tokens with a logit above minus infinity, without a copy. The first
 * sampler that removes some turns it into a list with ascending ids. Logits stay f32 and unscaled; a
 * temperature is kept beside them, so that x = logit / temperature.
 */
#ifndef LLM_CANDIDATES_H
#define LLM_CANDIDATES_H

#include <stdbool.h>

#include "localllm_sampling.h"

#define LLM_CHUNK 128 /* logits whose maximum is kept, so that a scan can leave them out */

typedef struct llm_candidates {
    int32_t n_vocab;
    double temperature;
    const float *dense; /* [n_vocab] while the set is dense, else NULL */
    float *edited; /* [n_vocab] copy of the logits, made when a sampler changes some */
    bool scanned; /* chunk_max and dense_max belong to dense */
    float *chunk_max; /* [n_vocab / LLM_CHUNK, rounded up] */
    float dense_max;

    int32_t n; /* length of the list */
    int32_t *id; /* [n] ascending */
    float *logit; /* [n] */
    double *weight; /* [n] e^(x - the largest x), at least e^-700, after llm_weigh */
    uint64_t *key; /* [n] scratch of selections */
    int32_t *place; /* [n] scratch of selections */
} llm_candidates;

/* Bytes of memory that llm_candidates_init lays out. */
uint64_t llm_candidates_bytes(int32_t n_vocab);
/* memory: llm_candidates_bytes(n_vocab), aligned for doubles. */
void llm_candidates_init(llm_candidates *c, int32_t n_vocab, void *memory);

/* Starts with all tokens; logits [n_vocab] are only read. */
void llm_candidates_begin(llm_candidates *c, const float *logits);
/* The logits of a dense set, to change. */
float *llm_candidates_edit(llm_candidates *c);

/* Turns a dense set into the list of tokens with a logit of at least `floor` (of all for minus
 * infinity). A logit of plus infinity leaves only the first such token. Of a list it does nothing. */
void llm_candidates_list(llm_candidates *c, double floor);
/* The same, leaving out what cannot be among the k largest. */
void llm_candidates_list_top(llm_candidates *c, int32_t k);

/* The largest logit; minus infinity when there is none. */
float llm_candidates_max(llm_candidates *c);

typedef struct llm_sums {
    float max; /* largest logit */
    double weight; /* sum of the weights: at least 1 */
    double x; /* sum of weight * (x - the largest x) */
} llm_sums;

/* Fills the weights of a list of at least one token with finite logits. */
llm_sums llm_weigh(llm_candidates *c);
/* The sum of e^(logit - max) over logits [n_vocab]; max is their largest, and finite. */
double llm_dense_sum(const float *logits, int32_t n_vocab, float max);

/* Writes the item at `from` over the one at `to`. */
void llm_keep_item(llm_candidates *c, int32_t to, int32_t from);
/* Keeps only the i-th of the list. */
void llm_keep_only(llm_candidates *c, int32_t i);
/* Keeps the tokens whose logit is at least `floor`. */
void llm_keep_at_least(llm_candidates *c, double floor);
/* Keeps the tokens that come first when sorted by (key ascending, id ascending), as many as it takes
 * for their weights to reach `target`, at least one. weight NULL: each weighs 1. Keys are in c->key. */
void llm_keep_first(llm_candidates *c, const double *weight, double target);
/* Fills c->key so that larger logits come first. */
void llm_key_by_logit(llm_candidates *c);

/* What a sampler may turn a finite logit into: never an infinity. */
float llm_finite_logit(double x);

/* select.c: the last of the items that llm_keep_first keeps, as index. place [n] is scratch. */
int32_t llm_select(const uint64_t *key, const double *weight, int32_t n, double target,
                   int32_t *place);
/* Unsigned integers that sort as the numbers do; no NaN. */
uint64_t llm_ascending_key(double x);
uint64_t llm_descending_key(float x);

#endif
