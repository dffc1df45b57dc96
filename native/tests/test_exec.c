/* The executor on a small model made in memory: the bits of the logits do not depend on chunks,
 * threads, batches or the weight layout, and a bad batch is an error, never a fault. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "base/half.h"
#include "base/threads.h"
#include "gguf/gguf.h"
#include "localllm_kv.h"
#include "localllm_sampling.h"
#include "quant/formats.h"

#define N_VOCAB 83
#define N_EMBD 96
#define N_HEADS 6
#define N_KV_HEADS 2
#define HEAD_DIM 40 /* not a multiple of 16: rows are padded in the pool */
#define N_FF 160
#define N_LAYERS 7
#define WINDOW 50
#define N_TOKENS 150
#define MAX_SEQS 12

/* ---- A gemma3 model in memory: both layer groups, post norms, qk norms, a tied head --------- */

typedef struct buffer {
    uint8_t *bytes;
    size_t n, capacity;
} buffer;

static void put(buffer *b, const void *bytes, size_t n) {
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n);
        b->bytes = realloc(b->bytes, b->capacity);
        if (!b->bytes) exit(2);
    }
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

static void put_u32(buffer *b, uint32_t x) { put(b, &x, 4); }

static void put_u64(buffer *b, uint64_t x) { put(b, &x, 8); }

static void put_text(buffer *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void put_key_u32(buffer *b, const char *key, uint32_t x) {
    put_text(b, key);
    put_u32(b, LLM_GGUF_U32);
    put_u32(b, x);
}

static uint64_t random_state = 1;

static float random_float(void) { /* -0.5 .. 0.5 */
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) / 16777216.0F - 0.5F;
}

typedef struct tensors {
    buffer infos, data;
    uint32_t n;
} tensors;

static void add_tensor(tensors *t, const char *name, int32_t type, int64_t cols, int64_t rows) {
    put_text(&t->infos, name);
    put_u32(&t->infos, rows ? 2 : 1);
    put_u64(&t->infos, (uint64_t)cols);
    if (rows) put_u64(&t->infos, (uint64_t)rows);
    put_u32(&t->infos, (uint32_t)type);
    put_u64(&t->infos, t->data.n);
    t->n++;
    int64_t n = cols * (rows ? rows : 1);
    if (type == LLM_F32) {
        for (int64_t i = 0; i < n; i++) {
            float x = rows ? 0.4F * random_float() : 1.0F + random_float();
            put(&t->data, &x, 4);
        }
    } else { /* Q8_0 */
        for (int64_t i = 0; i < n / 32; i++) {
            uint16_t d = llm_f32_to_f16(0.002F + 0.001F * random_float());
            put(&t->data, &d, 2);
            for (int j = 0; j < 32; j++) {
                int8_t q = (int8_t)(254.0F * random_float());
                put(&t->data, &q, 1);
            }
        }
    }
    while (t->data.n % 32) put(&t->data, "", 1);
}

static void add_layer(tensors *t, int layer) {
    static const struct {
        const char *name;
        int32_t type;
        int64_t cols, rows;
    } rows[] = {
        {"attn_norm", LLM_F32, N_EMBD, 0},
        {"attn_q", LLM_Q8_0, N_EMBD, N_HEADS * HEAD_DIM},
        {"attn_k", LLM_F32, N_EMBD, N_KV_HEADS * HEAD_DIM},
        {"attn_v", LLM_Q8_0, N_EMBD, N_KV_HEADS * HEAD_DIM},
        {"attn_q_norm", LLM_F32, HEAD_DIM, 0},
        {"attn_k_norm", LLM_F32, HEAD_DIM, 0},
        {"attn_output", LLM_F32, N_HEADS * HEAD_DIM, N_EMBD},
        {"post_attention_norm", LLM_F32, N_EMBD, 0},
        {"ffn_norm", LLM_F32, N_EMBD, 0},
        {"ffn_gate", LLM_Q8_0, N_EMBD, N_FF},
        {"ffn_up", LLM_Q8_0, N_EMBD, N_FF},
        {"ffn_down", LLM_Q8_0, N_FF, N_EMBD},
        {"post_ffw_norm", LLM_F32, N_EMBD, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, rows[i].name);
        add_tensor(t, name, rows[i].type, rows[i].cols, rows[i].rows);
    }
}

