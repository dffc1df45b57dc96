/* matmul_q256.c: weights with blocks of 256 against activations with one scale per 256.
 *
 * Per output and block, blocks ascending:
 *   dot_g = sum of (q - z) * a over group g, an exact integer
 *   t = fma((float)s_g, (float)dot_g, t), groups ascending from t = 0
 *   acc = fma(d_w * d_a, t, acc)
 *   acc = fma(-dmin_w * d_a, (float)sum of m_g * sum_g(a), acc)      for types with mins
 */
#include "backend/cpu/tile.h"

/* -z * (sum of a over group g) */
LLM_INLINE vi start256(const llm_unpacking *u, const llm_act256 *a, int g) {
    return u->zero == 32    ? vi_set1(a->neg32[g])
           : u->zero == 4   ? vi_set1(a->neg32[g] / 8)
           : u->zero == 128 ? vi_set1((a->neg32[2 * g] + a->neg32[2 * g + 1]) * 4)
                            : vi_set1(0);
}

LLM_INLINE vf finish256(const llm_unpacking *u, const llm_scales *sc, const llm_act256 *a, vf sum,
                        vf acc) {
    vf da = vf_set1(a->d);
    acc = vf_fma(vf_mul(vf_load(sc->d), da), sum, acc);
    if (u->mins) {
        vi s = vi_set1(0);
        const int16_t *sums = u->group == 16 ? a->sum : a->sum32;
        LLM_UNROLL
        for (int i = 0; i < 128 / u->group; i++)
            s = vi_dot_s16(s, vi_load(sc->mins[i]), sums + 2 * i);
        acc = vf_fma(vf_mul(vf_load(sc->dmin_negated), da), vi_to_f(s), acc);
    }
    return acc;
}

static inline void unpack_scales(const llm_unpacking *u, int32_t type, const uint8_t *block,
                                 llm_scales *s) {
    const uint8_t *side = block + llm_u8_at(u->layout, 0);
    vf_store(s->d, unpack_u16(u, block, 0));
    if (u->mins) vf_store(s->dmin_negated, vf_neg(unpack_u16(u, block, 1)));
    if (type == LLM_Q2_K) unpack_scales_q2_k(side, s);
    if (type == LLM_Q3_K) unpack_scales_q3_k(side, s);
    if (type == LLM_Q4_K || type == LLM_Q5_K) unpack_scales_q45_k(side, s);
    if (type == LLM_Q6_K) unpack_scales_q6_k(side, s);
    if (type == LLM_IQ4_XS) {
        const uint8_t *high = block + llm_u16_at(u->layout, 1);
        unpack_scales_iq4_xs((const uint16_t *)(const void *)high, side, s);
    }
}

typedef void (*llm_scale_reader)(const uint8_t *block, llm_scales *s);

#ifdef LLM_QUADS
#include "backend/cpu/neon/quads_q256.h" /* few256, many256 */
#else

LLM_INLINE void starts256(const llm_unpacking *u, vi *s, int g, const llm_act256 *a, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) s[t] = start256(u, a + t, g);
}

LLM_INLINE void add_group256(vf scale, const vi *s, vf *sum, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) sum[t] = vf_fma(scale, vi_to_f(s[t]), sum[t]);
}

/* Panels [first, last) of the job: as many streams of weights, which memory serves better than one.
 * Each reads a superblock in turn and asks for its next one. */
