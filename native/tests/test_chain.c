/* The sampler chain: portable functions, selections, each sampler's edge cases, guards of the public
 * calls, and stored tokens that every platform must give. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sampling/noise.h"
#include "sampling/sampler.h"

#define MAX_VOCAB 5000

static uint32_t random_state = 2463534242u;
static double random_unit(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) / 16777216.0;
}

static int32_t random_below(int32_t n) { return (int32_t)(random_unit() * n); }

static float logits[MAX_VOCAB];

static void fill(int32_t n, double spread) {
    for (int32_t i = 0; i < n; i++) {
        logits[i] = (float)((random_unit() + random_unit() + random_unit() - 1.5) * spread);
    }
}

static const int32_t every[LLM_N_SAMPLERS] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

/* Everything off; temperature 1; all samplers in the default order. */
static llm_sampler_params params_of(int32_t n_vocab) {
    llm_sampler_params p = {.seed = 1, .n_vocab = n_vocab, .order = every};
    p.n_order = LLM_N_SAMPLERS;
    p.temperature = p.dynatemp_exponent = p.top_p = p.typical_p = 1;
    p.xtc_threshold = 0.1F;
    p.mirostat_tau = 5;
    p.mirostat_eta = 0.1F;
    p.repeat_penalty = 1;
    p.repeat_last_n = p.dry_penalty_last_n = -1;
    p.dry_base = 1.75F;
    p.dry_allowed_length = 2;
    return p;
}

static llm_sampler *sampler_of(const llm_sampler_params *p) {
    llm_sampler *s = NULL;
    llm_error err = {0};
    CHECK(llm_sampler_create(p, &s, &err) == LLM_OK, "%s", err.message);
    if (!s) exit(2);
    return s;
}

static void accept(llm_sampler *s, const int32_t *tokens, int32_t n) {
    llm_error err = {0};
    CHECK(llm_sampler_accept(s, tokens, n, &err) == LLM_OK, "%s", err.message);
}

/* ---- Parts ---------------------------------------------------------------------------------- */

static void test_portable_math(void) {
    double worst = 0;
    for (int32_t i = 0; i < 20000; i++) {
        double x = i % 2 ? -700 * random_unit() : 2 * random_unit() - 1;
        double exact = exp(x), error = fabs(llm_portable_exp(x) - exact) / exact;
        worst = error > worst ? error : worst;
    }
    CHECK(worst < 5e-16, "exp is off by %g", worst);
    CHECK(llm_portable_exp(0) == 1, "exp(0)");
    CHECK(llm_portable_exp(-700) > 0, "exp(-700)");
    for (int32_t i = 0; i < 5000; i++) {
        double base = random_unit() + 1e-9, power = 10 * random_unit();
        double exact = pow(base, power), got = llm_portable_power(base, power);
        CHECK(fabs(got - exact) <= 1e-13 * exact, "%g ^ %g = %g, not %g", base, power, got, exact);
    }
    CHECK(llm_portable_power(1, 3) == 1 && llm_portable_power(1e-200, 10) == 0, "powers");
    CHECK(llm_whole_power(1.5, 0) == 1 && llm_whole_power(1.5, 5) == 7.59375, "1.5 ^ 5");
    CHECK(llm_whole_power(2, INT32_MAX) == INFINITY && llm_whole_power(1, INT32_MAX) == 1, "large");
}

static void test_keys(void) {
    static const float up[] = {-INFINITY, -FLT_MAX, -1, -1e-45F, 0, 1e-45F, 1, FLT_MAX, INFINITY};
    for (int32_t i = 1; i < 9; i++) {
        CHECK(llm_ascending_key((double)up[i - 1]) < llm_ascending_key((double)up[i]), "%d", i);
        CHECK(llm_descending_key(up[i - 1]) > llm_descending_key(up[i]), "%d", i);
    }
    CHECK(llm_ascending_key(-0.0) == llm_ascending_key(0.0), "zeros");
    CHECK(llm_descending_key(-0.0F) == llm_descending_key(0.0F), "zeros");
}

typedef struct item {
    uint64_t key;
    int32_t index;
} item;

static int by_key(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->index - y->index;
}

