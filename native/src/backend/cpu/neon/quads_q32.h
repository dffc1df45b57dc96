/* quads_q32.h (neon, i8mm, asimd): the two ways of matmul_q32.c, by quads of rows. */
#include "backend/cpu/neon/quads.h"

/* Quads [r, r + quads) of rows, nb blocks, n tokens. panel: blocks to unpack, if they are not
 * ready. */
LLM_INLINE void part32(const llm_unpacking *u, llm_quad_form f, const uint8_t *panel,
                       const llm_unpacked *s, int nb, const int8_t *q, const llm_act32 *a,
                       float (*sums)[16], int r, const int quads, const int n) {
    const int bytes = 16 * u->layout->bytes;
    float32x4_t acc[LLM_FUSED][4];
    LLM_UNROLL
    for (int t = 0; t < n; t++) {
        LLM_UNROLL
        for (int v = 0; v < quads; v++) acc[t][v] = vld1q_f32(sums[t] + 4 * (r + v));
    }
    for (int b = 0; b < nb; b++) {
        const uint8_t *low = f.ready ? s->w + 512 * b : panel + bytes * b;
        if (!f.ready) quads_ahead(low + 8 * bytes, bytes, r / quads, 4 / quads);
        int32x4_t start[LLM_FUSED];
        LLM_UNROLL
        for (int t = 0; t < n; t++) start[t] = f.centred ? vdupq_n_s32(0) : start32(u, a + t, b).a;
        llm_quad_sums dot;
        quads_begin(f, start, dot, quads, n);
        LLM_UNROLL
        for (int h = 0; h < 2; h++)
            quads_dot(u, f, low, low + llm_low_bytes(u->layout), r, h, quads_chunk(f, q, b), dot,
                      quads, n);
        quads_end(f, dot, quads, n);
        LLM_UNROLL
        for (int t = 0; t < n; t++) {
            float32x4_t da = vld1q_dup_f32(&a[t].d[b]);
            LLM_UNROLL
            for (int v = 0; v < quads; v++) {
                float32x4_t d = vmulq_f32(vld1q_f32(s->d[b] + 4 * (r + v)), da);
                acc[t][v] = vfmaq_f32(acc[t][v], d, vcvtq_f32_s32(dot[t][v]));
                if (u->mins)
                    acc[t][v] = vfmaq_f32(acc[t][v], vld1q_f32(s->m[b] + 4 * (r + v)),
                                          vld1q_dup_f32(&a[t].dsum[b]));
            }
        }
    }
    LLM_UNROLL
    for (int t = 0; t < n; t++) {
        LLM_UNROLL
        for (int v = 0; v < quads; v++) vst1q_f32(sums[t] + 4 * (r + v), acc[t][v]);
    }
}

LLM_INLINE void quads32(const llm_unpacking *u, llm_quad_form f, const uint8_t *panel,
                        const llm_unpacked *s, int nb, const int8_t *q, const llm_act32 *a,
                        float (*sums)[16], const int n) {
    const int quads = quads_of_part(f, n);
    for (int r = 0; r < 4; r += quads) part32(u, f, panel, s, nb, q, a, sums, r, quads, n);
}

LLM_INLINE void side32(const llm_unpacking *u, const uint8_t *p, int nb, llm_unpacked *s) {
    for (int b = 0; b < nb; b++, p += 16 * u->layout->bytes) {
        vf_store(s->d[b], unpack_scale32(u, p));
        if (u->mins) vf_store(s->m[b], unpack_u16(u, p, 1));
    }
}

/* Panels [first, last) of the job with up to LLM_FUSED tokens, side by side. */
LLM_INLINE void few32(const llm_unpacking *u, const llm_panel_job *job, int32_t first, int32_t last,
                      const int n) {
    const llm_quad_form f = quads_of_panel(u, n);
    llm_scratch *s = scratch_of(job);
    int64_t n_blocks = job->w->n_cols / 32;
    for (int32_t i = first; i < last; i++) memset(s->sums[i], 0, sizeof s->sums[0][0] * n);
    for (int64_t sb = 0; sb * 8 < n_blocks; sb++) {
        int nb = n_blocks - 8 * sb < 8 ? (int)(n_blocks - 8 * sb) : 8;
        const int8_t *q = quads_tokens(f, s, job->x->q[LLM_ACT_Q32] + sb * 256 * n, n);
        for (int32_t i = first; i < last; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 32 * nb);
            side32(u, p, nb, s->unpacked);
            quads32(u, f, p, s->unpacked, nb, q, job->x->a32 + sb * n, s->sums[i], n);
        }
    }
}

LLM_INLINE void tile32(const llm_unpacking *u, const llm_unpacked *s, int nb, const int8_t *q,
                       const llm_act32 *a, float (*sums)[16], const int n) {
    quads32(u, quads_ready(), NULL, s, nb, q, a, sums, n);
}

LLM_INLINE void many32(const llm_unpacking *u, const llm_panel_job *job) {
    const int32_t n = job->end - job->first;
    const int bytes = 16 * u->layout->bytes;
    int64_t n_blocks = job->w->n_cols / 32;
    llm_scratch *s = scratch_of(job);
    clear_sums(job, n);
    for (int64_t sb = 0; sb * 8 < n_blocks; sb++) {
        int nb = n_blocks - 8 * sb < 8 ? (int)(n_blocks - 8 * sb) : 8;
        for (int32_t i = 0; i < job->n_panels; i++) {
            const uint8_t *p = panel_superblock(job, i, sb, 32 * nb);
            side32(u, p, nb, &s->unpacked[i]);
            for (int b = 0; b < nb; b++, p += bytes) {
                quads_ahead(p + LLM_AHEAD, bytes, 0, 1);
                quads_store(u, p, p + llm_low_bytes(u->layout), s->unpacked[i].w + 512 * b);
            }
        }
        for (int32_t t = 0, size; t < n; t += size) {
            size = tile_size(n - t);
            const int64_t at = sb * job->x->n + job->first + t;
            const int8_t *q =
                quads_tokens(quads_ready(), s, job->x->q[LLM_ACT_Q32] + 256 * at, size);
            for (int32_t i = 0; i < job->n_panels; i++)
                LLM_TILE_SWITCH(size, tile32, u, &s->unpacked[i], nb, q, job->x->a32 + at,
                                s->sums[i] + t)
        }
    }
    store_strip(job, job->first, n);
}
