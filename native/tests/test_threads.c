/* The thread pool: jobs, barriers, visibility, oversubscription, life cycle and idle CPU time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "base/float_env.h"
#include "base/os_clock.h"
#include "base/threads.h"

#if !defined(_WIN32)
#include <sys/resource.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#endif

#define MAX_THREADS 64

static llm_threads *create(int32_t n_threads) {
    llm_threads *t = NULL;
    llm_error err = {0};
    llm_status status = llm_threads_create(n_threads, &t, &err);
    CHECK(status == LLM_OK, "create(%d): %s", (int)n_threads, err.message);
    if (status != LLM_OK) exit(1);
    return t;
}

typedef struct counts {
    llm_threads *pool;
    int32_t n_threads;
    int64_t runs[MAX_THREADS]; /* plain memory on purpose: the pool must order it */
    int64_t stage[MAX_THREADS];
    int64_t n_wrong[MAX_THREADS];
} counts;

/* A pool may leave threads out only of jobs behind long ones with barriers: not of these. */
static void count_job(void *context, int32_t thread, int32_t n_threads) {
    counts *c = context;
    c->runs[thread]++;
    c->n_wrong[thread] += n_threads != c->n_threads;
}

static int64_t total_wrong(const counts *c) {
    int64_t total = 0;
    for (int32_t i = 0; i < MAX_THREADS; i++) total += c->n_wrong[i];
    return total;
}

static void test_each_thread_runs_each_job_once(int32_t n_threads, int64_t n_jobs) {
    llm_threads *t = create(n_threads);
    counts c = {.n_threads = n_threads};
    CHECK(llm_threads_count(t) == n_threads, "%d", (int)llm_threads_count(t));
    for (int64_t job = 1; job <= n_jobs; job++) {
        llm_threads_run(t, count_job, &c);
        for (int32_t i = 0; i < n_threads; i++) {
            CHECK(c.runs[i] == job, "thread %d of %d ran %lld jobs of %lld", (int)i, (int)n_threads,
                  (long long)c.runs[i], (long long)job);
        }
    }
    CHECK(total_wrong(&c) == 0, "%d threads", (int)n_threads);
    llm_threads_destroy(t);
}

#define N_STAGES 100

/* Each thread writes its stage, all meet, each reads the stages of all the others, all meet. */
static void barrier_job(void *context, int32_t thread, int32_t n_threads) {
    counts *c = context;
    for (int64_t stage = 1; stage <= N_STAGES; stage++) {
        c->stage[thread] = stage;
        llm_threads_barrier(c->pool, thread);
        for (int32_t i = 0; i < n_threads; i++) c->n_wrong[thread] += c->stage[i] != stage;
        llm_threads_barrier(c->pool, thread);
    }
    c->stage[thread] = 0;
}

static void test_barrier_orders_memory(int32_t n_threads, int32_t n_jobs) {
    llm_threads *t = create(n_threads);
    counts c = {.pool = t, .n_threads = n_threads};
    for (int32_t i = 0; i < n_jobs; i++) llm_threads_run(t, barrier_job, &c);
    CHECK(total_wrong(&c) == 0, "%d threads: stale reads", (int)n_threads);
    llm_threads_destroy(t);
}

/* Threads that arrive at very different times take every way through the wait: spin and sleep. */
static void uneven_job(void *context, int32_t thread, int32_t n_threads) {
    counts *c = context;
    static const uint64_t work_ns[] = {0, 20000, 300000};
    for (int32_t round = 0; round < 30; round++) {
        uint64_t until = llm_now_ns() + work_ns[(round + thread) % 3];
        while (llm_now_ns() < until) continue;
        c->stage[thread] = round;
        llm_threads_barrier(c->pool, thread);
        for (int32_t i = 0; i < n_threads; i++) c->n_wrong[thread] += c->stage[i] != round;
        llm_threads_barrier(c->pool, thread);
    }
}

static void test_uneven_arrival(int32_t n_threads) {
    llm_threads *t = create(n_threads);
    counts c = {.pool = t, .n_threads = n_threads};
    for (int32_t i = 0; i < 3; i++) llm_threads_run(t, uneven_job, &c);
    CHECK(total_wrong(&c) == 0, "%d threads: stale reads", (int)n_threads);
    llm_threads_destroy(t);
}

typedef struct relay {
    llm_threads *pool;
    atomic_int word;
    int64_t written[MAX_THREADS]; /* plain memory: the announcement must order it */
    int64_t n_wrong[MAX_THREADS];
} relay;