static buffer make_model(void) {
    tensors t = {{0}, {0}, 0};
    add_tensor(&t, "token_embd.weight", LLM_Q8_0, N_EMBD, N_VOCAB);
    add_tensor(&t, "output_norm.weight", LLM_F32, N_EMBD, 0);
    for (int i = 0; i < N_LAYERS; i++) add_layer(&t, i);
    buffer b = {0};
    put(&b, "GGUF", 4);
    put_u32(&b, 3);
    put_u64(&b, t.n);
    put_u64(&b, 11);
    put_text(&b, "general.architecture");
    put_u32(&b, LLM_GGUF_STRING);
    put_text(&b, "gemma3");
    put_key_u32(&b, "gemma3.block_count", N_LAYERS);
    put_key_u32(&b, "gemma3.embedding_length", N_EMBD);
    put_key_u32(&b, "gemma3.feed_forward_length", N_FF);
    put_key_u32(&b, "gemma3.context_length", 2048);
    put_key_u32(&b, "gemma3.attention.head_count", N_HEADS);
    put_key_u32(&b, "gemma3.attention.head_count_kv", N_KV_HEADS);
    put_key_u32(&b, "gemma3.attention.key_length", HEAD_DIM);
    put_key_u32(&b, "gemma3.attention.sliding_window", WINDOW);
    put_key_u32(&b, "gemma3.vocab_size", N_VOCAB);
    put_text(&b, "gemma3.attention.layer_norm_rms_epsilon");
    put_u32(&b, LLM_GGUF_F32);
    float eps = 1e-6F;
    put(&b, &eps, 4);
    put(&b, t.infos.bytes, t.infos.n);
    while (b.n % 32) put(&b, "", 1);
    put(&b, t.data.bytes, t.data.n);
    free(t.infos.bytes);
    free(t.data.bytes);
    return b;
}

/* ---- Running it ----------------------------------------------------------------------------- */

typedef struct engine {
    llm_threads *threads;
    llm_model *model;
    llm_kv_pool *pool;
    llm_exec *exec;
    int32_t cancel;
} engine;

#define N_BLOCKS (8 * MAX_SEQS)

static int engine_open(engine *e, const llm_gguf *g, int32_t n_threads, int raw, int32_t kv_type) {
    llm_error err = {0};
    llm_model_params params = {.raw_weights = raw};
    int32_t n_blocks[LLM_MAX_GROUPS] = {N_BLOCKS, N_BLOCKS, N_BLOCKS, N_BLOCKS};
    e->cancel = 0;
    e->model = NULL;
    e->pool = NULL;
    e->exec = NULL;
    llm_exec_params exec = {.max_tokens = 512, .max_sequences = MAX_SEQS, .cancel = &e->cancel};
    llm_status s = llm_threads_create(n_threads, &e->threads, &err);
    if (s == LLM_OK) s = llm_model_load(g, e->threads, &params, &e->model, &err);
    if (s == LLM_OK) s = llm_kv_pool_create(e->model, kv_type, n_blocks, &e->pool, &err);
    if (s == LLM_OK) s = llm_exec_create(e->model, e->pool, e->threads, &exec, &e->exec, &err);
    CHECK(s == LLM_OK, "%s", err.message);
    return s == LLM_OK;
}

static void engine_close(engine *e) {
    llm_exec_free(e->exec);
    llm_kv_pool_free(e->pool);
    llm_model_free(e->model);
    llm_threads_destroy(e->threads);
}

/* Two tables of a sequence, one per group; sequence s uses the blocks from 8 s on. */
static void make_tables(int32_t n_seqs, const int32_t *seqs, int32_t *tables, int32_t *offsets) {
    for (int32_t row = 0; row < 2 * n_seqs; row++) {
        offsets[row] = 8 * row;
        for (int32_t i = 0; i < 8; i++) tables[8 * row + i] = 8 * seqs[row % n_seqs] + 7 - i;
    }
    offsets[2 * n_seqs] = 16 * n_seqs;
}

static int32_t token_at(int32_t seq, int32_t pos) {
    return (pos * 31 + seq * 17 + pos * pos % 7) % N_VOCAB;
}

/* Feeds tokens [first, first + n) of each sequence; logits as in llm_exec_step. */
static void step(engine *e, int32_t n_seqs, const int32_t *seqs, const int32_t *first,
                 const int32_t *n, const int32_t *sample, int32_t all_logits, float *logits) {
    int32_t tokens[4 * N_TOKENS], tables[16 * MAX_SEQS], offsets[2 * MAX_SEQS + 1], out[MAX_SEQS];
    int32_t total = 0;
    for (int32_t s = 0; s < n_seqs; s++) {
        for (int32_t i = 0; i < n[s]; i++) tokens[total++] = token_at(seqs[s], first[s] + i);
    }
    make_tables(n_seqs, seqs, tables, offsets);
    llm_batch b = {n_seqs, total, tokens, n, first, tables, offsets, sample, NULL, NULL, NULL};
    llm_error err = {0};
    CHECK(llm_exec_step(e->exec, &b, all_logits, out, logits, NULL, &err) == LLM_OK, "%s",
          err.message);
}

