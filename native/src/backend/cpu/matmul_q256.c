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

LLM_INLINE void starts256(const llm_unpacking *u, vi *s, int g, const llm_act256 *a, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) s[t] = start256(u, a + t, g);
}

LLM_INLINE void add_group256(vf scale, const vi *s, vf *sum, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) sum[t] = vf_fma(scale, vi_to_f(s[t]), sum[t]);
}

LLM_INLINE vf finish256(const llm_unpacking *u, const llm_scales *sc, const llm_act256 *a, vf sum,
                        vf acc) {
    vf da = vf_set1(a->d);
    acc = vf_fma(vf_mul(vf_load(sc->d), da), sum, acc);
    if (u->mins) {
        vi s = vi_set1(0);
        LLM_UNROLL
        for (int c = 0; c < 8; c++) s = vi_dot_s16(s, vi_load(sc->mins[c]), a->sum + 2 * c);
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

LLM_INLINE void few256(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job,
                       int32_t i, const int n) {
    const llm_acts *x = job->x;
    const int bytes = 16 * u->layout->bytes, per = 32 / u->group;
    llm_scales *sc = &scratch_of(job)->unpacked[0].scales;
    vf acc[LLM_FUSED];
    LLM_UNROLL
    for (int t = 0; t < n; t++) acc[t] = vf_zero();
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        const uint8_t *p = panel_superblock(job, i, sb, 256);
        const int8_t *q = x->q[LLM_ACT_Q256] + sb * 256 * n;
        const llm_act256 *a = x->a256 + sb * n;
        vf sum[LLM_FUSED];
        LLM_UNROLL
        for (int t = 0; t < n; t++) sum[t] = vf_zero();
        read(p, sc);
        for (int c = 0; c < 8; c++) {
            for (int at = 0; at < bytes / 8; at += 64)
                vb_prefetch(p + bytes / 8 * c + at + LLM_AHEAD);
            vb w[8];
            unpack_chunk(u, p, c, w);
            LLM_UNROLL
            for (int h = 0; h < per; h++) {
                vi s[LLM_FUSED];
                starts256(u, s, per * c + h, a, n);
                LLM_UNROLL
                for (int g = 8 / per * h; g < 8 / per * (h + 1); g++)
                    dot_tokens(u, s, w[g], q + 32 * c + 4 * g, n);
                add_group256(vf_load(sc->scale[per * c + h]), s, sum, n);
            }
        }
        LLM_UNROLL
        for (int t = 0; t < n; t++) acc[t] = finish256(u, sc, a + t, sum[t], acc[t]);
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++) store_rows(job, i, t, acc[t]);
}

LLM_INLINE void unpack256(const llm_unpacking *u, llm_scale_reader read, const uint8_t *p,
                          bool centred, llm_unpacked *s) {
    const int bytes = 2 * u->layout->bytes; /* of a chunk, about */
    read(p, &s->scales);
    if (u->mins && u->group == 32) {
        for (int c = 0; c < 4; c++)
            for (int r = 0; r < 16; r++)
                s->min_pairs[c][r] =
                    (s->scales.mins[2 * c][r] & 0xffff) | s->scales.mins[2 * c + 1][r] << 16;
    }
    for (int c = 0; c < 8; c++) {
        for (int at = 0; at < bytes; at += 64) vb_prefetch(p + bytes * c + at + LLM_AHEAD);
        unpack_to(u, p, c, centred, s->w + 512 * c);
    }
}

/* finish256, with half the dot products where a min spans 32 inputs. */
LLM_INLINE vf finish_pairs256(const llm_unpacking *u, const llm_unpacked *s, const llm_act256 *a,
                              const int16_t *sums32, vf sum, vf acc) {
    if (!u->mins || u->group == 16) return finish256(u, &s->scales, a, sum, acc);
    vf da = vf_set1(a->d);
    acc = vf_fma(vf_mul(vf_load(s->scales.d), da), sum, acc);
    vi m = vi_set1(0);
    LLM_UNROLL
    for (int c = 0; c < 4; c++) m = vi_dot_s16(m, vi_load(s->min_pairs[c]), sums32 + 2 * c);
    return vf_fma(vf_mul(vf_load(s->scales.dmin_negated), da), vi_to_f(m), acc);
}

/* Sums of 32 activations of a tile's tokens. */
LLM_INLINE void sums32_of(const llm_unpacking *u, const llm_act256 *a, int32_t n,
                          int16_t (*to)[8]) {
    if (!u->mins || u->group == 16) return;
    for (int32_t t = 0; t < n; t++)
        for (int c = 0; c < 8; c++) to[t][c] = (int16_t)(a[t].sum[2 * c] + a[t].sum[2 * c + 1]);
}

/* A superblock with n tokens. */
LLM_INLINE void tile256(const llm_unpacking *u, const llm_unpacked *s, const int8_t *q,
                        const llm_act256 *a, const int16_t (*sums32)[8], float (*sums)[16],
                        const int n) {
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
        vf_store(sums[t], finish_pairs256(u, s, a + t, sums32[t], sum[t], vf_load(sums[t])));
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
                       const llm_act256 *a, const int16_t (*sums32)[8], float (*sums)[16],
                       const uint8_t *w_next, const int8_t *q_next,
                       int32_t (*dots)[LLM_TILES][16]) {
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
        vf_store(sums[t], finish_pairs256(u, s, a + t, sums32[t], sum[t], vf_load(sums[t])));
}

#endif

/* The unpacked superblock sb of the job's panels with tokens [first, end). */
LLM_INLINE void walk256(const llm_unpacking *u, const llm_panel_job *job, int64_t sb, int32_t first,
                        int32_t end, llm_cut cut) {
    llm_scratch *s = scratch_of(job);
    const int8_t *q = job->x->q[LLM_ACT_Q256] + 256 * sb * job->x->n;
    const llm_act256 *a = job->x->a256 + sb * job->x->n;
    llm_token_tile t = tile_at(first, end, 0, cut);
    cut_fill(cut, u->group, s, q + 256 * t.first);
    for (int32_t at = first; at < end; at = t.first + t.n) {
        if (at > first) t = tile_after(t, end, cut);
        const int8_t *q_next = q + 256 * tile_after(t, end, cut).first;
        const int16_t (*sums32)[8] = (const int16_t (*)[8])s->sums32;
        sums32_of(u, a + t.first, t.n, s->sums32);
        for (int32_t i = 0; i < job->n_panels; i++) {
            if (cut.whole) { /* VNNI code has no load slots to spare */
                prefetch_part(q + 256 * (t.first + t.n), 256 * t.n, i, job->n_panels);
                prefetch_part(a + t.first + t.n, (int64_t)sizeof *a * t.n, i, job->n_panels);
            }
#ifdef LLM_TILES
            if (cut.whole) {
                bool more = i + 1 < job->n_panels;
                amx256(u, &s->unpacked[i], q + 256 * t.first, a + t.first, sums32,
                       s->sums[i] + t.row, s->unpacked[more ? i + 1 : 0].w,
                       more ? q + 256 * t.first : q_next, s->dots);
                continue;
            }
#endif
            (void)q_next;
            LLM_TILE_SWITCH(t.n, tile256, u, &s->unpacked[i], q + 256 * t.first, a + t.first,
                            sums32, s->sums[i] + t.row)
        }
    }
}

LLM_INLINE void many256(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job) {
    const llm_cut cut = cut_begin(job, u->group);
    for (int32_t first = 0, end; first < job->x->n; first = end) {
        end = job->x->n - first < LLM_STRIP ? job->x->n : first + LLM_STRIP;
        clear_sums(job, end - first + LLM_MOST_TOKENS);
        for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
            for (int32_t i = 0; i < job->n_panels; i++)
                unpack256(u, read, panel_superblock(job, i, sb, 256), cut.whole,
                          &scratch_of(job)->unpacked[i]);
            walk256(u, job, sb, first, end, cut);
        }
        store_tiles(job, first, end, cut);
    }
    cut_end(cut);
}

#define TYPE(name, type, zero, book, mins, group)                                                  \
    static const llm_unpacking unpacking_##name = {&llm_layout_##name, zero, book, mins, group};   \
    LLM_OUTLINE void scales_##name(const uint8_t *block, llm_scales *s) {                          \
        unpack_scales(&unpacking_##name, type, block, s);                                          \
    }                                                                                              \
    static void panels_##name(const llm_panel_job *job) {                                          \
        const llm_unpacking *u = &unpacking_##name;                                                \
        if (job->x->n > LLM_FUSED)                                                                 \
            many256(u, scales_##name, job);                                                        \
        else                                                                                       \
            for (int32_t i = 0; i < job->n_panels; i++)                                            \
                LLM_FUSED_SWITCH(job->x->n, few256, u, scales_##name, job, i)                      \
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
