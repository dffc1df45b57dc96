#if !defined(_WIN32)
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE
#endif
#include "base/map_guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANGES 64

/* begin is 0 while no range is set. */
struct llm_map_guard {
    atomic_uintptr_t begin, end;
    atomic_int is_taken, was_hit;
};

/* Ranges come and go while the handler looks through them, so they stay where they are: a full table
 * gets a next one, and none is ever freed. */
typedef struct table {
    llm_map_guard range[RANGES];
    _Atomic(struct table *) next;
} table;

static table first_table;
static uintptr_t page_bytes;
static struct sigaction before; /* what was there when ours came */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static llm_map_guard *range_with(uintptr_t at) {
    for (table *t = &first_table; t; t = atomic_load(&t->next)) {
        for (int32_t i = 0; i < RANGES; i++) {
            llm_map_guard *g = &t->range[i];
            uintptr_t begin = atomic_load(&g->begin);
            if (begin && at >= begin && at < atomic_load(&g->end)
                && atomic_load(&g->begin) == begin) {
                return g;
            }
        }
    }
    return NULL;
}

/* All from the page on, for the file has ended: at most a few faults a range. The mark comes first, so
 * that nobody can have seen zeros without it. */
static bool show_zeros(llm_map_guard *g, uintptr_t at) {
    uintptr_t page = at & ~(page_bytes - 1);
    atomic_store(&g->was_hit, 1);
    void *p = mmap((void *)page, atomic_load(&g->end) - page, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return p != MAP_FAILED;
}

/* Not one of ours: it goes on as if there were no handler here. */
static void pass_on(int number, siginfo_t *info, void *context) {
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
        return;
    }
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
        return;
    }
    sigaction(number, &before, NULL);
    raise(number); /* it comes when this handler returns */
}

/* Only calls that are safe in a handler; mmap is a bare system call. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    llm_map_guard *g = info->si_code > 0 ? range_with(at) : NULL; /* else another process sent it */
    if (!g || !show_zeros(g, at)) pass_on(number, info, context);
    errno = saved;
}

static void install(void) {
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before);
}

static llm_map_guard *take_free(table *t) {
    for (int32_t i = 0; i < RANGES; i++) {
        int expected = 0;
        if (atomic_compare_exchange_strong(&t->range[i].is_taken, &expected, 1))
            return &t->range[i];
    }
    return NULL;
}

llm_map_guard *llm_map_guard_add(const void *begin, size_t n_bytes) {
    pthread_once(&once, install);
    table *t = &first_table;
    llm_map_guard *g;
    while (!(g = take_free(t))) {
        table *next = atomic_load(&t->next);
        if (!next) {
            table *made = calloc(1, sizeof *made);
            if (!made) return NULL;
            if (atomic_compare_exchange_strong(&t->next, &next, made))
                next = made;
            else
                free(made); /* another thread was quicker */
        }
        t = next;
    }
    atomic_store(&g->was_hit, 0);
    atomic_store(&g->end, (uintptr_t)begin + n_bytes);
    atomic_store(&g->begin, (uintptr_t)begin);
    return g;
}

void llm_map_guard_remove(llm_map_guard *guard) {
    if (!guard) return;
    atomic_store(&guard->begin, 0);
    atomic_store(&guard->is_taken, 0);
}

bool llm_map_guard_was_hit(const llm_map_guard *guard) {
    return guard && atomic_load(&guard->was_hit);
}

#endif
