/* Attention and KV writes: scalar against a plain double-precision softmax over the stored values;
 * every other instruction set against scalar bit by bit; a row against itself in other tiles;
 * memory that a row must not see filled with NaN; guards, and no byte of another token written. */
#include "kernel_check.h"

#include <math.h>

#include "base/half.h"

enum { T = LLM_BLOCK_TOKENS, N_BLOCKS = 8, MAX_DIM = 1024 };

typedef struct shape {
    int32_t kv_type, dim, group, n_rows, first_pos, window;
    float softcap;
} shape;

/* One sequence of one kv head; block i of the sequence is block table[i] of the pool. */
typedef struct cache {
    uint8_t *pool;
    uint64_t part_bytes;
    int32_t table[N_BLOCKS];
} cache;

static uint64_t part_bytes(int32_t kv_type, int32_t dim) {
    uint64_t n = (uint64_t)T * (uint64_t)dim;
    return kv_type == LLM_KV_Q8_0 ? n + n / 32 * 2 : n * 2;
}

/* A pool of NaN bytes with the tokens 0..n_tokens - 1 written by k. */
static cache make_cache(const llm_kernels *k, int32_t kv_type, int32_t dim, int32_t n_tokens) {
    cache c = {.part_bytes = part_bytes(kv_type, dim)};
    size_t bytes = (size_t)(2 * c.part_bytes * N_BLOCKS);
    c.pool = malloc(bytes);
    if (!c.pool) abort();
    memset(c.pool, 0xff, bytes);
    for (int32_t i = 0; i < N_BLOCKS; i++) c.table[i] = (i * 3 + 2) % N_BLOCKS;
    float kx[MAX_DIM], vx[MAX_DIM];
    for (int32_t t = 0; t < n_tokens; t++) {
        random_floats(kx, dim, 2.0f);
        random_floats(vx, dim, 1.0f);
        uint8_t *block = c.pool + 2 * c.part_bytes * (uint64_t)c.table[t / T];
        k->kv_write(block, block + c.part_bytes, kv_type, dim, t % T, kx, vx);
    }
    return c;
}

static double stored(const cache *c, const shape *s, int32_t token, int32_t d, bool is_v) {
    const uint8_t *part = c->pool + 2 * c->part_bytes * (uint64_t)c->table[token / T];
    if (is_v) part += c->part_bytes;
    int32_t slot = token % T;
    if (s->kv_type == LLM_KV_F16)
        return llm_load_f16(part + 2 * (is_v ? slot * s->dim + d : d * T + slot));
    const double scale = llm_load_f16(part + T * s->dim + 2 * (d / 32 * T + slot));
    return is_v ? (int8_t)part[(slot / 4 * s->dim + d) * 4 + slot % 4] * scale
                : (part[(d / 4 * T + slot) * 4 + d % 4] - 128) * scale;
}

/* 32 values times the Hadamard matrix of 32 / sqrt(32), as five turns. */
static void rotated(const float *x, float *y) {
    float a[32];
    memcpy(a, x, sizeof a);
    for (int turn = 0; turn < 5; turn++) {
        float b[32];
        for (int i = 0; i < 16; i++) {
            b[2 * i] = a[i] + a[i + 16];
            b[2 * i + 1] = a[i] - a[i + 16];
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 32; i++) y[i] = a[i] * 0x1.6a09e6p-3f;
}

/* q as scores of q8_0 see it: 32 values rotated, then rounded to multiples of their largest / 127. */
static void rounded_query(const shape *s, const float *q, double *out) {
    for (int32_t d = 0; d < s->dim; d += 32) {
        float amax = 0, x[32];
        rotated(q + d, x);
        for (int32_t i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[i]));
        for (int32_t i = 0; i < 32; i++)
            out[d + i] = (double)rintf(x[i] * (127.0f / amax)) * (double)(amax / 127.0f);
    }
}

