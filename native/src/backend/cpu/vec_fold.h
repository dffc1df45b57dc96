/* vec_fold.h: 16 trees at once. Lane i is the tree over the vector at v + 16 * i. */
#ifndef LLM_VEC_FOLD_H
#define LLM_VEC_FOLD_H

#include "vec_f32.h"

#if !defined(VF_REDUCE16) /* else the instruction set folds and transposes in one go */
#define VF_REDUCE16(name, tree)                                                                    \
    LLM_INLINE vf name(const float *v) {                                                           \
        float r[16];                                                                               \
        for (int i = 0; i < 16; i++) r[i] = tree(vf_load(v + 16 * i));                             \
        return vf_load(r);                                                                         \
    }
VF_REDUCE16(vf_reduce_add16, vf_reduce_add)
VF_REDUCE16(vf_reduce_max16, vf_reduce_max)
#endif

#endif
