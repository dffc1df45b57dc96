/* exp, reciprocal, sigmoid and tanh against double: the largest errors that docs/ARITHMETIC.md names.
 * Every 4099th float and the neighbours of the worst ones; every float with FULL=1 (some minutes). */
#define LLM_ISA scalar
#include "kernel_check.h"
#include "vec_math.h"

#include <math.h>

enum { EXP, RECIPROCAL, SIGMOID, TANH, N_FUNCTIONS };

static const struct {
    const char *name;
    double limit; /* in units of the last place of the exact value */
    float worst; /* where the error is largest */
} functions[N_FUNCTIONS] = {
    [EXP] = {"exp", 1.01, -27.3791351f},
    [RECIPROCAL] = {"reciprocal", 0.5000001, 1.99999988f},
    [SIGMOID] = {"sigmoid", 2.49, -16.635704f},
    [TANH] = {"tanh", 1.34, 0.631044209f},
};

static double largest[N_FUNCTIONS];

static double ulp(double exact) {
    int exponent;
    frexp(fabs(exact), &exponent);
    return ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

static void check16(int function, const float *x) {
    float y[16];
    const vf v = vf_load(x);
    vf_store(y, function == EXP          ? vf_exp(v)
                : function == RECIPROCAL ? vf_reciprocal(v)
                : function == SIGMOID    ? vf_sigmoid(v)
                                         : vf_tanh(v));
    for (int i = 0; i < 16; i++) {
        const double in = x[i], exact = function == EXP          ? exp(in)
                                        : function == RECIPROCAL ? 1 / in
                                        : function == SIGMOID    ? 1 / (1 + exp(-in))
                                                                 : tanh(in);
        const double error = fabs(y[i] - exact) / ulp(exact);
        EXPECT(error <= functions[function].limit, "%s(%.9g) is off by %.4f ulp",
               functions[function].name, in, error);
        if (error > largest[function]) largest[function] = error;
    }
}

/* Every step-th float from first to last, which have one sign. */
static void check_range(int function, float first, float last, uint32_t step) {
    float x[16];
    const uint64_t end = llm_f32_bits(last);
    for (uint64_t bits = llm_f32_bits(first); bits <= end;) {
        for (int i = 0; i < 16; i++, bits += step)
            x[i] = llm_bits_f32((uint32_t)(bits <= end ? bits : end));
        check16(function, x);
    }
}

int main(void) {
    const char *full = getenv("FULL");
    const uint32_t step = full && !strcmp(full, "1") ? 1 : 4099;
    check_range(EXP, 1e-9f, 88.0f, step);
    check_range(EXP, -1e-9f, -87.32f, step);
    check_range(RECIPROCAL, 1.0f, 2.0f, step); /* other exponents: the same bits of the mantissa */
    check_range(RECIPROCAL, 0x1p119f, 0x1p120f, step);
    check_range(SIGMOID, 1e-9f, 100.0f, step);
    check_range(SIGMOID, -1e-9f, -79.9f, step);
    check_range(TANH, 1e-30f, 20.0f, step);
    check_range(TANH, -1e-30f, -20.0f, step);
    for (int f = 0; f < N_FUNCTIONS; f++) {
        float x[16];
        for (int i = 0; i < 16; i++)
            x[i] = llm_bits_f32(llm_f32_bits(functions[f].worst) - 8 + (uint32_t)i);
        check16(f, x);
        /* A limit that nothing comes near would hold anything. */
        EXPECT(largest[f] > functions[f].limit - 0.02, "%s is never off by more than %.4f ulp",
               functions[f].name, largest[f]);
    }
    return n_failed != 0;
}
