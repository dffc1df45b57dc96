/* panels.c: packs all matrices into one arena, in parallel, or leaves them where they are.
 *
 * A thread takes some panels of a matrix at a time, reads their rows from the file into a buffer that
 * stays in its cache and packs them from there. So no page of the file is mapped on the way: the
 * process grows by the panels alone, and a file that is cut short meanwhile is an error.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/machine.h"
#include "base/os_memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "gguf/gguf.h"
#include "model/model.h"

#define JOB_BYTES (256u << 10) /* a fraction of any L2 cache; a panel may be larger */
#define MATRICES_PER_LAYER 7
#define FREE_SHARE_KEPT 16 /* panels leave a 16th of the free memory to all else */

typedef struct pack_item {
    llm_weight *weight;
    uint64_t offset; /* of its panels in the arena */
    int64_t panels_per_job;
    int64_t first_job;
} pack_item;

typedef struct pack_plan {
    const llm_gguf *g;
    const llm_model_params *params;
    pack_item *items; /* [n_items + 1], the last one only ends the jobs */
    int32_t n_items;
    uint8_t *arena;
    uint8_t *buffers; /* [n_threads][buffer_bytes] */
    uint64_t buffer_bytes;
    uint64_t panel_bytes, raw_bytes;
    atomic_llong next_job;
    atomic_llong done_jobs;
    atomic_bool stopped;  /* cancelled, or a thread has failed */
    atomic_flag reported; /* set by the first thread that fails, which writes error */
    llm_error error;
} pack_plan;

