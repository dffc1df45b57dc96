/* The sampler: greedy rules, the distribution, independence, pruning, and stored vectors. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sampling/portable_math.h"
#include "sampling/sample.h"

#define MAX_VOCAB 300000

static float logits[MAX_VOCAB];

/* A plain generator for test data, unrelated to the one under test. */
static uint32_t random_state = 12345;
static double random_unit(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) / 16777216.0;
}

static void fill(int32_t n, double spread) {
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j < 6; j++) sum += random_unit() - 0.5;
        logits[i] = (float)(sum * spread);
    }
}

static void test_greedy(void) {
    static const struct {
        float logits[5];
        int32_t n, token;
    } cases[] = {
        {{1, 3, 2}, 3, 1},
        {{2, 2, 2}, 3, 0},
        {{-5, -1, -1, -9}, 4, 1},
        {{NAN, 1, NAN, 1}, 4, 1},
        {{NAN, -INFINITY, -FLT_MAX}, 3, 2},
        {{1, INFINITY, NAN, INFINITY}, 4, 1},
        {{-0.0f, 0.0f}, 2, 0},
        {{NAN, NAN}, 2, -1},
        {{-INFINITY, NAN, -INFINITY}, 3, -1},
        {{7}, 1, 0},
        {{0}, 0, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const float cold[] = {0, -0.0f, -1, -INFINITY, NAN};
        for (int32_t j = 0; j < 5; j++) {
            int32_t token = llm_sample(cases[i].logits, cases[i].n, cold[j], 1, 2);
            CHECK(token == cases[i].token, "case %d gave %d", (int)i, (int)token);
        }
    }
    for (int32_t n = 1; n < 10000; n += 1 + n / 3) {
        fill(n, 1);
        int32_t place = n * 2 / 3;
        logits[place] = 100;
        CHECK(llm_sample(logits, n, 0, 0, 0) == place, "%d", (int)n);
    }
}

static void test_hot_and_odd_values(void) {
    static const float temperatures[] = {1e-45f, 1e-30f, 0.5f, 1, 1e30f, FLT_MAX, INFINITY};
    for (int32_t i = 0; i < 7; i++) {
        float t = temperatures[i];
        for (int32_t p = 0; p < 200; p++) {
            float one[] = {-3e38f};
            CHECK(llm_sample(one, 1, t, 9, p) == 0, "T = %g", (double)t);
            float masked[] = {NAN, -INFINITY, 0.5f, -INFINITY, NAN};
            CHECK(llm_sample(masked, 5, t, 9, p) == 2, "T = %g", (double)t);
            float none[] = {NAN, -INFINITY};
            CHECK(llm_sample(none, 2, t, 9, p) == -1, "T = %g", (double)t);
            float wide[] = {-FLT_MAX, FLT_MAX, 0};
            CHECK(t > 1e30f || llm_sample(wide, 3, t, 9, p) == 1, "T = %g", (double)t);
        }
    }
    fill(1000, 10);
    int32_t greedy = llm_sample(logits, 1000, 0, 0, 0);
    for (int32_t p = 0; p < 200; p++) {
        CHECK(llm_sample(logits, 1000, 1e-30f, 5, p) == greedy, "position %d", (int)p);
    }
    float infinite[] = {1, INFINITY, INFINITY};
    CHECK(llm_sample(infinite, 3, 1, 1, 1) == 1, "infinite logits: the lowest id");
}

/* Sum of (observed - expected)^2 / expected. */
static double chi_square(const double *observed, const double *expected, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += (observed[i] - expected[i]) * (observed[i] - expected[i]) / expected[i];
    }
    return sum;
}

/* Mean df, deviation sqrt(2 df): 5 deviations over, plus the skew of small df. Everything here is
 * seeded, so a test that passes once passes always. */
static double chi_limit(double df) { return df + 5 * sqrt(2 * df) + 15; }

static void softmax(int32_t n, double t, double *p) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += p[i] = exp((double)logits[i] / t);
    for (int32_t i = 0; i < n; i++) p[i] /= sum;
}

