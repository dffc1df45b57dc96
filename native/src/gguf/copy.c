/* copy.c: tensor data out of a file, without a look at its mapping. */
#include <string.h>

#include "gguf/gguf.h"

llm_status llm_gguf_read(const llm_gguf *g, const uint8_t *data, uint64_t n_bytes, uint8_t *dst,
                         llm_error *err) {
    uintptr_t address = (uintptr_t)data;
    for (int32_t i = 0; i < g->n_parts; i++) {
        const llm_gguf_part *part = &g->parts[i];
        uint64_t at = address - (uintptr_t)part->bytes;
        if (address < (uintptr_t)part->bytes || at > part->n_bytes) continue;
        if (n_bytes > part->n_bytes - at) continue;
        if (!part->map.bytes) {
            memcpy(dst, data, (size_t)n_bytes);
            return LLM_OK;
        }
        llm_error inner;
        llm_status status = llm_file_map_read(&part->map, at, dst, n_bytes, &inner);
        if (status == LLM_OK || g->n_parts == 1) {
            if (status != LLM_OK && err) *err = inner;
            return status;
        }
        return llm_fail(err, status, "part %d of %d: %s", (int)i + 1, (int)g->n_parts,
                        inner.message);
    }
    return llm_fail(err, LLM_E_ARGUMENT, "no part of the file holds these %llu bytes",
                    (unsigned long long)n_bytes);
}
