/* matmul_q32.c: weights with blocks of 32 against activations with a scale per 32.
 *
 * Per output and block, blocks ascending:
 *   dot = sum of (q - z) * a, an exact integer
 *   acc = fma(d_w * d_a, (float)dot, acc)
 *   acc = fma(m_w, d_a * (float)sum(a), acc)      for types with a min
 */
#include "backend/cpu/few_tiles.h"

LLM_INLINE vi start32(const llm_unpacking *u, const llm_act32 *a, int b) {
    return u->zero == 8     ? vi_set1(a->neg8[b])
           : u->zero == 16  ? vi_set1(a->neg16[b])
           : u->zero == 128 ? vi_set1(a->neg128[b])
                            : vi_set1(0);
}

#ifdef LLM_QUADS
#include "backend/cpu/neon/quads_q32.h" /* few32, many32 */
#else

LLM_INLINE void starts32(const llm_unpacking *u, vi *s, int b, const llm_act32 *a, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) s[t] = start32(u, a + t, b);
}

LLM_INLINE void add_block32(const llm_unpacking *u, const vi *s, vf d, vf m, int b,
                            const llm_act32 *a, vf *acc, const int n) {
    LLM_UNROLL
    for (int t = 0; t < n; t++) {
        acc[t] = vf_fma(vf_mul(d, vf_set1(a[t].d[b])), vi_to_f(s[t]), acc[t]);
        if (u->mins) acc[t] = vf_fma(m, vf_set1(a[t].dsum[b]), acc[t]);
    }
}

/* Panels [first, last) of the job: as many streams of weights, which memory serves better than one.
 * Each reads a superblock in turn. */
LLM_INLINE void few32(const llm_unpacking *u, const llm_panel_job *job, int32_t first, int32_t last,
                      const int n) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    int64_t n_blocks = job->w->n_cols / 32;
    const int bytes = 16 * u->layout->bytes;
    for (int64_t sb = 0; sb * 8 < n_blocks; sb++) {
        int nb = n_blocks - 8 * sb < 8 ? (int)(n_blocks - 8 * sb) : 8;
        const int8_t *q = x->q[LLM_ACT_Q32] + sb * 256 * n;
        const llm_act32 *a = x->a32 + sb * n;
        for (int32_t i = first; i < last; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 32 * nb);
            float (*sums)[16] = s->sums[i];
            vf acc[LLM_FUSED];
            LLM_UNROLL
            for (int t = 0; t < n; t++) acc[t] = sb ? vf_load(sums[t]) : vf_zero();
            const uint8_t *far = far_of(job, p, sb * 8 * bytes, n_blocks * bytes);
            for (int b = 0; b < nb; b++, p += bytes, far += bytes) {
                ask_ahead(p, far, bytes);
                vb w[8];
                unpack_chunk(u, p, 0, w);
                vi dot[LLM_FUSED];
                starts32(u, dot, b, a, n);
                LLM_UNROLL
                for (int g = 0; g < 8; g++) dot_tokens(u, dot, w[g], q + 32 * b + 4 * g, n);
                vf m = u->mins ? unpack_u16(u, p, 1) : vf_zero();
                add_block32(u, dot, unpack_scale32(u, p), m, b, a, acc, n);
            }
            LLM_UNROLL
            for (int t = 0; t < n; t++) vf_store(sums[t], acc[t]);
        }
    }
}

LLM_INLINE void unpack32(const llm_unpacking *u, const uint8_t *p, int nb, bool centred,
                         llm_unpacked *s) {
    for (int b = 0; b < nb; b++, p += 16 * u->layout->bytes) {
        for (int at = 0; at < 16 * u->layout->bytes; at += 64) vb_prefetch(p + at + LLM_AHEAD);
        unpack_to(u, p, 0, centred, s->w + 512 * b);
        vf_store(s->d[b], unpack_scale32(u, p));
        if (u->mins) vf_store(s->m[b], unpack_u16(u, p, 1));
    }
}

/* nb blocks with n tokens. */
LLM_INLINE void tile32(const llm_unpacking *u, const llm_unpacked *s, int nb, const int8_t *q,
                       const llm_act32 *a, float (*sums)[16], const int n) {
    vf acc[LLM_TILE];
    LLM_UNROLL
    for (int t = 0; t < n; t++) acc[t] = vf_load(sums[t]);
    for (int b = 0; b < nb; b++) {
        vi dot[LLM_TILE];
        starts32(u, dot, b, a, n);
        LLM_UNROLL
        for (int g = 0; g < 8; g++)
            dot_tokens(u, dot, vb_load(s->w + 512 * b + 64 * g), q + 32 * b + 4 * g, n);
        vf m = u->mins ? vf_load(s->m[b]) : vf_zero();
        add_block32(u, dot, vf_load(s->d[b]), m, b, a, acc, n);
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++) vf_store(sums[t], acc[t]);
}

