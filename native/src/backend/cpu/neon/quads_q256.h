/* quads_q256.h (neon, i8mm, asimd): the two ways of matmul_q256.c, by quads of rows. */
#include "backend/cpu/neon/quads.h"

/* Quads [r, r + quads) of rows, n tokens: the sums t of a superblock. panel: a block to unpack,
 * if it is not ready. */
LLM_INLINE void part256(const llm_unpacking *u, llm_quad_form f, const uint8_t *panel,
                        const uint8_t *ready, const llm_scales *sc, const int8_t *q,
                        const llm_act256 *a, float (*sums)[16], int r, const int quads,
                        const int n) {
    const llm_layout *l = u->layout;
    const int per = 32 / u->group, bytes = 2 * l->bytes; /* of a chunk, about */
    float32x4_t sum[LLM_FUSED][4];
    LLM_UNROLL
    for (int t = 0; t < n; t++) {
        LLM_UNROLL
        for (int v = 0; v < quads; v++) sum[t][v] = vdupq_n_f32(0);
    }
    for (int c = 0; c < 8; c++) {
        const uint8_t *low = f.ready ? ready + 512 * c : panel + 64 * l->low_bits * c;
        const uint8_t *high = f.ready ? low : panel + llm_low_bytes(l) + 64 * l->high_bits * c;
        if (!f.ready) quads_ahead(panel + 8 * bytes + bytes * c, bytes, r / quads, 4 / quads);
        LLM_UNROLL
        for (int g = 0; g < per; g++) {
            int32x4_t start[LLM_FUSED];
            LLM_UNROLL
            for (int t = 0; t < n; t++)
                start[t] = f.centred ? vdupq_n_s32(0) : start256(u, a + t, per * c + g).a;
            llm_quad_sums dot;
            quads_begin(f, start, dot, quads, n);
            LLM_UNROLL
            for (int h = 2 / per * g; h < 2 / per * (g + 1); h++)
                quads_dot(u, f, low, high, r, h, quads_chunk(f, q, c), dot, quads, n);
            quads_end(f, dot, quads, n);
            LLM_UNROLL
            for (int v = 0; v < quads; v++) {
                float32x4_t scale = vld1q_f32(sc->scale[per * c + g] + 4 * (r + v));
                LLM_UNROLL
                for (int t = 0; t < n; t++)
                    sum[t][v] = vfmaq_f32(sum[t][v], scale, vcvtq_f32_s32(dot[t][v]));
            }
        }
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++) {
        LLM_UNROLL
        for (int v = 0; v < quads; v++) vst1q_f32(sums[t] + 4 * (r + v), sum[t][v]);
    }
}

/* A superblock added to the sums of n tokens. */
LLM_INLINE void quads256(const llm_unpacking *u, llm_quad_form f, const uint8_t *panel,
                         const llm_unpacked *s, const int8_t *q, const llm_act256 *a,
                         float (*sums)[16], const int n) {
    const int quads = quads_of_part(f, n);
    float t256[LLM_FUSED][16];
    for (int r = 0; r < 4; r += quads)
        part256(u, f, panel, s->w, &s->scales, q, a, t256, r, quads, n);
    const llm_ends256 e = ends256(u, &s->scales);
    LLM_UNROLL
    for (int t = 0; t < n; t++)
        vf_store(sums[t], finish256(u, &e, a + t, vf_load(t256[t]), vf_load(sums[t])));
}

/* Panels [first, last) of the job with up to LLM_FUSED tokens, side by side. */
LLM_INLINE void few256(const llm_unpacking *u, int32_t type, const llm_panel_job *job,
                       int32_t first, int32_t last, const int n) {
    const llm_quad_form f = quads_of_panel(u, n);
    llm_scratch *s = scratch_of(job);
    for (int32_t i = first; i < last; i++) memset(s->sums[i], 0, sizeof s->sums[0][0] * n);
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        const int8_t *q = quads_tokens(f, s, job->x->q[LLM_ACT_Q256] + sb * 256 * n, n);
        for (int32_t i = first; i < last; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 256);
            unpack_scales(u, type, p, &s->unpacked[0].scales);
            quads256(u, f, p, s->unpacked, q, job->x->a256 + sb * n, s->sums[i], n);
        }
    }
}

LLM_INLINE void tile256(const llm_unpacking *u, const llm_unpacked *s, const int8_t *q,
                        const llm_act256 *a, float (*sums)[16], const int n) {
    quads256(u, quads_ready(), NULL, s, q, a, sums, n);
}

LLM_INLINE void many256(const llm_unpacking *u, llm_scale_reader read, const llm_panel_job *job) {
    const llm_layout *l = u->layout;
    const int32_t n = job->end - job->first;
    llm_scratch *s = scratch_of(job);
    clear_sums(job, n);
    for (int64_t sb = 0; sb < job->w->n_cols / 256; sb++) {
        for (int32_t i = 0; i < job->n_panels; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 256), *high = p + llm_low_bytes(l);
            read(p, &s->unpacked[i].scales);
            for (int c = 0; c < 8; c++) {
                quads_ahead(p + 2 * l->bytes * c + LLM_AHEAD, 2 * l->bytes, 0, 1);
                quads_store(u, p + 64 * l->low_bits * c, high + 64 * l->high_bits * c,
                            s->unpacked[i].w + 512 * c);
            }
        }
        for (int32_t t = 0, size; t < n; t += size) {
            size = tile_size(n - t);
            const int64_t at = sb * job->x->n + job->first + t;
            const int8_t *q =
                quads_tokens(quads_ready(), s, job->x->q[LLM_ACT_Q256] + 256 * at, size);
            for (int32_t i = 0; i < job->n_panels; i++)
                LLM_TILE_SWITCH(size, tile256, u, &s->unpacked[i], q, job->x->a256 + at,
                                s->sums[i] + t)
        }
    }
    store_strip(job, job->first, n);
}
