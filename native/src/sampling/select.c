/* select.c: the border of the best items, found without sorting them all.
 *
 * A radix selection: the items fall into buckets by the top 11 bits of their keys, whole buckets are
 * taken while the target allows, and only the bucket with the border is looked into, by the next 11
 * bits. Linear whatever the keys are. A small rest is sorted.
 */
#include <float.h>
#include <string.h>

#include "sampling/candidates.h"

#define RADIX_BITS 11
#define N_BUCKETS (1 << RADIX_BITS)
#define SMALL 48

uint64_t llm_ascending_key(double x) {
    uint64_t bits;
    x += 0.0; /* minus zero becomes zero */
    memcpy(&bits, &x, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

uint64_t llm_descending_key(float x) {
    uint32_t bits;
    x += 0.0F;
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    return (uint64_t)~bits << 32;
}

static void sort_places(const uint64_t *key, int32_t *place, int32_t n) {
    for (int32_t i = 1; i < n; i++) {
        int32_t p = place[i], j = i;
        for (; j > 0 && key[place[j - 1]] > key[p]; j--) place[j] = place[j - 1];
        place[j] = p;
    }
}

/* The place at which the sum reaches the target, walking place [n] in order. */
static int32_t walk(const double *weight, const int32_t *place, int32_t n, double sum,
                    double target) {
    int32_t i = 0;
    for (; i < n - 1; i++) {
        sum += weight ? weight[place[i]] : 1;
        if (sum >= target) break;
    }
    return place[i];
}

/* The bucket of the border; adds the weight of those before it to *sum. */
static uint32_t border_bucket(const uint64_t *key, const double *weight, const int32_t *place,
                              int32_t n, int32_t shift, double *sum, double target) {
    double total[N_BUCKETS] = {0};
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t b = (int32_t)(key[place[i]] >> shift & (N_BUCKETS - 1));
        total[b] += weight ? weight[place[i]] : 1;
        if (b > last) last = b;
    }
    int32_t b = 0;
    for (; b < last && *sum + total[b] < target; b++) *sum += total[b];
    return (uint32_t)b;
}

int32_t llm_select(const uint64_t *key, const double *weight, int32_t n, double target,
                   int32_t *place) {
    for (int32_t i = 0; i < n; i++) place[i] = i;
    double sum = 0;
    if (!(target > 0)) target = DBL_MIN; /* so that a bucket that reaches it is not empty */
    for (int32_t shift = 64 - RADIX_BITS; n > SMALL; shift -= RADIX_BITS) {
        if (shift < 0) shift = 0;
        uint32_t bucket = border_bucket(key, weight, place, n, shift, &sum, target);
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++) {
            if ((key[place[i]] >> shift & (N_BUCKETS - 1)) == bucket) place[kept++] = place[i];
        }
        n = kept;
        /* Equal keys are in order of their index already. */
        if (shift == 0) return walk(weight, place, n, sum, target);
    }
    sort_places(key, place, n);
    return walk(weight, place, n, sum, target);
}
