/* threads.c: the persistent thread pool.
 *
 * All waiting goes through one kind of object, a gate: a counter that only grows. Whoever waits
 * remembers the value it saw and leaves when the value differs; a barrier's last thread, or a new
 * job, advances the counter. A waiter first spins, at most 50 us, then sleeps in the kernel, so an
 * idle pool uses no CPU.
 *
 * Where more threads run than CPUs, spinning takes time from the very thread that is waited for. So
 * a pool with more threads than the machine offers does not spin, and in any pool the spin budget
 * of a thread doubles each time that spinning was enough and drops to a quarter each time that it
 * was not. Nobody yields: a kernel may take a whole time slice from a thread that does, and two
 * busy processes beside the pool slowed it down to a thirtieth.
 *
 * Threads that are kept from running hold up all others, so a pool among other busy threads leaves
 * some of its own out of its jobs (turnout.h). They rest until all are wanted again.
 */
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/float_env.h"
#include "base/os_clock.h"
#include "base/os_thread.h"
#include "base/status.h"
#include "base/turnout.h"

#define CACHE_LINE 64
#define SPIN_MAX_NS 50000u
#define SPIN_MIN_NS 1000u
#define PAUSES_PER_CLOCK 16 /* a look at the clock costs about as much as one pause */
#define SHORT_JOB_NS 200000u  /* looks at the time of the CPU would be felt in shorter ones */
#define MAX_THREADS 1024

typedef struct gate {
    _Alignas(CACHE_LINE) _Atomic uint32_t value; /* what waiters read: alone on its line */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_sleeping;
    _Atomic uint64_t woken_ns; /* when sleepers were last woken */
    llm_os_park park;
} gate;

typedef struct worker {
    _Alignas(CACHE_LINE) struct llm_threads *pool;
    int32_t index;
    uint32_t spin_ns;    /* this thread's own budget, touched by nobody else; 0: never spins */
    uint32_t n_barriers; /* that it has passed */
    int32_t n_active;    /* of the last job that it took part in */
    uint64_t slept_ns;   /* in this job, while there was nothing to do for it */
    uint64_t stolen_ns;  /* in this window of jobs: neither ran nor slept */
    llm_os_thread handle;
} worker;

struct llm_threads {
    void *allocation;
    int32_t n_threads;
    int32_t n_started; /* workers that exist; the caller is not one */
    bool stopping;     /* written before start advances, read after */
    llm_job job;
    void *context;
    int32_t n_cpus;
    llm_turnout turnout; /* the caller's */
    bool measured;       /* the job is long enough to be measured */
    int32_t n_active;    /* threads 0 .. n_active - 1 run the job, */
    int32_t n_counted; /* so many report that it is finished: also those that rest from now on */
    uint32_t resumed_at; /* the value of start before the job that ends a rest */
    gate start; /* advances when a job is there */
    gate whole; /* advances before a job that those who rest shall run again */
    gate done; /* advances when all threads have finished the job */
    gate barrier; /* advances when all threads have reached the barrier */
    gate event; /* advances when a thread announces a word that others may await */
    _Alignas(CACHE_LINE) _Atomic int32_t n_finished;
    _Alignas(CACHE_LINE) _Atomic int32_t n_arrived;
    worker workers[]; /* [n_threads]; workers[0] holds the caller's spin budget */
};

#define N_GATES 5
#define GATES(t) {&(t)->start, &(t)->whole, &(t)->done, &(t)->barrier, &(t)->event}

