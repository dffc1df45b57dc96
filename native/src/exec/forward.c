/* forward.c: one step through the layers, for every architecture.
 *
 * Four barriers a layer, one behind each of
 *   1  norm, quantize | q, k, v | by kv head: rope, K and V into the pool | attention
 *   2  quantize | output projection
 *   3  x += it, norm, quantize | gate, up
 *   4  activation, quantize | down; x += it comes first in phase 1 of the next layer
 * Between products and attention stands none: attention of a kv head awaits the K and V of that head
 * alone, and only the last heads of a layer are still on their way then.
 *
 * Few rows (LLM_FEW_ROWS; decoding): what is cheap and needed by all is done by every thread for
 * itself, in buffers of its own. What is cheap and follows on a product is done behind its rows: of a
 * kv head, or the activation of a block of gate and up.
 *
 * Many rows (prefill): the threads take such work in turns, some rows at a time, and await all of
 * them before the product that reads them: no longer than the last, short runs take. Work is taken
 * in the order of the phases and awaits only what was taken before, so that no thread waits for
 * itself.
 */
#include <math.h>
#include <string.h>

#include "exec/product.h"

/* A thread on its way through a step. */
typedef struct walk {
    llm_exec *e;
    int32_t thread, n_threads; /* of those that take part in the step */
    int32_t n;            /* rows: tokens of the step; in the end only those with logits */
    int32_t first;        /* the first of them: 0, but for parts of the head */
    const int32_t *token; /* of each row once those were left out, else NULL */
    bool few;             /* the thread computes all rows, in its own buffers; else some */
    llm_acts in;          /* inputs of n_embd or of all heads */
    llm_acts ff;          /* inputs of down, quantized behind gate and up */
    const llm_layer *layer;
    const llm_products *down;
} walk;

static void set_rows(walk *w, int32_t n) {
    w->n = n;
    w->few = n <= LLM_FEW_ROWS;
}

/* Rows [begin, end) that a thread works on, {0, 0} before the first. */
typedef struct run {
    int64_t begin, end;
} run;

/* The thread has done the run, if any; its next one. False when nothing is left. */
static bool next_rows(const walk *w, llm_row_turns turns, run *r) {
    int32_t n = (int32_t)(r->end - r->begin);
    if (w->few) {
        *r = (run){0, w->n};
        return n == 0;
    }
    if (n && atomic_fetch_add_explicit(turns.done, n, memory_order_acq_rel) + n == w->n)
        llm_threads_announce(w->e->threads);
    return llm_take_run(turns.next, w->n, w->n_threads, false, &r->begin, &r->end);
}

/* Returns when all rows are done that this thread needs. */
static void await_rows(const walk *w, llm_row_turns turns) {
    if (!w->few) llm_threads_await(w->e->threads, w->thread, turns.done, w->n);
}

static llm_acts place(const float *x, int64_t k, int32_t n, uint8_t *const *memory) {
    llm_acts a = {.x = x, .ldx = k};
    llm_acts_place(&a, LLM_ACT_Q32, n, k, memory[LLM_ACT_Q32]);
    llm_acts_place(&a, LLM_ACT_Q256, n, k, memory[LLM_ACT_Q256]);
    return a;
}

/* The next inputs, of width k: rows in x, or to be written to `in`. */
static float *place_in(walk *w, const float *x, int64_t k) {
    llm_thread_scratch *own = &w->e->scratch[w->thread];
    float *in = w->few ? own->in : w->e->in;
    w->in = place(x ? x : in, k, w->n, w->few ? own->acts : w->e->in_acts);
    return in;
}

