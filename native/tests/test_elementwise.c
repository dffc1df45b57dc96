/* Elementwise kernels: scalar against double precision, every other instruction set against scalar
 * bit by bit, all tails, guards, and a stored checksum that must come out on every machine. */
#include "kernel_check.h"

#include <math.h>

enum { N_OPS = 10, MAX_N = 2055 };

static const char *const op_names[N_OPS] = {
    "rms_norm",    "rms_norm without w", "add", "scale", "swiglu", "geglu", "softcap", "rope pairs",
    "rope halves", "rms_norm in place"};

/* Output of an op on inputs a, b, c (n values each) in y. */
static void run_op(const llm_kernels *k, int op, const float *a, const float *b, const float *c,
                   int64_t n, float *y) {
    int32_t pairs = (int32_t)(n / 2);
    if ((op >= 2 && op <= 3) || op >= 6) memcpy(y, a, (size_t)n * sizeof *y);
    switch (op) {
    case 0: k->rms_norm(a, b, 1e-5f, n, y); break;
    case 1: k->rms_norm(a, NULL, 1e-6f, n, y); break;
    case 2: k->add(y, b, n); break;
    case 3: k->scale(y, 0.37f, n); break;
    case 4: k->swiglu(a, b, n, y); break;
    case 5: k->geglu(a, b, n, y); break;
    case 6: k->softcap(y, 30.0f, n); break;
    case 7: k->rope(y, b, c, pairs, 0); break;
    case 8: k->rope(y, b, c, pairs, 1); break;
    case 9: k->rms_norm(y, b, 1e-5f, n, y); break;
    }
}

static double reference(int op, const float *a, const float *b, const float *c, int64_t n,
                        int64_t i) {
    const double pi = 3.14159265358979323846;
    int64_t pairs = n / 2, pair = op == 7 ? i / 2 : i % (pairs ? pairs : 1);
    switch (op) {
    case 0:
    case 1:
    case 9: {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += (double)a[j] * a[j];
        return a[i] / sqrt(sum / (double)n + (op == 1 ? 1e-6 : 1e-5)) * (op == 1 ? 1.0 : b[i]);
    }
    case 2: return (double)a[i] + b[i];
    case 3: return a[i] * (double)0.37f;
    case 4: return a[i] / (1 + exp(-(double)a[i])) * b[i];
    case 5: {
        double g = a[i], u = sqrt(2 / pi) * (g + 0.044715 * g * g * g);
        return g / (1 + exp(-2 * u)) * b[i]; /* = 0.5 g (1 + tanh u) without its cancellation */
    }
    case 6: return 30 * tanh(a[i] / 30.0);
    default: {
        if (i >= 2 * pairs) return a[i];
        int64_t i0 = op == 7 ? 2 * pair : pair, i1 = op == 7 ? i0 + 1 : pair + pairs;
        double x0 = a[i0], x1 = a[i1];
        return i == i0 ? x0 * b[pair] - x1 * c[pair] : x0 * c[pair] + x1 * b[pair];
    }
    }
}

static void check_size(const llm_kernels *scalar, int64_t n, float limit) {
    float *a = guarded_floats(n), *b = guarded_floats(n), *c = guarded_floats(n);
    random_floats(a, n, limit);
    random_floats(b, n, 2.0f);
    random_floats(c, n, 2.0f);
    for (int op = 0; op < N_OPS; op++) {
        float *want = guarded_floats(n);
        run_op(scalar, op, a, b, c, n, want);
        for (int64_t i = 0; i < n; i++) {
            double r = reference(op, a, b, c, n, i);
            /* A rotation may cancel; far down its tail gelu magnifies the rounding of its cubic;
             * everything else is good to a few ulp. */
            double size = op == 7 || op == 8 ? 4 * limit : op == 5 ? 8 * fabs(r) : fabs(r);
            EXPECT(fabs(want[i] - r) <= 6e-7 * size + 1e-30, "%s n=%lld i=%lld: %.9g, not %.9g",
                   op_names[op], (long long)n, (long long)i, want[i], r);
        }
        for (int f = 0; f < N_FAST_ISAS; f++) {
            const llm_kernels *k = llm_kernels_of(fast_isas[f]);
            if (!k) continue;
            float *y = guarded_floats(n);
            run_op(k, op, a, b, c, n, y);
            EXPECT(!memcmp(y, want, (size_t)n * sizeof *y), "%s n=%lld: %s differs from scalar",
                   op_names[op], (long long)n, fast_isas[f]);
            guarded_free(y, n, op_names[op]);
        }
        guarded_free(want, n, op_names[op]);
    }
    guarded_free(a, n, "a read-only input");
    guarded_free(b, n, "a read-only input");
    guarded_free(c, n, "a read-only input");
}