LLM_INLINE void few256(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job,
                       int32_t first, int32_t last, const int n) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    const int bytes = 16 * u->layout->bytes, per = 32 / u->group;
    llm_scales *sc = &s->unpacked[0].scales;
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        const int8_t *q = x->q[LLM_ACT_Q256] + sb * 256 * n;
        const llm_act256 *a = x->a256 + sb * n;
        for (int32_t i = first; i < last; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 256);
            vf sum[LLM_FUSED];
            LLM_UNROLL
            for (int t = 0; t < n; t++) sum[t] = vf_zero();
            read(p, sc);
            for (int c = 0; c < 8; c++) {
                for (int at = 0; at < bytes / 8; at += 64)
                    vb_prefetch(p + bytes + bytes / 8 * c + at);
                vb w[8];
                unpack_chunk(u, p, c, w);
                LLM_UNROLL
                for (int h = 0; h < per; h++) {
                    vi dot[LLM_FUSED];
                    starts256(u, dot, per * c + h, a, n);
                    LLM_UNROLL
                    for (int g = 8 / per * h; g < 8 / per * (h + 1); g++)
                        dot_tokens(u, dot, w[g], q + 32 * c + 4 * g, n);
                    add_group256(vf_load(sc->scale[per * c + h]), dot, sum, n);
                }
            }
            LLM_UNROLL
            for (int t = 0; t < n; t++) {
                float *y = s->sums[i][t];
                vf_store(y, finish256(u, sc, a + t, sum[t], sb ? vf_load(y) : vf_zero()));
            }
        }
    }
}

LLM_INLINE void unpack256(const llm_unpacking *u, llm_scale_reader read, const uint8_t *p,
                          bool centred, llm_unpacked *s) {
    const int bytes = 2 * u->layout->bytes; /* of a chunk, about */
    read(p, &s->scales);
    for (int c = 0; c < 8; c++) {
        for (int at = 0; at < bytes; at += 64) vb_prefetch(p + bytes * c + at + LLM_AHEAD);
        unpack_to(u, p, c, centred, s->w + 512 * c);
    }
}

/* A superblock with n tokens. */
LLM_INLINE void tile256(const llm_unpacking *u, const llm_unpacked *s, const int8_t *q,
                        const llm_act256 *a, float (*sums)[16], const int n) {
    vf sum[LLM_TILE];
    const int per = 32 / u->group;
    LLM_UNROLL
    for (int t = 0; t < n; t++) sum[t] = vf_zero();
    for (int g = 0; g < 8 * per; g++) {
        vi dot[LLM_TILE];
        starts256(u, dot, g, a, n);
        LLM_UNROLL
        for (int i = 0; i < 8 / per; i++) {
            int k = 8 / per * g + i;
            dot_tokens(u, dot, vb_load(s->w + 64 * k), q + 4 * k, n);
        }
        add_group256(vf_load(s->scales.scale[g]), dot, sum, n);
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++)
        vf_store(sums[t], finish256(u, &s->scales, a + t, sum[t], vf_load(sums[t])));
}

#ifdef LLM_TILES

LLM_INLINE void add_dots256(vf scale, int32_t (*dots)[16], vf *sum) {
    LLM_UNROLL
    for (int t = 0; t < LLM_TILES; t++) {
        vi dot = vi_load(dots[t]);
        add_group256(scale, &dot, sum + t, 1);
    }
}

/* The same with 16 tokens on AMX tiles. The product of a group is begun two groups ahead and
 * stored one group ahead of its sum, so that nobody waits: the call before begins our first two
 * (see cut_fill), and we those of the next call, at w_next and q_next. */
LLM_INLINE void amx256(const llm_unpacking *u, const llm_unpacked *s, const int8_t *q,
                       const llm_act256 *a, float (*sums)[16], const uint8_t *w_next,
                       const int8_t *q_next, int32_t (*dots)[LLM_TILES][16]) {
    const int n_groups = 256 / u->group;
    vf sum[LLM_TILES];
    LLM_UNROLL
    for (int t = 0; t < LLM_TILES; t++) sum[t] = vf_zero();
    for (int g = 0; g < n_groups; g += 2) {
        const uint8_t *w_ahead = g + 2 < n_groups ? s->w + 16 * u->group * (g + 2) : w_next;
        const int8_t *q_ahead = g + 2 < n_groups ? q + u->group * (g + 2) : q_next;
        tiles_dot(0, w_ahead, q_ahead);
        tiles_store(1, dots[1]);
        add_dots256(vf_load(s->scales.scale[g]), dots[0], sum);
        tiles_dot(1, w_ahead + 16 * u->group, q_ahead + u->group);
        tiles_store(0, dots[0]);
        add_dots256(vf_load(s->scales.scale[g + 1]), dots[1], sum);
    }
    LLM_UNROLL
    for (int t = 0; t < LLM_TILES; t++)
        vf_store(sums[t], finish256(u, &s->scales, a + t, sum[t], vf_load(sums[t])));
}

