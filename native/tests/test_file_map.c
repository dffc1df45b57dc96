/* A mapped file that another program cuts short: looks at it from several threads read zeros and the
 * map says so; the other maps, and a bus error that is none of ours, are as they were. */
#include <stdio.h>

#include "check.h"
#include "base/file_map.h"

#if defined(_WIN32)
int main(void) { return 0; } /* nobody can cut a file that is mapped */
#else
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_PAGES 64
#define N_THREADS 4

static char path[] = "/tmp/llm_file_map_XXXXXX";
static size_t page;

static void write_file(size_t n_bytes) {
    FILE *f = fopen(path, "wb");
    for (size_t i = 0; i < n_bytes; i++) fputc(7, f);
    fclose(f);
}

static llm_file_map mapped(void) {
    llm_file_map map;
    llm_error err;
    llm_status status = llm_file_map_open(path, &map, &err);
    CHECK(status == LLM_OK, "%s", err.message);
    return map;
}

/* Pages are exchanged under the reads, which a thread sanitizer would call a race. */
__attribute__((no_sanitize_thread)) static void *sum_backwards(void *arg) {
    const llm_file_map *map = arg;
    const volatile uint8_t *bytes = map->bytes;
    size_t sum = 0;
    for (size_t i = (size_t)map->n_bytes; i-- > 0;) sum += bytes[i];
    return (void *)(uintptr_t)sum;
}

static void check_cut(size_t kept) {
    write_file(N_PAGES * page);
    llm_file_map map = mapped(), whole = mapped();
    llm_error err;
    CHECK(llm_file_map_check_unchanged(&map, &err) == LLM_OK, "%s", err.message);
    CHECK(truncate(path, (off_t)kept) == 0, "truncate");
    CHECK(llm_file_map_check(&map, &err) == LLM_OK, "nobody has looked yet");
    CHECK(llm_file_map_check_unchanged(&map, &err) == LLM_E_IO, "kept %zu", kept);
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) pthread_create(&threads[i], NULL, sum_backwards, &map);
    for (int i = 0; i < N_THREADS; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        CHECK((size_t)(uintptr_t)sum == 7 * kept, "%zu for %zu", (size_t)(uintptr_t)sum, kept);
    }
    bool whole_pages_went = kept <= (N_PAGES - 1) * page;
    CHECK((llm_file_map_check(&map, &err) == LLM_E_IO) == whole_pages_went, "kept %zu", kept);
    CHECK(llm_file_map_check(&whole, &err) == LLM_OK, "nobody has looked at this one");
    llm_file_map_close(&map);
    llm_file_map_close(&whole);
    CHECK(llm_file_map_check(&map, &err) == LLM_OK, "a closed map");
}

static void check_written(void) {
    write_file(page);
    llm_file_map map = mapped();
    llm_error err;
    write_file(page); /* as a copy over it does */
    llm_status status = llm_file_map_check_unchanged(&map, &err);
    for (int i = 0; status == LLM_OK && i < 100; i++) { /* clocks of file systems tick slowly */
        usleep(10000);
        write_file(page);
        status = llm_file_map_check_unchanged(&map, &err);
    }
    CHECK(status == LLM_E_IO, "a file that was written anew");
    llm_file_map_close(&map);
}

static void check_many(void) {
    static llm_file_map maps[200];
    for (int i = 0; i < 200; i++) maps[i] = mapped();
    CHECK(truncate(path, 0) == 0, "truncate");
    llm_error err;
    for (int i = 0; i < 200; i++) {
        CHECK(*(const volatile uint8_t *)maps[i].bytes == 0, "map %d", i);
        CHECK(llm_file_map_check(&maps[i], &err) == LLM_E_IO, "map %d", i);
        llm_file_map_close(&maps[i]);
    }
}

static volatile sig_atomic_t n_seen;

static void seen(int number) {
    (void)number;
    n_seen++;
    _exit(n_seen == 1 ? 42 : 1);
}

/* A child looks behind the end of a map that nobody guards, or sends itself the signal: its own
 * handler, which is older than ours, gets it, or without one it ends as ever: by the signal, or with
 * the status of a sanitizer. */
static void check_passed_on(bool has_handler, bool sends) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (has_handler) signal(SIGBUS, seen);
        write_file(page);
        llm_file_map guarded = mapped();
        FILE *f = fopen(path, "rb");
        const volatile uint8_t *bytes = mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE, fileno(f), 0);
        if (sends)
            raise(SIGBUS);
        else
            _exit(bytes[page] ? 4 : 2);
        llm_file_map_close(&guarded);
        _exit(2);
    }
    int status;
    waitpid(child, &status, 0);
    if (has_handler)
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %d", status);
    else
        CHECK(!WIFEXITED(status) || WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 66,
              "status %d", status);
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = mkstemp(path);
    CHECK(fd >= 0, "mkstemp");
    close(fd);
    for (int i = 0; i < 4; i++) check_passed_on(i & 1, i & 2); /* before the first map here */
    check_cut(0);
    check_cut(1);
    check_cut(3 * page);
    check_cut(17 * page + 5);
    check_cut(N_PAGES * page - 1);
    check_written();
    check_many();
    unlink(path);
    return n_failed != 0;
}
#endif
