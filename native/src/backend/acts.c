#include "backend/kernels.h"

static uint64_t round_up(uint64_t n) { return (n + 63) / 64 * 64; }

static uint64_t value_bytes(int32_t n, int64_t k) {
    return (uint64_t)n * 256 * (uint64_t)((k + 255) / 256);
}

uint64_t llm_acts_bytes(llm_act_kind kind, int32_t n, int64_t k) {
    uint64_t n_sides = (uint64_t)n * (uint64_t)((k + 255) / 256);
    if (kind == LLM_ACT_Q32) return value_bytes(n, k) + round_up(n_sides * sizeof(llm_act32));
    if (kind == LLM_ACT_Q256) return value_bytes(n, k) + round_up(n_sides * sizeof(llm_act256));
    return 0;
}

void llm_acts_place(llm_acts *a, llm_act_kind kind, int32_t n, int64_t k, uint8_t *memory) {
    uint8_t *sides = memory + value_bytes(n, k);
    a->n = n;
    a->k = k;
    a->q[kind] = (int8_t *)memory;
    if (kind == LLM_ACT_Q32) a->a32 = (llm_act32 *)(void *)sides;
    if (kind == LLM_ACT_Q256) a->a256 = (llm_act256 *)(void *)sides;
}
