/* matmul_q256.c: weights with blocks of 256 against activations with one scale per 256.
 *
 * Per output and block, blocks ascending:
 *   dot_g = sum of (q - z) * a over group g, an exact integer
 *   t = fma((float)s_g, (float)dot_g, t), groups ascending from t = 0
 *   acc = fma(d_w * d_a, t, acc)
 *   acc = fma(-dmin_w * d_a, (float)sum of m_g * sum_g(a), acc)      for types with mins
 */
#include "backend/cpu/few_tiles.h"

/* -z * (sum of a over group g) */
LLM_INLINE vi start256(const llm_unpacking *u, const llm_act256 *a, int g) {
    return u->zero == 32    ? vi_set1(a->neg32[g])
           : u->zero == 4   ? vi_set1(a->neg32[g] / 8)
           : u->zero == 128 ? vi_set1((a->neg32[2 * g] + a->neg32[2 * g + 1]) * 4)
                            : vi_set1(0);
}

/* What turns the sum over a block's groups into outputs: in registers, but for the mins where there
 * are only 16 of them. */
typedef struct llm_ends256 {
    vf d, dmin_negated;
#ifdef LLM_FEW_REGISTERS
    const int32_t (*mins)[16];
#else
    vi mins[8];
#endif
} llm_ends256;

LLM_INLINE llm_ends256 ends256(const llm_unpacking *u, const llm_scales *sc) {
    llm_ends256 e = {.d = vf_load(sc->d)};
    if (u->mins) {
        e.dmin_negated = vf_load(sc->dmin_negated);
#ifdef LLM_FEW_REGISTERS
        e.mins = sc->mins;
#else
        LLM_UNROLL
        for (int i = 0; i < 128 / u->group; i++) e.mins[i] = vi_load(sc->mins[i]);
#endif
    }
    return e;
}

LLM_INLINE vi end_mins(const llm_ends256 *e, int i) {
#ifdef LLM_FEW_REGISTERS
    return vi_load(e->mins[i]);
#else
    return e->mins[i];
#endif
}

LLM_INLINE vf finish256(const llm_unpacking *u, const llm_ends256 *e, const llm_act256 *a, vf sum,
                        vf acc) {
    vf da = vf_set1(a->d);
    acc = vf_fma(vf_mul(e->d, da), sum, acc);
    if (u->mins) {
        vi s = vi_set1(0);
        const int16_t *sums = u->group == 16 ? a->sum : a->sum32;
        LLM_UNROLL
        for (int i = 0; i < 128 / u->group; i++) s = vi_dot_s16(s, end_mins(e, i), sums + 2 * i);
        acc = vf_fma(vf_mul(e->dmin_negated, da), vi_to_f(s), acc);
    }
    return acc;
}

/* Apart from the decoding: gcc would pass the bytes on in registers, by a form of vmovq that valgrind
 * does not know, and code_limits.py counts with valgrind. */
LLM_OUTLINE void widen_scales(const int8_t *scale, int n_groups, llm_scales *s) {
    for (int g = 0; g < n_groups; g++) vf_store(s->scale[g], vf_load_s8(scale + 16 * g));
}