static void test_distribution(int32_t n_draws) {
    static const int32_t sizes[] = {2, 3, 7, 8, 9, 17, 40};
    static const double temperatures[] = {0.3, 1, 2.5, 1e30};
    for (int32_t i = 0; i < 7; i++) {
        for (int32_t j = 0; j < 4; j++) {
            int32_t n = sizes[i];
            double t = temperatures[j], p[40], seen[2][40] = {{0}}, expected[40];
            fill(n, 1);
            softmax(n, t, p);
            for (int32_t k = 0; k < n_draws; k++) {
                seen[0][llm_sample(logits, n, (float)t, 77, k)]++; /* over positions */
                seen[1][llm_sample(logits, n, (float)t, (uint64_t)k, 5)]++; /* over seeds */
            }
            for (int32_t k = 0; k < n; k++) expected[k] = n_draws * p[k] + 1e-9;
            for (int32_t k = 0; k < 2; k++) {
                double chi = chi_square(seen[k], expected, n);
                CHECK(chi < chi_limit(n - 1), "vocabulary %d, T = %g: chi-square %.1f over %s",
                      (int)n, t, chi, k ? "seeds" : "positions");
            }
        }
    }
}

/* What is picked at one position says nothing about the next one, nor about the next seed. */
static void test_independence(int32_t n_draws) {
    enum { N = 6 };
    double p[N], seen[2][N * N] = {{0}}, expected[N * N];
    fill(N, 1);
    softmax(N, 1, p);
    for (int32_t i = 0; i < N * N; i++) expected[i] = n_draws * p[i / N] * p[i % N];
    for (int32_t k = 0; k < n_draws; k++) {
        int32_t a = llm_sample(logits, N, 1, 3, k), b = llm_sample(logits, N, 1, 3, k + 1);
        int32_t c = llm_sample(logits, N, 1, (uint64_t)k, 8);
        int32_t d = llm_sample(logits, N, 1, (uint64_t)k + 1, 8);
        seen[0][a * N + b]++;
        seen[1][c * N + d]++;
    }
    for (int32_t k = 0; k < 2; k++) {
        double chi = chi_square(seen[k], expected, N * N);
        CHECK(chi < chi_limit(N * N - 1), "chi-square %.1f", chi);
    }
}

/* Noise of neighbours shares a hash: their correlation over positions must still be nothing. */
static void test_noise_moments(int32_t n_draws) {
    const double euler = 0.57721566490153286, variance = 1.6449340668482264;
    for (int32_t id = 0; id < 20; id++) {
        double sum = 0, square = 0, cross = 0;
        for (int32_t k = 0; k < n_draws; k++) {
            double a = llm_gumbel(1, k, id) - euler, b = llm_gumbel(1, k, id + 1) - euler;
            sum += a;
            square += a * a;
            cross += a * b;
        }
        double root = sqrt(n_draws);
        CHECK(fabs(sum / n_draws) < 5 * 1.2826 / root, "mean %g", sum / n_draws);
        CHECK(fabs(square / n_draws - variance) < 5 * 3.5 / root, "variance %g", square / n_draws);
        CHECK(fabs(cross / n_draws) < 5 * variance / root, "covariance %g", cross / n_draws);
    }
}

