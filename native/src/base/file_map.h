/* file_map.h: a whole regular file, mapped read-only. */
#ifndef LLM_FILE_MAP_H
#define LLM_FILE_MAP_H

#include <stdbool.h>

#include "base/status.h"

typedef struct llm_file_map {
    const uint8_t *bytes; /* page-aligned; NULL when nothing is mapped */
    uint64_t n_bytes;     /* the size at open; a file that shrinks later is out of scope */
} llm_file_map;

/* path is UTF-8. Refuses directories, pipes, devices and empty files with LLM_E_IO. */
llm_status llm_file_map_open(const char *path, llm_file_map *out, llm_error *err);
void llm_file_map_close(llm_file_map *map); /* safe on a zeroed or closed map */

bool llm_file_exists(const char *path);

#endif