/* Against a full sort; weights are whole so that sums do not depend on their order. */
static void test_select(void) {
    static uint64_t key[3000];
    static double weight[3000];
    static int32_t place[3000];
    static item sorted[3000];
    for (int32_t round = 0; round < 600; round++) {
        int32_t n = 1 + random_below(round % 5 ? 200 : 3000);
        for (int32_t i = 0; i < n; i++) {
            key[i] = (uint64_t)(random_unit() * 1e6) * UINT64_C(0x9e3779b97f4a7c15);
            if (round % 3 == 0) key[i] = (uint64_t)random_below(5) << (round % 64);
            weight[i] = random_below(4);
            sorted[i] = (item){key[i], i};
        }
        qsort(sorted, (size_t)n, sizeof(item), by_key);
        const double *w = round % 2 ? weight : NULL;
        double target = random_unit() * (w ? 1.6 * n : n), sum = 0;
        int32_t want = 0;
        for (; want < n - 1; want++) {
            sum += w ? w[sorted[want].index] : 1;
            if (sum >= target) break;
        }
        int32_t got = llm_select(key, w, n, target, place);
        CHECK(got == sorted[want].index, "round %d: %d of %d, not %d", round, got, n,
              sorted[want].index);
    }
}

/* Counts and order of the last tokens against a plain array. */
static void test_history(void) {
    static int32_t all[4000];
    static const int32_t windows[][2] = {
        {0, 5}, {1, 1}, {3, 3}, {64, 64}, {7, 200}, {100, 1000}, {INT32_MAX, INT32_MAX}};
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        llm_history h;
        int32_t window = windows[w][0], limit = windows[w][1], n = 0;
        CHECK(llm_history_init(&h, 10, window, limit), "no memory");
        while (n < 3000) {
            int32_t more = 1 + random_below(40);
            CHECK(llm_history_reserve(&h, more), "no memory");
            for (int32_t i = 0; i < more; i++, n++) {
                all[n] = random_below(10);
                llm_history_push(&h, all[n]);
            }
            int32_t kept = n < limit ? n : limit, counted = n < window ? n : window;
            CHECK(h.n == kept && h.capacity <= (limit < 8192 ? limit : 8192), "%d kept", h.n);
            for (int32_t i = 0; i < kept; i++) {
                if (llm_history_back(&h, i) != all[n - 1 - i]) CHECK(0, "token %d from the end", i);
            }
            int32_t count[10] = {0}, distinct = 0;
            for (int32_t i = 0; i < counted; i++) distinct += !count[all[n - 1 - i]]++;
            CHECK(h.n_distinct == distinct, "%d distinct, not %d", h.n_distinct, distinct);
            for (int32_t i = 0; window && i < 10; i++) {
                CHECK(h.count[i] == count[i], "token %d: %d, not %d", i, h.count[i], count[i]);
            }
        }
        llm_history_free(&h);
    }
}

/* ---- One sampler at a time ------------------------------------------------------------------ */

/* Runs one sampler on logits [n]; the ids that are left, as a text. Dense sets are listed after. */
static const char *left_by(const llm_sampler_params *p, llm_sampler_apply apply, const float *from,
                           const int32_t *history, int32_t n_history) {
    static char text[200];
    llm_sampler *s = sampler_of(p);
    accept(s, history, n_history);
    void *memory = malloc(llm_candidates_bytes(p->n_vocab));
    if (!memory) exit(2);
    llm_candidates c;
    llm_candidates_init(&c, p->n_vocab, memory);
    llm_candidates_begin(&c, from);
    apply(s, &c, 0);
    llm_candidates_list(&c, -INFINITY);
    text[0] = 0;
    for (int32_t i = 0; i < c.n; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "", c.id[i]);
    }
    free(memory);
    llm_sampler_free(s);
    return text;
}

#define LEFT(apply, want)                                                                          \
    do {                                                                                           \
        const char *got = left_by(&p, apply, x, NULL, 0);                                          \
        CHECK(!strcmp(got, want), "left \"%s\", not \"%s\"", got, want);                           \
    } while (0)

