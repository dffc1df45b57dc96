/* os_clock.h: a monotonic clock in nanoseconds. */
#ifndef LLM_OS_CLOCK_H
#define LLM_OS_CLOCK_H

#include <stdint.h>

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

static inline uint64_t llm_now_ns(void) {
    LARGE_INTEGER ticks, per_s;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_s);
    uint64_t t = (uint64_t)ticks.QuadPart, f = (uint64_t)per_s.QuadPart;
    return t / f * 1000000000u + t % f * 1000000000u / f;
}
#else
#include <time.h>

static inline uint64_t llm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#endif

#endif