/* All logits, [sum of n][N_VOCAB]. */
static void feed(engine *e, int32_t n_seqs, const int32_t *seqs, const int32_t *first,
                 const int32_t *n, float *logits) {
    static const int32_t all[MAX_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    step(e, n_seqs, seqs, first, n, all, 1, logits);
}

static void run_in_chunks(engine *e, int32_t seq, int32_t chunk, float *logits) {
    for (int32_t i = 0; i < N_TOKENS; i += chunk) {
        int32_t n = N_TOKENS - i < chunk ? N_TOKENS - i : chunk;
        feed(e, 1, &seq, &i, &n, logits + (size_t)i * N_VOCAB);
    }
}

#define LOGITS_BYTES (sizeof(float) * N_TOKENS * N_VOCAB)

static void check_schedules(const llm_gguf *g, int32_t kv_type, const float *expected) {
    static const int32_t chunks[] = {150, 1, 7, 32, 64, 149};
    static float logits[N_TOKENS * N_VOCAB];
    for (int32_t n_threads = 1; n_threads <= 3; n_threads++) {
        for (int raw = 0; raw < 2; raw++) {
            engine e;
            if (engine_open(&e, g, n_threads, raw, kv_type)) {
                for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
                    memset(logits, 0, sizeof logits);
                    run_in_chunks(&e, (int32_t)i % 3, chunks[i], logits);
                    CHECK((i % 3) || !memcmp(logits, expected, LOGITS_BYTES),
                          "kv %d, %d threads, raw %d, chunks of %d", kv_type, n_threads, raw,
                          chunks[i]);
                }
            }
            engine_close(&e);
        }
    }
}

/* Sequence 0 prefills while 1 and 2 decode, then all decode: the bits of each alone. */
static void check_batches(engine *e, const float *expected) {
    static float alone[3][N_TOKENS * N_VOCAB], mixed[4 * N_TOKENS * N_VOCAB];
    for (int32_t s = 0; s < 3; s++) run_in_chunks(e, s, 50, alone[s]);
    CHECK(!memcmp(alone[0], expected, LOGITS_BYTES), "alone differs");
    int32_t seqs[3] = {2, 0, 1}, done[3] = {0, 0, 0};
    static const int32_t steps[][3] = {{90, 1, 13}, {1, 60, 1}, {1, 1, 60}, {2, 33, 7}, {9, 1, 40}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        feed(e, 3, seqs, done, steps[i], mixed);
        const float *row = mixed;
        for (int32_t s = 0; s < 3; s++) {
            size_t n = (size_t)steps[i][s] * N_VOCAB;
            CHECK(!memcmp(row, alone[seqs[s]] + (size_t)done[s] * N_VOCAB, n * sizeof(float)),
                  "step %zu, sequence %d", i, seqs[s]);
            row += n;
            done[s] += steps[i][s];
        }
    }
}

/* Rows without logits are left out of the last layer: those that are there keep their bits. */
static void check_rows_left_out(engine *e) {
    static float alone[MAX_SEQS][N_TOKENS * N_VOCAB], logits[MAX_SEQS * N_VOCAB];
    static const struct {
        int32_t n_seqs, n[MAX_SEQS], sample[MAX_SEQS];
    } cases[] = {
        {1, {5}, {1}}, /* few rows */
        {1, {5}, {0}},
        {1, {60}, {1}}, /* many rows, then few */
        {1, {60}, {0}},
        {3, {40, 1, 2}, {1, 0, 1}},
        {3, {1, 2, 3}, {0, 1, 1}},
        {MAX_SEQS, {3, 1, 1, 2, 1, 5, 1, 1, 20, 1, 1, 3}, {1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1}},
    };
    int32_t seqs[MAX_SEQS], first[MAX_SEQS];
    for (int32_t s = 0; s < MAX_SEQS; s++) run_in_chunks(e, s, 70, alone[s]);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int32_t s = 0; s < MAX_SEQS; s++) {
            seqs[s] = (s + 5) % MAX_SEQS;
            first[s] = 7 * s;
        }
        memset(logits, 0, sizeof logits);
        step(e, cases[i].n_seqs, seqs, first, cases[i].n, cases[i].sample, 0, logits);
        for (int32_t s = 0; s < cases[i].n_seqs; s++) {
            const float *row = alone[seqs[s]] + (size_t)(first[s] + cases[i].n[s] - 1) * N_VOCAB;
            if (!cases[i].sample[s]) continue;
            CHECK(!memcmp(logits + (size_t)s * N_VOCAB, row, N_VOCAB * sizeof(float)),
                  "case %zu, sequence %d", i, s);
        }
    }
}

