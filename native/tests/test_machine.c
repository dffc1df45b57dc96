/* The machine probe: control groups of both versions as made-up trees, then the real machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "base/machine.h"

#if defined(_WIN32)
int main(void) {
    llm_machine m;
    llm_machine_probe(&m);
    return !(m.n_cpus >= 1 && m.n_threads == m.n_cpus && m.memory_bytes >= m.free_bytes);
}
#else
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 64

static char root[256];
static char files[MAX_FILES][512];
static int n_files;

/* Writes text to ROOT/path and makes the folders on the way. */
static void put(const char *path, const char *text) {
    char *full = files[n_files++];
    snprintf(full, sizeof files[0], "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    if (!f) {
        perror(full);
        exit(1);
    }
    fputs(text, f);
    fclose(f);
}

/* Removes the files of a case and the folders that are empty then. */
static void clear(void) {
    while (n_files) {
        char *full = files[--n_files];
        remove(full);
        for (char *slash; (slash = strrchr(full, '/')) && (size_t)(slash - full) > strlen(root);) {
            *slash = 0;
            rmdir(full);
        }
    }
}

static llm_cgroup_limits probe(void) {
    llm_cgroup_limits limits;
    llm_cgroup_probe(root, &limits);
    clear();
    return limits;
}

#define V2_MOUNT "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_no_files(void) {
    llm_cgroup_limits l = probe();
    CHECK(l.cpu_quota == 0, "%f", l.cpu_quota);
    CHECK(l.memory_limit == UINT64_MAX && l.memory_room == UINT64_MAX, "limits from nothing");
}

static void test_v2_unlimited(void) {
    put("/proc/self/cgroup", "0::/user.slice/app\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/user.slice/app/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/app/memory.max", "max\n");
    llm_cgroup_limits l = probe();
    CHECK(l.cpu_quota == 0, "%f", l.cpu_quota);
    CHECK(l.memory_limit == UINT64_MAX, "%llu", (unsigned long long)l.memory_limit);
}