/* Rotated and stored keys give the products of the keys themselves, within what rounding loses. */
static void check_rotation(const llm_kernels *k) {
    enum { DIM = 64 };
    uint8_t kb[T * DIM / 32 * 34], vb[T * DIM / 32 * 34];
    float key[DIM], q[DIM], zero[DIM] = {0};
    double query[DIM], want = 0, got = 0, size = 0;
    random_state = 7;
    random_floats(key, DIM, 2.0f);
    random_floats(q, DIM, 2.0f);
    key[3] = 20.0f; /* an outlier */
    k->kv_write(kb, vb, LLM_KV_Q8_0, DIM, 0, key, zero);
    const shape s = {.kv_type = LLM_KV_Q8_0, .dim = DIM};
    const cache c = {.pool = kb};
    rounded_query(&s, q, query);
    for (int32_t d = 0; d < DIM; d++) {
        want += (double)key[d] * (double)q[d];
        size += fabs((double)key[d] * (double)q[d]);
        got += stored(&c, &s, 0, d, false) * query[d];
    }
    EXPECT(fabs(got - want) <= 0.01 * size, "%s: q . k is %g, not %g", k->isa, got, want);
}

/* The weights of tokens [from, to) of one block for dim d, as outputs of q8_0 see them: rounded to
 * 15 bits relative to the largest weight and the largest scale of V. Returns how much the output may
 * differ because the kernel, in single precision, rounds some of them to the other side. */
static double rounded_weights(const cache *c, const shape *s, int32_t d, int32_t from, int32_t to,
                              const double *weight, double *rounded) {
    double scale[T], most = 0, most_scale = 0, slack = 0;
    for (int32_t t = from; t < to; t++) {
        const uint8_t *part = c->pool + 2 * c->part_bytes * (uint64_t)c->table[t / T];
        part += c->part_bytes + T * s->dim;
        scale[t - from] = llm_load_f16(part + 2 * (d / 32 * T + t % T));
        most = fmax(most, weight[t]);
        most_scale = fmax(most_scale, scale[t - from]);
    }
    for (int32_t t = from; t < to; t++) {
        const double step = most * most_scale / 32767, x = weight[t] * scale[t - from] / step;
        rounded[t] = rint(x) * step / scale[t - from];
        if (fabs(x - floor(x) - 0.5) < 0.05)
            slack += fabs(step * stored(c, s, t, d, true) / scale[t - from]);
    }
    return slack;
}

/* out and how far from it the kernel may be. */
static void reference_row(const cache *c, const shape *s, const float *q, int32_t pos, float scale,
                          double *out, double *slack) {
    double weight[N_BLOCKS * T], rounded[N_BLOCKS * T], query[MAX_DIM], sum = 0, most = -INFINITY;
    const bool q8 = s->kv_type == LLM_KV_Q8_0;
    for (int32_t d = 0; d < s->dim; d++) query[d] = q[d];
    if (q8) rounded_query(s, q, query);
    int32_t first = s->window && pos - s->window + 1 > 0 ? pos - s->window + 1 : 0;
    for (int32_t t = first; t <= pos; t++) {
        double x = 0;
        for (int32_t d = 0; d < s->dim; d++) x += query[d] * stored(c, s, t, d, false);
        x *= scale;
        if (s->softcap != 0) x = s->softcap * tanh(x / s->softcap);
        weight[t] = x;
        if (x > most) most = x;
    }
    for (int32_t t = first; t <= pos; t++) sum += weight[t] = exp(weight[t] - most);
    for (int32_t d = 0; d < s->dim; d++) {
        out[d] = slack[d] = 0;
        for (int32_t t = first, to; q8 && t <= pos; t = to) {
            to = t / T * T + T <= pos ? t / T * T + T : pos + 1;
            slack[d] += rounded_weights(c, s, d, t, to, weight, rounded);
        }
        for (int32_t t = first; t <= pos; t++)
            out[d] += (q8 ? rounded : weight)[t] * stored(c, s, t, d, true);
        out[d] /= sum;
        slack[d] = slack[d] / sum + 4e-6 * (s->dim > 320 ? s->dim / 64 : 1); /* sums in f32 */
    }
}

/* State and result of n rows. */
typedef struct result {
    int64_t n, dim;
    llm_attn_state state;
    float *out;
} result;

static result make_result(int32_t n_rows, int32_t dim) {
    result r = {
        n_rows,
        dim,
        {guarded_floats((int64_t)n_rows * dim), guarded_floats(n_rows), guarded_floats(n_rows)},
        guarded_floats((int64_t)n_rows * dim)};
    return r;
}

static void free_result(result r) {
    guarded_free(r.state.o, r.n * r.dim, "attention o");
    guarded_free(r.state.m, r.n, "attention m");
    guarded_free(r.state.l, r.n, "attention l");
    guarded_free(r.out, r.n * r.dim, "attention_finish");
}

