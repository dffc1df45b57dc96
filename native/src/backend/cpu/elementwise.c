/* elementwise.c: norms, activations, residual sums and rotations over f32 rows. The exact order of
 * every operation is in docs/ARITHMETIC.md. An output may be the same array as an input. */
#include "backend/cpu/cpu.h"
#include "vec_math.h"

/* Runs body for whole vectors with LOAD and STORE of 16 lanes, then once for the tail. */
#define FOR_VECTORS(n, body)                                                                       \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VF_LANES <= (n); i += VF_LANES) {                                               \
            enum { tail = VF_LANES };                                                              \
            body                                                                                   \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            const int tail = (int)((n) - i);                                                       \
            body                                                                                   \
        }                                                                                          \
    } while (0)

LLM_INLINE vf load(const float *p, int n) { return n == VF_LANES ? vf_load(p) : vf_load_n(p, n); }

LLM_INLINE void store(float *p, vf a, int n) {
    if (n == VF_LANES)
        vf_store(p, a);
    else
        vf_store_n(p, a, n);
}

void LLM_FN(rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y) {
    vf sum = vf_zero();
    FOR_VECTORS(n, {
        vf a = load(x + i, tail);
        sum = vf_fma(a, a, sum);
    });
    vf r = vf_set1(1.0f / vf_sqrt1(vf_reduce_add(sum) / (float)n + eps));
    if (w) {
        FOR_VECTORS(n, {
            vf a = vf_mul(load(x + i, tail), r);
            store(y + i, vf_mul(a, load(w + i, tail)), tail);
        });
    } else {
        FOR_VECTORS(n, { store(y + i, vf_mul(load(x + i, tail), r), tail); });
    }
}

void LLM_FN(add)(float *y, const float *x, int64_t n) {
    FOR_VECTORS(n, { store(y + i, vf_add(load(y + i, tail), load(x + i, tail)), tail); });
}

void LLM_FN(scale)(float *y, float s, int64_t n) {
    FOR_VECTORS(n, { store(y + i, vf_mul(load(y + i, tail), vf_set1(s)), tail); });
}

void LLM_FN(swiglu)(const float *gate, const float *up, int64_t n, float *y) {
    FOR_VECTORS(n, {
        vf g = load(gate + i, tail);
        vf silu = vf_mul(g, vf_sigmoid(g));
        store(y + i, vf_mul(silu, load(up + i, tail)), tail);
    });
}

/* 0.5 g (1 + tanh u) = g sigmoid(2 u), u = sqrt(2 / pi) (g + 0.044715 g^3) */
void LLM_FN(geglu)(const float *gate, const float *up, int64_t n, float *y) {
    const vf c1 = vf_set1(1.5957691216f), c3 = vf_set1(0.0713548163f);
    FOR_VECTORS(n, {
        vf g = load(gate + i, tail);
        vf u2 = vf_mul(g, vf_fma(vf_mul(g, g), c3, c1));
        vf gelu = vf_mul(g, vf_sigmoid(u2));
        store(y + i, vf_mul(gelu, load(up + i, tail)), tail);
    });
}

void LLM_FN(softcap)(float *y, float cap, int64_t n) {
    const vf inverse = vf_set1(1.0f / cap);
    FOR_VECTORS(n, {
        vf t = vf_tanh(vf_mul(load(y + i, tail), inverse));
        store(y + i, vf_mul(t, vf_set1(cap)), tail);
    });
}

/* Pairs (2i, 2i + 1) of 8 rotations held in one vector; c, s: 8 values each. */
LLM_INLINE vf rotate_pairs(vf a, const float *c, const float *s) {
    const vm odd = vm_from_bits(0xaaaa);
    vf t = vf_mul(vf_swap_pairs(a), vf_load_dup8(s));
    return vf_fma(a, vf_load_dup8(c), vf_select(odd, t, vf_neg(t)));
}

static void rope_pairs(float *x, const float *cos, const float *sin, int32_t n_pairs) {
    int32_t i = 0;
    for (; i + 8 <= n_pairs; i += 8)
        vf_store(x + 2 * i, rotate_pairs(vf_load(x + 2 * i), cos + i, sin + i));
    if (i < n_pairs) {
        const int tail = n_pairs - i;
        float c[8] = {0}, s[8] = {0};
        for (int j = 0; j < tail; j++) {
            c[j] = cos[i + j];
            s[j] = sin[i + j];
        }
        vf a = vf_load_n(x + 2 * i, 2 * tail);
        vf_store_n(x + 2 * i, rotate_pairs(a, c, s), 2 * tail);
    }
}

void LLM_FN(rope)(float *x, const float *cos, const float *sin, int32_t n_pairs, int32_t halves) {
    if (!halves) {
        rope_pairs(x, cos, sin, n_pairs);
        return;
    }
    float *x1 = x + n_pairs;
    FOR_VECTORS(n_pairs, {
        vf a = load(x + i, tail);
        vf b = load(x1 + i, tail);
        vf c = load(cos + i, tail);
        vf s = load(sin + i, tail);
        store(x + i, vf_fma(a, c, vf_neg(vf_mul(b, s))), tail);
        store(x1 + i, vf_fma(b, c, vf_mul(a, s)), tail);
    });
}
