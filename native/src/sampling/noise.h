/* noise.h: random numbers without a state, hashes of (seed, position, token id), so that a sample
 * does not depend on what else ran.
 *
 * u of a token is a 52-bit fraction in (0, 1), its Gumbel noise g = -log(-log u). The top 8 bits of
 * u are a byte of a hash that 8 neighbouring tokens share, the 44 others come from a hash of its own.
 */
#ifndef LLM_NOISE_H
#define LLM_NOISE_H

#include "sampling/portable_math.h"

#define LLM_GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio, odd */

/* A bijection of 64-bit words in which every input bit changes about half of the output bits: two
 * rounds of xor-shift and multiply with the constants that D. Stafford found for it ("Mix13"). */
static inline uint64_t llm_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

typedef struct llm_noise_key {
    uint64_t shared, own;
} llm_noise_key;

static inline llm_noise_key llm_noise_key_of(uint64_t seed, int32_t position) {
    uint64_t k = llm_mix(llm_mix(seed + LLM_GOLDEN) + (uint64_t)(uint32_t)position * LLM_GOLDEN);
    llm_noise_key key = {k, llm_mix(k ^ UINT64_C(0xd1b54a32d192ed03))};
    return key;
}

/* The bytes that tokens 8 group .. 8 group + 7 share, lowest first. */
static inline uint64_t llm_shared_bytes(llm_noise_key key, uint32_t group) {
    return llm_mix(key.shared + ((uint64_t)group + 1) * LLM_GOLDEN);
}

static inline double llm_noise(llm_noise_key key, uint64_t shared_byte, int32_t token) {
    uint64_t own = llm_mix(key.own + ((uint64_t)(uint32_t)token + 1) * LLM_GOLDEN);
    double u = ((double)(shared_byte << 44 | own >> 20) + 0.5) * 0x1p-52;
    return -llm_portable_log(-llm_portable_log(u));
}

/* A number in [0, 1) of a position, in a domain that no token's noise uses. */
static inline double llm_position_coin(uint64_t seed, int32_t position) {
    uint64_t k = llm_noise_key_of(seed, position).own ^ UINT64_C(0x8cb92ba72f3d8dd7);
    return (double)(llm_mix(llm_mix(k) + LLM_GOLDEN) >> 11) * 0x1p-53;
}

#endif
