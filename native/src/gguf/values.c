/* The metadata: every key and value is walked over once and bounded by the file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/part.h"

#define MIN_VALUE_BYTES 14 /* key length, one byte of key, type, one byte of value */

static const char *const TYPE_NAMES[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
static const uint8_t TYPE_BYTES[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* 0: it varies */
#define N_TYPES 13

static llm_status fail_at(const llm_gguf_part *part, const llm_gguf_value *v, llm_error *err,
                          const char *what, uint64_t value, const char *limit_name,
                          uint64_t limit) {
    return llm_gguf_fail(part, err, LLM_E_FORMAT, "key %s: %s %" PRIu64 "; %s %" PRIu64,
                         llm_quote(v->key, v->key_bytes).text, what, value, limit_name, limit);
}

static llm_status read_key(llm_gguf_part *part, llm_gguf_value *v, llm_error *err) {
    uint64_t at = part->at;
    if (llm_gguf_left(part) < MIN_VALUE_BYTES)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "metadata value %" PRIu32 " of %" PRIu64
                             ": the file ends at byte %" PRIu64
                             ", inside its metadata (was the download cut short?)",
                             part->n_values, part->n_values_stated, part->n_bytes);
    uint64_t n = llm_load_u64(part->bytes + at);
    uint64_t left = llm_gguf_left(part) - 8;
    if (n == 0 || n > LLM_GGUF_MAX_KEY_BYTES || n > left)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "metadata value %" PRIu32 " of %" PRIu64 " (at byte %" PRIu64
                             "): key length %" PRIu64 "; the limit is 1 to %" PRIu64,
                             part->n_values, part->n_values_stated, at, n,
                             left < LLM_GGUF_MAX_KEY_BYTES ? left : LLM_GGUF_MAX_KEY_BYTES);
    const uint8_t *key = part->bytes + at + 8;
    for (uint64_t i = 0; i < n; i++)
        if (key[i] < 0x20 || key[i] > 0x7e)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "metadata value %" PRIu32 ": key %s holds byte 0x%02x; keys are "
                                 "printable ASCII",
                                 part->n_values, llm_quote(key, n).text, key[i]);
    v->key = (const char *)key;
    v->key_bytes = (size_t)n;
    part->at = at + 8 + n;
    return LLM_OK;
}

static llm_status read_string(llm_gguf_part *part, llm_gguf_value *v, llm_error *err) {
    if (llm_gguf_left(part) < 8)
        return fail_at(part, v, err, "string length at byte", part->at, "the file ends at byte",
                       part->n_bytes);
    uint64_t n = llm_load_u64(part->bytes + part->at);
    part->at += 8;
    if (n > llm_gguf_left(part))
        return fail_at(part, v, err, "string length", n,
                       "bytes left in the file:", llm_gguf_left(part));
    v->data = part->bytes + part->at;
    v->data_bytes = n;
    part->at += n;
    return LLM_OK;
}

/* One pass of bounds checks over (u64 length, bytes) records. */
static llm_status walk_strings(llm_gguf_part *part, llm_gguf_value *v, llm_error *err) {
    const uint8_t *p = v->data, *end = part->bytes + part->n_bytes;
    for (uint64_t i = 0; i < v->count; i++) {
        uint64_t left = (uint64_t)(end - p);
        uint64_t n = left < 8 ? 0 : llm_load_u64(p);
        if (left < 8 || n > left - 8)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "key %s: string %" PRIu64 " of %" PRIu64 ": length %" PRIu64
                                 "; bytes left in the file: %" PRIu64,
                                 llm_quote(v->key, v->key_bytes).text, i, v->count, n,
                                 left < 8 ? left : left - 8);
        p += 8 + n;
    }
    v->data_bytes = (uint64_t)(p - v->data);
    return LLM_OK;
}

static llm_status check_bools(const llm_gguf_part *part, const llm_gguf_value *v, llm_error *err) {
    for (uint64_t i = 0; i < v->count; i++)
        if (v->data[i] > 1) return fail_at(part, v, err, "bool", v->data[i], "the limit is", 1);
    return LLM_OK;
}

