#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 4096 /* a longer line is cut: no path that matters is that long */
#define PATH_BYTES (3 * LINE_BYTES)

/* Where a controller's tree is mounted, and the group of this process inside it. */
typedef struct hierarchy {
    bool found;
    int version;
    char mount[LINE_BYTES]; /* "/sys/fs/cgroup/cpu" */
    char base[LINE_BYTES];  /* which group stands at the mount point; "/" or a container's own */
    char group[LINE_BYTES]; /* the path of this process in /proc/self/cgroup */
} hierarchy;

/* False at the end of the file. */
static bool read_line(FILE *f, char line[LINE_BYTES]) {
    if (!fgets(line, LINE_BYTES, f)) return false;
    size_t n = strlen(line);
    if (n && line[n - 1] == '\n') {
        line[n - 1] = 0;
    } else {
        for (int c = 0; c != EOF && c != '\n';) c = fgetc(f);
    }
    return true;
}

static FILE *open_below(const char *root, const char *path) {
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full ? fopen(full, "r") : NULL;
}

/* Is word one of the items of a comma-separated list? */
static bool list_has(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == ',')) return true;
    }
    return false;
}

/* The kernel writes a space, tab, newline or backslash of a path as a backslash and three octal
 * digits. */
static void decode_path(char *path) {
    char *to = path;
    for (const char *from = path; *from; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7'
            && from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

/* Cuts the next space-separated field off *rest; NULL when there is none. */
static char *next_field(char **rest) {
    char *field = *rest;
    if (!field || !*field) return NULL;
    char *end = strchr(field, ' ');
    if (end) *end++ = 0;
    *rest = end;
    return field;
}

/* proc(5): id parent major:minor ROOT MOUNTPOINT options [optional...] - TYPE source SUPEROPTIONS
 */
static void find_mount(const char *root, const char *controller, hierarchy *h) {
    FILE *f = open_below(root, "/proc/self/mountinfo");
    if (!f) return;
    char line[LINE_BYTES];
    while (!h->found && read_line(f, line)) {
        char *rest = line, *base = NULL, *mount = NULL, *field = NULL;
        for (int i = 0; i < 5; i++) {
            field = next_field(&rest);
            if (i == 3) base = field;
            if (i == 4) mount = field;
        }
        while (field && strcmp(field, "-") != 0) field = next_field(&rest);
        char *type = next_field(&rest);
        next_field(&rest);
        char *options = next_field(&rest);
        if (!mount || !type || !options) continue;
        const char *wanted = h->version == 2 ? "cgroup2" : "cgroup";
        if (strcmp(type, wanted) != 0) continue;
        if (h->version == 1 && !list_has(options, controller)) continue;
        decode_path(base);
        decode_path(mount);
        memcpy(h->base, base, strlen(base) + 1);
        memcpy(h->mount, mount, strlen(mount) + 1);
        h->found = true;
    }
    fclose(f);
}

/* A line of /proc/self/cgroup is "number:controllers:path", version 2 has "0::path". A controller
 * that version 1 holds is in no version 2 tree. */
static void find_hierarchy(const char *root, const char *controller, hierarchy *h) {
    memset(h, 0, sizeof *h);
    FILE *f = open_below(root, "/proc/self/cgroup");
    if (!f) return;
    char line[LINE_BYTES];
    while (h->version != 1 && read_line(f, line)) {
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *list++ = 0;
        *path++ = 0;
        int version = list_has(list, controller) ? 1 : strcmp(line, "0") == 0 && !*list ? 2 : 0;
        if (!version) continue;
        h->version = version;
        memcpy(h->group, path, strlen(path) + 1);
    }
    fclose(f);
    if (h->version) find_mount(root, controller, h);
}

/* The folder of this process's group. A group outside of what is mounted here (a container without
 * its own cgroup namespace) leaves the mount point itself, whose limits apply as well. */
static void group_folder(const hierarchy *h, char out[PATH_BYTES]) {
    size_t n = strlen(h->base);
    const char *below = h->group;
    if (strcmp(h->base, "/") != 0) {
        bool inside = strncmp(below, h->base, n) == 0 && (below[n] == '/' || below[n] == 0);
        below = inside ? below + n : "";
    }
    if (strstr(below, "/..")) below = "";
    snprintf(out, PATH_BYTES, "%s%s", h->mount, below);
}

static FILE *open_in(const char *root, const char *folder, const char *name) {
    char path[PATH_BYTES + 64];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path ? open_below(root, path) : NULL;
}

/* The first line of a file as up to two numbers; "max" and -1 are UINT64_MAX. How many there were.
 */
static int read_numbers(const char *root, const char *folder, const char *name, uint64_t out[2]) {
    FILE *f = open_in(root, folder, name);
    if (!f) return 0;
    char line[LINE_BYTES];
    int n = 0;
    if (read_line(f, line)) {
        char *rest = line;
        for (char *field; n < 2 && (field = next_field(&rest)); n++) {
            char *end = field;
            if (strcmp(field, "max") == 0 || field[0] == '-') {
                out[n] = UINT64_MAX;
                continue;
            }
            out[n] = strtoull(field, &end, 10);
            if (end == field || *end) break;
        }
    }
    fclose(f);
    return n;
}

/* The value of a "name number" line, 0 where absent. */
static uint64_t read_stat(const char *root, const char *folder, const char *name, const char *key) {
    FILE *f = open_in(root, folder, name);
    if (!f) return 0;
    uint64_t value = 0;
    char line[LINE_BYTES];
    while (read_line(f, line)) {
        char *rest = line;
        char *field = next_field(&rest);
        if (field && rest && strcmp(field, key) == 0) value = strtoull(rest, NULL, 10);
    }
    fclose(f);
    return value;
}

static void limit_cpu(const char *root, const char *folder, int version, llm_cgroup_limits *out) {
    uint64_t quota[2] = {UINT64_MAX, 0};
    int n;
    if (version == 2) {
        n = read_numbers(root, folder, "cpu.max", quota);
    } else {
        n = read_numbers(root, folder, "cpu.cfs_quota_us", quota);
        uint64_t period[2];
        if (n && read_numbers(root, folder, "cpu.cfs_period_us", period)) {
            quota[1] = period[0];
            n = 2;
        }
    }
    if (n != 2 || quota[0] == 0 || quota[1] == 0) return;
    if (quota[0] == UINT64_MAX || quota[1] == UINT64_MAX) return;
    double cpus = (double)quota[0] / (double)quota[1];
    if (out->cpu_quota == 0 || cpus < out->cpu_quota) out->cpu_quota = cpus;
}

static void limit_memory(const char *root, const char *folder, int version,
                         llm_cgroup_limits *out) {
    /* Pages of files give way, those too that were used twice: of a model that has run before. */
    static const char *const stats_of[][2] = {{"total_inactive_file", "total_active_file"},
                                              {"inactive_file", "active_file"}};
    const char *const *stats = stats_of[version == 2];
    uint64_t limit[2] = {UINT64_MAX, 0}, high[2] = {UINT64_MAX, 0}, used[2] = {0, 0};
    const char *limit_name = version == 2 ? "memory.max" : "memory.limit_in_bytes";
    if (!read_numbers(root, folder, limit_name, limit)) return;
    /* Above memory.high the kernel slows a group down to reclaim: it is a limit as well. */
    if (version == 2 && read_numbers(root, folder, "memory.high", high) && high[0] < limit[0]) {
        limit[0] = high[0];
    }
    if (limit[0] >= UINT64_C(1) << 60) return; /* version 1 writes "none" as about 2^63 */
    if (limit[0] < out->memory_limit) out->memory_limit = limit[0];
    read_numbers(root, folder, version == 2 ? "memory.current" : "memory.usage_in_bytes", used);
    uint64_t cache = read_stat(root, folder, "memory.stat", stats[0])
                     + read_stat(root, folder, "memory.stat", stats[1]);
    used[0] = used[0] > cache ? used[0] - cache : 0;
    uint64_t room = limit[0] > used[0] ? limit[0] - used[0] : 0;
    if (room < out->memory_room) out->memory_room = room;
}

void llm_cgroup_probe(const char *root, llm_cgroup_limits *out) {
    out->cpu_quota = 0;
    out->memory_limit = UINT64_MAX;
    out->memory_room = UINT64_MAX;
    static const char *const controllers[] = {"cpu", "memory"};
    for (int i = 0; i < 2; i++) {
        hierarchy h;
        find_hierarchy(root, controllers[i], &h);
        if (!h.found) continue;
        char folder[PATH_BYTES];
        group_folder(&h, folder);
        size_t shortest = strlen(h.mount);
        for (;;) {
            if (i == 0) limit_cpu(root, folder, h.version, out);
            if (i == 1) limit_memory(root, folder, h.version, out);
            char *slash = strrchr(folder, '/');
            if (!slash || (size_t)(slash - folder) < shortest) break;
            *slash = 0;
        }
    }
}

void llm_meminfo_probe(const char *root, uint64_t *total, uint64_t *available) {
    *total = read_stat(root, "/proc", "meminfo", "MemTotal:") * 1024;
    *available = read_stat(root, "/proc", "meminfo", "MemAvailable:") * 1024;
}
