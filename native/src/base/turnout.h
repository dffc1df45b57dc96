/* turnout.h: how many threads of a pool take part in a job, where others use the CPUs too.
 *
 * All threads meet some hundred times in a step, so one whose CPU is taken away holds up all. Half
 * as many threads on CPUs of their own are faster then; whether they are is measured, not assumed.
 * Results never depend on the count.
 */
#ifndef LLM_TURNOUT_H
#define LLM_TURNOUT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct llm_turnout {
    int32_t n_threads; /* of the pool */
    int32_t n;         /* that take part in the next job */
    int32_t n_before;  /* while `trying`: the count that n must beat, and how fast it was */
    bool trying;
    double rate_before;     /* barriers a nanosecond */
    uint64_t hold_ns;       /* of jobs to come for which n stays */
    uint64_t failed_ns;     /* the hold after a trial that did not pay: longer each time */
    uint32_t job_barriers;  /* the jobs of a window are alike: so many barriers in each */
    uint64_t window_ns;     /* of the jobs so far */
    uint64_t n_in_window;   /* barriers */
} llm_turnout;

void llm_turnout_init(llm_turnout *u, int32_t n_threads);

/* A job of n threads took wall_ns. True when there were enough to decide: the caller then asks
 * llm_turnout_decide. One without barriers tells nothing about waiting. */
bool llm_turnout_add(llm_turnout *u, uint64_t wall_ns, uint32_t n_barriers);

/* Chooses n for the jobs to come. stolen_ns: how long the thread that lost most was kept from
 * running in the window that llm_turnout_add has ended. */
void llm_turnout_decide(llm_turnout *u, uint64_t stolen_ns);

#endif
