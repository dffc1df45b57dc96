/* gguf.h: what only code inside the library may do with GGUF files. */
#ifndef LLM_GGUF_GGUF_H
#define LLM_GGUF_GGUF_H

#include "gguf/part.h"

struct llm_gguf {
    llm_gguf_part *parts; /* [n_parts], ordered by split.no; metadata is that of part 0 */
    int32_t n_parts;
    llm_tensor_info *tensors; /* [n_tensors], part after part, owned */
    uint32_t n_tensors;
    char *names; /* their NUL-terminated names, owned */
    llm_name_index by_name;
};

typedef struct llm_gguf_buffer {
    const char *label; /* stands for the path in messages */
    const uint8_t *bytes;
    uint64_t n_bytes;
} llm_gguf_buffer;

/* The same as llm_gguf_open for files in memory, which must outlive *out: one, or all parts of a
 * split set in any order. Tensor data is only as aligned as the buffers are. */
llm_status llm_gguf_open_memory(const llm_gguf_buffer *buffers, int32_t n_buffers, llm_gguf **out,
                                llm_error *err);

/* Copies n_bytes of tensor data from where a llm_tensor_info.data points, through the system's
 * read: a file that another program cuts short is an LLM_E_IO. Any number of threads may read. */
llm_status llm_gguf_read(const llm_gguf *g, const uint8_t *data, uint64_t n_bytes, uint8_t *dst,
                         llm_error *err);

/* LLM_E_IO if a file is no longer what was opened. */
llm_status llm_gguf_check_unchanged(const llm_gguf *g, llm_error *err);

/* Puts parts[0 .. n_parts) in order and fills the rest of g. */
llm_status llm_gguf_join(llm_gguf *g, llm_error *err);

#endif