/* Up to 16 tokens on AMX tiles: all dots of a superblock, then the sums, token by token. The next
 * superblock is unpacked between the two, so that nobody waits for the tiles. */
LLM_INLINE void few_tiles256(const llm_unpacking *u, llm_scale_reader read,
                             const llm_panel_job *job, int32_t i) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    float (*sums)[16] = s->sums[0];
    for (int32_t t = 0; t < x->n; t++) vf_store(sums[t], vf_zero());
    int64_t n_sb = job->w->n_cols / 256;
    unpack256(u, read, panel_superblock(job, i, 0, 256), true, s->unpacked);
    for (int64_t sb = 0; sb < n_sb; sb++) {
        const llm_unpacked *now = s->unpacked + sb % 2;
        const int8_t *q = x->q[LLM_ACT_Q256] + 256 * sb * x->n;
        const llm_act256 *a = x->a256 + sb * x->n;
        for (int g = 0; g < 8; g += 2) {
            tiles_dot(0, now->w + 512 * g, q + 32 * g);
            tiles_dot(1, now->w + 512 * (g + 1), q + 32 * (g + 1));
            tiles_store(0, s->dots[g]);
            tiles_store(1, s->dots[g + 1]);
        }
        if (sb + 1 < n_sb)
            unpack256(u, read, panel_superblock(job, i, sb + 1, 256), true,
                      s->unpacked + (sb + 1) % 2);
        for (int32_t t = 0; t < x->n; t++) {
            vf sum = vf_zero();
            LLM_UNROLL
            for (int g = 0; g < 8; g++) {
                vi dot = vi_load(s->dots[g][t]);
                add_group256(vf_load(now->scales.scale[g]), &dot, &sum, 1);
            }
            vf_store(sums[t], finish256(u, &now->scales, a + t, sum, vf_load(sums[t])));
        }
    }
    for (int32_t t = 0; t < x->n; t++) store_rows(job, i, t, vf_load(sums[t]));
}

#endif

/* Whether the job was done that way. Groups of 16 inputs take twice the stores, which eat the gain. */
LLM_INLINE bool on_few_tiles256(const llm_unpacking *u, llm_scale_reader read,
                                const llm_panel_job *job) {
#ifdef LLM_TILES
    if (job->x->n <= LLM_FUSED || job->x->n > LLM_TILES || u->group != 32) return false;
    tiles_open(32, job->x->n);
    for (int32_t i = 0; i < job->n_panels; i++) few_tiles256(u, read, job, i);
    tiles_close();
    return true;
#else
    (void)u, (void)read, (void)job;
    return false;
#endif
}