#ifdef LLM_TILES

LLM_INLINE void add_dots32(const llm_unpacking *u, const llm_unpacked *s, int b, const llm_act32 *a,
                           int32_t (*dots)[16], vf *acc) {
    vf d = vf_load(s->d[b]), m = u->mins ? vf_load(s->m[b]) : vf_zero();
    LLM_UNROLL
    for (int t = 0; t < LLM_TILES; t++) {
        vi dot = vi_load(dots[t]);
        add_block32(u, &dot, d, m, b, a + t, acc + t, 1);
    }
}

/* The same with 16 tokens on AMX tiles. The product of a block is begun two blocks ahead and
 * stored one block ahead of its sum, so that nobody waits: the call before begins our first two
 * (see cut_fill), and we those of the next call, at w_next and q_next. */
LLM_INLINE void amx32(const llm_unpacking *u, const llm_unpacked *s, int nb, const int8_t *q,
                      const llm_act32 *a, float (*sums)[16], const uint8_t *w_next,
                      const int8_t *q_next, int32_t (*dots)[LLM_TILES][16]) {
    vf acc[LLM_TILES];
    LLM_UNROLL
    for (int t = 0; t < LLM_TILES; t++) acc[t] = vf_load(sums[t]);
    for (int b = 0; b < nb; b += 2) {
        const uint8_t *w_ahead = b + 2 < nb ? s->w + 512 * (b + 2) : w_next;
        const int8_t *q_ahead = b + 2 < nb ? q + 32 * (b + 2) : q_next;
        tiles_dot(0, w_ahead, q_ahead);
        tiles_store(1, dots[1]);
        add_dots32(u, s, b, a, dots[0], acc);
        tiles_dot(1, w_ahead + 512, q_ahead + 32);
        tiles_store(0, dots[0]);
        if (b + 1 < nb) add_dots32(u, s, b + 1, a, dots[1], acc);
    }
    LLM_UNROLL
    for (int t = 0; t < LLM_TILES; t++) vf_store(sums[t], acc[t]);
}

/* Up to 16 tokens: all dots of a superblock, then the sums, token by token. The next superblock is
 * unpacked between the two, so that nobody waits for the tiles. */
LLM_INLINE void few_tiles32(const llm_unpacking *u, const llm_panel_job *job, int32_t i) {
    const llm_acts *x = job->x;
    llm_scratch *s = scratch_of(job);
    float (*sums)[16] = s->sums[0];
    for (int32_t t = 0; t < x->n; t++) vf_store(sums[t], vf_zero());
    int64_t n_blocks = job->w->n_cols / 32;
    int nb = n_blocks < 8 ? (int)n_blocks : 8, next;
    unpack32(u, panel_superblock(job, i, 0, 32 * nb), nb, true, s->unpacked);
    for (int64_t sb = 0; nb > 0; sb++, nb = next) {
        const llm_unpacked *now = s->unpacked + sb % 2;
        const int8_t *q = x->q[LLM_ACT_Q32] + 256 * sb * x->n;
        const llm_act32 *a = x->a32 + sb * x->n;
        dot_groups(s, now->w, q, nb);
        int64_t left = n_blocks - 8 * (sb + 1);
        next = left < 0 ? 0 : left < 8 ? (int)left : 8;
        if (next > 0)
            unpack32(u, panel_superblock(job, i, sb + 1, 32 * next), next, true,
                     s->unpacked + (sb + 1) % 2);
        for (int32_t t = 0; t < x->n; t++) {
            vf sum = vf_load(sums[t]);
            for (int b = 0; b < nb; b++) {
                vi dot = vi_load(s->dots[b][t]);
                vf m = u->mins ? vf_load(now->m[b]) : vf_zero();
                add_block32(u, &dot, vf_load(now->d[b]), m, b, a + t, &sum, 1);
            }
            vf_store(sums[t], sum);
        }
    }
    for (int32_t t = 0; t < x->n; t++) store_rows(job, i, t, vf_load(sums[t]));
}

#endif

