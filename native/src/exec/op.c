/* op.c: one matrix product through the public header, for tests and benchmarks. */
#include <inttypes.h>
#include <string.h>
#include <stdlib.h>

#include "backend/kernels.h"
#include "base/checked.h"
#include "base/os_clock.h"
#include "base/os_memory.h"
#include "base/status.h"
#include "base/threads.h"

#define MAX_SIDE (INT64_C(1) << 31)

struct llm_op_weight {
    llm_weight w;
    uint8_t *memory;
    uint64_t n_bytes;
};

static llm_status check_shape(const llm_format *f, uint64_t src_bytes, int64_t n_rows,
                              int64_t n_cols, llm_error *err) {
    if (n_rows < 1 || n_rows > MAX_SIDE || n_cols < 1 || n_cols > MAX_SIDE)
        return llm_fail(err, LLM_E_ARGUMENT,
                        "matrix of %" PRId64 " x %" PRId64 ": sides are 1 to 2^31", n_rows, n_cols);
    if (n_cols % f->block_elements)
        return llm_fail(err, LLM_E_ARGUMENT,
                        "%" PRId64 " columns is not a multiple of the %s block of %d", n_cols,
                        f->name, f->block_elements);
    uint64_t need;
    if (!llm_mul_u64(llm_row_bytes(f, n_cols), (uint64_t)n_rows, &need) || need != src_bytes)
        return llm_fail(err, LLM_E_ARGUMENT,
                        "%" PRIu64 " bytes given for a %" PRId64 " x %" PRId64 " matrix of %s",
                        src_bytes, n_rows, n_cols, f->name);
    return LLM_OK;
}

llm_status llm_op_weight_create(int32_t type, const uint8_t *src, uint64_t src_bytes,
                                int64_t n_rows, int64_t n_cols, int32_t raw_weights,
                                llm_op_weight **out, llm_error *err) {
    if (!src || !out) return llm_fail(err, LLM_E_ARGUMENT, "op weight: null pointer");
    *out = NULL;
    const llm_format *f = llm_format_of(type);
    if (!f || !f->native)
        return llm_fail(err, LLM_E_UNSUPPORTED, "op weight: type %d (%s) is not supported", type,
                        f ? f->name : "unknown");
    llm_status status = check_shape(f, src_bytes, n_rows, n_cols, err);
    if (status != LLM_OK) return status;

    llm_weight w = {f, n_rows, n_cols, src, NULL};
    uint64_t n_bytes = raw_weights ? src_bytes : llm_panel_bytes(&w);
    llm_op_weight *op = malloc(sizeof *op);
    uint8_t *memory = llm_os_alloc(n_bytes);
    if (!op || !memory) {
        free(op);
        if (memory) llm_os_free(memory, n_bytes);
        return llm_fail(err, LLM_E_MEMORY, "op weight: %" PRIu64 " bytes refused", n_bytes);
    }
    if (raw_weights) {
        memcpy(memory, src, src_bytes);
        w.raw = memory;
    } else {
        llm_pack_panels(&w, 0, (n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS, memory);
        w.raw = NULL;
        w.panels = memory;
    }
    *op = (llm_op_weight){w, memory, n_bytes};
    *out = op;
    return LLM_OK;
}

void llm_op_weight_free(llm_op_weight *w) {
    if (!w) return;
    llm_os_free(w->memory, w->n_bytes);
    free(w);
}

typedef struct op_run {
    llm_threads *threads;
    const llm_kernels *kernels;
    const llm_weight *w;
    llm_acts acts;
    float *y;
    uint8_t *scratch;
    uint64_t scratch_bytes; /* of one thread */
} op_run;

static void op_job(void *context, int32_t thread, int32_t n_threads) {
    op_run *run = context;
    int64_t begin, end;
    if (run->w->format->act != LLM_ACT_F32) {
        llm_share(run->acts.n, thread, n_threads, &begin, &end);
        for (int64_t t = begin; t < end; t++)
            run->kernels->quantize(&run->acts, run->w->format->act, (int32_t)t, 0, run->acts.k);
        llm_threads_barrier(run->threads, thread);
    }
    llm_share((run->w->n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS, thread, n_threads, &begin,
              &end);
    run->kernels->matmul(run->w, &run->acts, begin, end, run->y, run->w->n_rows,
                         run->scratch + (uint64_t)thread * run->scratch_bytes);
}

llm_status llm_op_matmul(llm_threads *t, const char *isa, const llm_op_weight *w, const float *x,
                         int32_t n, float *y, int32_t n_reps, double *seconds, llm_error *err) {
    if (!t || !w || !x || !y) return llm_fail(err, LLM_E_ARGUMENT, "op matmul: null pointer");
    if (n < 1 || n > 1 << 20)
        return llm_fail(err, LLM_E_ARGUMENT, "op matmul: %d tokens, the limit is 1 to 2^20", n);
    if (n_reps < 1)
        return llm_fail(err, LLM_E_ARGUMENT, "op matmul: %d repetitions, at least 1", n_reps);
    const llm_kernels *kernels = llm_kernels_of(isa);
    if (!kernels)
        return llm_fail(err, LLM_E_UNSUPPORTED, "instruction set %s is not usable here",
                        isa ? isa : "(any)");

    int64_t k = w->w.n_cols;
    uint64_t act_bytes = llm_acts_bytes(w->w.format->act, n, k);
    uint64_t scratch_bytes = kernels->matmul_scratch();
    uint64_t total = act_bytes + scratch_bytes * (uint64_t)llm_threads_count(t);
    uint8_t *memory = llm_os_alloc(total);
    if (!memory) return llm_fail(err, LLM_E_MEMORY, "op matmul: %" PRIu64 " bytes refused", total);
    op_run run = {t, kernels, &w->w, {0}, y, memory + act_bytes, scratch_bytes};
    llm_acts_place(&run.acts, w->w.format->act, n, k, memory);
    run.acts.x = x;
    run.acts.ldx = k;
    double best = 0;
    for (int32_t i = 0; i < n_reps; i++) {
        uint64_t start = llm_now_ns();
        llm_threads_run(t, op_job, &run);
        double took = (double)(llm_now_ns() - start) * 1e-9;
        if (i == 0 || took < best) best = took;
    }
    llm_os_free(memory, total);
    if (seconds) *seconds = best;
    return LLM_OK;
}
