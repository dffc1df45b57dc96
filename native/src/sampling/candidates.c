#include "sampling/candidates.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "sampling/portable_math.h"
#include "sampling/sample.h"

static void *take(uint8_t *memory, uint64_t *used, uint64_t n_bytes) {
    void *p = memory ? memory + *used : NULL;
    *used += (n_bytes + 63) / 64 * 64;
    return p;
}

static uint64_t lay_out(llm_candidates *c, uint8_t *memory) {
    uint64_t n = (uint64_t)c->n_vocab, used = 0;
    c->edited = take(memory, &used, n * sizeof(float));
    c->chunk_max = take(memory, &used, (n / LLM_CHUNK + 1) * sizeof(float));
    c->id = take(memory, &used, n * sizeof(int32_t));
    c->logit = take(memory, &used, n * sizeof(float));
    c->weight = take(memory, &used, n * sizeof(double));
    c->key = take(memory, &used, n * sizeof(uint64_t));
    c->place = take(memory, &used, n * sizeof(int32_t));
    return used;
}

uint64_t llm_candidates_bytes(int32_t n_vocab) {
    llm_candidates c = {.n_vocab = n_vocab};
    return lay_out(&c, NULL);
}

void llm_candidates_init(llm_candidates *c, int32_t n_vocab, void *memory) {
    *c = (llm_candidates){.n_vocab = n_vocab, .temperature = 1};
    lay_out(c, memory);
}

void llm_candidates_begin(llm_candidates *c, const float *logits) {
    c->dense = logits;
    c->scanned = false;
    c->temperature = 1;
    c->n = 0;
}

float *llm_candidates_edit(llm_candidates *c) {
    if (c->dense != c->edited) {
        memcpy(c->edited, c->dense, sizeof(float) * (size_t)c->n_vocab);
        c->dense = c->edited;
    }
    c->scanned = false;
    return c->edited;
}

float llm_finite_logit(double x) {
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : (float)x;
}

/* Largest of n logits, minus infinity when all are NaN. */
static float max_of(const float *logits, int32_t n) {
    enum { N_MAXIMA = 16 };
    float lane[N_MAXIMA], most = -INFINITY;
    for (int32_t j = 0; j < N_MAXIMA; j++) lane[j] = -INFINITY;
    int32_t i = 0;
    for (; i + N_MAXIMA <= n; i += N_MAXIMA) {
        for (int32_t j = 0; j < N_MAXIMA; j++) {
            lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
        }
    }
    for (; i < n; i++) most = logits[i] > most ? logits[i] : most;
    for (int32_t j = 0; j < N_MAXIMA; j++) most = lane[j] > most ? lane[j] : most;
    return most;
}

static int32_t n_chunks(const llm_candidates *c) {
    return (c->n_vocab + LLM_CHUNK - 1) / LLM_CHUNK;
}

static int32_t chunk_end(const llm_candidates *c, int32_t chunk) {
    return c->n_vocab - chunk * LLM_CHUNK < LLM_CHUNK ? c->n_vocab : (chunk + 1) * LLM_CHUNK;
}

float llm_candidates_max(llm_candidates *c) {
    if (!c->dense) return max_of(c->logit, c->n);
    if (c->scanned) return c->dense_max;
    c->scanned = true;
    c->dense_max = -INFINITY;
    for (int32_t i = 0; i < n_chunks(c); i++) {
        int32_t begin = i * LLM_CHUNK;
        c->chunk_max[i] = max_of(c->dense + begin, chunk_end(c, i) - begin);
        c->dense_max = c->chunk_max[i] > c->dense_max ? c->chunk_max[i] : c->dense_max;
    }
    return c->dense_max;
}

static void collect(llm_candidates *c, double floor) {
    const float *dense = c->dense;
    int32_t n = 0;
    for (int32_t chunk = 0; chunk < n_chunks(c); chunk++) {
        if (!((double)c->chunk_max[chunk] >= floor)) continue;
        for (int32_t i = chunk * LLM_CHUNK; i < chunk_end(c, chunk); i++) {
            c->id[n] = i;
            c->logit[n] = dense[i];
            n += (double)dense[i] >= floor && dense[i] > -INFINITY;
        }
    }
    c->n = n;
    c->dense = NULL;
}

