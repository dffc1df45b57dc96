/* history.h: the last tokens of a sequence, and how often each occurs in a window over them. */
#ifndef LLM_HISTORY_H
#define LLM_HISTORY_H

#include <stdbool.h>

#include "localllm_sampling.h"

typedef struct llm_history {
    int32_t limit; /* tokens kept at most */
    int32_t *ring; /* [capacity], doubled up to the limit; a ring once it is full */
    int32_t capacity, n, next;

    int32_t window; /* tokens counted; 0: none, and the arrays below are NULL */
    int32_t n_counted;
    int32_t *count; /* [n_vocab] */
    int32_t *slot; /* [n_vocab] place of a counted token in distinct */
    int32_t *distinct; /* [n_vocab] the tokens with a count, in no order that matters */
    int32_t n_distinct;
} llm_history;

/* window and limit: 0 .. INT32_MAX, window <= limit. False, with nothing kept, without memory. */
bool llm_history_init(llm_history *h, int32_t n_vocab, int32_t window, int32_t limit);
void llm_history_free(llm_history *h);
/* Makes room for n more pushes; false without memory. */
bool llm_history_reserve(llm_history *h, int32_t n);
void llm_history_push(llm_history *h, int32_t token);

/* The token i places before the last one; 0 <= i < h->n. */
static inline int32_t llm_history_back(const llm_history *h, int32_t i) {
    int32_t at = h->next - 1 - i;
    return h->ring[at < 0 ? at + h->capacity : at];
}

#endif
