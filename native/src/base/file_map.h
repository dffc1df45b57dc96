/* file_map.h: a whole regular file, mapped read-only. */
#ifndef LLM_FILE_MAP_H
#define LLM_FILE_MAP_H

#include <stdbool.h>

#include "base/status.h"

typedef struct llm_file_map {
    const uint8_t *bytes; /* page-aligned; NULL when nothing is mapped */
    uint64_t n_bytes;     /* the size at open */
    intptr_t file;        /* the open file, a descriptor or a HANDLE, while bytes is not NULL */
} llm_file_map;

/* path is UTF-8. Refuses directories, pipes, devices and empty files with LLM_E_IO. */
llm_status llm_file_map_open(const char *path, llm_file_map *out, llm_error *err);
void llm_file_map_close(llm_file_map *map); /* safe on a zeroed or closed map */

/* Copies n bytes from byte `at` of the file, which must lie inside the map. Unlike a look at the map,
 * which ends the process if the file has been cut short since it was opened, this is an LLM_E_IO. The
 * message does not name the file. Any number of threads may read. */
llm_status llm_file_map_read(const llm_file_map *map, uint64_t at, uint8_t *dst, uint64_t n,
                             llm_error *err);

bool llm_file_exists(const char *path);

#endif