void llm_candidates_list(llm_candidates *c, double floor) {
    if (!c->dense) return;
    if (llm_candidates_max(c) < INFINITY) {
        collect(c, floor);
        return;
    }
    c->id[0] = llm_largest(c->dense, 0, c->n_vocab);
    c->logit[0] = INFINITY;
    c->n = 1;
    c->dense = NULL;
}

/* At least k tokens reach the k-th largest of the chunks' maxima. */
void llm_candidates_list_top(llm_candidates *c, int32_t k) {
    if (!c->dense) return;
    llm_candidates_max(c);
    double floor = -INFINITY;
    int32_t chunks = n_chunks(c);
    if (k < chunks) {
        for (int32_t i = 0; i < chunks; i++) c->key[i] = llm_descending_key(c->chunk_max[i]);
        floor = (double)c->chunk_max[llm_select(c->key, NULL, chunks, k, c->place)];
    }
    llm_candidates_list(c, floor);
}

/* weight[i] = e^x of x = (logit[i] - max) / t, e^-700 where x is below that or NaN: next to the
 * largest, which weighs 1, that is nothing. Two loops without a branch become vector code. */
static void weights_of(const float *logit, int32_t n, double max, double t, double *weight) {
    for (int32_t i = 0; i < n; i++) {
        double x = ((double)logit[i] - max) / t;
        weight[i] = x > LLM_EXP_LOWEST ? x : LLM_EXP_LOWEST;
    }
    for (int32_t i = 0; i < n; i++) weight[i] = llm_portable_exp(weight[i]);
}

/* Sums in lanes: a fixed order that vectors can follow. */
enum { N_LANES = 4 };

static void add_to_lanes(double lane[N_LANES], const double *value, int32_t n) {
    int32_t i = 0;
    for (; i + N_LANES <= n; i += N_LANES) {
        for (int32_t j = 0; j < N_LANES; j++) lane[j] += value[i + j];
    }
    for (; i < n; i++) lane[i % N_LANES] += value[i];
}

static double sum_of_lanes(const double lane[N_LANES]) {
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

enum { N_BLOCK = 256 };

llm_sums llm_weigh(llm_candidates *c) {
    float max = llm_candidates_max(c);
    double t = c->temperature, sum[N_LANES] = {0}, sum_x[N_LANES] = {0}, product[N_BLOCK];
    for (int32_t at = 0; at < c->n; at += N_BLOCK) {
        int32_t n = c->n - at < N_BLOCK ? c->n - at : N_BLOCK;
        const float *logit = c->logit + at;
        double *weight = c->weight + at;
        weights_of(logit, n, (double)max, t, weight);
        for (int32_t i = 0; i < n; i++) {
            product[i] = weight[i] * (((double)logit[i] - (double)max) / t);
        }
        add_to_lanes(sum, weight, n);
        add_to_lanes(sum_x, product, n);
    }
    return (llm_sums){max, sum_of_lanes(sum), sum_of_lanes(sum_x)};
}

double llm_dense_sum(const float *logits, int32_t n_vocab, float max) {
    double sum[N_LANES] = {0}, weight[N_BLOCK];
    for (int32_t at = 0; at < n_vocab; at += N_BLOCK) {
        int32_t n = n_vocab - at < N_BLOCK ? n_vocab - at : N_BLOCK;
        weights_of(logits + at, n, (double)max, 1, weight);
        add_to_lanes(sum, weight, n);
    }
    return sum_of_lanes(sum);
}

void llm_keep_item(llm_candidates *c, int32_t to, int32_t from) {
    c->id[to] = c->id[from];
    c->logit[to] = c->logit[from];
    c->weight[to] = c->weight[from];
}

void llm_keep_only(llm_candidates *c, int32_t i) {
    llm_keep_item(c, 0, i);
    c->n = 1;
}

void llm_keep_at_least(llm_candidates *c, double floor) {
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if ((double)c->logit[i] >= floor) llm_keep_item(c, n++, i);
    }
    c->n = n;
}

void llm_keep_first(llm_candidates *c, const double *weight, double target) {
    int32_t last = llm_select(c->key, weight, c->n, target, c->place), n = 0;
    uint64_t border = c->key[last];
    for (int32_t i = 0; i < c->n; i++) {
        if (c->key[i] < border || (c->key[i] == border && i <= last)) llm_keep_item(c, n++, i);
    }
    c->n = n;
}

void llm_key_by_logit(llm_candidates *c) {
    for (int32_t i = 0; i < c->n; i++) c->key[i] = llm_descending_key(c->logit[i]);
}
