/* os_memory.h: large page-aligned regions from the system. */
#ifndef LLM_OS_MEMORY_H
#define LLM_OS_MEMORY_H

#include <stdint.h>

/* A zeroed region whose pages are committed on first touch; huge pages are asked for where the
 * system has them. NULL when refused or n_bytes is 0. */
void *llm_os_alloc(uint64_t n_bytes);
void llm_os_free(void *region, uint64_t n_bytes);

/* Gives the whole pages inside [p, p + n_bytes) of such a region back to the system. */
void llm_os_discard(void *p, uint64_t n_bytes);

/* Tells the system that the whole pages inside a read-only file mapping are not needed for now. */
void llm_os_drop_mapped(const void *p, uint64_t n_bytes);

#endif