/* Pruning, any split into shares and any order of them change nothing. */
static void test_equals_plain_argmax(int32_t n_rounds) {
    for (int32_t round = 0; round < n_rounds; round++) {
        int32_t n = 1 + (int32_t)(random_unit() * (round % 10 ? 500 : 60000));
        static const double spreads[] = {0.01, 1, 5, 40, 1e30};
        fill(n, spreads[round % 5]);
        if (round % 7 == 0) logits[n / 2] = NAN;
        if (round % 3 == 0) logits[n / 3] = -INFINITY;
        if (round % 4 == 0) logits[n - 1] = logits[0];
        float t = (float)exp(10 * random_unit() - 5);
        uint64_t seed = (uint64_t)round * UINT64_C(0x123456789abcdef);
        double best = -INFINITY;
        int32_t expected = -1;
        for (int32_t i = 0; i < n; i++) {
            double value = (double)logits[i] / (double)t + llm_gumbel(seed, round, i);
            if (value > best) best = value, expected = i;
        }
        int32_t token = llm_sample(logits, n, t, seed, round);
        CHECK(token == expected, "round %d: %d, not %d", (int)round, (int)token, (int)expected);
        llm_pick apart[3], chained = {-INFINITY, -1}, merged = {-INFINITY, -1};
        int32_t cut[4] = {0, (int32_t)(n * random_unit()), 0, n};
        cut[2] = cut[1] + (int32_t)((n - cut[1]) * random_unit());
        for (int32_t i = 2; i >= 0; i--) {
            apart[i] = (llm_pick){-INFINITY, -1};
            llm_pick_range(logits, cut[i], cut[i + 1], t, seed, round, &apart[i]);
            llm_pick_range(logits, cut[i], cut[i + 1], t, seed, round, &chained);
        }
        for (int32_t i = 0; i < 3; i++) llm_pick_merge(&merged, &apart[i]);
        CHECK(merged.token == expected && chained.token == expected, "round %d", (int)round);
    }
}

static void test_log(void) {
    for (int32_t i = 0; i < 20000; i++) {
        double x = i % 2 ? random_unit() + 1e-9 : exp(700 * (random_unit() - 0.5) * 2);
        if (i % 3 == 0) x = 1 - random_unit() * 1e-12;
        double exact = log(x), got = llm_portable_log(x);
        CHECK(fabs(got - exact) <= 6e-16 * fabs(exact), "log(%.17g) = %.17g, not %.17g", x, got,
              exact);
    }
    CHECK(llm_portable_log(1) == 0, "log(1)");
    CHECK(llm_portable_log(1 - 0x1p-53) == -0x1.0000000000000p-53 - 0x1p-107, "just below 1: %a",
          llm_portable_log(1 - 0x1p-53));
}

/* Bits that every platform, compiler and instruction set must give. */
static void test_stored_vectors(void) {
    static const struct {
        uint64_t seed;
        int32_t position, token;
        uint64_t bits;
    } noise[] = {
        {0, 0, 0, UINT64_C(0x40042a27478e5f05)},
        {1, 0, 0, UINT64_C(0xbff17dee973fb51c)},
        {0, 1, 0, UINT64_C(0x3fe24fc24e171348)},
        {0, 0, 1, UINT64_C(0xbff53007a2f22bf7)},
        {42, 1234, 262143, UINT64_C(0x3ffb3c7a5a87b404)},
        {UINT64_MAX, INT32_MAX, INT32_MAX, UINT64_C(0x3fb1a78745187cc7)},
        {7, 31, 8, UINT64_C(0xbfe8405226a7ca81)},
    };
    for (size_t i = 0; i < sizeof noise / sizeof noise[0]; i++) {
        double g = llm_gumbel(noise[i].seed, noise[i].position, noise[i].token);
        uint64_t bits;
        memcpy(&bits, &g, sizeof bits);
        CHECK(bits == noise[i].bits, "{%lluu, %d, %d, 0x%llxu} %g",
              (unsigned long long)noise[i].seed, (int)noise[i].position, (int)noise[i].token,
              (unsigned long long)bits, g);
    }
    static const int32_t tokens[16] = {271, 726, 998, 34,  502, 489, 818, 772,
                                       502, 376, 100, 106, 185, 33,  686, 475};
    for (int32_t i = 0; i < 1000; i++) logits[i] = (float)((i * 7919) % 1009) / 128.0f;
    for (int32_t p = 0; p < 16; p++) {
        int32_t token = llm_sample(logits, 1000, 0.8f, 42, p);
        CHECK(token == tokens[p], "position %d: %d", (int)p, (int)token);
    }
}

int main(void) {
    const char *full = getenv("FULL");
    int32_t times = full && strcmp(full, "1") == 0 ? 20 : 1;
    test_greedy();
    test_hot_and_odd_values();
    test_distribution(10000 * times);
    test_independence(20000 * times);
    test_noise_moments(10000 * times);
    test_equals_plain_argmax(300 * times);
    test_log();
    test_stored_vectors();
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