static llm_attn make_attn(const cache *c, const shape *s, float *q) {
    llm_attn a = {.pool = c->pool,
                  .block_bytes = 2 * c->part_bytes,
                  .v_offset = c->part_bytes,
                  .table = c->table,
                  .n_table = N_BLOCKS,
                  .kv_type = s->kv_type,
                  .head_dim = s->dim,
                  .n_group = s->group,
                  .n_rows = s->n_rows,
                  .first_pos = s->first_pos,
                  .window = s->window,
                  .scale = 2.4f / sqrtf((float)s->dim),
                  .softcap = s->softcap};
    for (int32_t r = 0; r < s->n_rows; r++) a.q[r] = q + r * s->dim;
    return a;
}

static void finish(const llm_kernels *k, result *r) {
    float *rows[LLM_ATTN_ROWS];
    for (int64_t i = 0; i < r->n; i++) rows[i] = r->out + i * r->dim;
    k->attention_finish((int32_t)r->n, (int32_t)r->dim, r->state, rows);
}

static result attend(const llm_kernels *k, const llm_attn *a, int32_t begin, int32_t end) {
    result r = make_result(a->n_rows, a->head_dim);
    k->attention(a, begin, end, r.state);
    finish(k, &r);
    return r;
}

static bool same(const result *x, const result *y) {
    size_t n = (size_t)x->n * sizeof(float), nd = n * (size_t)x->dim;
    return !memcmp(x->state.o, y->state.o, nd) && !memcmp(x->state.m, y->state.m, n)
           && !memcmp(x->state.l, y->state.l, n) && !memcmp(x->out, y->out, nd);
}

static bool same_row(const result *x, int64_t xr, const result *y, int64_t yr) {
    size_t n = (size_t)x->dim * sizeof(float);
    return !memcmp(x->state.o + xr * x->dim, y->state.o + yr * x->dim, n)
           && !memcmp(x->state.m + xr, y->state.m + yr, sizeof(float))
           && !memcmp(x->state.l + xr, y->state.l + yr, sizeof(float))
           && !memcmp(x->out + xr * x->dim, y->out + yr * x->dim, n);
}

static int32_t last_pos(const shape *s) { return s->first_pos + (s->n_rows - 1) / s->group; }

#define SHAPE_TEXT "kv %d dim %d group %d rows %d pos %d window %d cap %g"
#define SHAPE_ARGS(s)                                                                              \
    (s)->kv_type, (s)->dim, (s)->group, (s)->n_rows, (s)->first_pos, (s)->window,                  \
        (double)(s)->softcap

static void check_reference(const cache *c, const shape *s, const llm_attn *a, const result *r) {
    double want[MAX_DIM], slack[MAX_DIM];
    for (int32_t row = 0; row < s->n_rows; row++) {
        reference_row(c, s, a->q[row], s->first_pos + row / s->group, a->scale, want, slack);
        for (int32_t d = 0; d < s->dim; d++) {
            double got = r->out[row * s->dim + d];
            EXPECT(fabs(got - want[d]) <= slack[d], SHAPE_TEXT ": row %d dim %d: %g, not %g",
                   SHAPE_ARGS(s), row, d, got, want[d]);
        }
    }
}

/* The same rows one at a time and in smaller tiles whose other rows are NaN. */
static void check_tiles(const llm_kernels *k, const shape *s, const llm_attn *a, const result *r) {
    static float poison[MAX_DIM];
    for (int32_t d = 0; d < MAX_DIM; d++) poison[d] = NAN;
    for (int32_t row = 0; row < s->n_rows; row++) {
        llm_attn one = *a;
        one.n_rows = one.n_group = 1;
        one.first_pos = s->first_pos + row / s->group;
        one.q[0] = a->q[row];
        result x = attend(k, &one, 0, N_BLOCKS);
        EXPECT(same_row(&x, 0, r, row), SHAPE_TEXT ": %s: row %d alone differs", SHAPE_ARGS(s),
               k->isa, row);
        free_result(x);
    }
    const int32_t keep = s->n_rows / 2;
    llm_attn part = *a;
    for (int32_t row = 0; row < s->n_rows; row++)
        if (row != keep) part.q[row] = poison;
    result x = attend(k, &part, 0, N_BLOCKS);
    EXPECT(same_row(&x, keep, r, keep), SHAPE_TEXT ": %s: row %d among NaN rows differs",
           SHAPE_ARGS(s), k->isa, keep);
    free_result(x);
}

/* Blocks out of every row's sight are not read: no table entry, or NaN memory. What is written
 * after a row's token, infinite or not, does not reach it. */
