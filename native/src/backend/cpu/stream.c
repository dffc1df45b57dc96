/* stream.c: reads memory as fast as this instruction set can: the bandwidth roof. */
#include "backend/cpu/cpu.h"
#include "vec_f32.h"

#define LINE 64
#define STEP (4 * LINE) /* read from one stream before the next */
#define MAX_STREAMS 8

/* The streams are equal consecutive parts; what does not fill a step of each is left out. */
LLM_INLINE vi read_streams(const uint8_t *p, uint64_t n_bytes, uint64_t ahead_bytes,
                           uint64_t n_streams) {
    uint64_t part = n_bytes / n_streams / STEP * STEP;
    vi sum[4];
    for (int i = 0; i < 4; i++) sum[i] = vi_set1(0);
    for (uint64_t at = 0; at < part; at += STEP) {
        for (uint64_t s = 0; s < n_streams; s++) {
            const uint8_t *line = p + s * part + at;
            if (ahead_bytes) {
                for (int i = 0; i < 4; i++) LLM_PREFETCH(line + ahead_bytes + i * LINE);
            }
            for (int i = 0; i < 4; i++) {
                sum[i] = vi_add(sum[i], vi_load((const int32_t *)(const void *)(line + i * LINE)));
            }
        }
    }
    return vi_add(vi_add(sum[0], sum[1]), vi_add(sum[2], sum[3]));
}

int32_t LLM_FN(read_sum)(const uint8_t *p, uint64_t n_bytes, int32_t n_streams,
                         uint64_t ahead_bytes) {
    vi sum;
    switch (n_streams) { /* constant counts, so that each loop unrolls */
    case 2: sum = read_streams(p, n_bytes, ahead_bytes, 2); break;
    case 4: sum = read_streams(p, n_bytes, ahead_bytes, 4); break;
    case MAX_STREAMS: sum = read_streams(p, n_bytes, ahead_bytes, MAX_STREAMS); break;
    default: sum = read_streams(p, n_bytes, ahead_bytes, 1); break;
    }
    int32_t lanes[16], total = 0;
    vi_store(lanes, sum);
    for (int i = 0; i < 16; i++) total = (int32_t)((uint32_t)total + (uint32_t)lanes[i]);
    return total;
}
