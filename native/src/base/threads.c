/* threads.c: the persistent thread pool.
 *
 * All waiting goes through one kind of object, a gate: a counter that only grows. Whoever waits
 * remembers the value it saw and leaves when the value differs; a barrier's last thread, or a new
 * job, advances the counter. A waiter first spins, at most 50 us, then yields a few times, then
 * sleeps in the kernel, so an idle pool uses no CPU.
 *
 * Where more threads run than CPUs, spinning takes time from the very thread that is waited for. So
 * a pool with more threads than the machine offers does not spin, and in any pool the spin budget
 * of a thread doubles each time that spinning was enough and drops to a quarter each time that it
 * took a yield to let the others arrive (2 CPUs, 4 threads, a small model: 47 tokens a second with
 * plain spinning, 300 so, 440 with 2 threads).
 */
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/float_env.h"
#include "base/os_clock.h"
#include "base/os_thread.h"
#include "base/status.h"

#define CACHE_LINE 64
#define SPIN_MAX_NS 50000u
#define SPIN_MIN_NS 1000u
#define PAUSES_PER_CLOCK 16 /* a look at the clock costs about as much as one pause */
#define N_YIELDS 16
#define MAX_THREADS 1024

typedef struct gate {
    _Alignas(CACHE_LINE) _Atomic uint32_t value; /* what waiters read: alone on its line */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_sleeping;
    llm_os_park park;
} gate;

typedef struct worker {
    _Alignas(CACHE_LINE) struct llm_threads *pool;
    int32_t index;
    uint32_t spin_ns; /* this thread's own budget, touched by nobody else; 0: never spins */
    llm_os_thread handle;
} worker;

struct llm_threads {
    void *allocation;
    int32_t n_threads;
    int32_t n_started; /* workers that exist; the caller is not one */
    bool stopping;     /* written before start advances, read after */
    llm_job job;
    void *context;
    gate start;   /* advances when a job is there */
    gate done;    /* advances when all threads have finished the job */
    gate barrier; /* advances when all threads have reached the barrier */
    gate event;   /* advances when a thread announces a word that others may await */
    _Alignas(CACHE_LINE) _Atomic int32_t n_finished;
    _Alignas(CACHE_LINE) _Atomic int32_t n_arrived;
    worker workers[]; /* [n_threads]; workers[0] holds the caller's spin budget */
};

static void gate_advance(gate *g) {
    /* Sequentially consistent on both sides (see gate_wait): either this thread sees the sleeper's
     * count, or the sleeper sees the new value before it sleeps. */
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->n_sleeping)) llm_os_park_wake(&g->park, &g->value);
}

static bool gate_changed(gate *g, uint32_t seen) {
    return atomic_load_explicit(&g->value, memory_order_acquire) != seen;
}

static bool gate_spin(gate *g, uint32_t seen, uint32_t budget_ns) {
    if (!budget_ns) return false;
    uint64_t begin = llm_now_ns();
    do {
        for (int32_t i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (gate_changed(g, seen)) return true;
            llm_cpu_pause();
        }
    } while (llm_now_ns() - begin < budget_ns);
    return false;
}

static bool gate_yield(gate *g, uint32_t seen) {
    for (int32_t i = 0; i < N_YIELDS; i++) {
        llm_os_yield();
        if (gate_changed(g, seen)) return true;
    }
    return false;
}

static void gate_wait(gate *g, uint32_t seen, worker *w) {
    if (gate_changed(g, seen)) return;
    if (gate_spin(g, seen, w->spin_ns)) {
        w->spin_ns = w->spin_ns * 2 < SPIN_MAX_NS ? w->spin_ns * 2 : SPIN_MAX_NS;
        return;
    }
    if (gate_yield(g, seen)) {
        if (w->spin_ns) w->spin_ns = w->spin_ns / 4 > SPIN_MIN_NS ? w->spin_ns / 4 : SPIN_MIN_NS;
        return;
    }
    atomic_fetch_add(&g->n_sleeping, 1);
    while (atomic_load(&g->value) == seen) llm_os_park_wait(&g->park, &g->value, seen);
    atomic_fetch_sub(&g->n_sleeping, 1);
}

void llm_threads_barrier(llm_threads *t, int32_t thread) {
    if (t->n_threads == 1) return;
    /* The value cannot move before this thread has arrived, so this read is not stale. */
    uint32_t seen = atomic_load_explicit(&t->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->n_arrived, 1, memory_order_acq_rel) == t->n_threads - 1) {
        atomic_store_explicit(&t->n_arrived, 0, memory_order_relaxed);
        gate_advance(&t->barrier);
    } else {
        gate_wait(&t->barrier, seen, &t->workers[thread]);
    }
}

uint32_t llm_threads_n_barriers(const llm_threads *t) { return atomic_load(&t->barrier.value); }