static void check_unseen(const llm_kernels *k, const cache *c, const shape *s, const llm_attn *a,
                         const result *r) {
    llm_attn b = *a;
    int32_t table[N_BLOCKS];
    memcpy(table, c->table, sizeof table);
    b.table = table;
    for (int32_t i = 0; i < N_BLOCKS; i++)
        if (i > last_pos(s) / T || (s->window && (i + 1) * T <= s->first_pos - s->window + 1))
            table[i] = -1;
    result x = attend(k, &b, 0, N_BLOCKS);
    EXPECT(same(&x, r), SHAPE_TEXT ": %s: unseen blocks matter", SHAPE_ARGS(s), k->isa);
    free_result(x);

    const size_t bytes = (size_t)(2 * c->part_bytes * N_BLOCKS);
    uint8_t *pool = malloc(bytes);
    if (!pool) abort();
    memcpy(pool, c->pool, bytes);
    const int32_t pos = s->first_pos + (s->n_rows - 1) / 2 / s->group;
    float big[MAX_DIM];
    for (int32_t d = 0; d < s->dim; d++) big[d] = 1e9f; /* inf in f16, a scale of inf in q8_0 */
    for (int32_t t = pos + 1; t < N_BLOCKS * T; t++) {
        uint8_t *block = pool + 2 * c->part_bytes * (uint64_t)c->table[t / T];
        k->kv_write(block, block + c->part_bytes, s->kv_type, s->dim, t % T, big, big);
    }
    b = *a;
    b.pool = pool;
    x = attend(k, &b, 0, N_BLOCKS);
    for (int32_t row = 0; row < s->n_rows; row++)
        if (s->first_pos + row / s->group <= pos)
            EXPECT(same_row(&x, row, r, row), SHAPE_TEXT ": %s: row %d sees later tokens",
                   SHAPE_ARGS(s), k->isa, row);
    free_result(x);
    free(pool);
}

/* Splits merged in order: the same bits every time, empty parts change nothing. */
static result check_merge(const llm_kernels *k, const shape *s, const llm_attn *a,
                          const result *whole) {
    result into = make_result(s->n_rows, s->dim), again = make_result(s->n_rows, s->dim);
    k->attention(a, 0, 0, into.state);
    k->attention(a, 0, 0, again.state);
    const int32_t bounds[] = {0, 1, 3, 3, N_BLOCKS};
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++) {
            result part = make_result(s->n_rows, s->dim);
            k->attention(a, bounds[i], bounds[i + 1], part.state);
            k->attention_merge(s->n_rows, s->dim, round ? again.state : into.state, part.state);
            free_result(part);
        }
    finish(k, &into);
    finish(k, &again);
    EXPECT(same(&into, &again), SHAPE_TEXT ": %s: merging again differs", SHAPE_ARGS(s), k->isa);
    result one = make_result(s->n_rows, s->dim);
    k->attention(a, 0, 0, one.state);
    k->attention_merge(s->n_rows, s->dim, one.state, whole->state);
    finish(k, &one);
    EXPECT(same(&one, whole), SHAPE_TEXT ": %s: empty merged with a part is not the part",
           SHAPE_ARGS(s), k->isa);
    free_result(one);
    free_result(again);
    return into;
}

static void check_shape(const shape *s) {
    const llm_kernels *scalar = llm_kernels_of("scalar");
    const uint64_t seed = random_state;
    const int32_t n_tokens = last_pos(s) + 1;
    cache c = make_cache(scalar, s->kv_type, s->dim, n_tokens);
    float *q = guarded_floats((int64_t)s->n_rows * s->dim);
    random_floats(q, (int64_t)s->n_rows * s->dim, 2.0f);
    llm_attn a = make_attn(&c, s, q);
    result want = attend(scalar, &a, 0, N_BLOCKS);
    check_reference(&c, s, &a, &want);
    result merged = check_merge(scalar, s, &a, &want);
    check_reference(&c, s, &a, &merged);
    if (s->n_rows <= 8) {
        check_tiles(scalar, s, &a, &want);
        check_unseen(scalar, &c, s, &a, &want);
    }
    const uint64_t after = random_state;
    for (int f = 0; f < N_FAST_ISAS; f++) {
        const llm_kernels *k = llm_kernels_of(fast_isas[f]);
        if (!k) continue;
        random_state = seed;
        cache own = make_cache(k, s->kv_type, s->dim, n_tokens);
        EXPECT(!memcmp(own.pool, c.pool, (size_t)(2 * c.part_bytes * N_BLOCKS)),
               SHAPE_TEXT ": kv_write of %s differs from scalar", SHAPE_ARGS(s), k->isa);
        free(own.pool);
        result r = attend(k, &a, 0, N_BLOCKS);
        EXPECT(same(&r, &want), SHAPE_TEXT ": %s differs from scalar", SHAPE_ARGS(s), k->isa);
        check_tiles(k, s, &a, &r);
        check_unseen(k, &c, s, &a, &r);
        result m = check_merge(k, s, &a, &r);
        EXPECT(same(&m, &merged), SHAPE_TEXT ": merge of %s differs from scalar", SHAPE_ARGS(s),
               k->isa);
        free_result(m);
        free_result(r);
    }
    random_state = after;
    free_result(merged);
    free_result(want);
    guarded_free(q, (int64_t)s->n_rows * s->dim, "a read-only q");
    free(c.pool);
}

