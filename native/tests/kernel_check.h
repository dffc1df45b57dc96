/* kernel_check.h: seeded data, guarded arrays and the instruction sets of this machine, for tests
 * of kernels. */
#ifndef LLM_KERNEL_CHECK_H
#define LLM_KERNEL_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kernels.h"

static int n_failed;

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition) && n_failed++ < 20) {                                                     \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

/* Fast sets beside the scalar one; those that this machine lacks are NULL. */
static const char *const fast_isas[] = {"avx2",  "avxvnni", "avx512", "amx",
                                        "asimd", "neon",    "i8mm"};
enum { N_FAST_ISAS = sizeof fast_isas / sizeof fast_isas[0] };

static uint64_t random_state = 1;

static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* Uniform in [-limit, limit), the same on every machine. */
static inline float random_float(float limit) {
    return ((float)(random_u32() & 0xffffff) - 8388608.0f) * (1.0f / 8388608.0f) * limit;
}

static inline void random_floats(float *x, int64_t n, float limit) {
    for (int64_t i = 0; i < n; i++) x[i] = random_float(limit);
}

/* n bytes that start `past` bytes past a multiple of 64, between guards, filled with them. */
enum { GUARD_BYTES = 128, GUARD_VALUE = 0xa5 };

static inline void *guarded_bytes(size_t n, size_t past) {
    size_t bytes = n + 2 * GUARD_BYTES + 128;
    uint8_t *base = malloc(bytes);
    if (!base) abort();
    memset(base, GUARD_VALUE, bytes);
    uintptr_t start = ((uintptr_t)base + sizeof(void *) + GUARD_BYTES + 63) & ~(uintptr_t)63;
    uint8_t *p = base + (start - (uintptr_t)base) + past;
    memcpy(p - GUARD_BYTES, &base, sizeof base);
    return p;
}

static bool guards_intact(const uint8_t *p, size_t n) {
    for (size_t i = sizeof(void *); i < GUARD_BYTES; i++)
        if ((p - GUARD_BYTES)[i] != GUARD_VALUE) return false;
    for (size_t i = 0; i < 60; i++)
        if (p[n + i] != GUARD_VALUE) return false;
    return true;
}

static inline void guarded_bytes_free(void *x, size_t n, const char *what) {
    EXPECT(guards_intact(x, n), "%s wrote outside its array of %lld bytes", what, (long long)n);
    uint8_t *base;
    memcpy(&base, (uint8_t *)x - GUARD_BYTES, sizeof base);
    free(base);
}

static inline float *guarded_floats(int64_t n) {
    return guarded_bytes((size_t)n * sizeof(float), 4);
}

static inline void guarded_free(float *x, int64_t n, const char *what) {
    guarded_bytes_free(x, (size_t)n * sizeof *x, what);
}

/* FNV-1a of the bytes, continued from hash (start with 0). */
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    const uint8_t *p = data;
    if (!hash) hash = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

#endif