/* Thread i writes, then raises the word from i to i + 1; thread i + 1 has awaited that. */
static void relay_job(void *context, int32_t thread, int32_t n_threads) {
    relay *r = context;
    for (int32_t round = 0; round < 50; round++) {
        llm_threads_await(r->pool, thread, &r->word, round * n_threads + thread);
        for (int32_t i = 0; i < n_threads; i++) {
            r->n_wrong[thread] += r->written[i] != round + (i < thread);
        }
        r->written[thread]++;
        if (round % 10 == 9) { /* long enough for the others to fall asleep */
            uint64_t until = llm_now_ns() + 200000;
            while (llm_now_ns() < until) continue;
        }
        atomic_fetch_add(&r->word, 1);
        llm_threads_announce(r->pool);
    }
    llm_threads_await(r->pool, thread, &r->word, 1); /* long passed */
}

static void test_await(int32_t n_threads) {
    relay r = {.pool = create(n_threads)};
    llm_threads_run(r.pool, relay_job, &r);
    for (int32_t i = 0; i < n_threads; i++) {
        CHECK(r.written[i] == 50 && r.n_wrong[i] == 0, "thread %d of %d: %lld rounds, %lld stale",
              (int)i, (int)n_threads, (long long)r.written[i], (long long)r.n_wrong[i]);
    }
    CHECK(llm_threads_n_barriers(r.pool) == 0, "%u barriers", llm_threads_n_barriers(r.pool));
    counts c = {.pool = r.pool, .n_threads = n_threads};
    llm_threads_run(r.pool, barrier_job, &c);
    CHECK(n_threads == 1 || llm_threads_n_barriers(r.pool) == 2 * N_STAGES, "%u barriers",
          llm_threads_n_barriers(r.pool));
    llm_threads_destroy(r.pool);
}

static void test_create_and_destroy(int32_t n_times) {
    for (int32_t i = 0; i < n_times; i++) {
        llm_threads *t = create(1 + i % 5);
        counts c = {.pool = t, .n_threads = 1 + i % 5};
        if (i % 2) llm_threads_run(t, barrier_job, &c); /* also pools that never ran */
        CHECK(total_wrong(&c) == 0, "pool %d", (int)i);
        llm_threads_destroy(t);
    }
    llm_threads_destroy(NULL);
}

static void test_bad_counts_are_refused(void) {
    static const int32_t bad[] = {-1, INT32_MIN, 1025, INT32_MAX};
    for (int32_t i = 0; i < 4; i++) {
        llm_threads *t = (llm_threads *)&t;
        llm_error err = {0};
        CHECK(llm_threads_create(bad[i], &t, &err) == LLM_E_ARGUMENT, "%d", (int)bad[i]);
        CHECK(t == NULL, "%d", (int)bad[i]);
        CHECK(strstr(err.message, "thread count") != NULL, "%s", err.message);
    }
}

static void test_default_count(void) {
    llm_machine machine;
    llm_machine_probe(&machine);
    llm_threads *t = create(0);
    CHECK(llm_threads_count(t) == machine.n_threads, "%d, %d", (int)llm_threads_count(t),
          (int)machine.n_threads);
    llm_threads_destroy(t);
}

static void float_env_job(void *context, int32_t thread, int32_t n_threads) {
    counts *c = context;
    (void)n_threads;
    volatile float smallest_normal = 1.17549435e-38f;
    volatile float half = smallest_normal * 0.5f;
    c->n_wrong[thread] += half == 0.0f;
}

/* A caller in flush-to-zero mode gets the same subnormals, and its mode back. */
static void test_float_mode(void) {
#if defined(__x86_64__)
    uint64_t flush = 0x9fc0u;
#elif defined(__aarch64__)
    uint64_t flush = 1u << 24;
#else
    uint64_t flush = 0;
#endif
    uint64_t before = llm_float_env_get();
    for (int32_t n_threads = 1; n_threads <= 3; n_threads++) {
        llm_float_env_set(flush);
        llm_threads *t = create(n_threads);
        counts c = {.pool = t, .n_threads = n_threads};
        llm_threads_run(t, float_env_job, &c);
        uint64_t after = llm_float_env_get();
        llm_threads_destroy(t);
        llm_float_env_set(before);
        CHECK(total_wrong(&c) == 0, "%d threads", (int)n_threads);
        /* The low six bits on x86 say which exceptions were met: no mode. */
        CHECK((after & ~UINT64_C(0x3f)) == flush, "mode %llx", (unsigned long long)after);
    }
}

