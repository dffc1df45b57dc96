/* few_tiles.h: products of 9 to 16 tokens on AMX tiles, a panel at a time. */
#ifndef LLM_FEW_TILES_H
#define LLM_FEW_TILES_H

#include "backend/cpu/tile.h"

/* Whether a job's tokens are too many for registers and too few for a walk on AMX tiles. */
LLM_INLINE bool takes_few_tiles(const llm_panel_job *job) {
#ifdef LLM_TILES
    return job->x->n > LLM_FUSED && job->x->n <= LLM_TILES;
#else
    (void)job;
    return false;
#endif
}

#ifdef LLM_TILES
/* Up to 16 tokens on AMX tiles: f(..., i) for each panel i of the job. */
#define LLM_FEW_TILES(job, f, ...)                                                                 \
    {                                                                                              \
        tiles_open(32, (job)->x->n);                                                               \
        for (int32_t i = 0; i < (job)->n_panels; i++) f(__VA_ARGS__, i);                           \
        tiles_close();                                                                             \
    }

/* All dots of n_groups groups of 32 inputs. */
LLM_INLINE void dot_groups(llm_scratch *s, const uint8_t *w, const int8_t *q, const int n_groups) {
    for (int g = 0; g < n_groups; g += 2) {
        tiles_dot(0, w + 512 * g, q + 32 * g);
        if (g + 1 < n_groups) tiles_dot(1, w + 512 * (g + 1), q + 32 * (g + 1));
        tiles_store(0, s->dots[g]);
        if (g + 1 < n_groups) tiles_store(1, s->dots[g + 1]);
    }
}
#else
#define LLM_FEW_TILES(job, f, ...)                                                                 \
    {}
#endif

#endif
