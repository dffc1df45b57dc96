/* The tensor list: every name, shape, type and range is checked against the file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/part.h"
#include "quant/formats.h"

#define MIN_TENSOR_BYTES 25 /* name length, one byte of name, n_dims, type, offset */

static llm_quoted name_of(const llm_gguf_part *part, uint32_t i) {
    return llm_quote(part->tensors[i].name, part->name_bytes[i]);
}

/* The tensor that is being read. */
static llm_quoted name_now(const llm_gguf_part *part) { return name_of(part, part->n_tensors); }

/* Length of the UTF-8 character at p (of at most n bytes), 0 if it is not one.
 * Source: The Unicode Standard, table 3-7. */
static uint64_t utf8_length(const uint8_t *p, uint64_t n) {
    if (p[0] < 0x80) return 1;
    uint64_t length = p[0] >= 0xC2 && p[0] < 0xE0 ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : 0;
    if (p[0] >= 0xF0 && p[0] < 0xF5) length = 4;
    if (length == 0 || length > n) return 0;
    uint8_t low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    uint8_t high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 0;
    for (uint64_t i = 2; i < length; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return length;
}

static bool is_clean_text(const uint8_t *p, uint64_t n) {
    uint64_t length = 0;
    for (uint64_t i = 0; i < n; i += length) {
        length = utf8_length(p + i, n - i);
        if (length == 0 || p[i] < 0x20 || p[i] == 0x7f) return false;
    }
    return true;
}

static llm_status fail_short(const llm_gguf_part *part, llm_error *err) {
    return llm_gguf_fail(part, err, LLM_E_FORMAT,
                         "tensor %" PRIu32 " of %" PRIu64 ": the file ends at byte %" PRIu64
                         ", inside its tensor list (was the download cut short?)",
                         part->n_tensors, part->n_tensors_stated, part->n_bytes);
}

static llm_status read_name(llm_gguf_part *part, llm_tensor_info *t, llm_error *err) {
    if (llm_gguf_left(part) < MIN_TENSOR_BYTES - 1) return fail_short(part, err);
    uint64_t n = llm_load_u64(part->bytes + part->at), left = llm_gguf_left(part) - 8;
    const uint8_t *name = part->bytes + part->at + 8;
    if (n == 0 || n > LLM_GGUF_MAX_NAME_BYTES || n > left)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "tensor %" PRIu32 " of %" PRIu64 " (at byte %" PRIu64
                             "): name length %" PRIu64 "; the limit is 1 to %" PRIu64,
                             part->n_tensors, part->n_tensors_stated, part->at, n,
                             left < LLM_GGUF_MAX_NAME_BYTES ? left : LLM_GGUF_MAX_NAME_BYTES);
    if (!is_clean_text(name, n))
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "tensor %" PRIu32 ": name %s is not plain UTF-8 text", part->n_tensors,
                             llm_quote(name, n).text);
    t->name = (const char *)name;
    part->name_bytes[part->n_tensors] = (uint8_t)n;
    part->at += 8 + n;
    return LLM_OK;
}

static llm_status read_shape(llm_gguf_part *part, llm_tensor_info *t, uint64_t *n_elements,
                             llm_error *err) {
    if (llm_gguf_left(part) < 4) return fail_short(part, err);
    uint32_t n_dims = llm_load_u32(part->bytes + part->at);
    if (n_dims > LLM_MAX_DIMS)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "tensor %s: %" PRIu32 " dimensions; the limit is %d",
                             name_now(part).text, n_dims, LLM_MAX_DIMS);
    part->at += 4;
    if (llm_gguf_left(part) < 8 * (uint64_t)n_dims + 12) return fail_short(part, err);
    t->n_dims = (int32_t)n_dims;
    *n_elements = 1;
    for (uint32_t d = 0; d < LLM_MAX_DIMS; d++) {
        uint64_t dim = d < n_dims ? llm_load_u64(part->bytes + part->at + 8 * d) : 1;
        if (dim == 0 || dim > INT64_MAX)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "tensor %s: dimension %" PRIu32 " is %" PRIu64
                                 "; the limit is 1 to %" PRId64,
                                 name_now(part).text, d, dim, INT64_MAX);
        t->dims[d] = (int64_t)dim;
        if (!llm_mul_u64(*n_elements, dim, n_elements) || *n_elements > INT64_MAX)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "tensor %s: the product of its dimensions passes the limit of "
                                 "%" PRId64 " elements at dimension %" PRIu32 " (%" PRIu64 ")",
                                 name_now(part).text, INT64_MAX, d, dim);
    }
    part->at += 8 * (uint64_t)n_dims;
    return LLM_OK;
}