/* A vector that q8_0 cannot hold gives NaN, a zero one exact zeros; 65520 is inf in f16. */
static void check_write_edges(const llm_kernels *k) {
    uint8_t kb[T * 34], vb[T * 34], k16[T * 64], v16[T * 64];
    float zero[32] = {0}, x[32] = {0};
    x[5] = NAN;
    k->kv_write(kb, vb, LLM_KV_Q8_0, 32, 7, zero, x);
    EXPECT(llm_load_f16(kb + T * 32 + 14) == 0, "%s: scale of zeros", k->isa);
    EXPECT(isnan(llm_load_f16(vb + T * 32 + 14)), "%s: scale of a NaN vector", k->isa);
    for (int i = 0; i < 32; i++)
        EXPECT(kb[(i / 4 * T + 7) * 4 + i % 4] == 128 && vb[(32 + i) * 4 + 3] == 0,
               "%s: quants of an edge", k->isa);
    x[5] = 65520.0f;
    k->kv_write(k16, v16, LLM_KV_F16, 32, 31, zero, x);
    EXPECT(isinf(llm_load_f16(v16 + 2 * (31 * 32 + 5))), "%s: f16 overflow", k->isa);
}

/* Whether a byte of the K or V part of a block belongs to a token. */
static bool is_of_slot(int32_t kv_type, int32_t dim, bool is_v, int32_t slot, int64_t at) {
    if (kv_type == LLM_KV_F16) return (is_v ? at / 2 / dim : at / 2 % T) == slot;
    if (at >= (int64_t)T * dim) return (at - (int64_t)T * dim) / 2 % T == slot;
    return is_v ? at / 4 / dim * 4 + at % 4 == slot : at / 4 % T == slot;
}

/* A write changes all bytes of its token and no other, inside the block or around it. */
static void check_write_guards(const llm_kernels *k, int32_t kv_type, int32_t dim) {
    const size_t n = (size_t)part_bytes(kv_type, dim);
    float *x[2] = {guarded_floats(dim), guarded_floats(dim)};
    for (int32_t slot = 0; slot < T; slot++) {
        bool changed[2][2] = {{false, false}, {false, false}}; /* [V][other tokens] */
        uint8_t *part[2] = {guarded_bytes(n, 0), guarded_bytes(n, 0)};
        for (int i = 0; i < 2; i++) random_floats(x[i], dim, 2.0f);
        k->kv_write(part[0], part[1], kv_type, dim, slot, x[0], x[1]);
        for (int i = 0; i < 2; i++) {
            for (size_t at = 0; at < n; at++)
                if (part[i][at] != GUARD_VALUE)
                    changed[i][!is_of_slot(kv_type, dim, i, slot, (int64_t)at)] = true;
            guarded_bytes_free(part[i], n, "kv_write");
            EXPECT(changed[i][0] && !changed[i][1], "%s: kv_write of dim %d, type %d, slot %d, %c",
                   k->isa, (int)dim, (int)kv_type, (int)slot, "KV"[i]);
        }
    }
    for (int i = 0; i < 2; i++) guarded_free(x[i], dim, "a read-only key or value");
}

