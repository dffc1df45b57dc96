/* roof.c: the roofs of a machine, measured in the run that they are compared with. */
#include <string.h>

#include "backend/kernels.h"
#include "base/os_clock.h"
#include "base/os_memory.h"
#include "base/status.h"
#include "base/threads.h"

#define MIN_BYTES (UINT64_C(1) << 20)
#define PASSES 3
#define RATE_RUNS 5
#define RATE_RUN_NS 20000000u
#define MAX_ROOF_THREADS 1024

/* Which way of reading is fastest differs between CPUs, so several are tried. */
static const struct {
    int32_t n_streams;
    uint64_t ahead_bytes; /* software prefetch distance */
} patterns[] = {{1, 0}, {1, 4096}, {2, 0}, {4, 0}, {4, 1024}, {8, 0}, {8, 2048}};
#define N_PATTERNS (sizeof patterns / sizeof patterns[0])

typedef struct read_job {
    const llm_kernels *kernels;
    uint8_t *region;
    uint64_t n_bytes;
    size_t pattern;
    volatile int32_t sink; /* keeps the compiler from dropping the reads */
} read_job;

static uint8_t *share_of(const read_job *job, int32_t thread, int32_t n_threads, uint64_t *n) {
    int64_t begin, end;
    llm_share((int64_t)(job->n_bytes / 4096), thread, n_threads, &begin, &end);
    *n = (uint64_t)(end - begin) * 4096;
    return job->region + (uint64_t)begin * 4096;
}

/* Each thread first touches what it will read: pages of its own memory node, never the shared page
 * of zeros. */
static void touch(void *context, int32_t thread, int32_t n_threads) {
    const read_job *job = context;
    uint64_t n;
    uint8_t *p = share_of(job, thread, n_threads, &n);
    memset(p, 1, n);
}

static void read_once(void *context, int32_t thread, int32_t n_threads) {
    read_job *job = context;
    uint64_t n;
    const uint8_t *p = share_of(job, thread, n_threads, &n);
    int32_t sum = job->kernels->read_sum(p, n, patterns[job->pattern].n_streams,
                                         patterns[job->pattern].ahead_bytes);
    if (thread == 0) job->sink = sum;
}

llm_status llm_roof_bandwidth(llm_threads *t, uint64_t n_bytes, double *gb_per_s, llm_error *err) {
    *gb_per_s = 0;
    if (n_bytes < MIN_BYTES || n_bytes > UINT64_C(1) << 40) {
        return llm_fail(err, LLM_E_ARGUMENT, "a bandwidth test of %llu bytes: 1 MiB to 1 TiB",
                        (unsigned long long)n_bytes);
    }
    read_job job = {.kernels = llm_kernels_of(NULL), .n_bytes = n_bytes / 4096 * 4096};
    job.region = llm_os_alloc(job.n_bytes);
    if (!job.region) {
        return llm_fail(err, LLM_E_MEMORY, "no memory for a bandwidth test of %llu bytes",
                        (unsigned long long)n_bytes);
    }
    llm_threads_run(t, touch, &job);
    uint64_t best_ns = UINT64_MAX;
    for (int32_t pass = 0; pass < PASSES; pass++) {
        for (job.pattern = 0; job.pattern < N_PATTERNS; job.pattern++) {
            uint64_t begin = llm_now_ns();
            llm_threads_run(t, read_once, &job);
            uint64_t ns = llm_now_ns() - begin;
            if (ns < best_ns) best_ns = ns;
        }
    }
    llm_os_free(job.region, job.n_bytes);
    *gb_per_s = (double)job.n_bytes / (double)(best_ns ? best_ns : 1);
    return LLM_OK;
}

typedef struct rate_job {
    double (*run)(int64_t n_iterations); /* returns ops done */
    int64_t n_iterations;
    double ops[MAX_ROOF_THREADS];
} rate_job;

static void compute_once(void *context, int32_t thread, int32_t n_threads) {
    rate_job *job = context;
    (void)n_threads;
    job->ops[thread] = job->run(job->n_iterations);
}

static llm_status kernels_of(const char *isa, const llm_kernels **kernels, llm_error *err) {
    *kernels = llm_kernels_of(isa);
    if (*kernels) return LLM_OK;
    return llm_fail(err, LLM_E_UNSUPPORTED,
                    "instruction set \"%s\" is not in this build or not on this CPU", isa);
}

static double best_rate(llm_threads *t, double (*run)(int64_t n_iterations)) {
    rate_job job = {.run = run, .n_iterations = 1000};
    int32_t n_threads = llm_threads_count(t);
    double best = 0;
    for (int32_t i = 0; i < RATE_RUNS;) {
        uint64_t begin = llm_now_ns();
        llm_threads_run(t, compute_once, &job);
        uint64_t ns = llm_now_ns() - begin;
        if (ns < RATE_RUN_NS / 2 && job.n_iterations < INT64_MAX / 4) {
            job.n_iterations *= 2; /* too short to time */
            continue;
        }
        double ops = 0;
        for (int32_t thread = 0; thread < n_threads; thread++) ops += job.ops[thread];
        if (ops / (double)ns > best) best = ops / (double)ns;
        i++;
    }
    return best;
}

llm_status llm_roof_int8(llm_threads *t, const char *isa, double *gop_per_s, llm_error *err) {
    const llm_kernels *kernels;
    llm_status status = kernels_of(isa, &kernels, err);
    *gop_per_s = status == LLM_OK ? best_rate(t, kernels->int8_ops) : 0;
    return status;
}

llm_status llm_roof_f32(llm_threads *t, const char *isa, double *gop_per_s, llm_error *err) {
    const llm_kernels *kernels;
    llm_status status = kernels_of(isa, &kernels, err);
    *gop_per_s = status == LLM_OK ? best_rate(t, kernels->f32_ops) : 0;
    return status;
}
