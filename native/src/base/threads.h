/* threads.h: the thread pool inside the library. Workers are persistent; the caller is thread 0. */
#ifndef LLM_THREADS_H
#define LLM_THREADS_H

#include <stdatomic.h>

#include "localllm.h"

typedef void (*llm_job)(void *context, int32_t thread, int32_t n_threads);

/* Runs job once on each of threads 0 .. n_threads - 1, a count that the job is told, and returns
 * when all of them have finished: all threads of the pool, or fewer among busy threads of others
 * (turnout.h). Everything written before the call is visible to the job, everything the job wrote
 * is visible after it. */
void llm_threads_run(llm_threads *t, llm_job job, void *context);

/* Inside a job: waits until all threads that run it are here. Same visibility. */
void llm_threads_barrier(llm_threads *t, int32_t thread);

/* Barriers that thread 0 has passed since the pool was made; between jobs. */
uint32_t llm_threads_n_barriers(const llm_threads *t);

/* Inside a job: waits until *word is value or more. Whoever gives it that value then calls announce;
 * all it wrote before is visible to those that waited. */
void llm_threads_await(llm_threads *t, int32_t thread, const atomic_int *word, int32_t value);
void llm_threads_announce(llm_threads *t);

/* Inside a job: the half-open share [*begin, *end) of n items that belongs to a thread. */
static inline void llm_share(int64_t n, int32_t thread, int32_t n_threads, int64_t *begin,
                             int64_t *end) {
    *begin = n * thread / n_threads;
    *end = n * (thread + 1) / n_threads;
}

#endif