static void test_truncation(void) {
    /* p: 0.5 0.25 0.125 0.125, twice a NaN and a minus infinity between them */
    const float x[] = {(float)log(0.125), NAN,       (float)log(0.5),
                       (float)log(0.125), -INFINITY, (float)log(0.25)};
    llm_sampler_params p = params_of(6);
    p.top_k = 1;
    LEFT(llm_apply_top_k, "2");
    p.top_k = 3;
    LEFT(llm_apply_top_k, "0 2 5"); /* a tie: the lower id */
    p.top_k = 5;
    LEFT(llm_apply_top_k, "0 2 3 5");
    p.top_p = 0;
    LEFT(llm_apply_top_p, "2");
    p.top_p = 0.49F;
    LEFT(llm_apply_top_p, "2");
    p.top_p = 0.7F;
    LEFT(llm_apply_top_p, "2 5");
    p.top_p = 0.8F;
    LEFT(llm_apply_top_p, "0 2 5");
    p.top_p = 0.99F;
    LEFT(llm_apply_top_p, "0 2 3 5");
    p.min_p = 1;
    LEFT(llm_apply_min_p, "2");
    p.min_p = 0.4F;
    LEFT(llm_apply_min_p, "2 5");
    p.min_p = 0.2F;
    LEFT(llm_apply_min_p, "0 2 3 5");
    /* The entropy is 1.75 bits; surprises are 1, 2 and 3, 3. */
    p.typical_p = 0;
    LEFT(llm_apply_typical_p, "5");
    p.typical_p = 0.3F;
    LEFT(llm_apply_typical_p, "2 5");
    p.typical_p = 0.8F;
    LEFT(llm_apply_typical_p, "0 2 5");
    p.top_n_sigma = 0.1F;
    LEFT(llm_apply_top_n_sigma, "2");
    p.top_n_sigma = 100;
    LEFT(llm_apply_top_n_sigma, "0 2 3 5");
    p.xtc_probability = 1;
    p.xtc_threshold = 0.3F; /* only one above: it stays */
    LEFT(llm_apply_xtc, "0 2 3 5");
    p.xtc_threshold = 0.2F;
    LEFT(llm_apply_xtc, "0 3 5");
    p.xtc_threshold = 0.1F; /* a tie: the higher id counts as less likely */
    LEFT(llm_apply_xtc, "3");
    p.xtc_threshold = 0;
    LEFT(llm_apply_xtc, "3");
    p.xtc_probability = 0;
    LEFT(llm_apply_xtc, "0 2 3 5");
}

/* Sets with no or one candidate, equal logits, and logits at the ends of the range. */
static void test_guards(void) {
    static const llm_sampler_apply applies[] = {
        llm_apply_top_k, llm_apply_top_p, llm_apply_min_p,       llm_apply_typical_p,
        llm_apply_xtc,   llm_apply_dry,   llm_apply_temperature, llm_apply_top_n_sigma};
    static const struct {
        float x[3];
        const char *left;
    } cases[] = {{{NAN, -INFINITY, NAN}, ""},
                 {{NAN, -3, -INFINITY}, "1"},
                 {{NAN, INFINITY, INFINITY}, "1"},
                 {{FLT_MAX, -FLT_MAX, NAN}, "0"},
                 {{-FLT_MAX, -INFINITY, NAN}, "0"}};
    for (size_t i = 0; i < sizeof applies / sizeof applies[0]; i++) {
        for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++) {
            llm_sampler_params p = params_of(3);
            p.top_k = 1;
            p.top_p = p.typical_p = p.top_n_sigma = 0.01F;
            p.min_p = 0.9F;
            p.dry_multiplier = p.xtc_probability = 1;
            p.temperature = 1e-40F;
            p.dynatemp_range = j % 2 ? 0 : 1e-40F;
            const char *got = left_by(&p, applies[i], cases[j].x, NULL, 0);
            bool all = applies[i] == llm_apply_dry || applies[i] == llm_apply_temperature
                       || applies[i] == llm_apply_xtc;
            bool right = all ? !*got == !*cases[j].left : !strcmp(got, cases[j].left);
            CHECK(right, "sampler %d, case %d: left \"%s\"", (int)i, (int)j, got);
        }
    }
}

static float logit_after(const llm_sampler_params *p, llm_sampler_apply apply, float from,
                         const int32_t *history, int32_t n) {
    llm_sampler *s = sampler_of(p);
    accept(s, history, n);
    void *memory = malloc(llm_candidates_bytes(p->n_vocab));
    if (!memory) exit(2);
    llm_candidates dense, list;
    float x[4] = {from, 0, 0, 0}, kept[4];
    llm_candidates_init(&dense, 4, memory);
    llm_candidates_begin(&dense, x);
    apply(s, &dense, 0);
    memcpy(kept, dense.dense, sizeof kept);
    llm_candidates_init(&list, 4, memory);
    llm_candidates_begin(&list, x);
    llm_candidates_list(&list, -INFINITY);
    apply(s, &list, 0);
    for (int32_t i = 0; i < list.n; i++) {
        CHECK(list.logit[i] == kept[list.id[i]], "a list gives %g, all give %g",
              (double)list.logit[i], (double)kept[list.id[i]]);
    }
    CHECK(x[0] == from || from != from, "the logits were written to");
    free(memory);
    llm_sampler_free(s);
    return kept[0];
}

