/* A pool whose threads take part and rest in every order: each job runs once on each thread that it
 * is told of, and on no other. The pool itself decides that by the clock, so it is included here and
 * its decision is replaced before each job. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "base/threads.c"

#define MAX_POOL 8

typedef struct seen {
    llm_threads *pool;
    int32_t n_wanted;
    int64_t sum; /* of all jobs, by thread 0 behind a barrier */
    int64_t runs[MAX_POOL]; /* plain memory on purpose: the pool must order it */
    int64_t wrong[MAX_POOL];
} seen;

static void job_with_barriers(void *context, int32_t thread, int32_t n_threads) {
    seen *s = context;
    s->wrong[thread] += n_threads != s->n_wanted || thread >= n_threads;
    s->runs[thread]++;
    llm_threads_barrier(s->pool, thread);
    if (thread == 0) {
        for (int32_t i = 0; i < n_threads; i++) s->sum += s->runs[i];
    }
    llm_threads_barrier(s->pool, thread);
}

static uint32_t next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* A run of jobs with the same count now and then, so that threads also sleep in both places. */
static void test_any_order(int32_t n_threads, int32_t n_jobs, uint32_t seed) {
    llm_threads *t = NULL;
    llm_error err = {0};
    CHECK(llm_threads_create(n_threads, &t, &err) == LLM_OK, "%s", err.message);
    if (!t) return;
    seen s = {.pool = t};
    int64_t runs[MAX_POOL] = {0}, sum = 0;
    int32_t n = n_threads;
    for (int32_t job = 0; job < n_jobs; job++) {
        if (next(&seed) % 3) n = 1 + (int32_t)(next(&seed) % (uint32_t)n_threads);
        t->turnout.n = n;
        t->turnout.hold_ns = UINT64_MAX; /* nothing is decided by the clock */
        s.n_wanted = n;
        llm_threads_run(t, job_with_barriers, &s);
        for (int32_t i = 0; i < n; i++) sum += ++runs[i];
        for (int32_t i = 0; i < n_threads; i++) {
            CHECK(s.runs[i] == runs[i] && !s.wrong[i],
                  "job %d of %d threads: thread %d ran %lld, not %lld", (int)job, (int)n, (int)i,
                  (long long)s.runs[i], (long long)runs[i]);
        }
        CHECK(s.sum == sum, "job %d of %d threads: a barrier let somebody through", (int)job,
              (int)n);
        if (job % 100 == 0) llm_os_yield();
    }
    llm_threads_destroy(t); /* also while some rest */
}

int main(void) {
    const char *full = getenv("FULL");
    int32_t n_jobs = full && full[0] == '1' ? 200000 : 3000;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        test_any_order(2, n_jobs, seed);
        test_any_order(3, n_jobs, seed);
        test_any_order(4, n_jobs, seed);
        test_any_order(MAX_POOL, n_jobs / 4, seed);
    }
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
