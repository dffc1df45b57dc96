/* act.c: one token's activations to s8 with a scale per 32 or per 256 inputs. */
#include "backend/cpu/isa.h"

#include "backend/cpu/cpu.h"
#include "vec_quant.h"

/* Blocks side by side, up to eight: what is done once a block becomes vector code that way. */
LLM_INLINE void quantize_blocks32(const float *x, const int n, int first, int8_t *q,
                                  llm_act32 *side) {
    int32_t amax[8], sum[8];
    float d[8], inverse[8];
    for (int b = 0; b < n; b++) amax[b] = amax_bits32(x + 32 * b);
    for (int b = 0; b < n; b++) d[b] = block_scale(amax[b], &inverse[b]);
    for (int b = 0; b < n; b++) {
        vi low = quantize16(x + 32 * b, inverse[b], q + 32 * b);
        sum[b] =
            vi_reduce_add(vi_add(low, quantize16(x + 32 * b + 16, inverse[b], q + 32 * b + 16)));
    }
    for (int b = 0; b < n; b++) {
        side->d[first + b] = d[b];
        side->dsum[first + b] = d[b] * (float)sum[b];
        side->neg8[first + b] = -8 * sum[b];
        side->neg16[first + b] = -16 * sum[b];
        side->neg128[first + b] = -128 * sum[b];
    }
}

static void quantize32(const float *x, int64_t begin, int64_t end, int8_t *q, int64_t q_stride,
                       llm_act32 *side, int64_t side_stride) {
    for (int64_t i = begin / 32, next; i < end / 32; i = next) {
        int first = (int)(i % 8);
        next = i - first + 8 < end / 32 ? i - first + 8 : end / 32;
        int8_t *to = q + i / 8 * q_stride + 32 * first;
        llm_act32 *s = side + i / 8 * side_stride;
        if (next - i == 8)
            quantize_blocks32(x + 32 * i, 8, 0, to, s);
        else
            quantize_blocks32(x + 32 * i, (int)(next - i), first, to, s);
    }
}

static void quantize256(const float *x, int64_t begin, int64_t end, int8_t *q, int64_t q_stride,
                        llm_act256 *side, int64_t side_stride) {
    for (int64_t i = begin / 256; i < end / 256; i++) {
        const float *p = x + 256 * i;
        int8_t *to = q + i * q_stride;
        llm_act256 *s = side + i * side_stride;
        vi bits = vi_set1(0);
        for (int j = 0; j < 16; j++) bits = vf_absbits_max(bits, vf_load(p + 16 * j));
        float inverse;
        s->d = block_scale(vi_reduce_max(bits), &inverse);
        /* Sums of integers, exact in any order: at most 127 * 127 * 256. */
        float values[256];
        int32_t sum[16];
        vf squares = vf_zero();
        for (int j = 0; j < 16; j++) {
            vf v = vi_to_f(quantize16(p + 16 * j, inverse, to + 16 * j));
            vf_store(values + 16 * j, v);
            squares = vf_fma(v, v, squares);
        }
        vf sums = vf_reduce_add16(values);
        vi_store(sum, vf_rint(sums));
        vi_store(s->neg32, vf_rint(vf_mul(sums, vf_set1(-32.0f))));
        s->norm = vf_reduce_add(squares);
        for (int j = 0; j < 16; j++) s->sum[j] = (int16_t)sum[j];
        for (int j = 0; j < 8; j++) s->sum32[j] = (int16_t)(sum[2 * j] + sum[2 * j + 1]);
    }
}

void LLM_FN(quantize)(llm_acts *a, llm_act_kind kind, int32_t t, int64_t begin, int64_t end) {
    const float *x = a->x + t * a->ldx;
    int64_t n = a->n;
    int8_t *q = a->q[kind] + 256 * t;
    if (kind == LLM_ACT_Q32) quantize32(x, begin, end, q, 256 * n, a->a32 + t, n);
    if (kind == LLM_ACT_Q256) quantize256(x, begin, end, q, 256 * n, a->a256 + t, n);
}