/* Log probabilities of the tokens of a prompt, with others in the step: those of its logits, however
 * many rows of logits an executor holds at once. exec: of the same pool. */
static void check_next_tokens(engine *e, llm_exec *exec, int32_t n, int32_t every,
                              const float *expected) {
    enum { TOP = 2, WIDE = 1 + TOP };
    static int32_t tokens[N_TOKENS + 1], next[N_TOKENS + 1], ids[(N_TOKENS + 1) * WIDE];
    static int32_t ranks[N_TOKENS + 1];
    static float values[(N_TOKENS + 1) * WIDE], last[N_VOCAB];
    int32_t seqs[2] = {1, 0}, tables[32], offsets[5], count[2] = {1, n}, first[2] = {40, 0};
    int32_t sample[2] = {1, 0}, out[2], out_ids[2 * WIDE], out_ranks[2], from = 0, n_from = 41;
    float out_values[2 * WIDE];
    llm_error err = {0};
    static float alone[N_TOKENS * N_VOCAB];
    feed(e, 1, seqs, &from, &n_from, alone);
    memcpy(last, alone + (size_t)40 * N_VOCAB, sizeof last);
    make_tables(2, seqs, tables, offsets);
    tokens[0] = token_at(1, 40);
    next[0] = -1;
    for (int32_t i = 0; i < n; i++) {
        tokens[1 + i] = token_at(0, i);
        next[1 + i] = i % every ? -1 : token_at(0, i + 1);
    }
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) ids[i] = -7;
    for (int32_t i = 0; i <= n; i++) ranks[i] = -7;
    llm_logprobs rows = {TOP, ids, values, ranks}, out_rows = {TOP, out_ids, out_values, out_ranks};
    llm_batch b = {2, n + 1, tokens, count, first, tables, offsets, sample, NULL, next, &rows};
    llm_status s = llm_exec_step(exec, &b, 0, out, NULL, &out_rows, &err);
    CHECK(s == LLM_OK, "%s", err.message);
    for (int32_t i = -1; i < n; i++) {
        int32_t wanted[WIDE] = {-7, -7, -7}, rank = -7, token = i < 0 ? out[0] : next[1 + i];
        float value[WIDE] = {0};
        llm_logprobs one = {TOP, wanted, value, &rank};
        const float *logits = i < 0 ? last : expected + (size_t)i * N_VOCAB;
        if (token >= 0) llm_logprobs_from(logits, N_VOCAB, token, &one, &err);
        const int32_t *got = i < 0 ? out_ids : ids + (1 + i) * WIDE;
        const float *got_values = i < 0 ? out_values : values + (1 + i) * WIDE;
        CHECK(!memcmp(got, wanted, sizeof wanted), "%d tokens, 1 of %d, row %d: id %d", n, every, i,
              got[0]);
        CHECK(token < 0 || !memcmp(got_values, value, sizeof value), "%d tokens, row %d: %g", n, i,
              (double)got_values[0]);
        int32_t got_rank = i < 0 ? out_ranks[0] : ranks[1 + i];
        CHECK(got_rank == rank, "%d tokens, row %d: rank %d, not %d", n, i, got_rank, rank);
    }
    CHECK(out_ranks[0] == 1, "rank %d of the likeliest", out_ranks[0]);
    CHECK(out[1] == -1 && out_ids[WIDE] == -1 && out_ranks[1] == 0,
          "a row that was not sampled: %d", out[1]);
}

static void check_prompt_logprobs(engine *e, const float *expected) {
    llm_exec_params params = {.max_tokens = 512, .max_sequences = 2};
    llm_exec *small = NULL;
    llm_error err = {0};
    uint32_t progress = 0;
    params.progress = &progress;
    CHECK(llm_exec_create(e->model, e->pool, e->threads, &params, &small, &err) == LLM_OK, "%s",
          err.message);
    static const int32_t sizes[] = {1, 3, 7, 8, 11, 12, 23, 40, N_TOKENS};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int32_t every = 1; every <= 4; every += 3) {
            uint32_t before = progress;
            check_next_tokens(e, e->exec, sizes[i], every, expected);
            check_next_tokens(e, small, sizes[i], every, expected);
            CHECK(progress - before > N_LAYERS, "progress rose by %u", progress - before);
        }
    }
    int32_t seq = 0, tables[16], offsets[3], one = 1, out, token = 1, pos = 0, next = N_VOCAB;
    int32_t id;
    float value, logits[N_VOCAB];
    llm_logprobs row = {0, &id, &value, NULL}, none = {0, NULL, NULL, NULL};
    make_tables(1, &seq, tables, offsets);
    llm_batch b = {1, 1, &token, &one, &pos, tables, offsets, &one, NULL, &next, &row};
    CHECK(llm_exec_step(small, &b, 0, &out, NULL, NULL, &err) == LLM_E_ARGUMENT, "next token");
    next = 5;
    CHECK(llm_exec_step(small, &b, 0, &out, logits, NULL, &err) == LLM_E_ARGUMENT, "and logits");
    b.next_logprobs = &none;
    CHECK(llm_exec_step(small, &b, 0, &out, NULL, NULL, &err) == LLM_E_ARGUMENT, "no place");
    llm_exec_free(small);
}

