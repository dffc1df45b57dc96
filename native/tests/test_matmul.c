/* Matrix products: every type and instruction set against the scalar one, from panels and from raw
 * rows, for one and many tokens, all to the bit; guards, NaN and infinite tokens. */
#include "weight_data.h"

#include <math.h>

typedef struct matrix {
    llm_weight raw, panels;
    uint8_t *raw_bytes, *panel_bytes;
} matrix;

static matrix make_matrix(int32_t type, int64_t n_rows, int64_t n_cols) {
    const llm_format *f = llm_format_of(type);
    matrix m = {{f, n_rows, n_cols, NULL, NULL}, {f, n_rows, n_cols, NULL, NULL}, NULL, NULL};
    uint64_t row_bytes = llm_row_bytes(f, n_cols);
    m.raw_bytes = malloc((size_t)(row_bytes * (uint64_t)n_rows));
    m.panel_bytes = guarded_bytes((size_t)llm_panel_bytes(&m.raw), 0);
    random_blocks(f, m.raw_bytes, n_rows * n_cols / f->block_elements);
    m.raw.raw = m.raw_bytes;
    llm_pack_panels(&m.raw, 0, (n_rows + 15) / 16, m.panel_bytes);
    m.panels.panels = m.panel_bytes;
    return m;
}

static void free_matrix(matrix *m) {
    free(m->raw_bytes);
    guarded_bytes_free(m->panel_bytes, (size_t)llm_panel_bytes(&m->raw), "panels");
}

/* y [n][n_rows] = x [n][n_cols] times w. */
static void multiply(const char *isa, const llm_weight *w, const float *x, int32_t n, float *y) {
    const llm_kernels *k = llm_kernels_of(isa);
    llm_act_kind kind = w->format->act;
    const size_t n_act_bytes = (size_t)llm_acts_bytes(kind, n, w->n_cols);
    const size_t n_scratch_bytes = (size_t)k->matmul_scratch();
    uint8_t *memory = guarded_bytes(n_act_bytes, 0), *scratch = guarded_bytes(n_scratch_bytes, 0);
    llm_acts a = {0};
    llm_acts_place(&a, kind, n, w->n_cols, memory);
    a.x = x;
    a.ldx = w->n_cols;
    if (kind != LLM_ACT_F32)
        for (int32_t t = 0; t < n; t++) k->quantize(&a, kind, t, 0, a.k);
    int64_t n_panels = (w->n_rows + 15) / 16, half = n_panels / 2;
    k->matmul(w, &a, 0, half, y, w->n_rows, scratch);
    k->matmul(w, &a, half, n_panels, y, w->n_rows, scratch);
    guarded_bytes_free(memory, n_act_bytes, "activations");
    guarded_bytes_free(scratch, n_scratch_bytes, "scratch of matmul");
}

static bool same_bits(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], 4) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static void check_panels(int32_t type, const matrix *m) {
    const llm_format *f = m->raw.format;
    int64_t n = m->raw.n_cols, row_bytes = (int64_t)llm_row_bytes(f, n);
    float *a = malloc(sizeof *a * (size_t)n), *b = malloc(sizeof *b * (size_t)n);
    uint8_t block[256];
    for (int64_t r = 0; r < m->raw.n_rows; r++) {
        llm_weight_row(&m->raw, r, a);
        llm_weight_row(&m->panels, r, b);
        EXPECT(same_bits(a, b, n), "%s: row %lld differs between layouts", f->name, (long long)r);
        for (int64_t i = 0; i < n / f->block_elements; i++) {
            int64_t at = r / 16 * 16 * row_bytes + 16 * i * f->block_bytes;
            f->unpack_row(m->panel_bytes + at, (int32_t)(r % 16), block);
            const uint8_t *want = m->raw_bytes + r * row_bytes + i * f->block_bytes;
            EXPECT(!memcmp(block, want, (size_t)f->block_bytes), "type %d: row %lld block %lld",
                   type, (long long)r, (long long)i);
        }
    }
    free(a);
    free(b);
}

