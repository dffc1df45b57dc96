/* part.h: one GGUF file of a set while it is read, and the limits that a file has to keep.
 *
 * Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian:
 *   "GGUF", u32 version, u64 n_tensors, u64 n_values,
 *   n_values x  (string key, u32 type, value);   a string is u64 n_bytes, bytes
 *               an array is u32 element type, u64 count, elements
 *   n_tensors x (string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset)
 *   padding to `alignment`, then the data section, into which the offsets point.
 *
 * Nothing is allocated before the bytes that justify it have been walked over, and the limits
 * below keep the heap use of any file, of any size, under about 32 MiB.
 */
#ifndef LLM_GGUF_PART_H
#define LLM_GGUF_PART_H

#include "base/file_map.h"
#include "gguf/name_index.h"

#define LLM_GGUF_MAX_VALUES 65536      /* real files: under 100 */
#define LLM_GGUF_MAX_TENSORS 32768     /* in all parts; real files: up to a few thousand */
#define LLM_GGUF_MAX_KEY_BYTES 65535   /* the specification's */
#define LLM_GGUF_MAX_NAME_BYTES 127    /* the specification says 64; some writers exceed it */
#define LLM_GGUF_MAX_ELEMENTS 4194304  /* of all string and bool arrays: they are walked over */
#define LLM_GGUF_MAX_ALIGNMENT 1048576
#define LLM_GGUF_MAX_PARTS 1000

typedef struct llm_gguf_part {
    char *path; /* owned; what messages call this file */
    llm_file_map map;
    const uint8_t *bytes; /* the map's, or borrowed from a buffer */
    uint64_t n_bytes;
    uint64_t at; /* how far it has been read */

    int32_t version;
    uint64_t n_values_stated, n_tensors_stated;
    uint64_t alignment;
    llm_gguf_value *values; /* owned */
    uint32_t n_values;
    uint64_t n_walked; /* elements of string and bool arrays so far */
    llm_name_index keys;
    llm_tensor_info *tensors; /* owned, in file order; names still lie in the file, without NUL */
    uint8_t *name_bytes;      /* owned: their lengths */
    uint32_t n_tensors;
    uint64_t data_at; /* where the data section starts; may lie past a file without data */
    bool header_only; /* the data section may be absent: data pointers are NULL */
    bool is_split;    /* split.count is over 1 */
    int64_t split_no, split_count;
    int64_t split_tensors; /* in all parts; -1 when not stated */
} llm_gguf_part;

/* Maps path and reads all of it, or of a file that may lack its data the header alone. part is zeroed
 * first; on failure too it must be closed. */
llm_status llm_gguf_part_open(llm_gguf_part *part, const char *path, bool header_only,
                              llm_error *err);
/* The same for n_bytes at bytes, which must outlive the part. */
llm_status llm_gguf_part_open_buffer(llm_gguf_part *part, const char *label, const uint8_t *bytes,
                                     uint64_t n_bytes, llm_error *err);
void llm_gguf_part_close(llm_gguf_part *part);

/* "path: " and the message. */
llm_status llm_gguf_fail(const llm_gguf_part *part, llm_error *err, llm_status status,
                         const char *format, ...) LLM_PRINTF(4, 5);

/* The stages of reading; each starts where the one before it ended. */
llm_status llm_gguf_read_header(llm_gguf_part *part, llm_error *err);
llm_status llm_gguf_read_values(llm_gguf_part *part, llm_error *err);
llm_status llm_gguf_read_tensors(llm_gguf_part *part, llm_error *err);

/* Names from a file, quoted for a message: at most about 60 bytes of them, others as \xNN. */
typedef struct llm_quoted {
    char text[256];
} llm_quoted;
llm_quoted llm_quote(const void *bytes, uint64_t n_bytes);

static inline uint32_t llm_load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t llm_load_u64(const uint8_t *p) {
    return (uint64_t)llm_load_u32(p) | (uint64_t)llm_load_u32(p + 4) << 32;
}

static inline uint64_t llm_gguf_left(const llm_gguf_part *part) { return part->n_bytes - part->at; }

#endif