/* A context so long that decoding cuts it among the threads gives the bits of a prefill, which walks
 * it in one piece. */
static void check_splits(const llm_gguf *g, int32_t kv_type) {
    enum { N = 1040, N_LAST = 16, CHUNK = 512, N_TABLE = N / 32 + 1 };
    static float whole[CHUNK * N_VOCAB], row[N_VOCAB];
    int32_t tokens[N], tables[2 * N_TABLE], offsets[3] = {0, N_TABLE, 2 * N_TABLE}, one = 1, out;
    for (int32_t i = 0; i < N; i++) tokens[i] = token_at(0, i);
    for (int32_t i = 0; i < 2 * N_TABLE; i++) tables[i] = i % N_TABLE;
    for (int32_t n_threads = 1; n_threads <= 8; n_threads += n_threads) {
        engine e;
        llm_error err = {0};
        llm_status s = LLM_OK;
        if (engine_open(&e, g, n_threads, 0, kv_type)) {
            int32_t first = 0, n = 0;
            for (; first < N && s == LLM_OK; first += n) {
                n = N - first - CHUNK > 0 ? CHUNK : N - first;
                llm_batch b = {1,       n,    tokens + first, &n,   &first, tables,
                               offsets, &one, NULL,           NULL, NULL};
                s = llm_exec_step(e.exec, &b, 1, &out, whole, NULL, &err);
            }
            CHECK(s == LLM_OK, "%s", err.message);
            for (int32_t i = N_LAST; i > 0; i--) {
                int32_t pos = N - i;
                llm_batch b = {1,       1,    tokens + pos, &one, &pos, tables,
                               offsets, &one, NULL,         NULL, NULL};
                s = llm_exec_step(e.exec, &b, 0, &out, row, NULL, &err);
                CHECK(s == LLM_OK && !memcmp(row, whole + (size_t)(n - i) * N_VOCAB, sizeof row),
                      "kv %d, %d threads, position %d: %s", kv_type, n_threads, pos, err.message);
            }
        }
        engine_close(&e);
    }
}

/* A step meets four times a layer; few rows once more, behind the rotation angles. Without logits
 * the last layer ends behind its attention. */
static void check_barriers(const llm_gguf *g) {
    static float logits[4 * N_TOKENS * N_VOCAB];
    static const int32_t rows[] = {1, 2, 7, 8, 9, 10, 12, 64, N_TOKENS};
    int32_t seqs[MAX_SEQS], first[MAX_SEQS] = {0}, each[MAX_SEQS], none[MAX_SEQS] = {0};
    for (int32_t n_threads = 2; n_threads <= 3; n_threads++) {
        engine e;
        if (engine_open(&e, g, n_threads, 0, LLM_KV_F16)) {
            for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                int32_t n = rows[i], n_seqs = n <= MAX_SEQS ? n : 2;
                for (int32_t s = 0; s < n_seqs; s++) {
                    seqs[s] = s;
                    each[s] = n / n_seqs;
                }
                uint32_t start = llm_threads_n_barriers(e.threads);
                feed(&e, 1, seqs, first, &n, logits); /* n tokens of a sequence */
                uint32_t in_one = llm_threads_n_barriers(e.threads);
                feed(&e, n_seqs, seqs, first, each, logits); /* shared out among several */
                uint32_t of_each = llm_threads_n_barriers(e.threads);
                step(&e, 1, seqs, first, &n, none, 0, logits);
                uint32_t without = llm_threads_n_barriers(e.threads);
                uint32_t all = 4 * N_LAYERS + (n <= 8);
                CHECK(in_one - start == all && of_each - in_one == all
                          && without - of_each == all - 3,
                      "%d tokens: %u, %u and %u barriers, not %u", n, in_one - start,
                      of_each - in_one, without - of_each, all);
            }
        }
        engine_close(&e);
    }
}

