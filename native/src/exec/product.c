/* product.c: matrix products whose panels the threads take in turns. */
#include "exec/product.h"

#define RUNS_LEFT 2    /* runs for each thread that what is left would make at the current size */
#define LEAST_PANELS 4 /* shorter runs cost more in reading than they gain in balance */
#define PIECE_PRODUCTS (1LL << 31) /* a thread computes some tenths of a second before it says so */
#define LEAST_OF_MANY 2 /* many tokens compute long: the last runs are cut to end together */

void llm_quantize_row(const llm_kernels *k, llm_acts *a, int32_t row, int64_t begin, int64_t end,
                      const llm_products *p) {
    bool needs[LLM_N_ACT_KINDS] = {false};
    for (int32_t i = 0; i < p->n; i++) needs[p->of[i].w->format->act] = true;
    if (needs[LLM_ACT_Q32]) k->quantize(a, LLM_ACT_Q32, row, begin, end);
    if (needs[LLM_ACT_Q256]) k->quantize(a, LLM_ACT_Q256, row, begin, end);
}

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t panels_of(const llm_weight *w) {
    return (w->n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS;
}

int32_t llm_group_rows(const llm_products *p, int32_t group) {
    int64_t rows = 0;
    for (int32_t i = 0; i < p->n; i++) {
        int64_t size = p->of[i].group_rows;
        rows += max_i64(0, min_i64(size, p->of[i].w->n_rows - group * size));
    }
    return (int32_t)rows;
}

/* Rows [first, last) of product i are there. A group of another thread's rows becomes visible to the
 * thread that ends it by the order on its counter. */
static void end_rows(const llm_products *p, const llm_turns *turns, const llm_product *product,
                     int64_t first, int64_t last) {
    int64_t size = product->group_rows;
    for (int64_t g = first / size; g * size < last; g++) {
        int32_t n = (int32_t)(min_i64(last, (g + 1) * size) - max_i64(first, g * size));
        int32_t before = atomic_fetch_add_explicit(&turns->rows_done[g], n, memory_order_acq_rel);
        if (before + n == llm_group_rows(p, (int32_t)g)) p->follow(p->context, (int32_t)g);
    }
}

static void multiply_panels(llm_exec *e, const llm_acts *a, const llm_products *p,
                            const llm_turns *turns, const llm_product *product, int64_t begin,
                            int64_t end, int32_t thread) {
    int64_t n_rows = product->w->n_rows;
    int64_t per_panel = LLM_PANEL_ROWS * product->w->n_cols * a->n;
    int64_t piece = max_i64(LEAST_PANELS, PIECE_PRODUCTS / per_panel);
    for (int64_t at = begin; at < end; at += piece) {
        e->m->kernels->matmul(product->w, a, at, min_i64(end, at + piece), product->y, n_rows,
                              e->scratch[thread].matmul);
        llm_note_progress(e, thread);
    }
    int64_t first = begin * LLM_PANEL_ROWS, last = min_i64(end * LLM_PANEL_ROWS, n_rows);
    for (int32_t t = 0; product->bias && t < a->n; t++) {
        e->m->kernels->add(product->y + t * n_rows + first, product->bias + first, last - first);
    }
    if (p->follow) end_rows(p, turns, product, first, last);
}

bool llm_take_run(atomic_int *next, int64_t total, int32_t n_threads, bool few, int64_t *begin,
                  int64_t *end) {
    int64_t least = max_i64(1, min_i64(LEAST_PANELS, total / (RUNS_LEFT * n_threads)));
    int32_t at = atomic_load_explicit(next, memory_order_relaxed);
    while (at < total) {
        int64_t left = total - at;
        int64_t run = max_i64(least, left / (RUNS_LEFT * n_threads) / least * least);
        if (!few && left < n_threads * least)
            run = max_i64(LEAST_OF_MANY, (left + n_threads - 1) / n_threads);
        *begin = at;
        *end = min_i64(total, at + run);
        if (atomic_compare_exchange_weak_explicit(next, &at, (int32_t)*end, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

void llm_multiply(llm_exec *e, const llm_acts *a, const llm_products *p, llm_turns turns,
                  int32_t thread) {
    int64_t total = 0, begin, end;
    for (int32_t i = 0; i < p->n; i++) total += panels_of(p->of[i].w);
    while (llm_take_run(turns.next, total, e->n_threads, a->n <= LLM_FEW_ROWS, &begin, &end)) {
        int64_t base = 0;
        for (int32_t i = 0; i < p->n && base < end; i++) {
            int64_t n = panels_of(p->of[i].w);
            int64_t from = max_i64(0, begin - base), to = min_i64(n, end - base);
            if (from < to) multiply_panels(e, a, p, &turns, &p->of[i], from, to, thread);
            base += n;
        }
    }
}