static llm_status read_array(llm_gguf_part *part, llm_gguf_value *v, llm_error *err) {
    if (llm_gguf_left(part) < 12)
        return fail_at(part, v, err, "array header at byte", part->at, "the file ends at byte",
                       part->n_bytes);
    uint32_t type = llm_load_u32(part->bytes + part->at);
    v->count = llm_load_u64(part->bytes + part->at + 4);
    if (type == LLM_GGUF_ARRAY)
        return llm_gguf_fail(part, err, LLM_E_UNSUPPORTED,
                             "key %s: an array of arrays; only arrays of numbers, bools or strings "
                             "are read",
                             llm_quote(v->key, v->key_bytes).text);
    if (type >= N_TYPES)
        return fail_at(part, v, err, "array element type", type, "the limit is", N_TYPES - 1);
    part->at += 12;
    v->element_type = (int32_t)type;
    v->data = part->bytes + part->at;
    /* A string takes 8 bytes at least. */
    uint64_t element_bytes = TYPE_BYTES[type] ? TYPE_BYTES[type] : 8;
    if (v->count > llm_gguf_left(part) / element_bytes)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key %s: array count %" PRIu64 " (%s); the file has room for %" PRIu64,
                             llm_quote(v->key, v->key_bytes).text, v->count, TYPE_NAMES[type],
                             llm_gguf_left(part) / element_bytes);
    bool walked = type == LLM_GGUF_STRING || type == LLM_GGUF_BOOL;
    if (walked && v->count > LLM_GGUF_MAX_ELEMENTS - part->n_walked)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key %s: array count %" PRIu64 " (%s) on top of %" PRIu64
                             " elements before it; the limit of strings and bools together is %d",
                             llm_quote(v->key, v->key_bytes).text, v->count, TYPE_NAMES[type],
                             part->n_walked, LLM_GGUF_MAX_ELEMENTS);
    if (walked) part->n_walked += v->count;
    llm_status status = LLM_OK;
    v->data_bytes = v->count * element_bytes;
    if (type == LLM_GGUF_STRING) status = walk_strings(part, v, err);
    if (type == LLM_GGUF_BOOL) status = check_bools(part, v, err);
    part->at += v->data_bytes;
    return status;
}

static llm_status read_value(llm_gguf_part *part, llm_gguf_value *v, llm_error *err) {
    *v = (llm_gguf_value){0};
    llm_status status = read_key(part, v, err);
    if (status != LLM_OK) return status;
    if (llm_gguf_left(part) < 4)
        return fail_at(part, v, err, "value type at byte", part->at, "the file ends at byte",
                       part->n_bytes);
    uint32_t type = llm_load_u32(part->bytes + part->at);
    if (type >= N_TYPES)
        return fail_at(part, v, err, "value type", type, "the limit is", N_TYPES - 1);
    part->at += 4;
    v->type = v->element_type = (int32_t)type;
    v->count = 1;
    if (type == LLM_GGUF_STRING) return read_string(part, v, err);
    if (type == LLM_GGUF_ARRAY) return read_array(part, v, err);
    v->data = part->bytes + part->at;
    v->data_bytes = TYPE_BYTES[type];
    if (llm_gguf_left(part) < v->data_bytes)
        return fail_at(part, v, err, "value at byte", part->at, "the file ends at byte",
                       part->n_bytes);
    part->at += v->data_bytes;
    return type == LLM_GGUF_BOOL ? check_bools(part, v, err) : LLM_OK;
}

static llm_status read_list(llm_gguf_part *part, llm_error *err) {
    uint64_t n = part->n_values_stated, room = llm_gguf_left(part) / MIN_VALUE_BYTES;
    uint64_t limit = room < LLM_GGUF_MAX_VALUES ? room : LLM_GGUF_MAX_VALUES;
    if (n > limit)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "metadata count %" PRIu64 "; the limit for this file is %" PRIu64, n,
                             limit);
    uint64_t capacity = 0;
    while (part->n_values < n) {
        if (part->n_values == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            if (capacity > n) capacity = n;
            void *grown = realloc(part->values, (size_t)capacity * sizeof *part->values);
            if (!grown)
                return llm_gguf_fail(part, err, LLM_E_MEMORY,
                                     "out of memory for %" PRIu64 " metadata values", capacity);
            part->values = grown;
        }
        llm_status status = read_value(part, &part->values[part->n_values], err);
        if (status != LLM_OK) return status;
        part->n_values++;
    }
    return LLM_OK;
}

