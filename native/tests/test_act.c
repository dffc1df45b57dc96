/* Activations to s8: scalar against the rule in plain C; every instruction set against scalar bit by
 * bit; and no byte but those of the asked inputs of the asked token is written. */
#include "kernel_check.h"

#include <math.h>

#include "base/half.h"

enum { MAX_N = 17, MAX_K = 1312 };

typedef struct quantized {
    uint8_t *memory;
    size_t n_bytes;
    llm_acts acts;
} quantized;

/* Room for n tokens of k inputs, all of it GUARD_VALUE. */
static quantized make(llm_act_kind kind, int32_t n, int64_t k, const float *x) {
    quantized a = {.n_bytes = (size_t)llm_acts_bytes(kind, n, k)};
    a.memory = guarded_bytes(a.n_bytes, 0);
    llm_acts_place(&a.acts, kind, n, k, a.memory);
    a.acts.x = x;
    a.acts.ldx = k;
    return a;
}

/* The sides of block i of token t: fields that `from` has and `to` shall get. */
static void copy_side(llm_act_kind kind, const quantized *from, quantized *to, int32_t t,
                      int64_t i) {
    const int64_t n = from->acts.n;
    if (kind == LLM_ACT_Q256) {
        to->acts.a256[i * n + t] = from->acts.a256[i * n + t];
        return;
    }
    const llm_act32 *a = &from->acts.a32[i / 8 * n + t];
    llm_act32 *b = &to->acts.a32[i / 8 * n + t];
    b->d[i % 8] = a->d[i % 8];
    b->dsum[i % 8] = a->dsum[i % 8];
    b->neg8[i % 8] = a->neg8[i % 8];
    b->neg16[i % 8] = a->neg16[i % 8];
    b->neg128[i % 8] = a->neg128[i % 8];
}

static void check_part(const llm_kernels *k, llm_act_kind kind, const quantized *whole, int32_t t,
                       int64_t begin, int64_t end) {
    const int32_t n = whole->acts.n, elements = kind == LLM_ACT_Q32 ? 32 : 256;
    quantized got = make(kind, n, whole->acts.k, whole->acts.x);
    quantized want = make(kind, n, whole->acts.k, whole->acts.x);
    for (int64_t i = begin; i < end; i += elements) {
        const int64_t at = i / 256 * 256 * n + 256 * t + i % 256;
        memcpy(want.acts.q[kind] + at, whole->acts.q[kind] + at, (size_t)elements);
        copy_side(kind, whole, &want, t, i / elements);
    }
    k->quantize(&got.acts, kind, t, begin, end);
    EXPECT(!memcmp(got.memory, want.memory, got.n_bytes),
           "%s: kind %d, inputs %lld to %lld of %lld of token %d of %d", k->isa, (int)kind,
           (long long)begin, (long long)end, (long long)whole->acts.k, (int)t, (int)n);
    guarded_bytes_free(got.memory, got.n_bytes, k->isa);
    guarded_bytes_free(want.memory, want.n_bytes, "the test");
}

/* Values and scale of a block by docs/ARITHMETIC.md. */
static void check_rule(llm_act_kind kind, const quantized *a, int32_t t, int64_t i) {
    const int32_t elements = kind == LLM_ACT_Q32 ? 32 : 256;
    const float *x = a->acts.x + t * a->acts.ldx + i * elements;
    const int64_t n = a->acts.n, at = i * elements;
    const int8_t *q = a->acts.q[kind] + at / 256 * 256 * n + 256 * t + at % 256;
    const float d =
        kind == LLM_ACT_Q32 ? a->acts.a32[i / 8 * n + t].d[i % 8] : a->acts.a256[i * n + t].d;
    float amax = 0;
    bool finite = true;
    for (int32_t j = 0; j < elements; j++) {
        finite &= isfinite(x[j]) != 0;
        amax = fmaxf(amax, fabsf(x[j]));
    }
    const bool counts = finite && amax >= 0x1p-117f;
    EXPECT(finite ? d == (counts ? amax / 127 : 0) : isnan(d), "scale %g of block %lld", d,
           (long long)i);
    for (int32_t j = 0; j < elements; j++) {
        const float exact = counts ? rintf(x[j] * (127.0f / amax)) : 0;
        EXPECT(q[j] == (int8_t)exact, "input %d of block %lld: %d", (int)j, (long long)i, q[j]);
    }
}

static void check_size(llm_act_kind kind, int32_t n, int64_t k) {
    const int32_t elements = kind == LLM_ACT_Q32 ? 32 : 256;
    const int64_t n_blocks = k / elements;
    float *x = guarded_floats(n * k);
    random_floats(x, n * k, 3.0f);
    for (int32_t i = 0; i < elements; i++) x[i] *= i % 2 ? 1e-37f : 0; /* counts as zero */
    if (n > 2) x[2 * k + 1] = NAN;
    if (n > 3) x[4 * k - 1] = -INFINITY;
    quantized whole = make(kind, n, k, x);
    const llm_kernels *scalar = llm_kernels_of("scalar");
    for (int32_t t = 0; t < n; t++) {
        scalar->quantize(&whole.acts, kind, t, 0, k);
        for (int64_t i = 0; i < n_blocks; i++) check_rule(kind, &whole, t, i);
    }
    for (int f = -1; f < N_FAST_ISAS; f++) {
        const llm_kernels *kernels = f < 0 ? scalar : llm_kernels_of(fast_isas[f]);
        if (!kernels) continue;
        for (int32_t t = 0; t < n; t++) {
            check_part(kernels, kind, &whole, t, 0, k);
            const int64_t begin = random_u32() % n_blocks;
            const int64_t end = begin + random_u32() % (n_blocks - begin + 1);
            check_part(kernels, kind, &whole, t, begin * elements, end * elements);
        }
    }
    guarded_bytes_free(whole.memory, whole.n_bytes, "scalar");
    guarded_free(x, n * k, "a read-only input");
}

int main(void) {
    static const int32_t counts[] = {1, 4, MAX_N};
    static const int64_t sizes[] = {32, 96, 224, 256, 288, 544, 768, 1024, MAX_K};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 9; j++) {
            check_size(LLM_ACT_Q32, counts[i], sizes[j]);
            if (sizes[j] % 256 == 0) check_size(LLM_ACT_Q256, counts[i], sizes[j]);
        }
    return n_failed != 0;
}
