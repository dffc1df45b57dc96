/* executed.c: runs each op and step once, so that callgrind can count its instructions.
 *
 * Usage: executed ISA MODEL.gguf. scripts/executed.py tells callgrind to count inside run_case and to
 * write its counts after each; the names printed here are in that order. One thread, seeded data.
 */
#include <stdio.h>
#include <stdlib.h>

#include "localllm_kv.h"

#if defined(__clang__) /* knows no noclone, and makes no clones of its own */
#define OUTLINE __attribute__((noinline, used))
#elif defined(__GNUC__)
#define OUTLINE __attribute__((noinline, noclone, used))
#else
#define OUTLINE
#endif

enum { ROWS = 64, COLS = 256, MOST_COLUMNS = 32, CONTEXT_BLOCKS = 4, MOST_TOKENS = 64 };

static const int32_t column_counts[] = {1, 8, MOST_COLUMNS};

/* The new tokens of each step of one sequence. */
static const int32_t steps[] = {MOST_TOKENS, 32, 4, 1};
#define N_STEPS ((int32_t)(sizeof steps / sizeof steps[0]))

typedef struct matmul_case {
    llm_threads *threads;
    const char *isa;
    const llm_op_weight *w;
    int32_t n;
    float x[MOST_COLUMNS * COLS], y[MOST_COLUMNS * ROWS];
} matmul_case;

typedef struct step_case {
    llm_exec *exec;
    llm_batch batch;
} step_case;

static llm_error error;

static void require(llm_status status) {
    if (status == LLM_OK) return;
    fprintf(stderr, "error: %s\n", error.message);
    exit(1);
}

static void run_matmul(void *context) {
    matmul_case *c = context;
    require(llm_op_matmul(c->threads, c->isa, c->w, c->x, c->n, c->y, 1, NULL, &error));
}

static void run_step(void *context) {
    step_case *c = context;
    int32_t token;
    require(llm_exec_step(c->exec, &c->batch, 0, &token, NULL, NULL, &error));
}

OUTLINE static void run_case(void (*run)(void *), void *context) { run(context); }

static uint32_t next_random(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void matmuls(llm_threads *threads, const char *isa) {
    static matmul_case c;
    c.threads = threads;
    c.isa = isa;
    for (int32_t i = 0; i < MOST_COLUMNS * COLS; i++)
        c.x[i] = (float)(next_random() % 2001) / 1000.0f - 1.0f;
    for (int32_t i = 0; i < llm_n_formats(); i++) {
        llm_format_info f;
        require(llm_format_at(i, &f));
        if (!f.native) continue;
        uint64_t n_bytes = (uint64_t)(ROWS * COLS / f.block_elements) * (uint64_t)f.block_bytes;
        uint8_t *src = malloc((size_t)n_bytes);
        if (!src) abort();
        for (uint64_t b = 0; b < n_bytes; b++) src[b] = (uint8_t)next_random() & 0x3f;
        llm_op_weight *w;
        require(llm_op_weight_create(f.type, src, n_bytes, ROWS, COLS, 0, &w, &error));
        free(src);
        c.w = w;
        for (size_t n = 0; n < sizeof column_counts / sizeof column_counts[0]; n++) {
            c.n = column_counts[n];
            printf("matmul %s n %d\n", f.name, (int)c.n);
            run_case(run_matmul, &c);
        }
        llm_op_weight_free(w);
    }
}

static void model_steps(const llm_model *m, llm_threads *threads, int32_t kv_type,
                        const char *kv_name) {
    static const int32_t blocks[LLM_MAX_GROUPS] = {CONTEXT_BLOCKS, CONTEXT_BLOCKS, CONTEXT_BLOCKS,
                                                   CONTEXT_BLOCKS};
    static const int32_t table[CONTEXT_BLOCKS] = {0, 1, 2, 3}, sample = 1;
    llm_kv_pool *pool;
    require(llm_kv_pool_create(m, kv_type, blocks, &pool, &error));
    llm_exec_params params = {.max_tokens = MOST_TOKENS, .max_sequences = 1};
    step_case c = {0};
    require(llm_exec_create(m, pool, threads, &params, &c.exec, &error));
    int32_t tokens[MOST_TOKENS], first = 0;
    for (int32_t i = 0; i < MOST_TOKENS; i++) tokens[i] = i % 60;
    for (int32_t i = 0; i < N_STEPS; i++) {
        int32_t offsets[2] = {0, (first + steps[i] + LLM_BLOCK_TOKENS - 1) / LLM_BLOCK_TOKENS};
        c.batch = (llm_batch){.n_seqs = 1,
                              .n_tokens = steps[i],
                              .tokens = tokens,
                              .seq_n_tokens = &steps[i],
                              .seq_first_pos = &first,
                              .block_tables = table,
                              .table_offset = offsets,
                              .seq_sample = &sample};
        printf("step of %d at %d %s\n", (int)steps[i], (int)first, kv_name);
        run_case(run_step, &c);
        first += steps[i];
    }
    llm_exec_free(c.exec);
    llm_kv_pool_free(pool);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: executed ISA MODEL.gguf\n");
        return 2;
    }
    llm_threads *threads;
    require(llm_threads_create(1, &threads, &error));
    matmuls(threads, argv[1]);
    llm_gguf *file;
    require(llm_gguf_open(argv[2], &file, &error));
    llm_model_params params = {.isa = argv[1]};
    llm_model *m;
    require(llm_model_load(file, threads, &params, &m, &error));
    model_steps(m, threads, LLM_KV_F16, "f16");
    model_steps(m, threads, LLM_KV_Q8_0, "q8_0");
    llm_model_free(m);
    llm_gguf_close(file);
    llm_threads_destroy(threads);
    return 0;
}