LLM_INLINE void unpack_scales(const llm_unpacking *u, int32_t type, const uint8_t *block,
                              llm_scales *s) {
    widen_scales(decode_scales(u, type, block, s), 256 / u->group, s);
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
 * Each reads a superblock in turn. */
LLM_INLINE void few256(const llm_unpacking *u, int32_t type, const llm_panel_job *job,
                       int32_t first, int32_t last, const int n) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    const int bytes = 16 * u->layout->bytes, per = 32 / u->group;
    llm_scales *sc = &s->unpacked[0].scales;
    const int64_t n_sb = job->w->n_cols / 256;
    for (int64_t sb = 0; sb < n_sb; sb++) {
        const int8_t *q = x->q[LLM_ACT_Q256] + sb * 256 * n;
        const llm_act256 *a = x->a256 + sb * n;
        for (int32_t i = first; i < last; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 256);
            const uint8_t *far = far_of(job, p, sb * bytes, n_sb * bytes);
            vf sum[LLM_FUSED];
            LLM_UNROLL
            for (int t = 0; t < n; t++) sum[t] = vf_zero();
            const int8_t *scale = decode_scales(u, type, p, sc);
            for (int c = 0; c < 8; c++) {
                ask_ahead(p + bytes / 8 * c, far + bytes / 8 * c, bytes / 8);
                vb w[8];
                unpack_chunk(u, p, c, w);
                LLM_UNROLL
                for (int h = 0; h < per; h++) {
                    vi dot[LLM_FUSED];
                    starts256(u, dot, per * c + h, a, n);
                    LLM_UNROLL
                    for (int g = 8 / per * h; g < 8 / per * (h + 1); g++)
                        dot_tokens(u, dot, w[g], q + 32 * c + 4 * g, n);
                    add_group256(vf_load_s8(scale + 16 * (per * c + h)), dot, sum, n);
                }
            }
            const llm_ends256 e = ends256(u, sc);
            LLM_UNROLL
            for (int t = 0; t < n; t++) {
                float *y = s->sums[i][t];
                vf_store(y, finish256(u, &e, a + t, sum[t], sb ? vf_load(y) : vf_zero()));
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
    const llm_ends256 e = ends256(u, &s->scales);
    LLM_UNROLL
    for (int t = 0; t < n; t++)
        vf_store(sums[t], finish256(u, &e, a + t, sum[t], vf_load(sums[t])));
}

#ifdef LLM_TILES

/* Many tokens multiply on AMX tiles with the products p = s_g * (q - z), which fit into 16 bits: those
 * of a whole block are one chain of integer dots, p = 256 * high + low. Their sum T equals t above
 * when no sum on the way passes 2^24, past which t would round. With C = |p| |a| (norms), the sum of
 * the first groups is at most C of these groups, or |T| and C of the rest; so at most (|T| + C) / 2. */
#define LLM_EXACT 0x1p24f

/* p of one panel's block: low bytes to s->w, high ones to `high`. Returns the largest |p|^2 of a
 * row, no less than rounding may have taken off. */
LLM_INLINE float fold256(const llm_unpacking *u, llm_scale_reader read, const uint8_t *p,
                         llm_unpacked *s, uint8_t *high) {
    const int bytes = 2 * u->layout->bytes, per = 32 / u->group; /* bytes of a chunk, about */
    read(p, &s->scales);
    vf norm = vf_zero();
    for (int c = 0; c < 8; c++) {
        for (int at = 0; at < bytes; at += 64) vb_prefetch(p + bytes * c + at + LLM_AHEAD);
        vb w[8];
        unpack_chunk(u, p, c, w);
        LLM_UNROLL
        for (int h = 0; h < per; h++) {
            llm_fold f = fold_by(vf_load(s->scales.scale[per * c + h]), u->zero);
            vi squares = vi_set1(0);
            LLM_UNROLL
            for (int g = 8 / per * h; g < 8 / per * (h + 1); g++)
                squares = fold(&f, w[g], squares, s->w + 512 * c + 64 * g, high + 512 * c + 64 * g);
            norm = vf_add(norm, vi_to_f(squares));
        }
    }
    return vf_reduce_max(norm) * 1.00001f;
}

/* One or two tiles of 16 tokens and the panel they are multiplied with. */
typedef struct llm_folded {
    const llm_unpacked *w;
    const uint8_t *high;
    float norm; /* of the weights, squared */
    int32_t panel;
    int n; /* tiles */
    const int8_t *q[2];
    const llm_act256 *a[2];
    float most[2]; /* norms of the tokens, squared */
    float (*sums[2])[16];
    bool exact[2];
} llm_folded;

LLM_INLINE vi folded_sum(llm_scratch *s, int i, int t) {
    return vi_add(vi_shl(vi_load(s->dots[2 * i][t]), 8), vi_load(s->dots[2 * i + 1][t]));
}

/* Whether the sums of tile i are those that groups one by one would give. */
LLM_INLINE bool is_exact(const llm_folded *f, llm_scratch *s, int i) {
    float bound = vf_sqrt1(f->norm * f->most[i]) * 1.00001f;
    if (bound <= LLM_EXACT) return true;
    vi most = vi_set1(0);
    for (int t = 0; t < LLM_TILES; t++) most = vf_absbits_max(most, vi_to_f(folded_sum(s, i, t)));
    return llm_bits_f32((uint32_t)vi_reduce_max(most)) + bound <= 2 * LLM_EXACT;
}

/* Part c of four of the tokens of f, whose dots are in scratch. */
LLM_INLINE void finish_part(const llm_unpacking *u, const llm_folded *f, const llm_ends256 *e,
                            llm_scratch *s, int c) {
    const int n = 4 * f->n, i = n * c / LLM_TILES, first = n * c % LLM_TILES;
    if (!f->exact[i]) return;
    for (int t = first; t < first + n; t++) {
        float *y = f->sums[i][t];
        vf_store(y, finish256(u, e, f->a[i] + t, vi_to_f(folded_sum(s, i, t)), vf_load(y)));
    }
}

/* Up to 16 tokens: all dots of a superblock, then the sums, token by token. The next superblock is
 * unpacked between the two, so that nobody waits for the tiles. Not for groups of 16 inputs, which take
 * twice the stores: these eat the gain. */
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
        dot_groups(s, now->w, q, 8);
        if (sb + 1 < n_sb)
            unpack256(u, read, panel_superblock(job, i, sb + 1, 256), true,
                      s->unpacked + (sb + 1) % 2);
        const llm_ends256 e = ends256(u, &now->scales);
        for (int32_t t = 0; t < x->n; t++) {
            vf sum = vf_zero();
            LLM_UNROLL
            for (int g = 0; g < 8; g++) {
                vi dot = vi_load(s->dots[g][t]);
                add_group256(vf_load(now->scales.scale[g]), &dot, &sum, 1);
            }
            vf_store(sums[t], finish256(u, &e, a + t, sum, vf_load(sums[t])));
        }
    }
    for (int32_t t = 0; t < x->n; t++) store_rows(job, i, t, vf_load(sums[t]));
}