void llm_threads_await(llm_threads *t, int32_t thread, const atomic_int *word, int32_t value) {
    for (;;) {
        /* Before the look at the word: an announcement in between is seen by the wait. */
        uint32_t seen = atomic_load_explicit(&t->event.value, memory_order_acquire);
        if (atomic_load_explicit(word, memory_order_acquire) == value) return;
        gate_wait(&t->event, seen, &t->workers[thread]);
    }
}

void llm_threads_announce(llm_threads *t) {
    if (t->n_threads > 1) gate_advance(&t->event);
}

static void finish_job(llm_threads *t) {
    if (atomic_fetch_add_explicit(&t->n_finished, 1, memory_order_acq_rel) == t->n_threads - 1) {
        atomic_store_explicit(&t->n_finished, 0, memory_order_relaxed);
        gate_advance(&t->done);
    }
}

static llm_os_result LLM_OS_THREAD_CALL worker_main(void *arg) {
    worker *w = arg;
    llm_threads *t = w->pool;
    llm_float_env_set(LLM_FLOAT_ENV_DEFAULT);
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&t->start, seen, w);
        if (t->stopping) return (llm_os_result)0;
        t->job(t->context, w->index, t->n_threads);
        finish_job(t);
    }
}

void llm_threads_run(llm_threads *t, llm_job job, void *context) {
    uint64_t mode = llm_float_env_get();
    llm_float_env_set(LLM_FLOAT_ENV_DEFAULT);
    if (t->n_threads == 1) {
        job(context, 0, 1);
    } else {
        uint32_t seen = atomic_load_explicit(&t->done.value, memory_order_relaxed);
        t->job = job;
        t->context = context;
        gate_advance(&t->start);
        job(context, 0, t->n_threads);
        finish_job(t);
        gate_wait(&t->done, seen, &t->workers[0]);
    }
    llm_float_env_set(mode);
}

static bool gate_init(gate *g) {
    atomic_init(&g->value, 0);
    atomic_init(&g->n_sleeping, 0);
    return llm_os_park_init(&g->park);
}

static llm_threads *allocate_pool(int32_t n_threads, uint32_t spin_ns) {
    size_t n_bytes = sizeof(llm_threads) + (size_t)n_threads * sizeof(worker);
    void *allocation = calloc(1, n_bytes + CACHE_LINE);
    if (!allocation) return NULL;
    uintptr_t aligned = ((uintptr_t)allocation + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1);
    llm_threads *t = (llm_threads *)aligned;
    t->allocation = allocation;
    t->n_threads = n_threads;
    gate *gates[] = {&t->start, &t->done, &t->barrier, &t->event};
    for (int32_t i = 0; i < 4; i++) {
        if (gate_init(gates[i])) continue;
        while (i-- > 0) llm_os_park_destroy(&gates[i]->park);
        free(allocation);
        return NULL;
    }
    atomic_init(&t->n_finished, 0);
    atomic_init(&t->n_arrived, 0);
    for (int32_t i = 0; i < n_threads; i++) {
        t->workers[i].pool = t;
        t->workers[i].index = i;
        t->workers[i].spin_ns = spin_ns;
    }
    return t;
}

llm_status llm_threads_create(int32_t n_threads, llm_threads **out, llm_error *err) {
    *out = NULL;
    llm_machine machine;
    llm_machine_probe(&machine);
    if (n_threads == 0) n_threads = machine.n_threads;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        return llm_fail(err, LLM_E_ARGUMENT, "thread count %d is outside 0..%d (0: the default)",
                        (int)n_threads, MAX_THREADS);
    }
    llm_threads *t = allocate_pool(n_threads, n_threads > machine.n_threads ? 0 : SPIN_MAX_NS);
    if (!t)
        return llm_fail(err, LLM_E_MEMORY, "no memory for a pool of %d threads", (int)n_threads);
    for (int32_t i = 1; i < n_threads; i++) {
        if (!llm_os_thread_start(&t->workers[i].handle, worker_main, &t->workers[i])) {
            llm_threads_destroy(t);
            return llm_fail(err, LLM_E_MEMORY, "the system refused thread %d of %d", (int)(i + 1),
                            (int)n_threads);
        }
        t->n_started++;
    }
    *out = t;
    return LLM_OK;
}

void llm_threads_destroy(llm_threads *t) {
    if (!t) return;
    t->stopping = true;
    gate_advance(&t->start);
    for (int32_t i = 1; i <= t->n_started; i++) llm_os_thread_join(t->workers[i].handle);
    gate *gates[] = {&t->start, &t->done, &t->barrier, &t->event};
    for (int32_t i = 0; i < 4; i++) llm_os_park_destroy(&gates[i]->park);
    free(t->allocation);
}

int32_t llm_threads_count(const llm_threads *t) { return t->n_threads; }