static llm_status index_keys(llm_gguf_part *part, llm_error *err) {
    int64_t a = -1, b = -1;
    bool ok = llm_name_index_reserve(&part->keys, part->n_values);
    for (uint32_t i = 0; ok && i < part->n_values; i++)
        llm_name_index_add(&part->keys, part->values[i].key, part->values[i].key_bytes, i);
    if (!ok || !llm_name_index_finish(&part->keys, &a, &b))
        return llm_gguf_fail(part, err, LLM_E_MEMORY, "out of memory for %" PRIu32 " metadata keys",
                             part->n_values);
    if (b >= 0)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key %s: stated twice, as metadata values %" PRId64 " and %" PRId64,
                             llm_quote(part->values[a].key, part->values[a].key_bytes).text, a, b);
    return LLM_OK;
}

static const llm_gguf_value *find(const llm_gguf_part *part, const char *key) {
    int64_t i = llm_name_index_find(&part->keys, key, strlen(key));
    return i < 0 ? NULL : &part->values[i];
}

static llm_status read_alignment(llm_gguf_part *part, llm_error *err) {
    const llm_gguf_value *v = find(part, "general.alignment");
    part->alignment = 32;
    if (!v) return LLM_OK;
    if (v->type != LLM_GGUF_U32)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key 'general.alignment': type %s; it has to be u32",
                             TYPE_NAMES[v->type]);
    uint32_t alignment = llm_load_u32(v->data);
    if (alignment < 8 || alignment > LLM_GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)))
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key 'general.alignment': %" PRIu32
                             "; the limit is a power of two from 8 to %d",
                             alignment, LLM_GGUF_MAX_ALIGNMENT);
    part->alignment = alignment;
    return LLM_OK;
}

/* An integer of any width in [0, limit], or `absent`. */
static llm_status read_integer(const llm_gguf_part *part, const char *key, uint64_t limit,
                               int64_t absent, int64_t *out, llm_error *err) {
    const llm_gguf_value *v = find(part, key);
    *out = absent;
    if (!v) return LLM_OK;
    bool is_signed = v->type == LLM_GGUF_I8 || v->type == LLM_GGUF_I16 || v->type == LLM_GGUF_I32
                     || v->type == LLM_GGUF_I64;
    bool is_unsigned = v->type == LLM_GGUF_U8 || v->type == LLM_GGUF_U16 || v->type == LLM_GGUF_U32
                       || v->type == LLM_GGUF_U64;
    if (!is_signed && !is_unsigned)
        return llm_gguf_fail(part, err, LLM_E_FORMAT, "key '%s': type %s; it has to be an integer",
                             key, TYPE_NAMES[v->type]);
    uint64_t value = 0;
    for (uint64_t i = v->data_bytes; i-- > 0;) value = value << 8 | v->data[i];
    bool negative = is_signed && (v->data[v->data_bytes - 1] & 0x80);
    if (negative)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key '%s': a negative number; the limit is 0 to %" PRIu64, key, limit);
    if (value > limit)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key '%s': %" PRIu64 "; the limit is %" PRIu64, key, value, limit);
    *out = (int64_t)value;
    return LLM_OK;
}

static llm_status read_split_keys(llm_gguf_part *part, llm_error *err) {
    llm_status status =
        read_integer(part, "split.count", LLM_GGUF_MAX_PARTS, 0, &part->split_count, err);
    if (status == LLM_OK)
        status = read_integer(part, "split.tensors.count", LLM_GGUF_MAX_TENSORS, -1,
                              &part->split_tensors, err);
    if (status != LLM_OK) return status;
    part->is_split = part->split_count > 1;
    if (!part->is_split) return LLM_OK;
    if (!find(part, "split.no"))
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "key 'split.no': missing, though 'split.count' is %" PRId64,
                             part->split_count);
    return read_integer(part, "split.no", (uint64_t)part->split_count - 1, 0, &part->split_no, err);
}

llm_status llm_gguf_read_values(llm_gguf_part *part, llm_error *err) {
    llm_status status = read_list(part, err);
    if (status == LLM_OK) status = index_keys(part, err);
    if (status == LLM_OK) status = read_alignment(part, err);
    if (status == LLM_OK) status = read_split_keys(part, err);
    return status;
}