/* A tile of f again, group by group. */
LLM_INLINE void tile_by_groups(const llm_unpacking *u, llm_scale_reader read,
                               const llm_panel_job *job, int64_t sb, const llm_folded *f,
                               int tile) {
    llm_unpacked *w = &scratch_of(job)->by_groups;
    unpack256(u, read, panel_superblock(job, f->panel, sb, 256), false, w);
    for (int t = 0; t < LLM_TILES; t += LLM_TILES / 2)
        tile256(u, w, f->q[tile] + 256 * t, f->a[tile] + t, f->sums[tile] + t, LLM_TILES / 2);
}

/* Ends `now`, whose dots are in scratch, while the tiles make those of `next`; either may be NULL. */
LLM_INLINE void step_folded(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job,
                            int64_t sb, llm_folded *now, const llm_folded *next) {
    llm_scratch *s = scratch_of(job);
    llm_ends256 e;
    if (now) {
        e = ends256(u, &now->w->scales);
        for (int i = 0; i < now->n; i++) now->exact[i] = is_exact(now, s, i);
    }
    if (next) tiles_clear();
    for (int c = 0; c < 4; c++) {
        if (next)
            tiles_fold(next->n, next->q[0] + 64 * c, next->q[1] + 64 * c, next->w->w + 1024 * c,
                       next->high + 1024 * c);
        if (now) finish_part(u, now, &e, s, c);
    }
    if (next) tiles_store_folded(next->n, s->dots);
    for (int i = 0; now && i < now->n; i++)
        if (!now->exact[i]) tile_by_groups(u, read, job, sb, now, i);
}