static void test_v2_takes_the_tightest_ancestor(void) {
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/proc/self/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2_MOUNT);
    put("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "75000 50000\n");
    put("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "8000000000\n");
    put("/sys/fs/cgroup/a/b/c/memory.current", "1000000000\n");
    put("/sys/fs/cgroup/a/memory.max", "9000000000\n");
    put("/sys/fs/cgroup/a/memory.current", "7000000000\n");
    put("/sys/fs/cgroup/a/memory.stat",
        "anon 5\nfile 7\ninactive_file 300000000\nactive_file 200000000\n");
    llm_cgroup_limits l = probe();
    CHECK(l.cpu_quota == 1.5, "%f", l.cpu_quota);
    CHECK(l.memory_limit == 8000000000u, "%llu", (unsigned long long)l.memory_limit);
    CHECK(l.memory_room == 2500000000u, "%llu", (unsigned long long)l.memory_room);
}

static void test_v2_memory_high_and_overuse(void) {
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/memory.max", "8000\n");
    put("/sys/fs/cgroup/memory.high", "6000\n");
    put("/sys/fs/cgroup/memory.current", "7000\n");
    llm_cgroup_limits l = probe();
    CHECK(l.memory_limit == 6000 && l.memory_room == 0, "%llu", (unsigned long long)l.memory_room);
}

static void test_v1(void) {
    put("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/m/n\n2:cpuacct,cpu:/c\n0::/\n");
    put("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "4000000\n");
    put("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "3000000\n");
    put("/sys/fs/cgroup/memory/m/memory.stat",
        "inactive_file 1\nactive_file 2\ntotal_inactive_file 150000\ntotal_active_file 50000\n");
    put("/sys/fs/cgroup/unified/cpu.max", "1 100000\n");
    llm_cgroup_limits l = probe();
    CHECK(l.cpu_quota == 2.5, "%f", l.cpu_quota);
    CHECK(l.memory_limit == 4000000, "%llu", (unsigned long long)l.memory_limit);
    CHECK(l.memory_room == 1200000, "%llu", (unsigned long long)l.memory_room);
}

/* Inside a container without its own cgroup namespace the mount shows the container's group. */
static void test_container_mount(void) {
    put("/proc/self/cgroup", "0::/docker/0123/inner\n");
    put("/proc/self/mountinfo",
        "31 23 0:28 /docker/0123 /sys/fs/my\\040cgroup ro - cgroup2 cgroup2 rw\n");
    put("/sys/fs/my cgroup/inner/cpu.max", "350000 100000\n");
    put("/sys/fs/my cgroup/cpu.max", "200000 100000\n");
    llm_cgroup_limits l = probe();
    CHECK(l.cpu_quota == 2, "%f", l.cpu_quota);

    put("/proc/self/cgroup", "0::/docker/other\n");
    put("/proc/self/mountinfo", "31 23 0:28 /docker/0123 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    l = probe();
    CHECK(l.cpu_quota == 0.5, "%f", l.cpu_quota);

    put("/proc/self/cgroup", "0::/../../sibling\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    put("/sys/sibling/cpu.max", "100000 100000\n");
    l = probe();
    CHECK(l.cpu_quota == 3, "%f", l.cpu_quota);
}

static void test_nonsense_means_no_limit(void) {
    static const char *const texts[] = {"",      "\n",       "abc 100000\n", "100000\n",
                                        "0 0\n", "5 0\n",    "0 100000\n",   "12x 100000\n",
                                        "max\n", "-1 100\n", "100000 max\n", " 1 2\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put("/proc/self/cgroup", "garbage\n::\n0::/\n");
        put("/proc/self/mountinfo", "short line\n- - -\n\n" V2_MOUNT);
        put("/sys/fs/cgroup/cpu.max", texts[i]);
        put("/sys/fs/cgroup/memory.max", i % 2 ? "banana\n" : "");
        llm_cgroup_limits l = probe();
        CHECK(l.cpu_quota == 0, "\"%s\" gave %f", texts[i], l.cpu_quota);
        CHECK(l.memory_limit == UINT64_MAX, "case %d", (int)i);
    }
}

static void test_meminfo(void) {
    put("/proc/meminfo",
        "MemTotal:       24611808 kB\nMemFree: 1 kB\nMemAvailable:   24000000 kB\n");
    uint64_t total, available;
    llm_meminfo_probe(root, &total, &available);
    clear();
    CHECK(total == 24611808ull * 1024, "%llu", (unsigned long long)total);
    CHECK(available == 24000000ull * 1024, "%llu", (unsigned long long)available);
}

static void test_threads_from_quota(void) {
    static const struct {
        int32_t n_cpus;
        double quota;
        int32_t n_threads;
    } cases[] = {{8, 0, 8},    {8, 0.5, 1},  {8, 1, 1},    {8, 1.29, 1},
                 {8, 1.31, 2}, {8, 1.99, 2}, {8, 2, 2},    {8, 7.9, 8},
                 {8, 7.2, 7},  {2, 1.5, 2},  {8, 8, 8},    {8, 64, 8},
                 {1, 0.1, 1},  {0, 0, 1},    {2, 1e-9, 1}, {64, 63.999, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        llm_machine m = {.n_cpus = cases[i].n_cpus, .memory_bytes = 100, .free_bytes = 60};
        llm_cgroup_limits l = {cases[i].quota, 80, 90};
        llm_machine_limit(&m, &l);
        CHECK(m.n_threads == cases[i].n_threads, "quota %f of %d CPUs gave %d", cases[i].quota,
              (int)cases[i].n_cpus, (int)m.n_threads);
        CHECK(m.memory_bytes == 80 && m.free_bytes == 60, "case %d", (int)i);
    }
    llm_machine m = {.n_cpus = 1, .memory_bytes = 100, .free_bytes = 60};
    llm_cgroup_limits l = {0, 50, 20};
    llm_machine_limit(&m, &l);
    CHECK(m.memory_bytes == 50 && m.free_bytes == 20, "room is the tighter one");
    l.memory_room = 0;
    llm_machine_limit(&m, &l);
    CHECK(m.free_bytes == 1, "a full group must not read as one of which nothing is known");
}

static void test_this_machine(void) {
    llm_machine m;
    llm_machine_probe(&m);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    CHECK(m.n_cpus >= 1 && m.n_cpus <= online, "%d of %ld", (int)m.n_cpus, online);
    CHECK(m.n_threads >= 1 && m.n_threads <= m.n_cpus, "%d", (int)m.n_threads);
    CHECK(m.memory_bytes > 1 << 20 && m.free_bytes <= m.memory_bytes, "memory");
    CHECK(m.isa && *m.isa, "isa");
}

int main(void) {
    const char *base = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/test_machine_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(root)) {
        perror(root);
        return 1;
    }
    test_no_files();
    test_v2_unlimited();
    test_v2_takes_the_tightest_ancestor();
    test_v2_memory_high_and_overuse();
    test_v1();
    test_container_mount();
    test_nonsense_means_no_limit();
    test_meminfo();
    test_threads_from_quota();
    test_this_machine();
    rmdir(root);
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
#endif