static void test_shares_cover_everything_once(void) {
    for (int32_t n_threads = 1; n_threads <= 7; n_threads++) {
        for (int64_t n = 0; n < 40; n++) {
            int64_t next = 0, begin, end;
            for (int32_t i = 0; i < n_threads; i++) {
                llm_share(n, i, n_threads, &begin, &end);
                CHECK(begin == next && end >= begin, "share %d of %d", (int)i, (int)n_threads);
                CHECK(end - begin <= n / n_threads + 1, "share %d of %d", (int)i, (int)n_threads);
                next = end;
            }
            CHECK(next == n, "%lld of %lld", (long long)next, (long long)n);
        }
    }
}

#if defined(__linux__)
typedef struct crowd {
    llm_threads *pool;
    int32_t n_least, n_most; /* threads that took part in a job */
    int64_t stage[MAX_THREADS], n_wrong[MAX_THREADS];
} crowd;

static void crowd_job(void *context, int32_t thread, int32_t n_threads) {
    crowd *c = context;
    if (thread == 0 && n_threads < c->n_least) c->n_least = n_threads;
    if (thread == 0 && n_threads > c->n_most) c->n_most = n_threads;
    for (int64_t stage = 1; stage <= 40; stage++) {
        uint64_t until = llm_now_ns() + 20000;
        while (llm_now_ns() < until) continue;
        c->stage[thread] = stage;
        llm_threads_barrier(c->pool, thread);
        for (int32_t i = 0; i < n_threads; i++) c->n_wrong[thread] += c->stage[i] != stage;
        llm_threads_barrier(c->pool, thread);
    }
}

static void *restricted(void *context) {
    cpu_set_t all, one;
    pthread_getaffinity_np(pthread_self(), sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++) {
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    crowd *c = context;
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    c->pool = create(4);
    c->n_least = 4;
    uint64_t until = llm_now_ns() + 5000000000u;
    while (c->n_least > 1 && llm_now_ns() < until) llm_threads_run(c->pool, crowd_job, c);
    int32_t least = c->n_least;
    c->n_most = 0; /* after a while all are tried again, and run the right job */
    until = llm_now_ns() + 5000000000u;
    while (c->n_most < 4 && llm_now_ns() < until) llm_threads_run(c->pool, crowd_job, c);
    c->n_least = least;
    llm_threads_destroy(c->pool);
    return NULL;
}

/* Four threads on one CPU (a thread inherits the CPUs of the one that makes it). */
static void test_threads_in_each_others_way_rest(void) {
    crowd c = {0};
    pthread_t thread;
    pthread_create(&thread, NULL, restricted, &c);
    pthread_join(thread, NULL);
    CHECK(c.n_least < 4, "%d threads at the least", (int)c.n_least);
    CHECK(c.n_most == 4, "%d threads at the most afterwards", (int)c.n_most);
    int64_t wrong = 0;
    for (int32_t i = 0; i < 4; i++) wrong += c.n_wrong[i];
    CHECK(wrong == 0, "%lld stale reads", (long long)wrong);
}
#endif

#if !defined(_WIN32)
static double cpu_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec)
           + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void test_idle_pool_uses_no_cpu(void) {
    llm_threads *t = create(4);
    counts c = {.pool = t, .n_threads = 4};
    llm_threads_run(t, barrier_job, &c);
    double before = cpu_seconds();
    usleep(300000);
    double used = cpu_seconds() - before;
    /* Each worker may spin once more, for 50 us; a pool that polls would use 0.3 s and more. */
    CHECK(used < 0.015, "%.4f CPU seconds in 0.3 s of idling", used);
    llm_threads_destroy(t);
}
#endif

int main(void) {
    const char *full = getenv("FULL");
    int32_t times = full && strcmp(full, "1") == 0 ? 20 : 1;
    static const int32_t n_threads[] = {1, 2, 3, 4, 8};
    for (int32_t i = 0; i < 5; i++) {
        test_each_thread_runs_each_job_once(n_threads[i], 300 * times);
        test_barrier_orders_memory(n_threads[i], 3 * times);
        test_await(n_threads[i]);
    }
    test_uneven_arrival(2);
    test_uneven_arrival(4);
    test_create_and_destroy(40 * times);
    test_bad_counts_are_refused();
    test_default_count();
    test_float_mode();
    test_shares_cover_everything_once();
#if defined(__linux__)
    test_threads_in_each_others_way_rest();
#endif
#if !defined(_WIN32)
    test_idle_pool_uses_no_cpu();
#endif
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
