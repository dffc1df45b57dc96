/* checked.h: sizes from a file are multiplied and added only through these. */
#ifndef LLM_CHECKED_H
#define LLM_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* False, with *out untouched, when the result does not fit. */
static inline bool llm_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}

static inline bool llm_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (b > UINT64_MAX - a) return false;
    *out = a + b;
    return true;
}

#endif
