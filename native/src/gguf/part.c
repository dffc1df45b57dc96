#include "gguf/part.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The end of a path says most, so a long one loses its beginning. */
#define PATH_SHOWN 400

llm_status llm_gguf_fail(const llm_gguf_part *part, llm_error *err, llm_status status,
                         const char *format, ...) {
    if (!err) return status;
    char message[LLM_ERROR_BYTES - PATH_SHOWN - 16];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    size_t n = strlen(part->path);
    const char *shown = part->path;
    if (n > PATH_SHOWN) {
        shown += n - PATH_SHOWN;
        while (((uint8_t)*shown & 0xC0) == 0x80) shown++; /* not into a UTF-8 character */
    }
    return llm_fail(err, status, "%s%s: %s", shown == part->path ? "" : "...", shown, message);
}

llm_quoted llm_quote(const void *bytes, uint64_t n_bytes) {
    const uint8_t *p = bytes;
    llm_quoted out;
    size_t at = 0;
    uint64_t n_shown = n_bytes > 60 ? 56 : n_bytes;
    out.text[at++] = '\'';
    for (uint64_t i = 0; i < n_shown; i++) {
        bool plain = p[i] >= 0x20 && p[i] < 0x7f && p[i] != '\'' && p[i] != '\\';
        if (plain)
            out.text[at++] = (char)p[i];
        else
            at += (size_t)snprintf(out.text + at, sizeof out.text - at, "\\x%02x", p[i]);
    }
    snprintf(out.text + at, sizeof out.text - at, n_bytes > n_shown ? "...'" : "'");
    return out;
}

static llm_status read_all(llm_gguf_part *part, llm_error *err) {
    llm_status status = llm_gguf_read_header(part, err);
    if (status == LLM_OK) status = llm_gguf_read_values(part, err);
    if (status == LLM_OK) status = llm_gguf_read_tensors(part, err);
    return status;
}

static llm_status set_path(llm_gguf_part *part, const char *path, llm_error *err) {
    size_t n = strlen(path) + 1;
    *part = (llm_gguf_part){0};
    part->path = malloc(n);
    if (!part->path) return llm_fail(err, LLM_E_MEMORY, "out of memory for a path");
    memcpy(part->path, path, n);
    return LLM_OK;
}

llm_status llm_gguf_part_open(llm_gguf_part *part, const char *path, bool header_only,
                              llm_error *err) {
    llm_status status = set_path(part, path, err);
    part->header_only = header_only;
    if (status == LLM_OK) status = llm_file_map_open(path, &part->map, err);
    if (status != LLM_OK) return status;
    part->bytes = part->map.bytes;
    part->n_bytes = part->map.n_bytes;
    status = read_all(part, err);
    llm_error cut;
    if (llm_file_map_check(&part->map, &cut) == LLM_OK) return status;
    return llm_gguf_fail(part, err, cut.status, "%s", cut.message); /* it refused mere zeros */
}

llm_status llm_gguf_part_open_buffer(llm_gguf_part *part, const char *label, const uint8_t *bytes,
                                     uint64_t n_bytes, llm_error *err) {
    llm_status status = set_path(part, label, err);
    if (status != LLM_OK) return status;
    part->bytes = bytes;
    part->n_bytes = n_bytes;
    return read_all(part, err);
}

void llm_gguf_part_close(llm_gguf_part *part) {
    llm_file_map_close(&part->map);
    llm_name_index_free(&part->keys);
    free(part->values);
    free(part->tensors);
    free(part->name_bytes);
    free(part->path);
    *part = (llm_gguf_part){0};
}