/* Sets up the AMX tiles if the job has enough tokens for them. */
LLM_INLINE llm_cut cut_begin(const llm_panel_job *job) {
#ifdef LLM_TILES
    if (job->x->n >= LLM_TILES) {
        tiles_open(32, LLM_TILES);
        return (llm_cut){LLM_TILES, true};
    }
#endif
    (void)job;
    return (llm_cut){LLM_TILE, false};
}

/* Begins the first two products of a walk over the panels' superblock with a tile at q. */
LLM_INLINE void cut_fill(llm_cut cut, llm_scratch *s, const int8_t *q) {
#ifdef LLM_TILES
    if (!cut.whole) return;
    tiles_dot(0, s->unpacked[0].w, q);
    tiles_dot(1, s->unpacked[0].w + 16 * 32, q + 32);
    tiles_store(0, s->dots[0]);
#else
    (void)cut, (void)s, (void)q;
#endif
}

LLM_INLINE void cut_end(llm_cut cut) {
    (void)cut;
#ifdef LLM_TILES
    if (cut.whole) tiles_close();
#endif
}

/* The unpacked superblock sb of the job's panels with its tokens. */
LLM_INLINE void walk32(const llm_unpacking *u, const llm_panel_job *job, int64_t sb, int nb,
                       llm_cut cut) {
    const int32_t first = job->first, end = job->end;
    llm_scratch *s = scratch_of(job);
    const int8_t *q = job->x->q[LLM_ACT_Q32] + 256 * sb * job->x->n;
    const llm_act32 *a = job->x->a32 + sb * job->x->n;
    llm_token_tile t = tile_at(first, end, 0, cut);
    cut_fill(cut, s, q + 256 * t.first);
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
                amx32(u, &s->unpacked[i], nb, q + 256 * t.first, a + t.first, s->sums[i] + t.row,
                      s->unpacked[more ? i + 1 : 0].w, more ? q + 256 * t.first : q_next, s->dots);
                continue;
            }
#endif
            (void)q_next;
            LLM_TILE_SWITCH(t.n, tile32, u, &s->unpacked[i], nb, q + 256 * t.first, a + t.first,
                            s->sums[i] + t.row)
        }
    }
}

LLM_INLINE void many32(const llm_unpacking *u, const llm_panel_job *job) {
    const llm_cut cut = cut_begin(job);
    int64_t n_blocks = job->w->n_cols / 32;
    clear_sums(job, job->end - job->first + LLM_MOST_TOKENS);
    for (int64_t sb = 0; sb * 8 < n_blocks; sb++) {
        int nb = n_blocks - 8 * sb < 8 ? (int)(n_blocks - 8 * sb) : 8;
        for (int32_t i = 0; i < job->n_panels; i++)
            unpack32(u, panel_superblock(job, i, sb, 32 * nb), nb, cut.whole,
                     &scratch_of(job)->unpacked[i]);
        walk32(u, job, sb, nb, cut);
    }
    store_tiles(job, cut);
    cut_end(cut);
}

#endif /* LLM_QUADS */

#define TYPE(name, zero, book, mins)                                                               \
    static void panels_##name(const llm_panel_job *job) {                                          \
        static const llm_unpacking u = {&llm_layout_##name, zero, book, mins, 32};                 \
        if (takes_few_tiles(job))                                                                  \
            LLM_FEW_TILES(job, few_tiles32, &u, job)                                               \
        else if (job->x->n > LLM_FUSED)                                                            \
            many32(&u, job);                                                                       \
        else                                                                                       \
            LLM_FEW_PANELS(job, few32, &u, job)                                                    \
    }

TYPE(q4_0, 8, LLM_BOOK_NONE, false)
TYPE(q4_1, 0, LLM_BOOK_NONE, true)
TYPE(q5_0, 16, LLM_BOOK_NONE, false)
TYPE(q5_1, 0, LLM_BOOK_NONE, true)
TYPE(q8_0, 128, LLM_BOOK_NONE, false)
TYPE(iq4_nl, 128, LLM_BOOK_IQ4, false)
TYPE(mxfp4, 128, LLM_BOOK_MXFP4, false)

void LLM_FN(panels_q32)(const llm_panel_job *job) {
    switch (job->w->format->type) {
    case LLM_Q4_0: panels_q4_0(job); break;
    case LLM_Q4_1: panels_q4_1(job); break;
    case LLM_Q5_0: panels_q5_0(job); break;
    case LLM_Q5_1: panels_q5_1(job); break;
    case LLM_Q8_0: panels_q8_0(job); break;
    case LLM_IQ4_NL: panels_iq4_nl(job); break;
    case LLM_MXFP4: panels_mxfp4(job); break;
    }
}
