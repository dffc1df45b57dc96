#include "sampling/history.h"

#include <stdlib.h>

bool llm_history_init(llm_history *h, int32_t n_vocab, int32_t window, int32_t limit) {
    *h = (llm_history){.limit = limit, .window = window};
    if (!window) return true;
    h->count = calloc((size_t)n_vocab, sizeof(int32_t));
    h->slot = calloc((size_t)n_vocab, sizeof(int32_t));
    h->distinct = calloc((size_t)n_vocab, sizeof(int32_t));
    if (h->count && h->slot && h->distinct) return true;
    llm_history_free(h);
    return false;
}

void llm_history_free(llm_history *h) {
    free(h->ring);
    free(h->count);
    free(h->slot);
    free(h->distinct);
    *h = (llm_history){0};
}

bool llm_history_reserve(llm_history *h, int32_t n) {
    int64_t need = (int64_t)h->n + n, size = h->capacity < 64 ? 64 : h->capacity;
    if (need > h->limit) need = h->limit;
    if (need <= h->capacity) return true;
    while (size < need) size *= 2;
    if (size > h->limit) size = h->limit;
    /* Below the limit nothing has wrapped: the tokens are ring[0] .. ring[n - 1]. */
    int32_t *grown = realloc(h->ring, (size_t)size * sizeof *grown);
    if (!grown) return false;
    h->ring = grown;
    h->capacity = (int32_t)size;
    return true;
}

static void uncount(llm_history *h, int32_t token) {
    if (--h->count[token]) return;
    int32_t last = h->distinct[--h->n_distinct];
    h->distinct[h->slot[token]] = last;
    h->slot[last] = h->slot[token];
}

static void count(llm_history *h, int32_t token) {
    if (h->count[token]++) return;
    h->slot[token] = h->n_distinct;
    h->distinct[h->n_distinct++] = token;
}

void llm_history_push(llm_history *h, int32_t token) {
    if (!h->limit) return;
    if (h->window) {
        if (h->n_counted == h->window) {
            uncount(h, llm_history_back(h, h->window - 1));
        } else {
            h->n_counted++;
        }
        count(h, token);
    }
    if (h->next == h->capacity) h->next = 0;
    h->ring[h->next++] = token;
    if (h->n < h->capacity) h->n++;
}
