/* sample.c: greedy and temperature sampling with counter-based noise.
 *
 * The token is the argmax of logit / T + g, where g is standard Gumbel noise: that argmax is
 * distributed as softmax(logit / T) (Gumbel 1954; "Gumbel-max trick"). The noise has no state: it
 * is a hash of (seed, position, token id), so a sample does not depend on what else ran.
 *
 * u of a token is a 52-bit fraction in (0, 1), g = -log(-log u). Its top 8 bits are a byte of a
 * hash that 8 neighbouring tokens share, the 44 others come from a hash of its own. The shared
 * byte alone bounds g from above, so most tokens cost an eighth of a hash and one comparison with
 * a table: the logit below which no token with that byte can win.
 *
 * Only + - * / in double precision and integers are used, never libm: the same token everywhere.
 */
#include "sampling/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LN2 0.69314718055994531
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio, odd */

/* A bijection of 64-bit words in which every input bit changes about half of the output bits: two
 * rounds of xor-shift and multiply with the constants that D. Stafford found for it ("Mix13"). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

typedef struct noise_key {
    uint64_t shared, own;
} noise_key;

static noise_key noise_key_of(uint64_t seed, int32_t position) {
    uint64_t k = mix(mix(seed + GOLDEN) + (uint64_t)(uint32_t)position * GOLDEN);
    noise_key key = {k, mix(k ^ UINT64_C(0xd1b54a32d192ed03))};
    return key;
}

static uint64_t shared_bytes(noise_key key, uint32_t group) {
    return mix(key.shared + ((uint64_t)group + 1) * GOLDEN);
}

static double noise(noise_key key, uint64_t shared_byte, int32_t token) {
    uint64_t own = mix(key.own + ((uint64_t)(uint32_t)token + 1) * GOLDEN);
    double u = ((double)(shared_byte << 44 | own >> 20) + 0.5) * 0x1p-52;
    return -llm_portable_log(-llm_portable_log(u));
}

/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh s with s = (m - 1) / (m + 1), and
 * atanh s = s + s^3/3 + s^5/5 + ...; s^2 < 0.0295, so 11 terms reach double precision. */
double llm_portable_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* Adding what lies between sqrt(1/2) and 1 carries into the exponent just for m >= sqrt(2). */
    uint64_t shifted = bits + (UINT64_C(0x3ff0000000000000) - UINT64_C(0x3fe6a09e667f3bcd));
    int64_t e = (int64_t)(shifted >> 52) - 1023;
    bits -= (uint64_t)e << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s, sum = 1.0 / 23;
    for (int32_t n = 21; n >= 1; n -= 2) sum = sum * z + 1.0 / n;
    double log_m = 2 * s * sum;
    /* ln 2 in two parts: the first has 21 trailing zero bits, so that e times it is exact. */
    return (double)e * 0x1.62e42fee00000p-1 + ((double)e * 0x1.a39ef35793c76p-33 + log_m);
}

double llm_gumbel(uint64_t seed, int32_t position, int32_t token) {
    noise_key key = noise_key_of(seed, position);
    uint32_t id = (uint32_t)token;
    return noise(key, shared_bytes(key, id / 8) >> 8 * (id % 8) & 0xff, token);
}

static void consider(llm_pick *pick, double value, int32_t token) {
    if (value > pick->value || (value == pick->value && token < pick->token)) {
        pick->value = value;
        pick->token = token;
    }
}

void llm_pick_merge(llm_pick *into, const llm_pick *other) {
    if (other->token >= 0) consider(into, other->value, other->token);
}

/* First of the largest logits in [begin, end), -1 when all are NaN or minus infinity. */
static int32_t largest(const float *logits, int32_t begin, int32_t end) {
    enum { N_LANES = 16, N_STEP = 4096 };
    float best = -INFINITY;
    int32_t first = end;
    /* The maximum of a stretch first (vectors, no index), then its place if it is a new one. */
    for (int32_t at = begin; at < end; at += N_STEP) {
        int32_t stop = end - at < N_STEP ? end : at + N_STEP;
        float lane[N_LANES];
        for (int32_t j = 0; j < N_LANES; j++) lane[j] = -INFINITY;
        int32_t i = at;
        for (; i + N_LANES <= stop; i += N_LANES) {
            for (int32_t j = 0; j < N_LANES; j++) {
                lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
            }
        }
        for (; i < stop; i++) lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
        float most = -INFINITY;
        for (int32_t j = 0; j < N_LANES; j++) most = lane[j] > most ? lane[j] : most;
        if (!(most > best)) continue;
        best = most;
        for (first = at; logits[first] != best;) first++;
    }
    return first == end ? -1 : first;
}

/* floors[b]: a logit below this cannot win when its noise has shared byte b. With c leading ones in
 * that byte u < 1 - 2^-(c + 1), so -log u > 1 - u > 2^-(c + 1) and g < (c + 1) ln 2; a byte of all
 * ones says only that u <= 1 - 2^-53. */
static void set_floors(float floors[256], double best, double t) {
    int32_t b = 0;
    for (int32_t c = 0; c <= 8; c++) {
        double f = (best - (c < 8 ? c + 1 : 53) * LN2) * t;
        /* Lowered by more than the rounding of f, of the conversion and of logit / t + g. */
        f -= (fabs(f) + fabs(best) * t) * 1e-6 + DBL_MIN;
        float lowered = f > FLT_MAX ? INFINITY : f >= -FLT_MAX ? (float)f : -INFINITY;
        for (int32_t end = c < 8 ? 256 - (128 >> c) : 256; b < end; b++) floors[b] = lowered;
    }
}

static void pick_noisy(const float *logits, int32_t begin, int32_t end, double t, noise_key key,
                       int32_t start, llm_pick *pick) {
    /* The largest logit goes first: its value already rules most of the others out. */
    uint64_t bytes = shared_bytes(key, (uint32_t)start / 8) >> 8 * (start % 8);
    consider(pick, (double)logits[start] / t + noise(key, bytes & 0xff, start), start);
    float floors[256];
    set_floors(floors, pick->value, t);
    for (int32_t i = begin; i < end;) {
        int32_t stop = end - i < 8 - i % 8 ? end : i + 8 - i % 8;
        bytes = shared_bytes(key, (uint32_t)i / 8) >> 8 * (i % 8);
        for (; i < stop; i++, bytes >>= 8) {
            if (!(logits[i] >= floors[bytes & 0xff])) continue;
            double best = pick->value;
            consider(pick, (double)logits[i] / t + noise(key, bytes & 0xff, i), i);
            if (pick->value > best) set_floors(floors, pick->value, t);
        }
    }
}

void llm_pick_range(const float *logits, int32_t begin, int32_t end, float temperature,
                    uint64_t seed, int32_t position, llm_pick *pick) {
    int32_t start = largest(logits, begin, end);
    if (start < 0) return;
    if (temperature > 0) {
        pick_noisy(logits, begin, end, (double)temperature, noise_key_of(seed, position), start,
                   pick);
    } else {
        consider(pick, (double)logits[start], start);
    }
}

int32_t llm_sample(const float *logits, int32_t n_vocab, float temperature, uint64_t seed,
                   int32_t position) {
    llm_pick pick = {-INFINITY, -1};
    llm_pick_range(logits, 0, n_vocab, temperature, seed, position, &pick);
    return pick.token;
}