static void check_shape(int32_t type, int64_t n_rows, int64_t n_cols, const int32_t *counts,
                        int32_t n_counts) {
    matrix m = make_matrix(type, n_rows, n_cols);
    const char *name = m.raw.format->name;
    int32_t most = counts[n_counts - 1];
    float *x = guarded_floats(most * n_cols), *want = guarded_floats(most * n_rows);
    random_floats(x, most * n_cols, 3.0f);
    check_panels(type, &m);
    for (int32_t t = 0; t < most; t++)
        multiply("scalar", &m.panels, x + t * n_cols, 1, want + t * n_rows);
    for (int32_t i = -1; i < N_FAST_ISAS; i++) {
        const char *isa = i < 0 ? "scalar" : fast_isas[i];
        if (!llm_kernels_of(isa)) continue;
        for (int32_t c = 0; c < n_counts; c++) {
            int32_t n = counts[c];
            if (i < 0 && n > 3 && n < most) continue;
            for (int32_t raw = 0; raw < 2; raw++) {
                float *y = guarded_floats(n * n_rows);
                multiply(isa, raw ? &m.raw : &m.panels, x, n, y);
                EXPECT(same_bits(y, want, n * n_rows), "%s %s %lldx%lld n %d raw %d differs", isa,
                       name, (long long)n_rows, (long long)n_cols, n, raw);
                guarded_free(y, n * n_rows, "matmul");
            }
        }
    }
    guarded_free(x, most * n_cols, "input");
    guarded_free(want, most * n_rows, "scalar matmul");
    free_matrix(&m);
}

/* A NaN or infinite token spoils its own outputs and no other bit, among n tokens. */
static void check_special_tokens(int32_t type, int32_t n) {
    enum { ROWS = 20, COLS = 256, TOKENS = 21 };
    matrix m = make_matrix(type, ROWS, COLS);
    float *x = malloc(sizeof *x * TOKENS * COLS), clean[TOKENS * ROWS], y[TOKENS * ROWS];
    random_floats(x, TOKENS * COLS, 1.0f);
    memset(x + 6 * COLS, 0, sizeof *x * COLS);
    for (int32_t i = 0; i < COLS; i++) x[5 * COLS + i] *= 1e-38f;
    multiply("scalar", &m.panels, x, TOKENS, clean);
    for (int32_t r = 0; r < ROWS; r++) EXPECT(clean[6 * ROWS + r] == 0.0f, "zero token");
    x[1 * COLS + 37] = NAN;
    x[3 * COLS + 255] = -INFINITY;
    for (int32_t i = -1; i < N_FAST_ISAS; i++) {
        const char *isa = i < 0 ? "scalar" : fast_isas[i];
        if (!llm_kernels_of(isa)) continue;
        multiply(isa, &m.panels, x, n, y);
        for (int32_t t = 0; t < n; t++) {
            for (int32_t r = 0; r < ROWS; r++) {
                float got = y[t * ROWS + r];
                if (t == 1 || t == 3)
                    EXPECT(!isfinite(got), "%s %s token %d of %d, row %d is finite", isa,
                           m.raw.format->name, t, n, r);
                else
                    EXPECT(!memcmp(&got, &clean[t * ROWS + r], 4), "%s %s token %d of %d, row %d",
                           isa, m.raw.format->name, t, n, r);
            }
        }
    }
    free(x);
    free_matrix(&m);
}

/* Extreme quants and activations: an int16 that saturates somewhere, or a weight that does not fit
 * into the signed bytes of a tile, would show here. */
