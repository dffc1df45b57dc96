/* forward.c: one step through the layers, for every architecture.
 *
 * Phases of a layer, a barrier after each:
 *   1 by token   x += previous output (normed where the architecture says so); norm; quantize
 *   2 by panel   q, k, v
 *   3 by head    q and k norms, rope, K and V into the pool
 *   4 by tile    attention (a second phase merges when the context was cut among threads)
 *   5 by token   quantize
 *   6 by panel   output projection
 *   7 by token   x += it; norm; quantize
 *   8 by panel   gate, up
 *   9 by token   activation, quantize
 *  10 by panel   down
 */
#include <math.h>
#include <string.h>

#include "exec/exec.h"

typedef struct product {
    const llm_weight *w;
    const float *bias; /* [n_rows] or NULL */
    float *y;          /* [n][n_rows] */
} product;

static void quantize_token(const llm_kernels *k, llm_acts *a, int32_t token, const product *of,
                           int32_t n_products) {
    bool needs[LLM_N_ACT_KINDS] = {false};
    for (int32_t i = 0; i < n_products; i++) needs[of[i].w->format->act] = true;
    if (needs[LLM_ACT_Q32]) k->quantize(a, LLM_ACT_Q32, token);
    if (needs[LLM_ACT_Q256]) k->quantize(a, LLM_ACT_Q256, token);
}

static int64_t panels_of(const llm_weight *w) {
    return (w->n_rows + LLM_PANEL_ROWS - 1) / LLM_PANEL_ROWS;
}

static void multiply_panels(const llm_exec *e, const llm_acts *a, const product *p, int64_t begin,
                            int64_t end, int32_t thread) {
    e->m->kernels->matmul(p->w, a, begin, end, p->y, p->w->n_rows, e->scratch[thread].matmul);
    if (!p->bias) return;
    int64_t first = begin * LLM_PANEL_ROWS, last = end * LLM_PANEL_ROWS;
    if (last > p->w->n_rows) last = p->w->n_rows;
    for (int32_t t = 0; t < a->n; t++) {
        e->m->kernels->add(p->y + t * p->w->n_rows + first, p->bias + first, last - first);
    }
}

/* All products read the same activations; threads take runs of panels in turns. */
static void multiply(llm_exec *e, const llm_acts *a, const product *p, int32_t n_products,
                     int32_t thread, int32_t counter) {
    int64_t total = 0;
    for (int32_t i = 0; i < n_products; i++) total += panels_of(p[i].w);
    int64_t run = total / (e->n_threads * 8);
    if (run < 1) run = 1;
    for (int64_t begin; (begin = run * atomic_fetch_add(&e->counters[counter], 1)) < total;) {
        int64_t end = begin + run < total ? begin + run : total;
        int64_t base = 0;
        for (int32_t i = 0; i < n_products && base < end; i++) {
            int64_t n = panels_of(p[i].w);
            int64_t from = begin > base ? begin - base : 0, to = end - base < n ? end - base : n;
            if (from < to) multiply_panels(e, a, &p[i], from, to, thread);
            base += n;
        }
    }
}

/* Every thread describes the same memory; tokens are quantized into it one by one. */
static llm_acts acts_of(const llm_exec *e, const float *x, int64_t k, int32_t n) {
    llm_acts a = {.x = x, .ldx = k};
    llm_acts_place(&a, LLM_ACT_Q32, n, k, e->act_memory[LLM_ACT_Q32]);
    llm_acts_place(&a, LLM_ACT_Q256, n, k, e->act_memory[LLM_ACT_Q256]);
    return a;
}

static void set_angles(llm_exec *e, int32_t token) {
    int32_t n_pairs = e->m->h.n_rot / 2;
    int32_t n_kinds = e->m->h.window ? 2 : 1;
    for (int32_t kind = 0; kind < n_kinds; kind++) {
        const llm_rope *rope = &e->m->rope[kind];
        for (int32_t i = 0; i < n_pairs; i++) {
            double angle = e->token_pos[token] * rope->frequency[i];
            e->cos[kind][(int64_t)token * n_pairs + i] = (float)cos(angle) * rope->magnitude;
            e->sin[kind][(int64_t)token * n_pairs + i] = (float)sin(angle) * rope->magnitude;
        }
    }
}

static void embed(llm_exec *e, int32_t token) {
    const llm_model *m = e->m;
    float *x = e->x + (int64_t)token * m->h.n_embd;
    llm_weight_row(&m->token_embd, e->batch->tokens[token], x);
    if (m->arch->scale_embedding) m->kernels->scale(x, sqrtf((float)m->h.n_embd), m->h.n_embd);
}

/* x += delta of a token, through the post norm where there is one. */
static void add_delta(llm_exec *e, int32_t token, const float *post_norm) {
    const llm_hparams *h = &e->m->h;
    float *delta = e->delta + (int64_t)token * h->n_embd;
    if (post_norm) e->m->kernels->rms_norm(delta, post_norm, h->rms_eps, h->n_embd, delta);
    e->m->kernels->add(e->x + (int64_t)token * h->n_embd, delta, h->n_embd);
}

