/* turnout.c: how many threads of a pool take part in a job, where others use the CPUs too. */
#include "base/turnout.h"

#define WINDOW_NS 50000000u      /* some time slices of the system */
#define HOLD_NS 800000000u       /* then all threads are tried again: the others may have gone */
#define LONGEST_HOLD_NS 12800000000u
#define STOLEN_SHARE 4 /* below a quarter no trial: half of the threads could hardly pay */

void llm_turnout_init(llm_turnout *u, int32_t n_threads) {
    *u = (llm_turnout){.n_threads = n_threads, .n = n_threads, .failed_ns = HOLD_NS};
}

static void begin_window(llm_turnout *u) {
    u->window_ns = 0;
    u->n_in_window = 0;
}

static void end_trial(llm_turnout *u, int32_t n) {
    u->trying = false;
    u->n = n;
}

static void hold(llm_turnout *u, uint64_t wall_ns) {
    if (u->hold_ns > wall_ns) {
        u->hold_ns -= wall_ns;
        return;
    }
    u->hold_ns = 0;
    u->n = u->n_threads;
    begin_window(u);
}

bool llm_turnout_add(llm_turnout *u, uint64_t wall_ns, uint32_t n_barriers) {
    if (u->hold_ns) {
        hold(u, wall_ns);
        return false;
    }
    if (!n_barriers) return false;
    if (n_barriers != u->job_barriers) {
        u->job_barriers = n_barriers;
        if (u->trying) end_trial(u, u->n_before);
        begin_window(u);
    }
    u->window_ns += wall_ns;
    u->n_in_window += n_barriers;
    return u->window_ns >= WINDOW_NS;
}

void llm_turnout_decide(llm_turnout *u, uint64_t stolen_ns) {
    double rate = (double)u->n_in_window / (double)u->window_ns;
    bool crowded = stolen_ns > u->window_ns / STOLEN_SHARE;
    begin_window(u);
    if (u->trying && rate <= u->rate_before) {
        end_trial(u, u->n_before);
        u->hold_ns = u->failed_ns;
        u->failed_ns = u->failed_ns < LONGEST_HOLD_NS / 2 ? 2 * u->failed_ns : LONGEST_HOLD_NS;
        return;
    }
    if (u->trying) u->failed_ns = HOLD_NS;
    if (crowded && u->n > 1) {
        u->trying = true;
        u->n_before = u->n;
        u->rate_before = rate;
        u->n /= 2;
        return;
    }
    end_trial(u, u->n);
    if (u->n < u->n_threads) u->hold_ns = HOLD_NS;
}