static float *x_of(const walk *w, int32_t row) {
    const llm_exec *e = w->e;
    int64_t n_embd = e->m->h.n_embd;
    if (w->few) return e->scratch[w->thread].x + row * n_embd;
    return e->x + (w->token ? w->token[row] : row) * n_embd;
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

static void embed(walk *w, int32_t token) {
    const llm_model *m = w->e->m;
    float *x = x_of(w, token);
    llm_weight_row(&m->token_embd, w->e->batch->tokens[token], x);
    if (m->arch->scale_embedding) m->kernels->scale(x, sqrtf((float)m->h.n_embd), m->h.n_embd);
    if (!w->few) set_angles(w->e, token);
}

/* x: the embedding (first), or x += the output of the last product, through its norm where there is
 * one; then the norm and the quantization of what the next products read. */
static void norm_rows(walk *w, llm_row_turns turns, bool first, const float *post_norm,
                      const float *norm, const llm_products *next) {
    const llm_exec *e = w->e;
    const llm_kernels *k = e->m->kernels;
    int64_t n = e->m->h.n_embd;
    float eps = e->m->h.rms_eps, *in = place_in(w, NULL, n);
    for (run r = {0}; next_rows(w, turns, &r);) {
        for (int32_t row = (int32_t)r.begin; row < r.end; row++) {
            float *x = x_of(w, row), *h = in + row * n;
            const float *delta = e->delta + (w->first + row) * n;
            if (first) {
                embed(w, row);
            } else if (post_norm) {
                k->rms_norm(delta, post_norm, eps, n, h);
                k->add(x, h, n);
            } else {
                k->add(x, delta, n);
            }
            k->rms_norm(x, norm, eps, n, h);
            llm_quantize_row(k, &w->in, row, 0, n, next);
        }
    }
}

/* Row `from` of x, of the thread's own or of everybody's, becomes its own row `to`. */
static void move_x(const walk *w, int32_t to, bool own, int32_t from) {
    const llm_exec *e = w->e;
    int64_t n_embd = e->m->h.n_embd;
    const float *x = own ? e->scratch[w->thread].x : e->x;
    memmove(x_of(w, to), x + from * n_embd, (size_t)n_embd * sizeof(float));
}

/* Leaves only the rows whose logits are asked for. All rows of x are there, and no thread writes
 * one of those that another one reads. */
static void keep_outputs(walk *w) {
    const llm_exec *e = w->e;
    bool few = w->few;
    if (e->n_out == w->n) return;
    set_rows(w, e->n_out);
    w->token = e->out_row;
    for (int32_t row = 0; w->few && row < w->n; row++) { /* ascending, so it may be in place */
        move_x(w, row, few, w->token[row]);
    }
}

/* Leaves only n of the rows with logits, behind those of the last part. few: all of them were. */
static void keep_part(walk *w, bool few, int32_t n) {
    const int32_t *token = w->e->out_row + w->first;
    set_rows(w, n);
    w->token = w->few ? NULL : token;
    for (int32_t row = 0; w->few && row < n; row++) {
        move_x(w, row, few, few ? w->first + row : token[row]);
    }
}

static int32_t rows_of_head(const llm_hparams *h) {
    return (h->n_heads / h->n_kv_heads + 2) * h->head_dim;
}

/* The tokens' q, K and V of a kv head: what attention needs of it. */
static void write_head(walk *w, int32_t head, int32_t begin, int32_t end) {
    llm_exec *e = w->e;
    const llm_hparams *h = &e->m->h;
    int32_t n_group = h->n_heads / h->n_kv_heads;
    for (int32_t token = begin; token < end; token++) {
        for (int32_t i = 0; i < n_group; i++) {
            llm_write_head(e, w->layer, token, head * n_group + i, w->thread);
        }
        llm_write_head(e, w->layer, token, h->n_heads + head, w->thread);
    }
    llm_layer_turns turns = llm_turns_of(e, (int32_t)(w->layer - e->m->layers));
    int32_t n = end - begin, all = rows_of_head(h) + w->n;
    if (atomic_fetch_add(&turns.head_rows[head], n) + n == all) llm_threads_announce(e->threads);
    LLM_PROFILE_WORK(e, w->thread, KV_WRITE);
}

/* Behind the rows of a kv head. Of many tokens they are written by all threads. */
static void finish_head(void *context, int32_t head) {
    walk *w = context;
    LLM_PROFILE_WORK(w->e, w->thread, QKV);
    if (w->few)
        write_head(w, head, 0, w->n);
    else
        llm_threads_announce(w->e->threads);
}

/* Many rows: in pieces of one head, whose tokens share blocks of the pool; of 8 tokens they took ten
 * times as long. */
static void write_heads(walk *w, const llm_layer_turns *turns) {
    llm_exec *e = w->e;
    const llm_hparams *h = &e->m->h;
    const int32_t size = LLM_BLOCK_TOKENS, n_pieces = (w->n + size - 1) / size;
    for (int32_t i; (i = atomic_fetch_add(turns->write, 1)) < n_pieces * h->n_kv_heads;) {
        int32_t head = i / n_pieces, begin = i % n_pieces * size;
        llm_threads_await(e->threads, w->thread, &turns->head_rows[head], rows_of_head(h));
        LLM_PROFILE_WAIT(e, w->thread, QKV);
        write_head(w, head, begin, begin + size < w->n ? begin + size : w->n);
    }
}

void llm_await_head(llm_exec *e, const llm_layer *layer, int32_t kv_head, int32_t thread) {
    llm_layer_turns turns = llm_turns_of(e, (int32_t)(layer - e->m->layers));
    LLM_PROFILE_WORK(e, thread, ATTEND);
    llm_threads_await(e->threads, thread, &turns.head_rows[kv_head],
                      rows_of_head(&e->m->h) + e->batch->n_tokens);
    LLM_PROFILE_WAIT(e, thread, KV_WRITE);
}

/* Up to the attention output of all heads, one barrier behind it. */
static void forward_heads(walk *w, int32_t i, const llm_layer_turns *turns) {
    llm_exec *e = w->e;
    const llm_hparams *h = &e->m->h;
    const llm_layer *l = w->layer;
    const llm_product qkv[] = {
        {&l->q, l->q_bias, e->q, (int64_t)h->head_dim * (h->n_heads / h->n_kv_heads)},
        {&l->k, l->k_bias, e->k, h->head_dim},
        {&l->v, l->v_bias, e->v, h->head_dim}};
    const llm_products products = {.of = qkv, .n = 3, .follow = finish_head, .context = w};
    bool last = i == h->n_layers - 1;
    norm_rows(w, turns->norm, i == 0, i ? e->m->layers[i - 1].ffn_post_norm : NULL, l->attn_norm,
              &products);
    /* Only thread 0 writes the flag, only here; the others read it behind the next barrier. */
    if (w->thread == 0 && e->cancel && *(const volatile int32_t *)e->cancel) e->stopped = true;
    LLM_PROFILE_WORK(e, w->thread, NORM);
    await_rows(w, turns->norm);
    LLM_PROFILE_WAIT(e, w->thread, NORM);
    llm_multiply(e, &w->in, &products, (llm_turns){turns->qkv, turns->head_rows}, w->thread);
    LLM_PROFILE_WORK(e, w->thread, QKV);
    if (!w->few) write_heads(w, turns);
    if (!last || e->n_out) llm_attend(e, l, w->thread, last);
    LLM_PROFILE_WORK(e, w->thread, ATTEND);
    llm_threads_barrier(e->threads, w->thread);
    LLM_PROFILE_WAIT(e, w->thread, ATTEND);
}

static void project_heads(walk *w, const llm_layer_turns *turns) {
    llm_exec *e = w->e;
    const llm_layer *l = w->layer;
    int64_t width = (int64_t)e->m->h.n_heads * e->m->h.head_dim;
    const llm_product out[] = {{&l->o, l->o_bias, e->delta, l->o.n_rows}};
    const llm_products products = {.of = out, .n = 1};
    float *in = place_in(w, w->token ? NULL : e->att, width);
    for (run r = {0}; next_rows(w, turns->quantize, &r);) {
        for (int64_t row = r.begin; row < r.end; row++) {
            if (w->token) {
                const float *from = e->att + w->token[row] * width;
                memcpy(in + row * width, from, (size_t)width * sizeof(float));
            }
            llm_quantize_row(e->m->kernels, &w->in, (int32_t)row, 0, width, &products);
        }
    }
    LLM_PROFILE_WORK(e, w->thread, OUT_QUANTIZE);
    await_rows(w, turns->quantize);
    LLM_PROFILE_WAIT(e, w->thread, OUT_QUANTIZE);
    llm_multiply(e, &w->in, &products, (llm_turns){turns->out, NULL}, w->thread);
    LLM_PROFILE_WORK(e, w->thread, OUT);
    llm_threads_barrier(e->threads, w->thread);
    LLM_PROFILE_WAIT(e, w->thread, OUT);
}

/* Inputs [begin, end) of down, of one row. */
static void activate(walk *w, int32_t row, int64_t begin, int64_t end) {
    const llm_exec *e = w->e;
    const llm_kernels *k = e->m->kernels;
    float *gate = e->gate + row * (int64_t)e->m->h.n_ff + begin;
    const float *up = e->up + row * (int64_t)e->m->h.n_ff + begin;
    if (e->m->arch->activation == LLM_GEGLU)
        k->geglu(gate, up, end - begin, gate);
    else
        k->swiglu(gate, up, end - begin, gate);
    llm_quantize_row(k, &w->ff, row, begin, end, w->down);
}

/* Few rows: behind a block of rows of gate and up. */
static void activate_group(void *context, int32_t group) {
    walk *w = context;
    int64_t n_ff = w->e->m->h.n_ff, begin = (int64_t)group * LLM_FF_GROUP;
    int64_t end = begin + LLM_FF_GROUP < n_ff ? begin + LLM_FF_GROUP : n_ff;
    LLM_PROFILE_WORK(w->e, w->thread, GATE_UP);
    for (int32_t row = 0; row < w->n; row++) activate(w, row, begin, end);
    LLM_PROFILE_WORK(w->e, w->thread, ACTIVATE);
}

/* Many rows: one after another. Behind a block of outputs they would be pieces far apart in memory,
 * which took half as long again. */
static void activate_rows(walk *w, llm_row_turns turns) {
    for (run r = {0}; next_rows(w, turns, &r);) {
        for (int64_t row = r.begin; row < r.end; row++)
            activate(w, (int32_t)row, 0, w->e->m->h.n_ff);
    }
    LLM_PROFILE_WORK(w->e, w->thread, ACTIVATE);
    await_rows(w, turns);
    LLM_PROFILE_WAIT(w->e, w->thread, ACTIVATE);
}

static void forward_ffn(walk *w, const llm_layer_turns *turns) {
    llm_exec *e = w->e;
    const llm_hparams *h = &e->m->h;
    const llm_layer *l = w->layer;
    const llm_product gate_up[] = {{&l->gate, l->gate_bias, e->gate, LLM_FF_GROUP},
                                   {&l->up, l->up_bias, e->up, LLM_FF_GROUP}};
    const llm_products products = {
        .of = gate_up, .n = 2, .follow = w->few ? activate_group : NULL, .context = w};
    const llm_product down[] = {{&l->down, l->down_bias, e->delta, l->down.n_rows}};
    const llm_products next = {.of = down, .n = 1};
    norm_rows(w, turns->ffn_norm, false, l->attn_post_norm, l->ffn_norm, &products);
    LLM_PROFILE_WORK(e, w->thread, FFN_NORM);
    await_rows(w, turns->ffn_norm);
    LLM_PROFILE_WAIT(e, w->thread, FFN_NORM);
    w->ff = place(e->gate, h->n_ff, w->n, e->ff_acts);
    w->down = &next;
    llm_multiply(e, &w->in, &products, (llm_turns){turns->gate_up, turns->ff_rows}, w->thread);
    LLM_PROFILE_WORK(e, w->thread, GATE_UP);
    llm_threads_barrier(e->threads, w->thread);
    LLM_PROFILE_WAIT(e, w->thread, GATE_UP);
    if (!w->few) activate_rows(w, turns->activate);
    llm_multiply(e, &w->ff, &next, (llm_turns){turns->down, NULL}, w->thread);
    LLM_PROFILE_WORK(e, w->thread, DOWN);
    llm_threads_barrier(e->threads, w->thread);
    LLM_PROFILE_WAIT(e, w->thread, DOWN);
}

/* The logits of the walk's rows; nobody waits for the last of them. */
static void multiply_head(walk *w) {
    llm_exec *e = w->e;
    const llm_model *m = e->m;
    const llm_product head[] = {{&m->output, m->output_bias, e->out_logits, m->output.n_rows}};
    const llm_products products = {.of = head, .n = 1};
    llm_layer_turns turns = llm_turns_of(e, m->h.n_layers);
    const float *post_norm = m->layers[m->h.n_layers - 1].ffn_post_norm;
    norm_rows(w, turns.norm, false, post_norm, m->output_norm, &products);
    await_rows(w, turns.norm);
    llm_multiply(e, &w->in, &products, (llm_turns){turns.out, NULL}, w->thread);
    if (m->h.final_softcap > 0.0F) {
        int64_t begin, end;
        llm_threads_barrier(e->threads, w->thread);
        llm_share((int64_t)w->n * m->h.n_vocab, w->thread, w->n_threads, &begin, &end);
        m->kernels->softcap(e->out_logits + begin, m->h.final_softcap, end - begin);
    }
    LLM_PROFILE_WORK(e, w->thread, HEAD);
}

/* More rows of logits than there is memory for come in parts, and go before the next part comes.
 * The last part is left to the caller. */
static void forward_head(walk *w) {
    llm_exec *e = w->e;
    int32_t left = w->n;
    bool few = w->few;
    for (; left > e->part_rows; left -= e->part_rows) {
        keep_part(w, few, e->part_rows);
        multiply_head(w);
        llm_threads_barrier(e->threads, w->thread);
        if (w->thread == 0) {
            llm_layer_turns turns = llm_turns_of(e, e->m->h.n_layers);
            atomic_store(turns.out, 0);
            atomic_store(turns.norm.next, 0);
            atomic_store(turns.norm.done, 0);
            llm_take_rows(e, w->first, w->n);
        }
        llm_threads_barrier(e->threads, w->thread);
        w->first += e->part_rows;
    }
    if (w->first) keep_part(w, few, left);
    multiply_head(w);
}

void llm_forward(void *exec, int32_t thread, int32_t n_threads) {
    llm_exec *e = exec;
    walk w = {.e = e, .thread = thread, .n_threads = n_threads};
    int32_t n_layers = e->m->h.n_layers;
    LLM_PROFILE_BEGIN(e, thread);
    set_rows(&w, e->batch->n_tokens);
    /* Few rows rotate a head before the first barrier of a layer. By the one more that this takes, the
     * pool also tells their steps from those of many (turnout.h). */
    if (w.few) {
        int64_t begin, end;
        llm_share(w.n, thread, n_threads, &begin, &end);
        for (int32_t t = (int32_t)begin; t < end; t++) set_angles(e, t);
        LLM_PROFILE_WORK(e, thread, ANGLES);
        llm_threads_barrier(e->threads, thread);
        LLM_PROFILE_WAIT(e, thread, ANGLES);
    }
    for (int32_t i = 0; i < n_layers; i++) {
        llm_layer_turns turns = llm_turns_of(e, i);
        w.layer = &e->m->layers[i];
        forward_heads(&w, i, &turns);
        if (e->stopped) return;
        if (i == n_layers - 1) keep_outputs(&w);
        if (!w.n) return;
        project_heads(&w, &turns);
        forward_ffn(&w, &turns);
    }
    forward_head(&w);
}
