/* How many threads take part, decided from made-up windows of jobs. */
#include <stdio.h>

#include "check.h"
#include "base/turnout.h"

#define MS UINT64_C(1000000)

/* Jobs of `job_ns` with 100 barriers until a window is full, of which a thread lost `stolen`. */
static void window(llm_turnout *u, uint64_t job_ns, double stolen) {
    uint64_t wall_ns = 0;
    do wall_ns += job_ns;
    while (!llm_turnout_add(u, job_ns, 100));
    llm_turnout_decide(u, (uint64_t)((double)wall_ns * stolen));
}

/* Jobs while n is held; how long that took. */
static uint64_t wait_for(llm_turnout *u, int32_t n, uint64_t job_ns) {
    uint64_t wall_ns = 0;
    for (; u->n != n && wall_ns < 60000 * MS; wall_ns += job_ns) {
        CHECK(!llm_turnout_add(u, job_ns, 100), "a window of %d threads in a hold", (int)u->n);
    }
    return wall_ns;
}

static void test_undisturbed_keeps_all(void) {
    llm_turnout u;
    llm_turnout_init(&u, 8);
    for (int32_t i = 0; i < 100; i++) {
        window(&u, i % 2 ? 3 * MS : 9 * MS, 0.2);
        CHECK(u.n == 8, "%d threads in window %d", (int)u.n, (int)i);
    }
}

static void test_fewer_where_that_is_faster(void) {
    llm_turnout u;
    llm_turnout_init(&u, 8);
    window(&u, 9 * MS, 0.5);
    CHECK(u.n == 4, "%d", (int)u.n);
    window(&u, 7 * MS, 0.5); /* faster, and still not alone */
    CHECK(u.n == 2, "%d", (int)u.n);
    window(&u, 8 * MS, 0); /* slower than four */
    CHECK(u.n == 4, "%d", (int)u.n);
    uint64_t held = wait_for(&u, 8, 7 * MS);
    CHECK(held >= 500 * MS && held <= 2000 * MS, "held for %llu ns", (unsigned long long)held);
    window(&u, 3 * MS, 0); /* the others have gone */
    CHECK(u.n == 8, "%d", (int)u.n);
}

/* Taken CPU time alone is no reason: where all threads were faster they stay, and are left alone for
 * longer each time. */
static void test_trials_that_do_not_pay_become_rare(void) {
    llm_turnout u;
    llm_turnout_init(&u, 2);
    uint64_t before = 0;
    for (int32_t i = 0; i < 8; i++) {
        window(&u, 4 * MS, 0.4);
        CHECK(u.n == 1, "trial %d", (int)i);
        window(&u, 5 * MS, 0);
        CHECK(u.n == 2, "trial %d", (int)i);
        uint64_t held = 0;
        while (u.hold_ns) {
            llm_turnout_add(&u, 4 * MS, 100);
            CHECK(u.n == 2, "%d", (int)u.n);
            held += 4 * MS;
        }
        CHECK(held >= before && held >= 500 * MS, "hold %d: %llu ns", (int)i,
              (unsigned long long)held);
        before = held;
    }
    CHECK(before >= 10000 * MS && before <= 14000 * MS, "%llu", (unsigned long long)before);
}

/* Decode after a prefill: rates of different jobs are not compared, and no trial outlives them. */
static void test_other_jobs_begin_anew(void) {
    llm_turnout u;
    llm_turnout_init(&u, 4);
    window(&u, 4 * MS, 0.5);
    CHECK(u.n == 2, "%d", (int)u.n);
    CHECK(!llm_turnout_add(&u, 100 * MS, 0), "a job without barriers");
    CHECK(u.n == 2, "%d", (int)u.n);
    CHECK(!llm_turnout_add(&u, 20 * MS, 300), "a window of another kind");
    CHECK(u.n == 4, "%d", (int)u.n);
    CHECK(!llm_turnout_add(&u, 49 * MS, 100), "a window of the first kind");
}

static void test_one_thread_is_the_least(void) {
    llm_turnout u;
    llm_turnout_init(&u, 3);
    window(&u, 4 * MS, 0.6);
    CHECK(u.n == 1, "%d", (int)u.n);
    window(&u, 2 * MS, 0.6);
    CHECK(u.n == 1 && u.hold_ns, "%d", (int)u.n);
}

int main(void) {
    test_undisturbed_keeps_all();
    test_fewer_where_that_is_faster();
    test_trials_that_do_not_pay_become_rare();
    test_other_jobs_begin_anew();
    test_one_thread_is_the_least();
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
