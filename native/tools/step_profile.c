/* step_profile: where the time of a step goes.
 *
 *   step_profile MODEL.gguf THREADS TOKENS DEPTH SEQUENCES REPEATS
 *
 * Runs REPEATS steps of TOKENS tokens in each of SEQUENCES sequences that hold DEPTH tokens, and
 * prints milliseconds a step and share of it, per phase: work and waiting, means over the threads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

static const char *const phase_names[LLM_N_PHASES] = {
    "angles", "norm, quantize",     "q, k, v",  "rope, write KV",       "attention", "quantize",
    "output", "ffn norm, quantize", "gate, up", "activation, quantize", "down",      "head"};

typedef struct setup {
    int32_t n_threads, n_tokens, depth, n_seqs, n_repeats;
    llm_gguf *gguf;
    llm_threads *threads;
    llm_model *model;
    llm_kv_pool *pool;
    llm_exec *exec;
    int32_t *tokens, *n, *first, *tables, *offsets, *sample, *out;
} setup;

#define CHUNK 512

static void fail(const llm_error *err) {
    fprintf(stderr, "step_profile: %s\n", err->message);
    exit(1);
}

static int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }

static void open_model(setup *s, const char *path) {
    llm_error err = {0};
    int32_t blocks = (s->depth + s->n_tokens) / LLM_BLOCK_TOKENS + 1;
    int32_t n_blocks[LLM_MAX_GROUPS];
    for (int32_t i = 0; i < LLM_MAX_GROUPS; i++) n_blocks[i] = blocks * s->n_seqs;
    llm_model_params params = {0};
    llm_exec_params exec = {.max_tokens = max_i32(CHUNK, s->n_tokens * s->n_seqs),
                            .max_sequences = s->n_seqs};
    llm_status status = llm_gguf_open(path, &s->gguf, &err);
    if (status == LLM_OK) status = llm_threads_create(s->n_threads, &s->threads, &err);
    if (status == LLM_OK) status = llm_model_load(s->gguf, s->threads, &params, &s->model, &err);
    if (status == LLM_OK)
        status = llm_kv_pool_create(s->model, LLM_KV_F16, n_blocks, &s->pool, &err);
    if (status == LLM_OK)
        status = llm_exec_create(s->model, s->pool, s->threads, &exec, &s->exec, &err);
    if (status != LLM_OK) fail(&err);

    int32_t rows = s->model->n_groups * s->n_seqs;
    s->tokens = calloc((size_t)exec.max_tokens, sizeof(int32_t));
    s->n = calloc((size_t)s->n_seqs, sizeof(int32_t));
    s->first = calloc((size_t)s->n_seqs, sizeof(int32_t));
    s->sample = calloc((size_t)s->n_seqs, sizeof(int32_t));
    s->out = calloc((size_t)s->n_seqs, sizeof(int32_t));
    s->offsets = calloc((size_t)rows + 1, sizeof(int32_t));
    s->tables = calloc((size_t)rows * (size_t)blocks, sizeof(int32_t));
    for (int32_t i = 0; i < exec.max_tokens; i++) s->tokens[i] = 1 + (7 * i) % 1000;
    for (int32_t row = 0; row < rows; row++) {
        s->offsets[row + 1] = (row + 1) * blocks;
        for (int32_t i = 0; i < blocks; i++) {
            s->tables[row * blocks + i] = row % s->n_seqs * blocks + i;
        }
    }
    for (int32_t i = 0; i < s->n_seqs; i++) s->sample[i] = 1;
}

static void step(setup *s, int32_t n_seqs, int32_t first_seq, int32_t n, int32_t first) {
    llm_error err = {0};
    int32_t *offsets = calloc((size_t)(s->model->n_groups * n_seqs) + 1, sizeof(int32_t));
    int32_t rows = s->model->n_groups * n_seqs;
    int32_t *tables = calloc((size_t)rows * (size_t)s->offsets[1], sizeof(int32_t));
    for (int32_t row = 0; row < rows; row++) {
        offsets[row + 1] = (row + 1) * s->offsets[1];
        memcpy(tables + offsets[row],
               s->tables + (row / n_seqs * s->n_seqs + first_seq + row % n_seqs) * s->offsets[1],
               (size_t)s->offsets[1] * sizeof(int32_t));
    }
    for (int32_t i = 0; i < n_seqs; i++) {
        s->n[i] = n;
        s->first[i] = first;
    }
    llm_batch b = {n_seqs, n_seqs * n, s->tokens, s->n, s->first, tables, offsets, s->sample, NULL};
    if (llm_exec_step(s->exec, &b, 0, s->out, NULL, NULL, &err) != LLM_OK) fail(&err);
    free(offsets);
    free(tables);
}

static void print_table(const setup *s) {
    double total = 0, work[LLM_N_PHASES] = {0}, wait[LLM_N_PHASES] = {0};
    for (int32_t p = 0; p < LLM_N_PHASES; p++) {
        for (int32_t i = 0; i < s->n_threads; i++) {
            work[p] += (double)s->exec->profile[i].work_ns[p];
            wait[p] += (double)s->exec->profile[i].wait_ns[p];
        }
        total += work[p] + wait[p];
    }
    double ms = 1e-6 / s->n_threads / s->n_repeats;
    double all_wait = 0;
    printf("%d tokens x %d sequences at depth %d, %d threads: %.3f ms a step\n", s->n_tokens,
           s->n_seqs, s->depth, s->n_threads, total * ms);
    printf("%-22s %9s %6s %9s %6s\n", "phase", "work ms", "%", "wait ms", "%");
    for (int32_t p = 0; p < LLM_N_PHASES; p++) {
        printf("%-22s %9.4f %6.2f %9.4f %6.2f\n", phase_names[p], work[p] * ms,
               100 * work[p] / total, wait[p] * ms, 100 * wait[p] / total);
        all_wait += wait[p];
    }
    printf("%-22s %9.4f %6.2f %9.4f %6.2f\n", "all", (total - all_wait) * ms,
           100 * (total - all_wait) / total, all_wait * ms, 100 * all_wait / total);
}

int main(int argc, char **argv) {
    setup s = {0};
    int32_t *const numbers[] = {&s.n_threads, &s.n_tokens, &s.depth, &s.n_seqs, &s.n_repeats};
    bool good = argc == 7;
    for (int i = 0; good && i < 5; i++) {
        *numbers[i] = (int32_t)strtol(argv[i + 2], NULL, 10);
        good = *numbers[i] >= (i == 2 ? 0 : 1);
    }
    if (!good) {
        fputs("usage: step_profile MODEL.gguf THREADS TOKENS DEPTH SEQUENCES REPEATS\n", stderr);
        return 2;
    }
    open_model(&s, argv[1]);
    for (int32_t seq = 0; seq < s.n_seqs; seq++) {
        for (int32_t at = 0; at < s.depth; at += CHUNK) {
            step(&s, 1, seq, s.depth - at < CHUNK ? s.depth - at : CHUNK, at);
        }
    }
    step(&s, s.n_seqs, 0, s.n_tokens, s.depth);
    memset(s.exec->profile, 0, (size_t)s.n_threads * sizeof *s.exec->profile);
    for (int32_t i = 0; i < s.n_repeats; i++) step(&s, s.n_seqs, 0, s.n_tokens, s.depth);
    print_table(&s);
    llm_exec_free(s.exec);
    llm_kv_pool_free(s.pool);
    llm_model_free(s.model);
    llm_threads_destroy(s.threads);
    llm_gguf_close(s.gguf);
    int32_t *const arrays[] = {s.tokens, s.n, s.first, s.tables, s.offsets, s.sample, s.out};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
    return 0;
}
