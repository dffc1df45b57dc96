/* os_memory.h: large page-aligned regions from the system. */
#ifndef LLM_OS_MEMORY_H
#define LLM_OS_MEMORY_H

#include <stdint.h>

/* A zeroed region whose pages are committed on first touch. One of 2 MiB or more begins on a huge
 * page, and Linux is asked for huge pages. NULL when refused or n_bytes is 0. */
void *llm_os_alloc(uint64_t n_bytes);
void llm_os_free(void *region, uint64_t n_bytes);

/* Gives the whole pages inside [p, p + n_bytes) of such a region back to the system. */
void llm_os_discard(void *p, uint64_t n_bytes);

#endif