/* A sampler with everything that keeps a state: penalties, DRY, and mirostat or a whole chain. */
static llm_sampler *stateful_sampler(int32_t mirostat) {
    static const int32_t order[] = {LLM_SAMPLER_PENALTIES, LLM_SAMPLER_DRY, LLM_SAMPLER_TOP_K,
                                    LLM_SAMPLER_XTC, LLM_SAMPLER_TEMPERATURE};
    llm_sampler_params p = {.seed = 42, .n_vocab = N_VOCAB, .order = order, .n_order = 5};
    p.temperature = 0.7F;
    p.dynatemp_range = 0.2F;
    p.dynatemp_exponent = 1;
    p.top_k = 30;
    p.top_p = p.typical_p = 1;
    p.xtc_probability = 0.5F;
    p.mirostat = mirostat;
    p.mirostat_tau = 3;
    p.mirostat_eta = 0.3F;
    p.repeat_penalty = 1.3F;
    p.frequency_penalty = 0.1F;
    p.repeat_last_n = 8;
    p.dry_multiplier = 1;
    p.dry_base = 1.5F;
    p.dry_allowed_length = 1;
    p.dry_penalty_last_n = -1;
    llm_sampler *s = NULL;
    llm_error err = {0};
    CHECK(llm_sampler_create(&p, &s, &err) == LLM_OK, "%s", err.message);
    return s;
}

static llm_sampler *clone_of(const llm_sampler *s) {
    llm_sampler *copy = NULL;
    llm_error err = {0};
    CHECK(llm_sampler_clone(s, &copy, &err) == LLM_OK, "%s", err.message);
    return copy;
}

enum { K = 12, N_TOP = 3, WIDTH = 1 + N_TOP };

static void check_decode(engine *e, int32_t mirostat) {
    int32_t seq = 0, first = 0, n = 20, tables[16], offsets[3], one = 1, sampled[K], by_step[K];
    int32_t ids[2][K * WIDTH], ranks[2][K];
    float values[2][K * WIDTH];
    llm_logprobs whole = {N_TOP, ids[0], values[0], ranks[0]};
    llm_logprobs row = {N_TOP, ids[1], values[1], ranks[1]};
    static float logits[N_TOKENS * N_VOCAB];
    llm_sampler *fresh = stateful_sampler(mirostat), *s1 = clone_of(fresh), *s2 = clone_of(fresh);
    llm_error err = {0};
    int32_t token = token_at(0, 20), pos = 20, n_done = 0;
    make_tables(1, &seq, tables, offsets);
    llm_batch b = {1, 1, &token, &one, &pos, tables, offsets, &one, &s1, NULL, NULL};
    feed(e, 1, &seq, &first, &n, logits);
    llm_status s = llm_exec_decode(e->exec, &b, K, NULL, 0, sampled, &whole, &n_done, &err);
    CHECK(s == LLM_OK && n_done == K, "%s, %d steps", err.message, n_done);
    feed(e, 1, &seq, &first, &n, logits);
    b.seq_samplers = &s2;
    for (int32_t i = 0; i < K; i++, pos++, row.ids += WIDTH, row.values += WIDTH, row.ranks++) {
        /* A step that was cancelled changes no sampler. */
        e->cancel = 1;
        s = llm_exec_step(e->exec, &b, 0, &by_step[i], NULL, &row, &err);
        CHECK(s == LLM_E_CANCELLED, "status %d", s);
        e->cancel = 0;
        s = llm_exec_step(e->exec, &b, 0, &by_step[i], NULL, &row, &err);
        CHECK(s == LLM_OK && by_step[i] == sampled[i], "step %d: %d, not %d", i, by_step[i],
              sampled[i]);
        CHECK(row.ids[0] == by_step[i], "logprob of %d, not %d", row.ids[0], by_step[i]);
        token = by_step[i];
    }
    CHECK(!memcmp(ids[0], ids[1], sizeof ids[0]), "ids of logprobs differ");
    CHECK(!memcmp(values[0], values[1], sizeof values[0]), "logprobs differ");
    CHECK(!memcmp(ranks[0], ranks[1], sizeof ranks[0]) && ranks[0][0] > 0, "ranks differ");
    token = token_at(0, 20);
    pos = 20;
    b.seq_samplers = &fresh;
    s = llm_exec_decode(e->exec, &b, K, &sampled[3], 1, by_step, NULL, &n_done, &err);
    CHECK(s == LLM_OK && n_done <= 4, "stop token ignored: %d steps", n_done);
    e->cancel = 1;
    s = llm_exec_decode(e->exec, &b, K, NULL, 0, by_step, NULL, &n_done, &err);
    CHECK(s == LLM_E_CANCELLED && n_done == 0, "status %d, %d steps", s, n_done);
    e->cancel = 0;
    llm_sampler_free(fresh);
    llm_sampler_free(s1);
    llm_sampler_free(s2);
}