static void test_penalties(void) {
    static const int32_t history[] = {0, 1, 0, 2, 2};
    llm_sampler_params p = params_of(4);
    p.repeat_penalty = 2;
    CHECK(logit_after(&p, llm_apply_penalties, 3, history, 5) == 1.5F, "a positive logit");
    CHECK(logit_after(&p, llm_apply_penalties, -3, history, 5) == -6, "a negative logit");
    CHECK(logit_after(&p, llm_apply_penalties, 0, history, 5) == 0, "zero");
    CHECK(logit_after(&p, llm_apply_penalties, INFINITY, history, 5) == INFINITY, "infinity");
    CHECK(isnan(logit_after(&p, llm_apply_penalties, NAN, history, 5)), "NaN");
    CHECK(logit_after(&p, llm_apply_penalties, -FLT_MAX, history, 5) == -FLT_MAX, "the least");
    p.presence_penalty = 0.5F;
    p.frequency_penalty = 0.25F;
    CHECK(logit_after(&p, llm_apply_penalties, 3, history, 5) == 0.5F, "twice in the window");
    p.repeat_last_n = 3;
    CHECK(logit_after(&p, llm_apply_penalties, 3, history, 5) == 0.75F, "once in the window");
    p.repeat_last_n = 2;
    CHECK(logit_after(&p, llm_apply_penalties, 3, history, 5) == 3, "not in the window");
    p.repeat_last_n = 0;
    CHECK(logit_after(&p, llm_apply_penalties, 3, history, 5) == 3, "no window");
}

static void test_dry(void) {
    /* Token 0 followed 1, 2, 3 earlier; the end repeats 3, then 2 3, then 1 2 3. */
    static const int32_t history[] = {1, 2, 3, 0, 2, 1, 2, 3};
    static const int32_t breaker[] = {2}, self[] = {0};
    llm_sampler_params p = params_of(4);
    p.dry_multiplier = 2;
    p.dry_base = 1.5F;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 9 - 2 * 1.5F, "three tokens repeat");
    p.dry_allowed_length = 3;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 7, "as long as allowed");
    p.dry_allowed_length = 4;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 9, "shorter than allowed");
    p.dry_allowed_length = 1;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 9 - 2 * 2.25F, "from one token on");
    p.dry_penalty_last_n = 7; /* the first 1 is out of the window */
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 9 - 2 * 1.5F, "a shorter window");
    p.dry_penalty_last_n = 5;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 9, "a window without the repeat");
    p.dry_penalty_last_n = -1;
    p.dry_breakers = breaker;
    p.n_dry_breakers = 1;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 7, "a breaker in the repeat");
    p.dry_breakers = self;
    CHECK(logit_after(&p, llm_apply_dry, 9, history, 8) == 9, "a breaker is not penalised");
    static int32_t same[3000];
    p.n_dry_breakers = 0;
    CHECK(logit_after(&p, llm_apply_dry, 9, same, 3000) == -FLT_MAX, "a penalty beyond floats");
    CHECK(logit_after(&p, llm_apply_dry, 9, same, 1) == 9, "one token");
    CHECK(logit_after(&p, llm_apply_dry, 9, same, 0) == 9, "no token");
}

/* ---- Guards of the public calls ------------------------------------------------------------- */

static void check_refused(const llm_sampler_params *p, const char *words) {
    llm_sampler *s = NULL;
    llm_error err = {0};
    CHECK(llm_sampler_create(p, &s, &err) == LLM_E_ARGUMENT && !s, "made with bad %s", words);
    CHECK(strstr(err.message, words), "\"%s\" without \"%s\"", err.message, words);
    llm_sampler_free(s);
}

