/* sample.c: greedy and temperature sampling with counter-based noise.
 *
 * The token is the argmax of logit / T + g, where g is standard Gumbel noise: that argmax is
 * distributed as softmax(logit / T) (Gumbel 1954; "Gumbel-max trick").
 *
 * The byte of the noise that neighbours share (noise.h) alone bounds g from above, so most tokens
 * cost an eighth of a hash and one comparison with a table: the logit below which no token with that
 * byte can win.
 *
 * Only + - * / in double precision and integers are used, never libm: the same token everywhere.
 */
#include "sampling/sample.h"

#include <float.h>
#include <math.h>

#include "sampling/noise.h"

double llm_gumbel(uint64_t seed, int32_t position, int32_t token) {
    llm_noise_key key = llm_noise_key_of(seed, position);
    uint32_t id = (uint32_t)token;
    return llm_noise(key, llm_shared_bytes(key, id / 8) >> 8 * (id % 8) & 0xff, token);
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

int32_t llm_largest(const float *logits, int32_t begin, int32_t end) {
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
        double f = (best - (c < 8 ? c + 1 : 53) * LLM_LN2) * t;
        /* Lowered by more than the rounding of f, of the conversion and of logit / t + g. */
        f -= (fabs(f) + fabs(best) * t) * 1e-6 + DBL_MIN;
        float lowered = f > FLT_MAX ? INFINITY : f >= -FLT_MAX ? (float)f : -INFINITY;
        for (int32_t end = c < 8 ? 256 - (128 >> c) : 256; b < end; b++) floors[b] = lowered;
    }
}

/* A pick under way: what it needs to value a token. */
typedef struct noisy_pick {
    double t;
    llm_noise_key key;
    float floors[256];
    llm_pick *pick;
} noisy_pick;

/* The largest logit goes first: its value already rules most of the others out. */
static void begin_noisy(noisy_pick *p, float logit, int32_t token) {
    uint64_t bytes = llm_shared_bytes(p->key, (uint32_t)token / 8) >> 8 * (token % 8);
    consider(p->pick, (double)logit / p->t + llm_noise(p->key, bytes & 0xff, token), token);
    set_floors(p->floors, p->pick->value, p->t);
}

static inline void consider_noisy(noisy_pick *p, float logit, uint64_t byte, int32_t token) {
    if (!(logit >= p->floors[byte])) return;
    double best = p->pick->value;
    consider(p->pick, (double)logit / p->t + llm_noise(p->key, byte, token), token);
    if (p->pick->value > best) set_floors(p->floors, p->pick->value, p->t);
}

void llm_pick_range(const float *logits, int32_t begin, int32_t end, double temperature,
                    uint64_t seed, int32_t position, llm_pick *pick) {
    int32_t start = llm_largest(logits, begin, end);
    if (start < 0) return;
    if (!(temperature > 0)) {
        consider(pick, (double)logits[start], start);
        return;
    }
    noisy_pick p = {.t = temperature, .key = llm_noise_key_of(seed, position), .pick = pick};
    begin_noisy(&p, logits[start], start);
    for (int32_t i = begin; i < end;) {
        int32_t stop = end - i < 8 - i % 8 ? end : i + 8 - i % 8;
        uint64_t bytes = llm_shared_bytes(p.key, (uint32_t)i / 8) >> 8 * (i % 8);
        for (; i < stop; i++, bytes >>= 8) consider_noisy(&p, logits[i], bytes & 0xff, i);
    }
}

void llm_pick_list(const int32_t *ids, const float *logits, int32_t n, double temperature,
                   uint64_t seed, int32_t position, llm_pick *pick) {
    int32_t start = llm_largest(logits, 0, n);
    if (start < 0) return;
    if (!(temperature > 0)) {
        consider(pick, (double)logits[start], ids[start]);
        return;
    }
    noisy_pick p = {.t = temperature, .key = llm_noise_key_of(seed, position), .pick = pick};
    begin_noisy(&p, logits[start], ids[start]);
    uint64_t bytes = 0;
    for (int32_t i = 0, group = -1; i < n; i++) {
        if (ids[i] / 8 != group) {
            group = ids[i] / 8;
            bytes = llm_shared_bytes(p.key, (uint32_t)group);
        }
        consider_noisy(&p, logits[i], bytes >> 8 * (ids[i] % 8) & 0xff, ids[i]);
    }
}

int32_t llm_sample(const float *logits, int32_t n_vocab, double temperature, uint64_t seed,
                   int32_t position) {
    llm_pick pick = {-INFINITY, -1};
    llm_pick_range(logits, 0, n_vocab, temperature, seed, position, &pick);
    return pick.token;
}