static void forward_attention(llm_exec *e, int32_t i, int64_t begin, int64_t end, int32_t thread) {
    const llm_model *m = e->m;
    const llm_hparams *h = &m->h;
    const llm_layer *l = &m->layers[i];
    int32_t n = e->batch->n_tokens, counter = i * LLM_COUNTERS_PER_LAYER;
    const product qkv[] = {
        {&l->q, l->q_bias, e->q}, {&l->k, l->k_bias, e->k}, {&l->v, l->v_bias, e->v}};
    llm_acts a = acts_of(e, e->h, h->n_embd, n);
    for (int32_t t = (int32_t)begin; t < end; t++) {
        if (i) add_delta(e, t, m->layers[i - 1].ffn_post_norm);
        m->kernels->rms_norm(e->x + (int64_t)t * h->n_embd, l->attn_norm, h->rms_eps, h->n_embd,
                             e->h + (int64_t)t * h->n_embd);
        quantize_token(m->kernels, &a, t, qkv, 3);
    }
    /* Only thread 0 writes the flag, only here; the others read it after the barrier. */
    if (thread == 0 && e->cancel && *(const volatile int32_t *)e->cancel) e->stopped = true;
    llm_threads_barrier(e->threads, thread);
    if (e->stopped) return;
    multiply(e, &a, qkv, 3, thread, counter);
    llm_threads_barrier(e->threads, thread);
    llm_write_kv(e, l, thread);
    llm_threads_barrier(e->threads, thread);
    llm_attend(e, l, thread, counter + 1);
    llm_threads_barrier(e->threads, thread);

    const product out[] = {{&l->o, l->o_bias, e->delta}};
    a = acts_of(e, e->att, (int64_t)h->n_heads * h->head_dim, n);
    for (int32_t t = (int32_t)begin; t < end; t++) quantize_token(m->kernels, &a, t, out, 1);
    llm_threads_barrier(e->threads, thread);
    multiply(e, &a, out, 1, thread, counter + 3);
    llm_threads_barrier(e->threads, thread);
}

static void forward_ffn(llm_exec *e, int32_t i, int64_t begin, int64_t end, int32_t thread) {
    const llm_model *m = e->m;
    const llm_hparams *h = &m->h;
    const llm_layer *l = &m->layers[i];
    int32_t n = e->batch->n_tokens, counter = i * LLM_COUNTERS_PER_LAYER;
    const product gate_up[] = {{&l->gate, l->gate_bias, e->gate}, {&l->up, l->up_bias, e->up}};
    llm_acts a = acts_of(e, e->h, h->n_embd, n);
    for (int32_t t = (int32_t)begin; t < end; t++) {
        add_delta(e, t, l->attn_post_norm);
        m->kernels->rms_norm(e->x + (int64_t)t * h->n_embd, l->ffn_norm, h->rms_eps, h->n_embd,
                             e->h + (int64_t)t * h->n_embd);
        quantize_token(m->kernels, &a, t, gate_up, 2);
    }
    llm_threads_barrier(e->threads, thread);
    multiply(e, &a, gate_up, 2, thread, counter + 4);
    llm_threads_barrier(e->threads, thread);

    const product down[] = {{&l->down, l->down_bias, e->delta}};
    a = acts_of(e, e->gate, h->n_ff, n);
    for (int32_t t = (int32_t)begin; t < end; t++) {
        float *gate = e->gate + (int64_t)t * h->n_ff;
        const float *up = e->up + (int64_t)t * h->n_ff;
        if (m->arch->activation == LLM_GEGLU)
            m->kernels->geglu(gate, up, h->n_ff, gate);
        else
            m->kernels->swiglu(gate, up, h->n_ff, gate);
        quantize_token(m->kernels, &a, t, down, 1);
    }
    llm_threads_barrier(e->threads, thread);
    multiply(e, &a, down, 1, thread, counter + 5);
    llm_threads_barrier(e->threads, thread);
}

static void forward_head(llm_exec *e, int32_t thread) {
    const llm_model *m = e->m;
    const llm_hparams *h = &m->h;
    int64_t begin, end;
    llm_share(e->n_out, thread, e->n_threads, &begin, &end);
    const product head[] = {{&m->output, m->output_bias, e->out_logits}};
    llm_acts a = acts_of(e, e->h, h->n_embd, e->n_out);
    for (int32_t r = (int32_t)begin; r < end; r++) {
        int32_t token = e->out_row[r];
        add_delta(e, token, m->layers[h->n_layers - 1].ffn_post_norm);
        m->kernels->rms_norm(e->x + (int64_t)token * h->n_embd, m->output_norm, h->rms_eps,
                             h->n_embd, e->h + (int64_t)r * h->n_embd);
        quantize_token(m->kernels, &a, r, head, 1);
    }
    llm_threads_barrier(e->threads, thread);
    multiply(e, &a, head, 1, thread, h->n_layers * LLM_COUNTERS_PER_LAYER);
    if (h->final_softcap > 0.0F) {
        llm_threads_barrier(e->threads, thread);
        llm_share((int64_t)e->n_out * h->n_vocab, thread, e->n_threads, &begin, &end);
        m->kernels->softcap(e->out_logits + begin, h->final_softcap, end - begin);
    }
}

int32_t llm_n_counters(const llm_model *m) { return m->h.n_layers * LLM_COUNTERS_PER_LAYER + 1; }

void llm_forward(void *exec, int32_t thread, int32_t n_threads) {
    llm_exec *e = exec;
    int64_t begin, end;
    llm_share(e->batch->n_tokens, thread, n_threads, &begin, &end);
    for (int32_t t = (int32_t)begin; t < end; t++) {
        embed(e, t);
        set_angles(e, t);
    }
    for (int32_t i = 0; i < e->m->h.n_layers; i++) {
        forward_attention(e, i, begin, end, thread);
        if (e->stopped) return;
        forward_ffn(e, i, begin, end, thread);
    }
    if (e->n_out) forward_head(e, thread);
}