static void test_bad_arguments(void) {
    static const int32_t far[] = {4}, twice[] = {1, 1}, high[] = {LLM_N_SAMPLERS};
    static const float value[] = {101};
    llm_sampler_params p = params_of(4);
    p.top_p = NAN;
    check_refused(&p, "top_p is nan, allowed are 0 to 1");
    p = params_of(0);
    check_refused(&p, "n_vocab is 0");
    p = params_of(4);
    p.order = NULL;
    check_refused(&p, "null");
    p.order = twice;
    p.n_order = 2;
    check_refused(&p, "dry is in the order twice");
    p.order = high;
    p.n_order = 1;
    check_refused(&p, "order[0] is 9, allowed are 0 to 8");
    p.n_order = 10;
    check_refused(&p, "n_order is 10");
    p = params_of(4);
    p.banned = far;
    p.n_banned = 1;
    check_refused(&p, "banned[0] is token 4, allowed are 0 to 3");
    p.banned = NULL;
    check_refused(&p, "banned is null");
    p = params_of(5);
    p.bias_ids = far;
    p.bias_values = value;
    p.n_bias = 1;
    check_refused(&p, "logit_bias[0] is 101");
    p.bias_values = NULL;
    check_refused(&p, "null");

    p = params_of(4);
    llm_error err = {0};
    llm_sampler *s = sampler_of(&p), *copy = NULL;
    int32_t token = 7, ids[1] = {0};
    float x[4] = {0}, values[1];
    llm_logprobs row = {0, ids, values, NULL}, many = {21, ids, values, NULL};
    CHECK(llm_sampler_create(NULL, &copy, &err) == LLM_E_ARGUMENT, "no parameters");
    CHECK(llm_sampler_create(&p, NULL, &err) == LLM_E_ARGUMENT, "no place");
    CHECK(llm_sampler_clone(NULL, &copy, &err) == LLM_E_ARGUMENT, "no sampler");
    CHECK(llm_sampler_accept(s, far, 1, &err) == LLM_E_ARGUMENT, "token 4 of 4");
    CHECK(llm_sampler_accept(s, NULL, 1, &err) == LLM_E_ARGUMENT, "no tokens");
    CHECK(llm_sampler_accept(s, ids, -1, &err) == LLM_E_ARGUMENT, "-1 tokens");
    CHECK(llm_sampler_accept(s, NULL, 0, &err) == LLM_OK, "none to accept");
    CHECK(llm_sampler_pick(s, NULL, 0, &token, &err) == LLM_E_ARGUMENT, "no logits");
    CHECK(llm_logprobs_from(x, 4, 4, &row, &err) == LLM_E_ARGUMENT, "token 4 of 4");
    CHECK(llm_logprobs_from(x, 0, 0, &row, &err) == LLM_E_ARGUMENT, "no vocabulary");
    CHECK(llm_logprobs_from(x, 4, 0, &many, &err) == LLM_E_ARGUMENT, "21 logprobs");
    CHECK(llm_logprobs_from(x, 4, 0, &row, &err) == LLM_OK && values[0] == -(float)log(4), "%g",
          (double)values[0]);
    CHECK(!llm_sampler_name(-1) && !llm_sampler_name(LLM_N_SAMPLERS), "names");
    CHECK(!strcmp(llm_sampler_name(LLM_SAMPLER_TOP_N_SIGMA), "top_n_sigma"), "names");
    llm_sampler_free(s);
    llm_sampler_free(NULL);
}

/* ---- The whole chain ------------------------------------------------------------------------ */