static void gate_advance(gate *g) {
    /* Sequentially consistent on both sides (see gate_wait): either this thread sees the sleeper's
     * count, or the sleeper sees the new value before it sleeps. */
    atomic_fetch_add(&g->value, 1);
    if (!atomic_load(&g->n_sleeping)) return;
    atomic_store_explicit(&g->woken_ns, llm_now_ns(), memory_order_relaxed);
    llm_os_park_wake(&g->park, &g->value);
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

/* What passes between being woken and running is not sleep. */
static void gate_sleep(gate *g, uint32_t seen, worker *w) {
    uint64_t begin = llm_now_ns();
    atomic_fetch_add(&g->n_sleeping, 1);
    while (atomic_load(&g->value) == seen) llm_os_park_wait(&g->park, &g->value, seen);
    atomic_fetch_sub(&g->n_sleeping, 1);
    uint64_t woken = atomic_load_explicit(&g->woken_ns, memory_order_relaxed);
    if (woken > begin) w->slept_ns += woken - begin;
}

static void gate_wait(gate *g, uint32_t seen, worker *w) {
    if (gate_changed(g, seen)) return;
    if (gate_spin(g, seen, w->spin_ns)) {
        w->spin_ns = w->spin_ns * 2 < SPIN_MAX_NS ? w->spin_ns * 2 : SPIN_MAX_NS;
        return;
    }
    if (w->spin_ns) w->spin_ns = w->spin_ns / 4 > SPIN_MIN_NS ? w->spin_ns / 4 : SPIN_MIN_NS;
    gate_sleep(g, seen, w);
}

void llm_threads_barrier(llm_threads *t, int32_t thread) {
    t->workers[thread].n_barriers++;
    if (t->n_active == 1) return;
    /* The value cannot move before this thread has arrived, so this read is not stale. */
    uint32_t seen = atomic_load_explicit(&t->barrier.value, memory_order_relaxed);
    int32_t others = t->n_active - 1; /* read before this thread arrives, as in finish_job */
    if (atomic_fetch_add_explicit(&t->n_arrived, 1, memory_order_acq_rel) == others) {
        atomic_store_explicit(&t->n_arrived, 0, memory_order_relaxed);
        gate_advance(&t->barrier);
    } else {
        gate_wait(&t->barrier, seen, &t->workers[thread]);
    }
}

uint32_t llm_threads_n_barriers(const llm_threads *t) { return t->workers[0].n_barriers; }

void llm_threads_await(llm_threads *t, int32_t thread, const atomic_int *word, int32_t value) {
    for (;;) {
        /* Before the look at the word: an announcement in between is seen by the wait. */
        uint32_t seen = atomic_load_explicit(&t->event.value, memory_order_acquire);
        if (atomic_load_explicit(word, memory_order_acquire) >= value) return;
        gate_wait(&t->event, seen, &t->workers[thread]);
    }
}

void llm_threads_announce(llm_threads *t) {
    if (t->n_active > 1) gate_advance(&t->event);
}

static void finish_job(llm_threads *t) {
    /* Read before this thread counts: the next job may change it. */
    int32_t others = t->n_counted - 1;
    if (atomic_fetch_add_explicit(&t->n_finished, 1, memory_order_acq_rel) == others) {
        atomic_store_explicit(&t->n_finished, 0, memory_order_relaxed);
        gate_advance(&t->done);
    }
}

static void work(llm_threads *t, worker *w) {
    if (w->n_active != t->n_active) {
        w->n_active = t->n_active;
        w->spin_ns = t->n_active > t->n_cpus ? 0 : SPIN_MAX_NS;
    }
    uint64_t ran = 0, ran_until = 0, begin = t->measured ? llm_now_ns() : 0;
    bool measured = t->measured && llm_os_thread_cpu_ns(&ran);
    w->slept_ns = 0;
    t->job(t->context, w->index, t->n_active);
    if (!measured || !llm_os_thread_cpu_ns(&ran_until)) return;
    uint64_t had = ran_until - ran + w->slept_ns, took = llm_now_ns() - begin;
    if (took > had) w->stolen_ns += took - had;
}

/* The value of start that is waited for next. */
static uint32_t rest(llm_threads *t, worker *w) {
    /* The value cannot move before this thread has finished, so this read is not stale. */
    uint32_t seen = atomic_load_explicit(&t->whole.value, memory_order_relaxed);
    finish_job(t);
    gate_wait(&t->whole, seen, w);
    return t->resumed_at;
}

static llm_os_result LLM_OS_THREAD_CALL worker_main(void *arg) {
    worker *w = arg;
    llm_threads *t = w->pool;
    llm_float_env_set(LLM_FLOAT_ENV_DEFAULT);
    for (uint32_t seen = 0;;) {
        gate_wait(&t->start, seen, w);
        if (t->stopping) return (llm_os_result)0;
        if (w->index < t->n_active) {
            work(t, w);
            finish_job(t);
            seen++;
        } else {
            seen = rest(t, w);
        }
    }
}

/* Runs the job on those that take part, `turnout.n`: fewer than before, as many, or all. */
static void run_shared(llm_threads *t) {
    int32_t before = t->n_active, n = t->turnout.n;
    t->n_active = n;
    /* Whoever rests is woken for more threads, and rests again if those are not all. */
    t->n_counted = n > before ? t->n_threads : before;
    if (t->n_counted == 1) {
        work(t, &t->workers[0]);
        return;
    }
    uint32_t seen = atomic_load_explicit(&t->done.value, memory_order_relaxed);
    if (n > before) {
        t->resumed_at = atomic_load_explicit(&t->start.value, memory_order_relaxed);
        gate_advance(&t->whole);
    }
    gate_advance(&t->start);
    work(t, &t->workers[0]);
    finish_job(t);
    gate_wait(&t->done, seen, &t->workers[0]);
}

/* After a job: whether as many threads shall run the next. */
static void count_job(llm_threads *t, uint64_t wall_ns, uint32_t n_barriers) {
    bool measured = t->measured;
    t->measured = wall_ns >= SHORT_JOB_NS;
    if (!measured) return;
    bool full = llm_turnout_add(&t->turnout, wall_ns, n_barriers);
    if (!full && t->turnout.window_ns) return;
    uint64_t most = 0;
    for (int32_t i = 0; i < t->n_threads; i++) {
        if (t->workers[i].stolen_ns > most) most = t->workers[i].stolen_ns;
        t->workers[i].stolen_ns = 0; /* of one window only */
    }
    if (!full) return;
    llm_turnout_decide(&t->turnout, most);
}

void llm_threads_run(llm_threads *t, llm_job job, void *context) {
    uint64_t mode = llm_float_env_get();
    llm_float_env_set(LLM_FLOAT_ENV_DEFAULT);
    if (t->n_threads == 1) {
        job(context, 0, 1);
    } else {
        uint64_t begin = llm_now_ns();
        uint32_t n_barriers = t->workers[0].n_barriers;
        t->job = job;
        t->context = context;
        run_shared(t);
        count_job(t, llm_now_ns() - begin, t->workers[0].n_barriers - n_barriers);
    }
    llm_float_env_set(mode);
}

static bool gate_init(gate *g) {
    atomic_init(&g->value, 0);
    atomic_init(&g->n_sleeping, 0);
    atomic_init(&g->woken_ns, 0);
    return llm_os_park_init(&g->park);
}

static llm_threads *allocate_pool(int32_t n_threads, int32_t n_cpus) {
    size_t n_bytes = sizeof(llm_threads) + (size_t)n_threads * sizeof(worker);
    void *allocation = calloc(1, n_bytes + CACHE_LINE);
    if (!allocation) return NULL;
    uintptr_t aligned = ((uintptr_t)allocation + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1);
    llm_threads *t = (llm_threads *)aligned;
    t->allocation = allocation;
    t->n_threads = t->n_active = n_threads;
    t->n_cpus = n_cpus;
    llm_turnout_init(&t->turnout, n_threads);
    gate *gates[] = GATES(t);
    for (int32_t i = 0; i < N_GATES; i++) {
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
        t->workers[i].n_active = n_threads;
        t->workers[i].spin_ns = n_threads > n_cpus ? 0 : SPIN_MAX_NS;
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
    llm_threads *t = allocate_pool(n_threads, machine.n_threads);
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
    gate_advance(&t->whole);
    gate_advance(&t->start);
    for (int32_t i = 1; i <= t->n_started; i++) llm_os_thread_join(t->workers[i].handle);
    gate *gates[] = GATES(t);
    for (int32_t i = 0; i < N_GATES; i++) llm_os_park_destroy(&gates[i]->park);
    free(t->allocation);
}

int32_t llm_threads_count(const llm_threads *t) { return t->n_threads; }