static void check_extremes(int32_t type) {
    enum { ROWS = 16, COLS = 512, TOKENS = 21 };
    matrix m = make_matrix(type, ROWS, COLS);
    const llm_format *f = m.raw.format;
    float x[TOKENS * COLS], want[TOKENS * ROWS], y[TOKENS * ROWS];
    int32_t at[2];
    f16_fields(type, at);
    for (int32_t fill = 0; fill < 2; fill++) {
        for (int64_t b = 0; b < ROWS * COLS / f->block_elements; b++) {
            uint8_t *block = m.raw_bytes + b * f->block_bytes, keep[4];
            if (f->act == LLM_ACT_F32) continue;
            if (at[0] >= 0) memcpy(keep, block + at[0], 2);
            if (at[1] >= 0) memcpy(keep + 2, block + at[1], 2);
            memset(block, fill ? 0xff : 0x80, (size_t)f->block_bytes);
            if (at[0] >= 0) memcpy(block + at[0], keep, 2);
            if (at[1] >= 0) memcpy(block + at[1], keep + 2, 2);
            if (type == LLM_MXFP4) block[0] = 120;
        }
        llm_pack_panels(&m.raw, 0, 1, m.panel_bytes);
        for (int32_t i = 0; i < TOKENS * COLS; i++) x[i] = i / COLS % 2 ? 5.0f : -5.0f;
        multiply("scalar", &m.panels, x, TOKENS, want);
        for (int32_t i = 0; i < N_FAST_ISAS; i++) {
            if (!llm_kernels_of(fast_isas[i])) continue;
            for (int32_t t = 1; t <= TOKENS; t += 4) {
                multiply(fast_isas[i], &m.panels, x, t, y);
                EXPECT(same_bits(y, want, t * ROWS), "%s %s extremes, n %d", fast_isas[i], f->name,
                       t);
            }
        }
    }
    free_matrix(&m);
}

/* Sums over a block of 256 on both sides of 2^24, past which the sum over its groups rounds: token t
 * has 4 (t + 1) large inputs of one sign in a block, all weights are alike. */
static void check_large_sums(int32_t type) {
    enum { ROWS = 16, COLS = 512, TOKENS = 64 };
    matrix m = make_matrix(type, ROWS, COLS);
    const llm_format *f = m.raw.format;
    float x[TOKENS * COLS], want[TOKENS * ROWS], y[TOKENS * ROWS];
    int32_t at[2];
    f16_fields(type, at);
    for (int64_t b = 0; b < ROWS * COLS / 256; b++) {
        uint8_t *block = m.raw_bytes + b * f->block_bytes;
        for (int32_t i = 0; i < f->block_bytes; i++)
            if (i / 2 != at[0] / 2 && (at[1] < 0 || i / 2 != at[1] / 2))
                block[i] = type == LLM_Q6_K ? 0x7f : 0xff;
    }
    llm_pack_panels(&m.raw, 0, 1, m.panel_bytes);
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t i = 0; i < COLS; i++)
            x[t * COLS + i] = i % 256 == 0            ? 127.0f
                              : i % 256 < 4 * (t + 1) ? (float)(100 + random_u32() % 28)
                                                      : 0.0f;
    multiply("scalar", &m.panels, x, TOKENS, want);
    for (int32_t i = 0; i < N_FAST_ISAS; i++) {
        if (!llm_kernels_of(fast_isas[i])) continue;
        multiply(fast_isas[i], &m.panels, x, TOKENS, y);
        for (int32_t t = 0; t < TOKENS; t++)
            EXPECT(same_bits(y + t * ROWS, want + t * ROWS, ROWS), "%s %s, %d large inputs",
                   fast_isas[i], f->name, 4 * (t + 1));
    }
    free_matrix(&m);
}

static void check_quantize(void) {
    enum { K = 512 };
    float x[K];
    for (int32_t round = 0; round < 200; round++) {
        for (int32_t i = 0; i < K; i++)
            x[i] = ldexpf(random_float(1.0f), (int)(random_u32() % 20) - 10 - (round % 5) * 25);
        if (round % 7 == 3) x[random_u32() % K] = round % 2 ? INFINITY : NAN;
        for (int32_t kind = LLM_ACT_Q32; kind <= LLM_ACT_Q256; kind++) {
            uint64_t n_bytes = llm_acts_bytes((llm_act_kind)kind, 1, K);
            uint8_t *want = calloc(1, (size_t)n_bytes), *got = calloc(1, (size_t)n_bytes);
            llm_acts a = {.x = x, .ldx = K};
            llm_acts_place(&a, (llm_act_kind)kind, 1, K, want);
            llm_kernels_of("scalar")->quantize(&a, (llm_act_kind)kind, 0, 0, K);
            for (int32_t i = 0; i < N_FAST_ISAS; i++) {
                if (!llm_kernels_of(fast_isas[i])) continue;
                llm_acts_place(&a, (llm_act_kind)kind, 1, K, got);
                /* in two parts, the last one first */
                llm_kernels_of(fast_isas[i])->quantize(&a, (llm_act_kind)kind, 0, K / 2, K);
                llm_kernels_of(fast_isas[i])->quantize(&a, (llm_act_kind)kind, 0, 0, K / 2);
                EXPECT(!memcmp(want, got, (size_t)n_bytes), "quantize %s kind %d round %d",
                       fast_isas[i], kind, round);
            }
            free(want);
            free(got);
        }
    }
}