/* Samplers that do not fit the executor or each other, and logprobs out of range. */
static void check_bad_samplers(engine *e) {
    int32_t seqs[2] = {0, 1}, tables[32], offsets[5], ones[2] = {1, 1}, tokens[2] = {1, 2};
    int32_t pos[2] = {0, 0}, out[2], ids[2 * WIDTH];
    float values[2 * WIDTH];
    make_tables(2, seqs, tables, offsets);
    static const int32_t order[] = {LLM_SAMPLER_TOP_K};
    llm_sampler_params p = {.n_vocab = N_VOCAB - 1, .order = order, .n_order = 1};
    p.dynatemp_exponent = p.repeat_penalty = p.dry_base = 1;
    p.dry_allowed_length = 1;
    llm_sampler *other = NULL, *good = stateful_sampler(0);
    llm_error err = {0};
    CHECK(llm_sampler_create(&p, &other, &err) == LLM_OK, "%s", err.message);
    llm_sampler *shared[2] = {good, good}, *narrow[2] = {good, other}, *fine[2] = {good, NULL};
    llm_batch b = {2, 2, tokens, ones, pos, tables, offsets, ones, shared, NULL, NULL};
    CHECK(llm_exec_step(e->exec, &b, 0, out, NULL, NULL, &err) == LLM_E_ARGUMENT, "shared");
    b.seq_samplers = narrow;
    CHECK(llm_exec_step(e->exec, &b, 0, out, NULL, NULL, &err) == LLM_E_ARGUMENT, "narrow");
    b.seq_samplers = fine;
    llm_logprobs many = {LLM_MAX_TOP_LOGPROBS + 1, ids, values, NULL}, none = {0, NULL, NULL, NULL};
    CHECK(llm_exec_step(e->exec, &b, 0, out, NULL, &many, &err) == LLM_E_ARGUMENT, "21 logprobs");
    CHECK(llm_exec_step(e->exec, &b, 0, out, NULL, &none, &err) == LLM_E_ARGUMENT, "no place");
    llm_logprobs rows = {N_TOP, ids, values, NULL};
    int32_t second_only[2] = {0, 1};
    b.seq_sample = second_only;
    CHECK(llm_exec_step(e->exec, &b, 0, out, NULL, &rows, &err) == LLM_OK, "%s", err.message);
    CHECK(out[0] == -1 && ids[0] == -1 && ids[N_TOP] == -1, "a row that was not sampled");
    CHECK(out[1] == ids[WIDTH] && out[1] == ids[WIDTH + 1] && values[WIDTH] <= 0, "greedy row");
    llm_sampler_free(other);
    llm_sampler_free(good);
}

/* Each bad batch names what is wrong and runs nothing. */
static void check_bad_batches(engine *e) {
    int32_t seq = 0, tables[16], offsets[3], one = 1, out;
    int32_t token = 0, pos = 0, n = 1;
    make_tables(1, &seq, tables, offsets);
    const llm_batch good = {1, 1, &token, &n, &pos, tables, offsets, &one, NULL, NULL, NULL};
    llm_batch many = good, none = good, count = good;
    many.n_seqs = MAX_SEQS + 1;
    none.n_seqs = 0;
    count.n_tokens = 2;
    const llm_batch *bad[] = {&many, &none, &count};
    for (size_t i = 0; i < 3; i++) {
        llm_error err = {0};
        CHECK(llm_exec_step(e->exec, bad[i], 0, &out, NULL, NULL, &err) == LLM_E_ARGUMENT, "%zu",
              i);
        CHECK(err.message[0], "no message for %zu", i);
    }
    struct {
        int32_t *field, value, keep;
    } faults[] = {{&token, N_VOCAB, 0},
                  {&token, -1, 0},
                  {&pos, -1, 0},
                  {&pos, 256, 0},
                  {&n, 0, 1},
                  {&n, 2, 1},
                  {&tables[0], -1, 7},
                  {&tables[0], N_BLOCKS, 7},
                  {&tables[8], 1 << 30, 7}};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        llm_error err = {0};
        *faults[i].field = faults[i].value;
        CHECK(llm_exec_step(e->exec, &good, 0, &out, NULL, NULL, &err) == LLM_E_ARGUMENT,
              "fault %zu", i);
        CHECK(err.message[0], "no message for fault %zu", i);
        *faults[i].field = faults[i].keep;
    }
    llm_error err = {0};
    CHECK(llm_exec_step(e->exec, &good, 0, &out, NULL, NULL, &err) == LLM_OK, "%s", err.message);
    CHECK(out >= 0 && out < N_VOCAB, "sampled %d", out);
}

