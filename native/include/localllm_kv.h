/* localllm_kv.h: the paged KV pool, a part of localllm.h under the same rules. */
#ifndef LOCALLLM_KV_H
#define LOCALLLM_KV_H

#include "localllm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* n_blocks [n_groups]: block capacity of each layer group. Address space is reserved, memory is
 * committed when a block is first written. Block ids are 0 .. n_blocks[group] - 1; who owns which
 * block is the caller's business. */
llm_status llm_kv_pool_create(const llm_model *m, int32_t kv_type, const int32_t *n_blocks,
                              llm_kv_pool **out, llm_error *err);
void llm_kv_pool_free(llm_kv_pool *p);
uint64_t llm_kv_block_bytes(const llm_model *m, int32_t kv_type, int32_t group); /* 0: no such */
llm_status llm_kv_copy_block(llm_kv_pool *p, int32_t group, int32_t src, int32_t dst,
                             llm_error *err);
/* Gives the pages of idle blocks back to the system; their contents become undefined. */
llm_status llm_kv_release_blocks(llm_kv_pool *p, int32_t group, const int32_t *blocks, int32_t n,
                                 llm_error *err);
/* Copies a block out of the pool, or into it: data [llm_kv_block_bytes], in an order that only this
 * engine knows. Of a block that is read only the first n_tokens (0 to 32) are the caller's: the
 * rest is zero in the copy, whatever sequence it was of before. Several threads may do this, with
 * each other and with a step, as long as nobody else uses the block. */
llm_status llm_kv_read_block(const llm_kv_pool *p, int32_t group, int32_t block, int32_t n_tokens,
                             uint8_t *data, llm_error *err);
llm_status llm_kv_write_block(llm_kv_pool *p, int32_t group, int32_t block, const uint8_t *data,
                              llm_error *err);

#ifdef __cplusplus
}
#endif
#endif