/* Bits of a fixed case: x86 and aarch64, every instruction set. */
static uint64_t checksum(const llm_kernels *k) {
    static const shape shapes[] = {{LLM_KV_F16, 80, 3, 40, 100, 0, 0.0f},
                                   {LLM_KV_Q8_0, 64, 2, 40, 100, 50, 20.0f},
                                   {LLM_KV_F16, 64, 3, 3, 200, 0, 0.0f}};
    uint64_t hash = 0;
    random_state = 20261129;
    for (int i = 0; i < 3; i++) {
        const shape *s = &shapes[i];
        cache c = make_cache(k, s->kv_type, s->dim, last_pos(s) + 1);
        float *q = guarded_floats((int64_t)s->n_rows * s->dim);
        random_floats(q, (int64_t)s->n_rows * s->dim, 2.0f);
        llm_attn a = make_attn(&c, s, q);
        result r = attend(k, &a, 0, 2), part = attend(k, &a, 2, N_BLOCKS);
        k->attention_merge(s->n_rows, s->dim, r.state, part.state);
        finish(k, &r);
        hash = hash_bytes(hash, c.pool, (size_t)(2 * c.part_bytes * N_BLOCKS));
        hash = hash_bytes(hash, r.out, (size_t)(r.n * r.dim) * sizeof(float));
        free_result(r);
        free_result(part);
        guarded_free(q, (int64_t)s->n_rows * s->dim, "a read-only q");
        free(c.pool);
    }
    return hash;
}

int main(void) {
    static const int32_t dims[] = {16, 32, 48, 64, 80, 96, 128, 256, 320};
    const uint64_t known = 0x8dc265fed70e6541;
    if (!llm_kernels_of("scalar")) {
        fprintf(stderr, "no scalar kernels\n");
        return 1;
    }
    for (int kv = 0; kv < 2; kv++)
        for (int i = 0; i < 9; i++) {
            int32_t dim = dims[i];
            if (kv == LLM_KV_Q8_0 && dim % 32) continue;
            for (int32_t group = 1; group <= 8; group++) { /* decode */
                shape s = {kv, dim, group, group, 30 * group + i, 0, group == 3 ? 5.0f : 0.0f};
                check_shape(&s);
            }
            shape more[] = {{kv, dim, 3, 64, 0, 0, 0.0f},   {kv, dim, 1, 64, 120, 40, 0.0f},
                            {kv, dim, 4, 64, 60, 0, 30.0f}, {kv, dim, 1, 23, 90, 7, 0.0f},
                            {kv, dim, 5, 9, 63, 1, 0.0f},   {kv, dim, 2, 37, 64, 64, 0.0f}};
            for (int j = 0; j < 6; j++) check_shape(&more[j]);
        }
    /* Every row count: each split into tiles, each number of blocks in a run; groups that are cut
     * by no power of two, odd windows, some that end inside a run. */
    for (int32_t rows = 1; rows <= LLM_ATTN_ROWS; rows++) {
        const int32_t window = rows % 3 ? rows * 5 % 97 | 1 : 0;
        shape s = {rows % 2, 64, 1 + rows * 7 % 16, rows, 150 + rows % 41, window, 0.0f};
        check_shape(&s);
        s.kv_type = !s.kv_type;
        check_shape(&s);
    }
    uint64_t sum = checksum(llm_kernels_of("scalar"));
    EXPECT(sum == known, "checksum of scalar is 0x%016llx", (unsigned long long)sum);
    check_write_edges(llm_kernels_of("scalar"));
    check_rotation(llm_kernels_of("scalar"));
    for (int f = 0; f < N_FAST_ISAS; f++) {
        const llm_kernels *k = llm_kernels_of(fast_isas[f]);
        if (!k) continue;
        EXPECT(checksum(k) == known, "checksum of %s differs", fast_isas[f]);
        check_write_edges(k);
    }
    for (int f = -1; f < N_FAST_ISAS; f++) {
        const llm_kernels *k = llm_kernels_of(f < 0 ? "scalar" : fast_isas[f]);
        for (int kv = 0; k && kv < 2; kv++)
            for (int i = 0; i < 9; i++)
                if (kv != LLM_KV_Q8_0 || dims[i] % 32 == 0) check_write_guards(k, kv, dims[i]);
    }
    for (int kv = 0; kv < 2; kv++) { /* the widest heads that model/hparams.c admits */
        shape wide[] = {{kv, 1024, 4, 8, 90, 0, 0.0f},
                        {kv, 544, 3, 9, 70, 33, 5.0f},
                        {kv, 512, 2, 64, 0, 0, 30.0f}};
        for (int j = 0; j < 3; j++) check_shape(&wide[j]);
    }
    return n_failed != 0;
}