/* Random parameters, orders and logits: a pick is always a token that may come. */
static void test_random_chains(int32_t n_rounds) {
    for (int32_t round = 0; round < n_rounds; round++) {
        int32_t n = 1 + random_below(round % 10 ? 40 : MAX_VOCAB);
        int32_t order[LLM_N_SAMPLERS], banned[2] = {random_below(n), random_below(n)};
        memcpy(order, every, sizeof order);
        for (int32_t i = LLM_N_SAMPLERS - 1; i > 0; i--) {
            int32_t j = random_below(i + 1), kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
        llm_sampler_params p = params_of(n);
        p.order = order;
        p.n_order = random_below(LLM_N_SAMPLERS + 1);
        p.temperature = (float)(random_below(3) * random_unit());
        p.dynatemp_range = (float)(random_below(2) * random_unit());
        p.top_k = random_below(2) * random_below(2 * n);
        p.top_p = (float)random_unit();
        p.min_p = (float)(random_below(2) * random_unit());
        p.typical_p = (float)random_unit();
        p.top_n_sigma = (float)(random_below(2) * random_unit());
        p.xtc_probability = p.xtc_threshold = (float)(random_below(2) * random_unit());
        p.mirostat = random_below(3) ? 0 : 2;
        p.repeat_penalty = 0.1F + (float)random_unit();
        p.repeat_last_n = random_below(70) - 1;
        p.dry_multiplier = (float)random_below(2);
        p.dry_penalty_last_n = random_below(70) - 1;
        p.dry_breakers = p.banned = banned;
        p.n_banned = random_below(3);
        p.n_dry_breakers = random_below(2);
        fill(n, random_below(2) ? 10 : 1e38);
        for (int32_t i = random_below(n + 1) * random_below(2); i > 0; i--) {
            static const float odd[] = {NAN, -INFINITY, FLT_MAX, -FLT_MAX, 0, INFINITY};
            logits[random_below(n)] = odd[random_below(round % 4 ? 5 : 6)];
        }
        bool any = false;
        for (int32_t i = 0; i < n; i++) {
            bool is_banned =
                (p.n_banned > 0 && banned[0] == i) || (p.n_banned > 1 && banned[1] == i);
            any = any || (logits[i] > -INFINITY && !is_banned);
        }
        llm_sampler *s = sampler_of(&p);
        for (int32_t position = 0; position < 6; position++) {
            int32_t token = -2;
            llm_error err = {0};
            CHECK(llm_sampler_pick(s, logits, position, &token, &err) == LLM_OK, "%s", err.message);
            bool good = token < 0 ? token == -1 && !any : token < n && logits[token] > -INFINITY;
            for (int32_t i = 0; i < p.n_banned; i++) good = good && token != banned[i];
            CHECK(good, "round %d picked %d of %d", round, token, n);
            if (token >= 0) accept(s, &token, 1);
        }
        llm_sampler_free(s);
    }
}

/* One working memory for many rows, as an executor has: nothing of one row is left for the next. */
static void test_working_memory_is_shared(void) {
    llm_sampler_params p = params_of(MAX_VOCAB);
    p.top_k = 5;
    llm_sampler *s = sampler_of(&p);
    void *memory = malloc(llm_candidates_bytes(MAX_VOCAB));
    if (!memory) exit(2);
    llm_candidates c;
    llm_candidates_init(&c, MAX_VOCAB, memory);
    for (int32_t position = 0; position < 50; position++) {
        fill(MAX_VOCAB, 10);
        int32_t token = -1, ids[2][4], rank = -1;
        float values[2][4];
        llm_logprobs alone = {3, ids[0], values[0], NULL}, row = {3, ids[1], values[1], &rank};
        CHECK(llm_sampler_pick(s, logits, position, &token, NULL) == LLM_OK, "pick");
        CHECK(llm_sampler_run(s, &c, logits, position) == token, "position %d", position);
        CHECK(llm_logprobs_from(logits, MAX_VOCAB, token, &alone, NULL) == LLM_OK, "logprobs");
        llm_logprobs_of(&c, logits, token, &row, 0);
        CHECK(!memcmp(ids[0], ids[1], sizeof ids[0]), "position %d", position);
        CHECK(!memcmp(values[0], values[1], sizeof values[0]), "position %d", position);
    }
    free(memory);
    llm_sampler_free(s);
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Ranks are places in the sorted logits, the last of those that are equal; a NaN counts as minus
 * infinity. */
static void test_ranks(void) {
    static float sorted[MAX_VOCAB];
    static const int32_t sizes[] = {1, 2, 7, 64, 129, 1000, MAX_VOCAB};
    for (int32_t round = 0; round < 70; round++) {
        int32_t n = sizes[round % 7], kind = round / 7, ids[1];
        fill(n, 10);
        for (int32_t i = 0; i < n; i++) {
            if (kind % 3 == 1) logits[i] = floorf(logits[i]); /* many ties */
            if (kind % 3 == 2 && random_below(3) == 0)
                logits[i] = random_below(2) ? NAN : -INFINITY;
            if (kind == 9) logits[i] = i % 2 ? INFINITY : -logits[i];
            sorted[i] = isnan(logits[i]) ? -INFINITY : logits[i];
        }
        qsort(sorted, (size_t)n, sizeof sorted[0], descending);
        for (int32_t k = 0; k < 20; k++) {
            int32_t token = k ? random_below(n) : -1, rank = -1, want = 0;
            float value = 0;
            llm_logprobs row = {0, ids, &value, &rank};
            while (token >= 0 && want < n && !(sorted[want] < logits[token])) want++;
            CHECK(llm_logprobs_from(logits, n, token, &row, NULL) == LLM_OK, "logprobs");
            CHECK(rank == want, "round %d, token %d (%g) of %d: rank %d, not %d", round, token,
                  token < 0 ? 0.0 : (double)logits[token], n, rank, want);
        }
    }
}

/* Only the first token after a pick, and only if it was picked, moves mirostat's mu. */
static void test_mu_moves_once(void) {
    llm_sampler_params p = params_of(8);
    p.mirostat = 2;
    llm_sampler *s = sampler_of(&p);
    fill(8, 3);
    int32_t token = -1;
    CHECK(llm_sampler_pick(s, logits, 0, &token, NULL) == LLM_OK && token >= 0, "pick");
    double before = s->mu, surprise = s->surprise;
    accept(s, &token, 1);
    CHECK(s->mu == before - (double)0.1F * (surprise - 5), "mu %g from %g", s->mu, before);
    before = s->mu;
    accept(s, &token, 1);
    CHECK(s->mu == before, "the same token moved mu again");
    CHECK(llm_sampler_pick(s, logits, 1, &token, NULL) == LLM_OK, "pick");
    int32_t other = (token + 1) % 8;
    accept(s, &other, 1);
    CHECK(s->mu == before, "another token moved mu");
    llm_sampler_free(s);
}

/* A chain in which every sampler matters, over 64 tokens, each accepted: the tokens and the state
 * that every platform, compiler and instruction set must give. */
static void test_stored_tokens(void) {
    static const int32_t stored[2][16] = {
        {271, 601, 14, 34, 502, 489, 818, 772, 502, 376, 100, 106, 185, 917, 918, 475},
        {462, 53, 772, 765, 264, 528, 521, 20, 284, 277, 785, 40, 33, 541, 805, 798}};
    static const uint64_t hashes[2] = {UINT64_C(0xaa708539c294fb9e), UINT64_C(0xd1ff2fda27df2c2a)};
    for (int32_t mirostat = 0; mirostat < 2; mirostat++) {
        llm_sampler_params p = params_of(1000);
        p.seed = 42;
        p.temperature = 1.1F;
        p.dynatemp_range = 0.5F;
        p.dynatemp_exponent = 1.3F;
        p.top_n_sigma = 2.5F;
        p.top_k = 300;
        p.typical_p = 0.97F;
        p.top_p = 0.95F;
        p.min_p = 0.01F;
        p.xtc_probability = 0.5F;
        p.xtc_threshold = 0.02F;
        p.repeat_penalty = 1.1F;
        p.presence_penalty = p.frequency_penalty = 0.1F;
        p.dry_multiplier = 0.8F;
        p.dry_allowed_length = 1;
        p.mirostat = 2 * mirostat;
        p.mirostat_tau = 4;
        llm_sampler *s = sampler_of(&p);
        uint64_t hash = 0;
        for (int32_t position = 0; position < 256; position++) {
            for (int32_t i = 0; i < 1000; i++) {
                logits[i] = (float)((i * 7919 + position % 3 * 31) % 1009) / 128.0F;
            }
            int32_t token = -1;
            CHECK(llm_sampler_pick(s, logits, position, &token, NULL) == LLM_OK, "pick");
            accept(s, &token, 1);
            uint64_t mu;
            memcpy(&mu, &s->mu, sizeof mu);
            hash = llm_mix(hash ^ (uint64_t)token) ^ mu;
            CHECK(position >= 16 || token == stored[mirostat][position],
                  "mirostat %d, position %d: %d", mirostat, position, token);
        }
        CHECK(hash == hashes[mirostat], "mirostat %d: 0x%llx", mirostat, (unsigned long long)hash);
        llm_sampler_free(s);
    }
}

int main(void) {
    const char *full = getenv("FULL");
    int32_t times = full && strcmp(full, "1") == 0 ? 20 : 1;
    test_portable_math();
    test_keys();
    test_select();
    test_history();
    test_truncation();
    test_guards();
    test_penalties();
    test_dry();
    test_bad_arguments();
    test_random_chains(1000 * times);
    test_working_memory_is_shared();
    test_ranks();
    test_mu_moves_once();
    test_stored_tokens();
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