/* Values at the edges of the vector exp and tanh. A NaN must stay one; its bits are free. */
static void check_special(const llm_kernels *k) {
    const float x[16] = {0.0f,   -0.0f, INFINITY, 1e30f,   1000.0f, 80.5f,   -80.5f, -1000.0f,
                         -1e30f, NAN,   1e-40f,   -1e-40f, 0.625f,  -0.625f, 88.5f,  -88.5f};
    float one[16], y[16];
    for (int i = 0; i < 16; i++) one[i] = 1.0f;
    k->swiglu(x, one, 16, y);
    for (int i = 2; i < 6; i++) EXPECT(y[i] == x[i], "%s: silu(%g) = %g", k->isa, x[i], y[i]);
    for (int i = 6; i < 9; i++)
        EXPECT(fabsf(y[i]) <= 2e-35f * fabsf(x[i]), "%s: silu(%g) = %g", k->isa, x[i], y[i]);
    EXPECT(isnan(y[9]), "%s: silu(nan) = %g", k->isa, y[9]);
    k->geglu(x, one, 16, y);
    for (int i = 2; i < 6; i++) EXPECT(y[i] == x[i], "%s: gelu(%g) = %g", k->isa, x[i], y[i]);
    EXPECT(isnan(y[9]), "%s: gelu(nan) = %g", k->isa, y[9]);
    memcpy(y, x, sizeof y);
    k->softcap(y, 1.0f, 16);
    for (int i = 2; i < 9; i++)
        EXPECT(y[i] == (x[i] > 0 ? 1.0f : -1.0f), "%s: tanh(%g) = %g", k->isa, x[i], y[i]);
    EXPECT(isnan(y[9]), "%s: tanh(nan) = %g", k->isa, y[9]);
    EXPECT(y[10] == x[10] && y[11] == x[11], "%s: tanh of a subnormal: %g", k->isa, y[10]);
}

/* Bits of a fixed case: x86 and aarch64, every instruction set. */
static uint64_t checksum(const llm_kernels *k) {
    enum { N = 333 };
    float a[N], b[N], c[N], y[N];
    uint64_t hash = 0;
    random_state = 20261129;
    for (int round = 0; round < 4; round++) {
        random_floats(a, N, round == 3 ? 90.0f : 3.0f);
        random_floats(b, N, 2.0f);
        random_floats(c, N, 2.0f);
        for (int op = 0; op < N_OPS; op++) {
            run_op(k, op, a, b, c, N, y);
            hash = hash_bytes(hash, y, sizeof y);
        }
    }
    return hash;
}

int main(void) {
    const uint64_t known = 0xfc2fad2ea4c6f439;
    const llm_kernels *scalar = llm_kernels_of("scalar");
    if (!scalar) {
        fprintf(stderr, "no scalar kernels\n");
        return 1;
    }
    for (int64_t n = 1; n <= 67; n++) check_size(scalar, n, 4.0f);
    check_size(scalar, 576, 12.0f);
    check_size(scalar, 1536, 40.0f);
    check_size(scalar, MAX_N, 80.0f);
    check_special(scalar);
    uint64_t sum = checksum(scalar);
    EXPECT(sum == known, "checksum of scalar is 0x%016llx", (unsigned long long)sum);
    for (int f = 0; f < N_FAST_ISAS; f++) {
        const llm_kernels *k = llm_kernels_of(fast_isas[f]);
        if (!k) continue;
        check_special(k);
        EXPECT(checksum(k) == known, "checksum of %s differs", fast_isas[f]);
    }
    return n_failed != 0;
}
