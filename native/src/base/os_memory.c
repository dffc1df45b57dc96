#if !defined(_WIN32)
#define _DEFAULT_SOURCE /* madvise */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE
#endif
#endif
#include "base/os_memory.h"

#include <stdbool.h>
#include <stddef.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

void *llm_os_alloc(uint64_t n_bytes) {
    if (!n_bytes) return NULL;
    return VirtualAlloc(NULL, (SIZE_T)n_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void llm_os_free(void *region, uint64_t n_bytes) {
    (void)n_bytes;
    if (region) VirtualFree(region, 0, MEM_RELEASE);
}

static uint64_t page_bytes(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}
#else
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((uintptr_t)2 << 20) /* a huge page of x86, and of Arm with pages of 4 KiB */

/* Cuts a region of n_bytes + HUGE_BYTES down to the n_bytes that begin on a huge page. */
static void *cut_aligned(void *region, uintptr_t n_bytes) {
    uintptr_t begin = (uintptr_t)region, end = begin + n_bytes + HUGE_BYTES;
    uintptr_t first = (begin + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    if (first > begin) munmap(region, first - begin);
    if (end > first + n_bytes) munmap((void *)(first + n_bytes), end - first - n_bytes);
    return (void *)first;
}

static uint64_t page_bytes(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

void *llm_os_alloc(uint64_t n_bytes) {
    if (!n_bytes || n_bytes > SIZE_MAX / 2) return NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    uintptr_t whole = (uintptr_t)((n_bytes + page_bytes() - 1) / page_bytes() * page_bytes());
    bool is_large = whole >= HUGE_BYTES;
    void *p = mmap(NULL, whole + (is_large ? HUGE_BYTES : 0), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (is_large) p = cut_aligned(p, whole);
#if defined(MADV_HUGEPAGE)
    if (is_large) madvise(p, whole, MADV_HUGEPAGE);
#endif
    return p;
}

void llm_os_free(void *region, uint64_t n_bytes) {
    if (region) munmap(region, (size_t)n_bytes);
}
#endif

/* The whole pages inside [p, p + n_bytes); false when there is none. */
static int inner_pages(const void *p, uint64_t n_bytes, uintptr_t *begin, uint64_t *bytes) {
    uint64_t page = page_bytes();
    uintptr_t first = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)p + n_bytes) / page * page;
    if (end <= first) return 0;
    *begin = first;
    *bytes = end - first;
    return 1;
}

void llm_os_discard(void *p, uint64_t n_bytes) {
    uintptr_t begin;
    uint64_t bytes;
    if (!inner_pages(p, n_bytes, &begin, &bytes)) return;
#if defined(_WIN32)
    VirtualAlloc((void *)begin, (SIZE_T)bytes, MEM_RESET, PAGE_READWRITE);
#else
    madvise((void *)begin, (size_t)bytes, MADV_DONTNEED);
#endif
}
