/* Instruction sets: one answer for all threads, and none that the system refuses. */
#if !defined(_WIN32)
#define _GNU_SOURCE /* sigaltstack */
#endif
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "backend/kernels.h"
#include "base/os_thread.h"
#include "check.h"

#define N_THREADS 8

static const llm_kernels *best_of[N_THREADS];

static llm_os_result LLM_OS_THREAD_CALL ask(void *arg) {
    const llm_kernels **best = arg;
    *best = llm_kernels_of(NULL);
    return (llm_os_result)0;
}

/* The first calls of the process come at once. */
static void test_threads_get_one_answer(void) {
    llm_os_thread threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        if (!llm_os_thread_start(&threads[i], ask, &best_of[i])) {
            CHECK(0, "thread %d was refused", i);
            return;
        }
    }
    for (int i = 0; i < N_THREADS; i++) llm_os_thread_join(threads[i]);
    for (int i = 0; i < N_THREADS; i++) {
        CHECK(best_of[i] && best_of[i] == best_of[0], "thread %d", i);
    }
}

#if defined(__linux__) && defined(__x86_64__)
/* Linux gives no tiles to a process with a signal stack that could not hold them. */
static void refuse_tiles(void) {
    static char small[8192];
    stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    if (sigaltstack(&stack, NULL)) printf("no signal stack: tiles are not refused\n");
}

static void test_refused_tiles_are_no_feature(void) {
    CHECK(!strstr(llm_isa_features(), "amx"), "%s", llm_isa_features());
    CHECK(!llm_kernels_of("amx"), "amx is offered");
}
#endif

int main(void) {
#if defined(__linux__) && defined(__x86_64__)
    refuse_tiles();
#endif
    test_threads_get_one_answer();
#if defined(__linux__) && defined(__x86_64__)
    test_refused_tiles_are_no_feature();
#endif
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
