/* os_thread.h: what the thread pool needs from the system: threads, their time, yielding and parking.
 *
 * A park is a place to sleep until a 32-bit word changes. Linux has that in the kernel (futex);
 * elsewhere it is a mutex and a condition variable, touched only when somebody sleeps.
 */
#ifndef LLM_OS_THREAD_H
#define LLM_OS_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LLM_THREAD_STACK_BYTES (1u << 20)

/* Tells the core that this is a spin loop. */
static inline void llm_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile(
        "isb"); /* `yield` does nothing on most cores; this waits some tens of cycles */
#endif
}

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

typedef HANDLE llm_os_thread;
typedef DWORD llm_os_result;
#define LLM_OS_THREAD_CALL WINAPI

static inline bool llm_os_thread_start(llm_os_thread *out,
                                       llm_os_result(LLM_OS_THREAD_CALL *entry)(void *),
                                       void *arg) {
    *out = CreateThread(NULL, LLM_THREAD_STACK_BYTES, entry, arg, 0, NULL);
    return *out != NULL;
}

static inline void llm_os_thread_join(llm_os_thread thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

static inline void llm_os_yield(void) { SwitchToThread(); }

/* How long this thread has run; false where that is known by the time slice only. */
static inline bool llm_os_thread_cpu_ns(uint64_t *out) {
    (void)out;
    return false;
}
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

typedef pthread_t llm_os_thread;
typedef void *llm_os_result;
#define LLM_OS_THREAD_CALL

static inline bool llm_os_thread_start(llm_os_thread *out, llm_os_result (*entry)(void *),
                                       void *arg) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) return false;
    pthread_attr_setstacksize(&attr, LLM_THREAD_STACK_BYTES);
    /* Signals belong to the host's threads: a worker must not be the one that Ctrl-C interrupts.
     * But its own faults have handlers; blocked, they end the process (see map_guard.h). */
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int failed = pthread_create(out, &attr, entry, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed == 0;
}

static inline void llm_os_thread_join(llm_os_thread thread) { pthread_join(thread, NULL); }
static inline void llm_os_yield(void) { sched_yield(); }

static inline bool llm_os_thread_cpu_ns(uint64_t *out) {
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)) return false;
    *out = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return true;
}
#endif

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct llm_os_park {
    char unused;
} llm_os_park;

static inline bool llm_os_park_init(llm_os_park *p) {
    p->unused = 0;
    return true;
}
static inline void llm_os_park_destroy(llm_os_park *p) { (void)p; }

/* Sleeps while *word is seen; may also return early. */
static inline void llm_os_park_wait(llm_os_park *p, _Atomic uint32_t *word, uint32_t seen) {
    (void)p;
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* After *word has changed: wakes all that sleep on it. */
static inline void llm_os_park_wake(llm_os_park *p, _Atomic uint32_t *word) {
    (void)p;
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
#elif defined(_WIN32)
typedef struct llm_os_park {
    SRWLOCK lock;
    CONDITION_VARIABLE changed;
} llm_os_park;

static inline bool llm_os_park_init(llm_os_park *p) {
    InitializeSRWLock(&p->lock);
    InitializeConditionVariable(&p->changed);
    return true;
}
static inline void llm_os_park_destroy(llm_os_park *p) { (void)p; }

static inline void llm_os_park_wait(llm_os_park *p, _Atomic uint32_t *word, uint32_t seen) {
    AcquireSRWLockExclusive(&p->lock);
    if (atomic_load(word) == seen) SleepConditionVariableSRW(&p->changed, &p->lock, INFINITE, 0);
    ReleaseSRWLockExclusive(&p->lock);
}

static inline void llm_os_park_wake(llm_os_park *p, _Atomic uint32_t *word) {
    (void)word;
    /* Taking the lock makes sure that a thread that saw the old word is asleep by now. */
    AcquireSRWLockExclusive(&p->lock);
    ReleaseSRWLockExclusive(&p->lock);
    WakeAllConditionVariable(&p->changed);
}
#else
typedef struct llm_os_park {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} llm_os_park;

static inline bool llm_os_park_init(llm_os_park *p) {
    if (pthread_mutex_init(&p->lock, NULL)) return false;
    if (pthread_cond_init(&p->changed, NULL) == 0) return true;
    pthread_mutex_destroy(&p->lock);
    return false;
}

static inline void llm_os_park_destroy(llm_os_park *p) {
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

static inline void llm_os_park_wait(llm_os_park *p, _Atomic uint32_t *word, uint32_t seen) {
    pthread_mutex_lock(&p->lock);
    if (atomic_load(word) == seen) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static inline void llm_os_park_wake(llm_os_park *p, _Atomic uint32_t *word) {
    (void)word;
    /* Taking the lock makes sure that a thread that saw the old word is asleep by now. */
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
#endif

#endif
