/* map_guard.h: a look at a mapped file that another program has cut short.
 *
 * The system answers it with SIGBUS, which ends the process. While a range is guarded, what is missing
 * reads as zeros instead, and llm_map_guard_was_hit tells so: who read must ask before it uses what it
 * made of them. The same holds for pages that a disk fails to deliver. There is nothing to guard on
 * Windows, where nobody can cut a file that is mapped.
 */
#ifndef LLM_MAP_GUARD_H
#define LLM_MAP_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct llm_map_guard llm_map_guard;

/* Guards a range that mmap gave until it is removed, which must be before it is unmapped. NULL: no
 * memory. Any thread may call any of these. */
llm_map_guard *llm_map_guard_add(const void *begin, size_t n_bytes);
void llm_map_guard_remove(llm_map_guard *guard); /* NULL is none */
bool llm_map_guard_was_hit(const llm_map_guard *guard);

#endif