/* Out and in again is the same; of a part, only its tokens come out. */
static void check_block_bytes(engine *e, int32_t kv_type) {
    enum { GUARD = 16 };
    llm_error err = {0};
    size_t n = (size_t)llm_kv_block_bytes(e->model, kv_type, 0);
    uint8_t *data = malloc(n + GUARD), *again = malloc(n + GUARD);
    memset(data, 0xA5, n + GUARD);
    memset(again, 0x5A, n + GUARD);
    CHECK(llm_kv_write_block(e->pool, 0, 1, data, &err) == LLM_OK, "%s", err.message);
    CHECK(llm_kv_read_block(e->pool, 0, 1, 32, again, &err) == LLM_OK, "%s", err.message);
    CHECK(memcmp(data, again, n) == 0 && again[n] == 0x5A, "a block out and in again");
    for (int32_t tokens = 0; tokens <= 32; tokens++) {
        CHECK(llm_kv_read_block(e->pool, 0, 1, tokens, again, &err) == LLM_OK, "%s", err.message);
        size_t n_kept = 0;
        for (size_t i = 0; i < n; i++) n_kept += again[i] == 0xA5;
        CHECK(n_kept == n / 32 * (size_t)tokens, "%d tokens: %zu bytes of %zu", tokens, n_kept, n);
        CHECK(again[n] == 0x5A, "written behind the copy");
    }
    CHECK(llm_kv_read_block(e->pool, 0, 1, 33, again, &err) == LLM_E_ARGUMENT, "33 tokens");
    CHECK(llm_kv_read_block(e->pool, 2, 1, 32, again, &err) == LLM_E_ARGUMENT, "group 2");
    CHECK(llm_kv_write_block(e->pool, 0, N_BLOCKS, data, &err) == LLM_E_ARGUMENT, "block");
    free(data);
    free(again);
}

static void check_blocks(engine *e) {
    llm_error err = {0};
    int32_t blocks[2] = {1, N_BLOCKS};
    CHECK(llm_kv_copy_block(e->pool, 0, 0, 1, &err) == LLM_OK, "%s", err.message);
    CHECK(llm_kv_copy_block(e->pool, 2, 0, 1, &err) == LLM_E_ARGUMENT, "group 2");
    CHECK(llm_kv_copy_block(e->pool, 1, 0, N_BLOCKS, &err) == LLM_E_ARGUMENT, "block %d", N_BLOCKS);
    CHECK(llm_kv_release_blocks(e->pool, 0, blocks, 1, &err) == LLM_OK, "%s", err.message);
    CHECK(llm_kv_release_blocks(e->pool, 0, blocks, 2, &err) == LLM_E_ARGUMENT, "release");
}

int main(void) {
    buffer file = make_model();
    llm_gguf_buffer part = {"made in memory", file.bytes, file.n};
    llm_gguf *g = NULL;
    llm_error err = {0};
    static float expected[N_TOKENS * N_VOCAB];
    CHECK(llm_gguf_open_memory(&part, 1, &g, &err) == LLM_OK, "%s", err.message);
    for (int32_t kv_type = LLM_KV_F16; g && kv_type <= LLM_KV_Q8_0; kv_type++) {
        engine e;
        if (engine_open(&e, g, 3, 0, kv_type)) {
            run_in_chunks(&e, 0, N_TOKENS, expected);
            float low = expected[0], high = expected[0];
            for (size_t i = 0; i < N_TOKENS * N_VOCAB; i++) {
                low = expected[i] < low ? expected[i] : low;
                high = expected[i] > high ? expected[i] : high;
            }
            CHECK(high - low > 0.1F && high - low < 1e4F, "logits span %g to %g", (double)low,
                  (double)high);
            check_batches(&e, expected);
            check_rows_left_out(&e);
            check_prompt_logprobs(&e, expected);
            check_decode(&e, 0);
            check_decode(&e, 2);
            check_bad_samplers(&e);
            check_bad_batches(&e);
            check_blocks(&e);
            check_block_bytes(&e, kv_type);
        }
        engine_close(&e);
        check_schedules(g, kv_type, expected);
        check_splits(g, kv_type);
    }
    if (g) check_barriers(g);
    llm_gguf_close(g);
    free(file.bytes);
    if (!n_failed) puts("exec: all checks passed");
    return n_failed != 0;
}