/* The folded superblock sb of the job's panels with its tokens. */
LLM_INLINE void walk_folded(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job,
                            int64_t sb, llm_cut cut) {
    llm_scratch *s = scratch_of(job);
    const int8_t *q = job->x->q[LLM_ACT_Q256] + 256 * sb * job->x->n;
    const llm_act256 *a = job->x->a256 + sb * job->x->n;
    llm_folded f[2], *now = NULL, *next = f;
    for (int32_t at = job->first, row = 0; at < job->end;) {
        llm_token_tile t[2];
        float most[2] = {0, 0};
        int n = 0;
        for (; n < 2 && at < job->end; n++, row += LLM_TILES) {
            t[n] = tile_at(at, job->end, row, cut);
            at = t[n].first + LLM_TILES;
            for (int j = 0; j < LLM_TILES; j++)
                if (a[t[n].first + j].norm > most[n]) most[n] = a[t[n].first + j].norm;
        }
        for (int32_t i = 0; i < job->n_panels; i++) {
            *next = (llm_folded){
                .w = s->unpacked + i, .high = s->high[i], .norm = s->norm[i], .panel = i, .n = n};
            next->q[1] = q; /* any, unless there are two */
            for (int j = 0; j < n; j++) {
                next->q[j] = q + 256 * t[j].first;
                next->a[j] = a + t[j].first;
                next->most[j] = most[j];
                next->sums[j] = s->sums[i] + t[j].row;
            }
            step_folded(u, read, job, sb, now, next);
            now = next;
            next = now == f ? f + 1 : f;
        }
    }
    step_folded(u, read, job, sb, now, NULL);
}

LLM_INLINE void many_folded(const llm_unpacking *u, llm_scale_reader read,
                            const llm_panel_job *job) {
    const llm_cut cut = {LLM_TILES, true};
    llm_scratch *s = scratch_of(job);
    tiles_open(64, LLM_TILES);
    clear_sums(job, job->end - job->first + LLM_TILES);
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        for (int32_t i = 0; i < job->n_panels; i++)
            s->norm[i] =
                fold256(u, read, panel_superblock(job, i, sb, 256), s->unpacked + i, s->high[i]);
        walk_folded(u, read, job, sb, cut);
    }
    store_tiles(job, cut);
    tiles_close();
}

#endif

/* The unpacked superblock sb of the job's panels with its tokens. */
LLM_INLINE void walk256(const llm_unpacking *u, const llm_panel_job *job, int64_t sb, llm_cut cut) {
    llm_scratch *s = scratch_of(job);
    const int8_t *q = job->x->q[LLM_ACT_Q256] + 256 * sb * job->x->n;
    const llm_act256 *a = job->x->a256 + sb * job->x->n;
    llm_token_tile t = tile_at(job->first, job->end, 0, cut);
    for (int32_t at = job->first; at < job->end; at = t.first + t.n) {
        if (at > job->first) t = tile_after(t, job->end, cut);
        for (int32_t i = 0; i < job->n_panels; i++)
            LLM_TILE_SWITCH(t.n, tile256, u, &s->unpacked[i], q + 256 * t.first, a + t.first,
                            s->sums[i] + t.row)
    }
}

LLM_INLINE void many256(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job) {
#ifdef LLM_TILES
    if (job->x->n >= LLM_TILES) {
        many_folded(u, read, job);
        return;
    }
#endif
    const llm_cut cut = {LLM_TILE, false};
    clear_sums(job, job->end - job->first);
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        for (int32_t i = 0; i < job->n_panels; i++)
            unpack256(u, read, panel_superblock(job, i, sb, 256), false,
                      &scratch_of(job)->unpacked[i]);
        walk256(u, job, sb, cut);
    }
    store_tiles(job, cut);
}

#endif /* LLM_QUADS */

#define TYPE(name, type, zero, book, mins, group)                                                  \
    static const llm_unpacking unpacking_##name = {&llm_layout_##name, zero, book, mins, group};   \
    LLM_OUTLINE void scales_##name(const uint8_t *block, llm_scales *s) {                          \
        unpack_scales(&unpacking_##name, type, block, s);                                          \
    }                                                                                              \
    static void panels_##name(const llm_panel_job *job) {                                          \
        const llm_unpacking *u = &unpacking_##name;                                                \
        if (group == 32 && takes_few_tiles(job))                                                   \
            LLM_FEW_TILES(job, few_tiles256, u, scales_##name, job)                                \
        else if (job->x->n > LLM_FUSED)                                                            \
            many256(u, scales_##name, job);                                                        \
        else                                                                                       \
            LLM_FEW_PANELS(job, few256, u, type, job)                                              \
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