/* The unpacked superblock sb of the job's panels with its tokens. */
LLM_INLINE void walk256(const llm_unpacking *u, const llm_panel_job *job, int64_t sb, llm_cut cut) {
    const int32_t first = job->first, end = job->end;
    llm_scratch *s = scratch_of(job);
    const int8_t *q = job->x->q[LLM_ACT_Q256] + 256 * sb * job->x->n;
    const llm_act256 *a = job->x->a256 + sb * job->x->n;
    llm_token_tile t = tile_at(first, end, 0, cut);
    cut_fill(cut, u->group, s, q + 256 * t.first);
    for (int32_t at = first; at < end; at = t.first + t.n) {
        if (at > first) t = tile_after(t, end, cut);
        const int8_t *q_next = q + 256 * tile_after(t, end, cut).first;
        for (int32_t i = 0; i < job->n_panels; i++) {
            if (cut.whole) { /* VNNI code has no load slots to spare */
                prefetch_part(q + 256 * (t.first + t.n), 256 * t.n, i, job->n_panels);
                prefetch_part(a + t.first + t.n, (int64_t)sizeof *a * t.n, i, job->n_panels);
            }
#ifdef LLM_TILES
            if (cut.whole) {
                bool more = i + 1 < job->n_panels;
                amx256(u, &s->unpacked[i], q + 256 * t.first, a + t.first, s->sums[i] + t.row,
                       s->unpacked[more ? i + 1 : 0].w, more ? q + 256 * t.first : q_next, s->dots);
                continue;
            }
#endif
            (void)q_next;
            LLM_TILE_SWITCH(t.n, tile256, u, &s->unpacked[i], q + 256 * t.first, a + t.first,
                            s->sums[i] + t.row)
        }
    }
}

LLM_INLINE void many256(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job) {
    const llm_cut cut = cut_begin(job, u->group);
    clear_sums(job, job->end - job->first + LLM_MOST_TOKENS);
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        for (int32_t i = 0; i < job->n_panels; i++)
            unpack256(u, read, panel_superblock(job, i, sb, 256), cut.whole,
                      &scratch_of(job)->unpacked[i]);
        walk256(u, job, sb, cut);
    }
    store_tiles(job, cut);
    cut_end(cut);
}

#endif /* LLM_QUADS */

#define TYPE(name, type, zero, book, mins, group)                                                  \
    static const llm_unpacking unpacking_##name = {&llm_layout_##name, zero, book, mins, group};   \
    LLM_OUTLINE void scales_##name(const uint8_t *block, llm_scales *s) {                          \
        unpack_scales(&unpacking_##name, type, block, s);                                          \
    }                                                                                              \
    static void panels_##name(const llm_panel_job *job) {                                          \
        const llm_unpacking *u = &unpacking_##name;                                                \
        if (on_few_tiles256(u, scales_##name, job)) return;                                        \
        if (job->x->n > LLM_FUSED)                                                                 \
            many256(u, scales_##name, job);                                                        \
        else {                                                                                     \
            for (int32_t i = 0, end; i < job->n_panels; i = end) {                                 \
                end = i + LLM_STREAMS < job->n_panels ? i + LLM_STREAMS : job->n_panels;           \
                LLM_FUSED_SWITCH(job->x->n, few256, u, scales_##name, job, i, end)                 \
            }                                                                                      \
            store_strip(job, 0, job->x->n);                                                        \
        }                                                                                          \
    }

TYPE(q2_k, LLM_Q2_K, 0, LLM_BOOK_NONE, true, 16)
TYPE(q3_k, LLM_Q3_K, 4, LLM_BOOK_NONE, false, 16)
TYPE(q4_k, LLM_Q4_K, 0, LLM_BOOK_NONE, true, 32)
TYPE(q5_k, LLM_Q5_K, 0, LLM_BOOK_NONE, true, 32)
TYPE(q6_k, LLM_Q6_K, 32, LLM_BOOK_NONE, false, 16)
TYPE(iq4_xs, LLM_IQ4_XS, 128, LLM_BOOK_IQ4, false, 32)

void LLM_FN(panels_q256)(const llm_panel_job *job) {
    switch (job->w->format->type) {
    case LLM_Q2_K: panels_q2_k(job); break;
    case LLM_Q3_K: panels_q3_k(job); break;
    case LLM_Q4_K: panels_q4_k(job); break;
    case LLM_Q5_K: panels_q5_k(job); break;
    case LLM_Q6_K: panels_q6_k(job); break;
    case LLM_IQ4_XS: panels_iq4_xs(job); break;
    }
}