static llm_status read_tensor(llm_gguf_part *part, llm_tensor_info *t, uint64_t *offset,
                              llm_error *err) {
    uint64_t n_elements = 0;
    *t = (llm_tensor_info){0};
    llm_status status = read_name(part, t, err);
    if (status == LLM_OK) status = read_shape(part, t, &n_elements, err);
    if (status != LLM_OK) return status;
    uint32_t type = llm_load_u32(part->bytes + part->at);
    *offset = llm_load_u64(part->bytes + part->at + 4);
    part->at += 12;
    const llm_format *format = type <= INT32_MAX ? llm_format_of((int32_t)type) : NULL;
    if (!format)
        return llm_gguf_fail(part, err, LLM_E_UNSUPPORTED,
                             "tensor %s: element type %" PRIu32 " is not one that this build knows",
                             name_now(part).text, type);
    t->type = format->type;
    uint64_t block = (uint64_t)format->block_elements;
    if ((uint64_t)t->dims[0] % block)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "tensor %s: rows of %" PRId64
                             " elements; %s needs a multiple of %" PRIu64,
                             name_now(part).text, t->dims[0], format->name, block);
    if (!llm_mul_u64(n_elements / block, (uint64_t)format->block_bytes, &t->n_bytes))
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "tensor %s: %" PRIu64 " elements of %s; their bytes pass the limit of "
                             "%" PRIu64,
                             name_now(part).text, n_elements, format->name, UINT64_MAX);
    return LLM_OK;
}

/* Both arrays grow together. False: out of memory, with nothing lost. */
static bool grow(llm_gguf_part *part, uint64_t **offsets, uint64_t *capacity) {
    uint64_t n = *capacity ? 2 * *capacity : 64;
    if (n > part->n_tensors_stated) n = part->n_tensors_stated;
    void *tensors = realloc(part->tensors, (size_t)n * sizeof *part->tensors);
    if (tensors) part->tensors = tensors;
    void *lengths = tensors ? realloc(part->name_bytes, (size_t)n) : NULL;
    if (lengths) part->name_bytes = lengths;
    void *grown = lengths ? realloc(*offsets, (size_t)n * sizeof **offsets) : NULL;
    if (!grown) return false;
    *offsets = grown;
    *capacity = n;
    return true;
}

static llm_status read_list(llm_gguf_part *part, uint64_t **offsets, llm_error *err) {
    uint64_t n = part->n_tensors_stated, room = llm_gguf_left(part) / MIN_TENSOR_BYTES;
    uint64_t limit = room < LLM_GGUF_MAX_TENSORS ? room : LLM_GGUF_MAX_TENSORS, capacity = 0;
    if (n > limit)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "tensor count %" PRIu64 "; the limit for this file is %" PRIu64, n,
                             limit);
    while (part->n_tensors < n) {
        uint32_t i = part->n_tensors;
        if (i == capacity && !grow(part, offsets, &capacity))
            return llm_gguf_fail(part, err, LLM_E_MEMORY, "out of memory for %" PRIu64 " tensors",
                                 n);
        llm_status status = read_tensor(part, &part->tensors[i], &(*offsets)[i], err);
        if (status != LLM_OK) return status;
        part->n_tensors++;
    }
    return LLM_OK;
}