/* Blocks whose largest magnitude is below 2^-117 are zero; at it, the scale is that over 127. */
static void check_smallest_scale(void) {
    enum { K = 32 };
    static const float amax[] = {0x1.fffffep-118f, 0x1p-117f};
    for (int32_t i = 0; i < 2; i++) {
        float x[K] = {amax[i]};
        uint8_t *memory = calloc(1, (size_t)llm_acts_bytes(LLM_ACT_Q32, 1, K));
        llm_acts a = {.x = x, .ldx = K};
        llm_acts_place(&a, LLM_ACT_Q32, 1, K, memory);
        llm_kernels_of("scalar")->quantize(&a, LLM_ACT_Q32, 0, 0, K);
        float want = i ? amax[i] / 127.0f : 0.0f;
        EXPECT(a.a32->d[0] == want && a.q[LLM_ACT_Q32][0] == (i ? 127 : 0), "scale of %a is %a",
               (double)amax[i], (double)a.a32->d[0]);
        free(memory);
    }
}

int main(void) {
    static const int32_t few[] = {1, 2, 4, 13};
    int32_t counts[34]; /* every count up to 33, where the ways of going about it change; 64 */
    for (int32_t i = 0; i < 34; i++) counts[i] = i < 33 ? i + 1 : 64;
    static const int64_t rows[] = {1, 15, 17, 268}; /* 268: groups of panels and a rest */
    static const int64_t small[] = {32, 64, 288, 576, 640}, large[] = {256, 512, 768};
    check_quantize();
    check_smallest_scale();
    for (int32_t i = 0; i < N_NATIVE_TYPES; i++) {
        int32_t type = native_types[i];
        const llm_format *f = llm_format_of(type);
        const int64_t *cols = f->block_elements == 256 ? large : small;
        int32_t n_cols = f->block_elements == 256 ? 3 : 5;
        for (int32_t r = 0; r < 4; r++)
            for (int32_t c = 0; c < n_cols; c++)
                if (r == 2 && c == n_cols - 1)
                    check_shape(type, rows[r], cols[c], counts, 34);
                else
                    check_shape(type, rows[r], cols[c], few, 4);
        check_special_tokens(type, 7);
        check_special_tokens(type, 12); /* other ways of going about it */
        check_special_tokens(type, 21);
        check_extremes(type);
        if (f->block_elements == 256) check_large_sums(type);
    }
    /* More tokens than one strip holds, with activations past its share of the cache. */
    static const int32_t strips[] = {1, 530}, least_strips[] = {1, 67};
    check_shape(LLM_Q4_K, 17, 2048, strips, 2);
    check_shape(LLM_Q4_0, 17, 16384, least_strips, 2);
    check_shape(LLM_Q6_K, 17, 16384, least_strips, 2);
    check_shape(LLM_Q8_0, 17, 576, strips, 2);
    check_shape(LLM_F16, 17, 300, strips, 2);
    /* A third panel of a group; half a line of weights at the end of a superblock. */
    static const int32_t floats[] = {LLM_F32, LLM_F16, LLM_BF16}, up_to_9[] = {1, 2, 3, 5, 8, 9};
    for (int32_t i = 0; i < 3; i++) check_shape(floats[i], 72, 301, up_to_9, 6);
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
