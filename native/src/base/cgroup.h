/* cgroup.h: the CPU and memory limits that Linux control groups put on this process. */
#ifndef LLM_CGROUP_H
#define LLM_CGROUP_H

#include <stdint.h>

typedef struct llm_cgroup_limits {
    double cpu_quota;      /* CPUs, 0: no limit */
    uint64_t memory_limit; /* bytes, UINT64_MAX: no limit */
    uint64_t memory_room;  /* bytes until the nearest limit, file cache counted as room */
} llm_cgroup_limits;

/* Reads ROOT/proc/self/{cgroup,mountinfo} and the groups that they name, version 1 and 2, and takes
 * the tightest limit of the process's group and all its ancestors. root is "" on a real system; a
 * test passes a folder. Files that are absent or make no sense mean no limit. */
void llm_cgroup_probe(const char *root, llm_cgroup_limits *out);

/* MemTotal and MemAvailable of ROOT/proc/meminfo in bytes, 0 where absent. */
void llm_meminfo_probe(const char *root, uint64_t *total, uint64_t *available);

#endif