/* Turns offsets into pointers inside the file, if its data has to be there. */
static llm_status place(llm_gguf_part *part, const uint64_t *offsets, llm_error *err) {
    uint64_t mask = part->alignment - 1;
    part->data_at = part->at + (-part->at & mask); /* at <= 2^63: the file is mapped */
    uint64_t room = part->data_at < part->n_bytes ? part->n_bytes - part->data_at : 0;
    for (uint32_t i = 0; i < part->n_tensors; i++) {
        llm_tensor_info *t = &part->tensors[i];
        if (offsets[i] & mask)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "tensor %s: offset %" PRIu64 "; it has to be a multiple of the "
                                 "alignment %" PRIu64,
                                 name_of(part, i).text, offsets[i], part->alignment);
        if (!part->header_only && (offsets[i] > room || t->n_bytes > room - offsets[i]))
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "tensor %s: %" PRIu64 " bytes at offset %" PRIu64
                                 "; the file's data section has %" PRIu64
                                 " bytes (was the download cut short?)",
                                 name_of(part, i).text, t->n_bytes, offsets[i], room);
        if (offsets[i] > INT64_MAX / 2 || t->n_bytes > INT64_MAX / 2)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "tensor %s: %" PRIu64 " bytes at offset %" PRIu64
                                 "; no file is that large",
                                 name_of(part, i).text, t->n_bytes, offsets[i]);
        if (!part->header_only) t->data = part->bytes + part->data_at + offsets[i];
    }
    return LLM_OK;
}

typedef struct range {
    uint64_t begin, end;
    uint32_t tensor;
} range;

static int compare_ranges(const void *left, const void *right) {
    const range *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Ranges that are disjoint and inside the file also have a sum that is. */
static llm_status check_overlap(llm_gguf_part *part, const uint64_t *offsets, uint64_t *data_end,
                                llm_error *err) {
    uint32_t n = part->n_tensors;
    range *ranges = malloc((n ? n : 1) * sizeof *ranges);
    if (!ranges)
        return llm_gguf_fail(part, err, LLM_E_MEMORY, "out of memory for %" PRIu32 " tensors", n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t begin = part->data_at + offsets[i];
        ranges[i] = (range){begin, begin + part->tensors[i].n_bytes, i};
    }
    llm_status status = LLM_OK;
    if (!llm_merge_sort(ranges, n, sizeof *ranges, compare_ranges))
        status = llm_gguf_fail(part, err, LLM_E_MEMORY, "out of memory for %" PRIu32 " tensors", n);
    for (uint32_t i = 1; status == LLM_OK && i < n; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            status = llm_gguf_fail(
                part, err, LLM_E_FORMAT,
                "tensor %s: offset %" PRIu64
                " lies inside tensor %s, which ends at offset %" PRIu64,
                name_of(part, ranges[i].tensor).text, ranges[i].begin - part->data_at,
                name_of(part, ranges[i - 1].tensor).text, ranges[i - 1].end - part->data_at);
    *data_end = n ? ranges[n - 1].end : part->at;
    free(ranges);
    return status;
}

/* Files joined by `cat`: the first one's contents, then the next one's magic. */
static llm_status check_tail(const llm_gguf_part *part, uint64_t data_end, llm_error *err) {
    uint64_t padded = data_end + (-data_end & (part->alignment - 1));
    const uint64_t places[2] = {data_end, padded};
    for (int i = 0; i < 2; i++) {
        uint64_t at = places[i];
        if (at > part->n_bytes || part->n_bytes - at < 8) continue;
        if (memcmp(part->bytes + at, "GGUF", 4) != 0 || llm_load_u32(part->bytes + at + 4) > 3)
            continue;
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "another GGUF file begins at byte %" PRIu64 " of %" PRIu64
                             ": parts of a split set were joined by 'cat'; keep them as separate "
                             "files, or merge them with 'llama-gguf-split --merge'",
                             at, part->n_bytes);
    }
    return LLM_OK;
}

llm_status llm_gguf_read_tensors(llm_gguf_part *part, llm_error *err) {
    uint64_t *offsets = NULL, data_end = part->at;
    llm_status status = read_list(part, &offsets, err);
    if (status == LLM_OK) status = place(part, offsets, err);
    if (status == LLM_OK) status = check_overlap(part, offsets, &data_end, err);
    if (status == LLM_OK && !part->header_only) status = check_tail(part, data_end, err);
    free(offsets);
    return status;
}
