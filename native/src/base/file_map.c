#if !defined(_WIN32)
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE /* st_mtimespec */
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64
#endif
#endif

#include "base/file_map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_READ_BYTES (1u << 30) /* of one call: systems take a little less than 2^31 */

/* The end of a path says most, and a message has room for the reason too. */
static const char *shown(const char *path) {
    size_t n = strlen(path);
    return n > 1024 ? path + n - 1024 : path;
}

static llm_status refuse_empty(const char *path, llm_error *err) {
    return llm_fail(err, LLM_E_IO, "%s: the file is empty (0 bytes)", shown(path));
}

static llm_status refuse_size(const char *path, uint64_t n_bytes, llm_error *err) {
    return llm_fail(err, LLM_E_MEMORY,
                    "%s: %" PRIu64 " bytes do not fit in this process's %u-bit address space",
                    shown(path), n_bytes, (unsigned)(8 * sizeof(size_t)));
}

static llm_status refuse_short(const llm_file_map *map, uint64_t at, llm_error *err) {
    return llm_fail(err, LLM_E_IO,
                    "the file ends at byte %" PRIu64 ", it had %" PRIu64
                    " bytes when it was opened: another program cut it short",
                    at, map->n_bytes);
}

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

/* NULL when the path is not UTF-8 or memory is out. The caller frees it. */
static wchar_t *wide_path(const char *path) {
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *wide = n > 0 ? malloc((size_t)n * sizeof *wide) : NULL;
    if (wide) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, n);
    return wide;
}

static llm_status fail_with_code(const char *path, const char *action, DWORD code, llm_error *err) {
    const char *reason = code == ERROR_FILE_NOT_FOUND || code == ERROR_PATH_NOT_FOUND
                             ? "no such file"
                         : code == ERROR_ACCESS_DENIED     ? "access denied"
                         : code == ERROR_SHARING_VIOLATION ? "another program has it open"
                                                           : "the system refused";
    return llm_fail(err, LLM_E_IO, "%s: cannot %s: %s (Windows error %lu)", shown(path), action,
                    reason, (unsigned long)code);
}

static llm_status map_handle(const char *path, HANDLE file, llm_file_map *out, llm_error *err) {
    LARGE_INTEGER size;
    if (GetFileType(file) != FILE_TYPE_DISK)
        return llm_fail(err, LLM_E_IO, "%s: not a regular file but a pipe or a device",
                        shown(path));
    if (!GetFileSizeEx(file, &size))
        return fail_with_code(path, "read the size", GetLastError(), err);
    if (size.QuadPart <= 0) return refuse_empty(path, err);
    uint64_t n_bytes = (uint64_t)size.QuadPart;
    if (n_bytes > SIZE_MAX) return refuse_size(path, n_bytes, err);
    HANDLE mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping) return fail_with_code(path, "map the file", GetLastError(), err);
    const void *bytes = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
    DWORD code = GetLastError();
    CloseHandle(mapping); /* the view keeps the mapping alive */
    if (!bytes) return fail_with_code(path, "map the file", code, err);
    *out = (llm_file_map){.bytes = bytes, .n_bytes = n_bytes, .file = (intptr_t)file};
    return LLM_OK;
}

llm_status llm_file_map_open(const char *path, llm_file_map *out, llm_error *err) {
    *out = (llm_file_map){0};
    wchar_t *wide = wide_path(path);
    if (!wide) return llm_fail(err, LLM_E_IO, "%s: the path is not valid UTF-8", shown(path));
    DWORD attributes = GetFileAttributesW(wide);
    if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY)) {
        free(wide);
        return llm_fail(err, LLM_E_IO, "%s: not a file but a directory", shown(path));
    }
    HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                              OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    DWORD code = GetLastError();
    free(wide);
    if (file == INVALID_HANDLE_VALUE) return fail_with_code(path, "open the file", code, err);
    llm_status status = map_handle(path, file, out, err);
    if (status != LLM_OK) CloseHandle(file);
    return status;
}

void llm_file_map_close(llm_file_map *map) {
    if (map->bytes) {
        UnmapViewOfFile(map->bytes);
        CloseHandle((HANDLE)map->file);
    }
    *map = (llm_file_map){0};
}

llm_status llm_file_map_read(const llm_file_map *map, uint64_t at, uint8_t *dst, uint64_t n,
                             llm_error *err) {
    while (n) {
        DWORD wanted = n < MAX_READ_BYTES ? (DWORD)n : MAX_READ_BYTES, got = 0;
        OVERLAPPED place = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32)};
        if (!ReadFile((HANDLE)map->file, dst, wanted, &got, &place)) {
            DWORD code = GetLastError();
            if (code == ERROR_HANDLE_EOF) return refuse_short(map, at, err);
            return llm_fail(err, LLM_E_IO, "cannot read byte %" PRIu64 " (Windows error %lu)", at,
                            (unsigned long)code);
        }
        if (!got) return refuse_short(map, at, err);
        at += got;
        dst += got;
        n -= got;
    }
    return LLM_OK;
}

