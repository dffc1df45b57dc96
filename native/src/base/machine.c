/* machine.c: what this process may use of the machine that it runs on. */
#include "base/machine.h"

#include <string.h>

#include "base/cgroup.h"

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>

/* Masks of up to this many CPUs; the kernel refuses one that is smaller than its own. */
#define MAX_CPUS 8192

static int32_t usable_cpus(void) {
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    if (set) {
        size_t n_bytes = CPU_ALLOC_SIZE(MAX_CPUS);
        CPU_ZERO_S(n_bytes, set);
        int n = sched_getaffinity(0, n_bytes, set) == 0 ? CPU_COUNT_S(n_bytes, set) : 0;
        CPU_FREE(set);
        if (n > 0) return n;
    }
    return (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

static void probe_system(llm_machine *m) {
    m->n_cpus = usable_cpus();
    llm_meminfo_probe("", &m->memory_bytes, &m->free_bytes);
    llm_cgroup_limits limits;
    llm_cgroup_probe("", &limits);
    llm_machine_limit(m, &limits);
}
#elif defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>

static int64_t sysctl_number(const char *name) {
    union {
        int32_t i32;
        int64_t i64;
    } value = {.i64 = 0};
    size_t n_bytes = sizeof value;
    if (sysctlbyname(name, &value, &n_bytes, NULL, 0)) return 0;
    return n_bytes == sizeof value.i32 ? value.i32 : value.i64;
}

static void probe_system(llm_machine *m) {
    /* One slow efficiency core makes every barrier wait, so only performance cores count. */
    m->n_cpus = (int32_t)sysctl_number("hw.perflevel0.logicalcpu");
    if (m->n_cpus < 1) m->n_cpus = (int32_t)sysctl_number("hw.logicalcpu");
    m->memory_bytes = (uint64_t)sysctl_number("hw.memsize");
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&pages, &count)
        == KERN_SUCCESS) {
        uint64_t n_pages =
            (uint64_t)pages.free_count + pages.inactive_count + pages.purgeable_count;
        m->free_bytes = n_pages * (uint64_t)vm_kernel_page_size;
    }
    llm_cgroup_limits none = {0, UINT64_MAX, UINT64_MAX};
    llm_machine_limit(m, &none);
}
#elif defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

static void probe_system(llm_machine *m) {
    DWORD_PTR process = 0, system = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system)) {
        for (; process; process &= process - 1) m->n_cpus++;
    }
    /* The mask is empty when the process spans several processor groups. */
    if (m->n_cpus < 1) m->n_cpus = (int32_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    MEMORYSTATUSEX memory = {.dwLength = sizeof memory};
    if (GlobalMemoryStatusEx(&memory)) {
        m->memory_bytes = memory.ullTotalPhys;
        m->free_bytes = memory.ullAvailPhys;
    }
    llm_cgroup_limits none = {0, UINT64_MAX, UINT64_MAX};
    llm_machine_limit(m, &none);
}
#else
#include <unistd.h>

static void probe_system(llm_machine *m) {
    m->n_cpus = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    m->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    m->free_bytes = m->memory_bytes;
    llm_cgroup_limits none = {0, UINT64_MAX, UINT64_MAX};
    llm_machine_limit(m, &none);
}
#endif

void llm_machine_limit(llm_machine *m, const llm_cgroup_limits *limits) {
    if (m->n_cpus < 1) m->n_cpus = 1;
    m->cpu_quota = limits->cpu_quota;
    m->n_threads = m->n_cpus;
    /* The kernel stops all threads when the quota of a period is used up, so one thread more than
     * the quota has CPUs does not get more, it only loses some time with each stop: measured with 2
     * CPUs, 25 % at a quota of 1. A spare part of a CPU from about 0.3 on is worth more (at 1.5, two
     * threads do 1.2 times what one does). */
    if (m->cpu_quota > 0 && m->cpu_quota < m->n_cpus) {
        m->n_threads = m->cpu_quota < 1 ? 1 : (int32_t)(m->cpu_quota + 0.7);
    }
    if (limits->memory_limit < m->memory_bytes) m->memory_bytes = limits->memory_limit;
    uint64_t room = limits->memory_room ? limits->memory_room : 1; /* 0 says that nobody knows */
    if (room < m->free_bytes) m->free_bytes = room;
    if (m->memory_bytes < m->free_bytes) m->free_bytes = m->memory_bytes;
}

void llm_machine_probe(llm_machine *out) {
    memset(out, 0, sizeof *out);
    out->isa = llm_isa_name(llm_n_isas() - 1);
    probe_system(out);
}