static int64_t n_panels(const llm_weight *w) {
    return (w->n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS;
}

static uint64_t bytes_per_panel(const llm_weight *w) {
    return LLM_PANEL_ROWS * llm_row_bytes(w->format, w->n_cols);
}

/* Panels [begin, end) of an item, through a buffer. */
static llm_status pack_some(const pack_plan *p, const pack_item *item, int64_t begin, int64_t end,
                            uint8_t *buffer, llm_error *err) {
    const llm_weight *w = item->weight;
    int64_t first_row = begin * LLM_PANEL_ROWS, end_row = end * LLM_PANEL_ROWS;
    if (end_row > w->n_rows) end_row = w->n_rows;
    uint64_t row_bytes = llm_row_bytes(w->format, w->n_cols);
    llm_status s = llm_gguf_read(p->g, w->raw + (uint64_t)first_row * row_bytes,
                                 (uint64_t)(end_row - first_row) * row_bytes, buffer, err);
    if (s != LLM_OK) return s;
    llm_weight some = {
        .format = w->format, .n_rows = end_row - first_row, .n_cols = w->n_cols, .raw = buffer};
    llm_pack_panels(&some, 0, end - begin,
                    p->arena + item->offset + (uint64_t)begin * bytes_per_panel(w));
    return LLM_OK;
}

static void report_progress(pack_plan *p, int64_t total) {
    int64_t done = atomic_fetch_add(&p->done_jobs, 1) + 1;
    if (!p->params) return;
    if (p->params->progress) {
        *(volatile int32_t *)p->params->progress = (int32_t)(done * 1000 / total);
    }
    if (p->params->cancel && *(const volatile int32_t *)p->params->cancel) {
        atomic_store(&p->stopped, true);
    }
}

static void pack_job(void *context, int32_t thread, int32_t n_threads) {
    (void)n_threads;
    pack_plan *p = context;
    int64_t total = p->items[p->n_items].first_job;
    const pack_item *item = p->items;
    uint8_t *buffer = p->buffers + (uint64_t)thread * p->buffer_bytes;
    for (;;) {
        int64_t job = atomic_fetch_add(&p->next_job, 1);
        if (job >= total || atomic_load(&p->stopped)) return;
        while (job >= item[1].first_job) item++;
        int64_t begin = (job - item->first_job) * item->panels_per_job;
        int64_t end = begin + item->panels_per_job, last = n_panels(item->weight);
        llm_error error;
        if (pack_some(p, item, begin, end < last ? end : last, buffer, &error) != LLM_OK) {
            if (!atomic_flag_test_and_set(&p->reported)) p->error = error;
            atomic_store(&p->stopped, true);
            return;
        }
        report_progress(p, total);
    }
}

static void add_item(pack_plan *p, llm_weight *w) {
    pack_item *item = &p->items[p->n_items++];
    uint64_t panel = bytes_per_panel(w), bytes = panel * (uint64_t)n_panels(w);
    item->weight = w;
    item->offset = p->panel_bytes;
    item->panels_per_job = panel < JOB_BYTES ? (int64_t)(JOB_BYTES / panel) : 1;
    item[1].first_job =
        item->first_job + (n_panels(w) + item->panels_per_job - 1) / item->panels_per_job;
    p->panel_bytes += (bytes + 63) / 64 * 64;
    p->raw_bytes += (uint64_t)w->n_rows * llm_row_bytes(w->format, w->n_cols);
    uint64_t buffer = (uint64_t)item->panels_per_job * panel;
    if (buffer > p->buffer_bytes) p->buffer_bytes = buffer;
}

/* Every matrix once. */
static void plan_items(llm_model *m, pack_plan *p) {
    add_item(p, &m->token_embd);
    if (!m->tied) add_item(p, &m->output);
    for (int32_t i = 0; i < m->h.n_layers; i++) {
        llm_layer *l = &m->layers[i];
        llm_weight *of_layer[MATRICES_PER_LAYER] = {&l->q,    &l->k,  &l->v,   &l->o,
                                                    &l->gate, &l->up, &l->down};
        for (int32_t j = 0; j < MATRICES_PER_LAYER; j++) add_item(p, of_layer[j]);
    }
    p->buffer_bytes = (p->buffer_bytes + 63) / 64 * 64;
}

static bool panels_fit(const pack_plan *p) {
    if (p->params && p->params->panel_limit) return p->panel_bytes <= p->params->panel_limit;
    llm_machine machine;
    llm_machine_probe(&machine);
    uint64_t free = machine.free_bytes;
    return !free || p->panel_bytes <= free - free / FREE_SHARE_KEPT;
}

static llm_status run_plan(llm_model *m, llm_threads *t, pack_plan *p, llm_error *err) {
    llm_threads_run(t, pack_job, p);
    if (p->error.status != LLM_OK) return llm_fail(err, p->error.status, "%s", p->error.message);
    if (atomic_load(&p->stopped)) return llm_fail(err, LLM_E_CANCELLED, "loading was cancelled");
    for (int32_t i = 0; i < p->n_items; i++) {
        p->items[i].weight->panels = m->panels + p->items[i].offset;
        p->items[i].weight->raw = NULL;
    }
    if (m->tied) m->output = m->token_embd;
    return LLM_OK;
}

llm_status llm_plan_weights(llm_model *m, const llm_model_params *params, int32_t n_threads,
                            uint64_t *load_bytes, llm_error *err) {
    size_t n = (size_t)m->h.n_layers * MATRICES_PER_LAYER + 2;
    pack_plan p = {.params = params};
    p.items = calloc(n + 1, sizeof *p.items);
    if (!p.items) return llm_fail(err, LLM_E_MEMORY, "no memory to plan %zu panels", n);
    plan_items(m, &p);
    bool raw = params && params->raw_weights;
    m->panel_bytes = raw ? 0 : p.panel_bytes;
    m->mapped_bytes = raw ? p.raw_bytes : 0;
    *load_bytes = raw ? 0 : (uint64_t)n_threads * p.buffer_bytes;
    free(p.items);
    return LLM_OK;
}

llm_status llm_place_weights(llm_model *m, const llm_gguf *g, llm_threads *t,
                             const llm_model_params *params, llm_error *err) {
    size_t n = (size_t)m->h.n_layers * MATRICES_PER_LAYER + 2;
    pack_plan p = {.g = g, .params = params, .reported = ATOMIC_FLAG_INIT};
    p.items = calloc(n + 1, sizeof *p.items);
    if (!p.items) return llm_fail(err, LLM_E_MEMORY, "no memory to plan %zu panels", n);
    plan_items(m, &p);
    if (!(params && params->raw_weights) && panels_fit(&p)) {
        uint64_t buffers = (uint64_t)llm_threads_count(t) * p.buffer_bytes;
        p.arena = llm_os_alloc(p.panel_bytes);
        p.buffers = p.arena ? llm_os_alloc(buffers) : NULL;
        if (p.buffers) {
            m->panels = p.arena;
            m->panel_bytes = p.panel_bytes;
            llm_status s = run_plan(m, t, &p, err);
            llm_os_free(p.buffers, buffers);
            free(p.items);
            return s;
        }
        llm_os_free(p.arena, p.panel_bytes);
        m->was_refused = true;
    }
    m->mapped_bytes = p.raw_bytes;
    m->mapped = g;
    free(p.items);
    return LLM_OK;
}