/* A file that is mapped or open without FILE_SHARE_WRITE stays as it is. */
llm_status llm_file_map_check(const llm_file_map *map, llm_error *err) {
    (void)map;
    (void)err;
    return LLM_OK;
}

llm_status llm_file_map_check_unchanged(const llm_file_map *map, llm_error *err) {
    return llm_file_map_check(map, err);
}

bool llm_file_exists(const char *path) {
    wchar_t *wide = wide_path(path);
    bool exists = wide && GetFileAttributesW(wide) != INVALID_FILE_ATTRIBUTES;
    free(wide);
    return exists;
}

#else

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static llm_status fail_with_errno(const char *path, const char *action, int code, llm_error *err) {
    return llm_fail(err, LLM_E_IO, "%s: cannot %s: %s", shown(path), action, strerror(code));
}

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)                    ? "a directory"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "of an unknown kind";
}

static int64_t written_ns(const struct stat *info) {
#if defined(__APPLE__)
    struct timespec at = info->st_mtimespec;
#else
    struct timespec at = info->st_mtim;
#endif
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static llm_status map_descriptor(const char *path, int fd, llm_file_map *out, llm_error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) return fail_with_errno(path, "read the size", errno, err);
    if (!S_ISREG(info.st_mode))
        return llm_fail(err, LLM_E_IO, "%s: not a regular file but %s", shown(path),
                        kind_of(info.st_mode));
    if (info.st_size <= 0) return refuse_empty(path, err);
    uint64_t n_bytes = (uint64_t)info.st_size;
    if (n_bytes > SIZE_MAX) return refuse_size(path, n_bytes, err);
    void *bytes = mmap(NULL, (size_t)n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) return fail_with_errno(path, "map the file", errno, err);
    llm_map_guard *guard = llm_map_guard_add(bytes, (size_t)n_bytes);
    if (!guard) {
        munmap(bytes, (size_t)n_bytes);
        return llm_fail(err, LLM_E_MEMORY, "%s: no memory to guard its map", shown(path));
    }
    *out = (llm_file_map){.bytes = bytes,
                          .n_bytes = n_bytes,
                          .written_ns = written_ns(&info),
                          .guard = guard,
                          .file = fd};
    return LLM_OK;
}

llm_status llm_file_map_open(const char *path, llm_file_map *out, llm_error *err) {
    *out = (llm_file_map){0};
    /* Without O_NONBLOCK the open of a pipe would wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_with_errno(path, "open the file", errno, err);
    llm_status status = map_descriptor(path, fd, out, err);
    if (status != LLM_OK) close(fd);
    return status;
}

void llm_file_map_close(llm_file_map *map) {
    if (map->bytes) {
        llm_map_guard_remove(map->guard);
        munmap((void *)(uintptr_t)map->bytes, (size_t)map->n_bytes);
        close((int)map->file);
    }
    *map = (llm_file_map){0};
}

llm_status llm_file_map_read(const llm_file_map *map, uint64_t at, uint8_t *dst, uint64_t n,
                             llm_error *err) {
    while (n) {
        size_t wanted = n < MAX_READ_BYTES ? (size_t)n : MAX_READ_BYTES;
        ssize_t got = pread((int)map->file, dst, wanted, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return llm_fail(err, LLM_E_IO, "cannot read byte %" PRIu64 ": %s", at, strerror(errno));
        }
        if (!got) return refuse_short(map, at, err);
        at += (uint64_t)got;
        dst += got;
        n -= (uint64_t)got;
    }
    return LLM_OK;
}

llm_status llm_file_map_check(const llm_file_map *map, llm_error *err) {
    if (!llm_map_guard_was_hit(map->guard)) return LLM_OK;
    return llm_fail(err, LLM_E_IO,
                    "the file was cut short while it was used, or its disk failed: it had %" PRIu64
                    " bytes when it was opened",
                    map->n_bytes);
}

llm_status llm_file_map_check_unchanged(const llm_file_map *map, llm_error *err) {
    llm_status status = llm_file_map_check(map, err);
    if (status != LLM_OK || !map->bytes) return status;
    struct stat info;
    if (fstat((int)map->file, &info) != 0) {
        return llm_fail(err, LLM_E_IO, "cannot read the size of the file: %s", strerror(errno));
    }
    if (info.st_size < 0 || (uint64_t)info.st_size < map->n_bytes)
        return refuse_short(map, (uint64_t)info.st_size, err);
    if ((uint64_t)info.st_size != map->n_bytes || written_ns(&info) != map->written_ns)
        return llm_fail(err, LLM_E_IO, "another program wrote to the file while it was used");
    return LLM_OK;
}

bool llm_file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

#endif
