/* profile.h: where the time of a step goes, per phase and thread. Only in builds with -DLLM_PROFILE=ON,
 * which tools/step_profile.c reads; elsewhere nothing is left of it. */
#ifndef LLM_PROFILE_H
#define LLM_PROFILE_H

#if LLM_PROFILE
#include "base/os_clock.h"

typedef enum llm_phase {
    LLM_PHASE_ANGLES,
    LLM_PHASE_NORM,
    LLM_PHASE_QKV,
    LLM_PHASE_KV_WRITE,
    LLM_PHASE_ATTEND,
    LLM_PHASE_OUT_QUANTIZE,
    LLM_PHASE_OUT,
    LLM_PHASE_FFN_NORM,
    LLM_PHASE_GATE_UP,
    LLM_PHASE_ACTIVATE,
    LLM_PHASE_DOWN,
    LLM_PHASE_HEAD,
    LLM_N_PHASES
} llm_phase;

/* One thread's: mark is when it last changed phase. */
typedef struct llm_profile {
    _Alignas(64) uint64_t mark;
    uint64_t work_ns[LLM_N_PHASES], wait_ns[LLM_N_PHASES];
} llm_profile;

static inline uint64_t llm_profile_lap(llm_profile *p) {
    uint64_t now = llm_now_ns(), lap = now - p->mark;
    p->mark = now;
    return lap;
}

#define LLM_PROFILE_BEGIN(e, thread) ((void)llm_profile_lap(&(e)->profile[thread]))
#define LLM_PROFILE_WORK(e, thread, phase)                                                         \
    ((e)->profile[thread].work_ns[LLM_PHASE_##phase] += llm_profile_lap(&(e)->profile[thread]))
#define LLM_PROFILE_WAIT(e, thread, phase)                                                         \
    ((e)->profile[thread].wait_ns[LLM_PHASE_##phase] += llm_profile_lap(&(e)->profile[thread]))
#else
#define LLM_PROFILE_BEGIN(e, thread) ((void)0)
#define LLM_PROFILE_WORK(e, thread, phase) ((void)0)
#define LLM_PROFILE_WAIT(e, thread, phase) ((void)0)
#endif

#endif
