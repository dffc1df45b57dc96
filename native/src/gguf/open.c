/* Opens a file, and when it belongs to a split set, the files beside it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"

#define SUFFIX_BYTES 20 /* "-00001-of-00003.gguf" */

static llm_status refuse_memory(llm_error *err) {
    return llm_fail(err, LLM_E_MEMORY, "out of memory while opening a GGUF file");
}

static int32_t five_digits(const char *p) {
    int32_t value = 0;
    for (int i = 0; i < 5; i++) {
        if (p[i] < '0' || p[i] > '9') return -1;
        value = 10 * value + (p[i] - '0');
    }
    return value;
}

/* Reads NAME-00002-of-00003.gguf. False: the name has another form. */
static bool read_suffix(const char *path, int32_t *number, int32_t *count) {
    size_t n = strlen(path);
    if (n <= SUFFIX_BYTES) return false;
    const char *s = path + n - SUFFIX_BYTES;
    if (s[0] != '-' || memcmp(s + 6, "-of-", 4) != 0 || memcmp(s + 15, ".gguf", 6) != 0)
        return false;
    *number = five_digits(s + 1);
    *count = five_digits(s + 10);
    return *number >= 1 && *count >= 1;
}

static void write_number(char *path, int32_t number) {
    char digits[12];
    snprintf(digits, sizeof digits, "%05d", number % 100000);
    memcpy(path + strlen(path) - SUFFIX_BYTES + 1, digits, 5);
}

static const char *base_name(const char *path) {
    const char *name = path;
    for (const char *p = path; *p; p++)
        if (*p == '/' || *p == '\\') name = p + 1;
    return name;
}

/* One error that lists the parts that are not there. path is scratch of its final length. */
static llm_status check_presence(const llm_gguf_part *first, char *path, int32_t count,
                                 llm_error *err) {
    char list[512] = "";
    size_t at = 0;
    int32_t n_missing = 0, n_listed = 0;
    for (int32_t i = 1; i <= count; i++) {
        write_number(path, i);
        if (llm_file_exists(path)) continue;
        n_missing++;
        const char *name = base_name(path);
        if (n_listed == n_missing - 1 && n_listed < 8 && at + strlen(name) + 3 < sizeof list) {
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", name);
            n_listed++;
        }
    }
    if (n_missing == 0) return LLM_OK;
    char more[32] = "";
    if (n_missing > n_listed)
        snprintf(more, sizeof more, " and %" PRId32 " more", n_missing - n_listed);
    return llm_gguf_fail(first, err, LLM_E_IO,
                         "%" PRId32 " of the %" PRId32
                         " parts of this set are missing beside it: %s%s",
                         n_missing, count, list, more);
}

/* part 0 of g is open; opens the others in the order of their names. */
static llm_status open_siblings(llm_gguf *g, const char *given, llm_error *err) {
    llm_gguf_part *first = &g->parts[0];
    int32_t number = 0, named_count = 0, count = (int32_t)first->split_count;
    bool header_only = first->header_only;
    if (!read_suffix(given, &number, &named_count))
        return llm_gguf_fail(
            first, err, LLM_E_FORMAT,
            "part %" PRId64 " of a set of %" PRId32
            " files, but its name does not end in -%05d-of-%05d.gguf, so the other "
            "parts cannot be found",
            first->split_no + 1, count, (int)first->split_no + 1, count);
    if (named_count != count)
        return llm_gguf_fail(first, err, LLM_E_FORMAT,
                             "key 'split.count': %" PRId32 "; the file's name says %" PRId32, count,
                             named_count);
    size_t n = strlen(given) + 1;
    char *path = malloc(n);
    void *parts = realloc(g->parts, (size_t)count * sizeof *g->parts);
    if (parts) g->parts = parts;
    if (!path || !parts) {
        free(path);
        return refuse_memory(err);
    }
    memcpy(path, given, n);
    llm_status status = check_presence(&g->parts[0], path, count, err);
    for (int32_t i = 1; i <= count && status == LLM_OK; i++) {
        if (i == number) continue;
        write_number(path, i);
        status = llm_gguf_part_open(&g->parts[g->n_parts++], path, header_only, err);
    }
    free(path);
    return status;
}

static llm_status open_set(llm_gguf *g, const char *path, bool header_only, llm_error *err) {
    g->parts = malloc(sizeof *g->parts);
    if (!g->parts) return refuse_memory(err);
    g->n_parts = 1;
    llm_status status = llm_gguf_part_open(&g->parts[0], path, header_only, err);
    if (status == LLM_OK && g->parts[0].is_split) status = open_siblings(g, path, err);
    return status == LLM_OK ? llm_gguf_join(g, err) : status;
}

static llm_status open_buffers(llm_gguf *g, const llm_gguf_buffer *buffers, int32_t n,
                               llm_error *err) {
    if (n < 1 || n > LLM_GGUF_MAX_PARTS)
        return llm_fail(err, LLM_E_ARGUMENT, "%" PRId32 " buffers; the limit is 1 to %d", n,
                        LLM_GGUF_MAX_PARTS);
    g->parts = malloc((size_t)n * sizeof *g->parts);
    if (!g->parts) return refuse_memory(err);
    for (int32_t i = 0; i < n; i++) {
        llm_status status = llm_gguf_part_open_buffer(&g->parts[g->n_parts++], buffers[i].label,
                                                      buffers[i].bytes, buffers[i].n_bytes, err);
        if (status != LLM_OK) return status;
    }
    if (n == 1 && g->parts[0].is_split)
        return llm_gguf_fail(&g->parts[0], err, LLM_E_ARGUMENT,
                             "one part of a set of %" PRId64 " was given; all are needed",
                             g->parts[0].split_count);
    return llm_gguf_join(g, err);
}

static llm_status finish(llm_status status, llm_gguf *g, llm_gguf **out) {
    if (status == LLM_OK)
        *out = g;
    else
        llm_gguf_close(g);
    return status;
}

static llm_status open_path(const char *path, bool header_only, llm_gguf **out, llm_error *err) {
    if (!path || !out) return llm_fail(err, LLM_E_ARGUMENT, "open of a file: path or out is NULL");
    *out = NULL;
    llm_gguf *g = calloc(1, sizeof *g);
    if (!g) return refuse_memory(err);
    return finish(open_set(g, path, header_only, err), g, out);
}

llm_status llm_gguf_open(const char *path, llm_gguf **out, llm_error *err) {
    return open_path(path, false, out, err);
}

llm_status llm_gguf_open_header(const char *path, llm_gguf **out, llm_error *err) {
    return open_path(path, true, out, err);
}

llm_status llm_gguf_open_memory(const llm_gguf_buffer *buffers, int32_t n_buffers, llm_gguf **out,
                                llm_error *err) {
    *out = NULL;
    llm_gguf *g = calloc(1, sizeof *g);
    if (!g) return refuse_memory(err);
    return finish(open_buffers(g, buffers, n_buffers, err), g, out);
}

void llm_gguf_close(llm_gguf *g) {
    if (!g) return;
    for (int32_t i = 0; i < g->n_parts; i++) llm_gguf_part_close(&g->parts[i]);
    llm_name_index_free(&g->by_name);
    free(g->parts);
    free(g->tensors);
    free(g->names);
    free(g);
}
