/* panels.c: packs all matrices into one arena, in parallel, dropping the file's pages behind it. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/os_memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "model/model.h"

#define PANELS_PER_JOB 32 /* a few hundred kB: small enough to balance, large enough to stream */
#define MATRICES_PER_LAYER 7

typedef struct pack_plan {
    llm_weight **weights; /* [n_weights] */
    uint64_t *offsets; /* [n_weights] into the arena */
    int64_t *first_job; /* [n_weights + 1] */
    int32_t n_weights;
    uint8_t *arena;
    atomic_llong next_job;
    atomic_llong done_jobs;
    const llm_model_params *params;
    bool drop;
    atomic_bool cancelled;
} pack_plan;

static int64_t n_panels(const llm_weight *w) {
    return (w->n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS;
}

static void pack_job(void *context, int32_t thread, int32_t n_threads) {
    (void)thread;
    (void)n_threads;
    pack_plan *p = context;
    int64_t total = p->first_job[p->n_weights];
    int32_t which = 0;
    for (;;) {
        int64_t job = atomic_fetch_add(&p->next_job, 1);
        if (job >= total || atomic_load(&p->cancelled)) return;
        while (job >= p->first_job[which + 1]) which++;
        const llm_weight *w = p->weights[which];
        int64_t begin = (job - p->first_job[which]) * PANELS_PER_JOB;
        int64_t end = begin + PANELS_PER_JOB < n_panels(w) ? begin + PANELS_PER_JOB : n_panels(w);
        llm_pack_panels(w, begin, end, p->arena + p->offsets[which]);
        uint64_t row_bytes = llm_row_bytes(w->format, w->n_cols);
        if (p->drop) {
            llm_os_drop_mapped(w->raw + (uint64_t)begin * LLM_PANEL_ROWS * row_bytes,
                               (uint64_t)(end - begin) * LLM_PANEL_ROWS * row_bytes);
        }
        int64_t done = atomic_fetch_add(&p->done_jobs, 1) + 1;
        if (p->params && p->params->progress) {
            *(volatile int32_t *)p->params->progress = (int32_t)(done * 1000 / total);
        }
        if (p->params && p->params->cancel && *(const volatile int32_t *)p->params->cancel) {
            atomic_store(&p->cancelled, true);
        }
    }
}

static void plan_weights(llm_model *m, pack_plan *p) {
    p->weights[p->n_weights++] = &m->token_embd;
    if (m->output.raw != m->token_embd.raw) p->weights[p->n_weights++] = &m->output;
    for (int32_t i = 0; i < m->h.n_layers; i++) {
        llm_layer *l = &m->layers[i];
        llm_weight *of_layer[MATRICES_PER_LAYER] = {&l->q,    &l->k,  &l->v,   &l->o,
                                                    &l->gate, &l->up, &l->down};
        for (int32_t j = 0; j < MATRICES_PER_LAYER; j++) p->weights[p->n_weights++] = of_layer[j];
    }
    for (int32_t i = 0; i < p->n_weights; i++) {
        p->offsets[i] = m->panel_bytes;
        m->panel_bytes += (llm_panel_bytes(p->weights[i]) + 63) / 64 * 64;
        p->first_job[i + 1] =
            p->first_job[i] + (n_panels(p->weights[i]) + PANELS_PER_JOB - 1) / PANELS_PER_JOB;
    }
}

static llm_status run_plan(llm_model *m, llm_threads *t, pack_plan *p, llm_error *err) {
    llm_machine machine;
    llm_machine_probe(&machine);
    if (machine.free_bytes && m->panel_bytes > machine.free_bytes) {
        return llm_fail(err, LLM_E_MEMORY, "the weights need %llu MiB and %llu MiB are free",
                        (unsigned long long)(m->panel_bytes >> 20),
                        (unsigned long long)(machine.free_bytes >> 20));
    }
    m->panels = llm_os_alloc(m->panel_bytes);
    if (!m->panels) {
        return llm_fail(err, LLM_E_MEMORY, "the system refused %llu MiB for the weights",
                        (unsigned long long)(m->panel_bytes >> 20));
    }
    p->arena = m->panels;
    llm_threads_run(t, pack_job, p);
    if (atomic_load(&p->cancelled)) {
        return llm_fail(err, LLM_E_CANCELLED, "loading was cancelled");
    }
    bool tied = m->output.raw == m->token_embd.raw;
    for (int32_t i = 0; i < p->n_weights; i++) {
        p->weights[i]->panels = m->panels + p->offsets[i];
        p->weights[i]->raw = NULL;
    }
    if (tied) m->output = m->token_embd;
    return LLM_OK;
}

llm_status llm_make_panels(llm_model *m, llm_threads *t, const llm_model_params *params,
                           llm_error *err) {
    size_t n = (size_t)m->h.n_layers * MATRICES_PER_LAYER + 2;
    pack_plan p = {.params = params, .drop = m->is_mapped};
    p.weights = calloc(n, sizeof *p.weights);
    p.offsets = calloc(n, sizeof *p.offsets);
    p.first_job = calloc(n + 1, sizeof *p.first_job);
    llm_status s;
    if (!p.weights || !p.offsets || !p.first_job) {
        s = llm_fail(err, LLM_E_MEMORY, "no memory to plan %zu panels", n);
    } else {
        plan_weights(m, &p);
        s = run_plan(m, t, &p, err);
    }
    free(p.weights);
    free(p.offsets);
    free(p.first_job);
    return s;
}
