/* file_map.h: a whole regular file, mapped read-only. */
#ifndef LLM_FILE_MAP_H
#define LLM_FILE_MAP_H

#include <stdbool.h>

#include "base/map_guard.h"
#include "base/status.h"

typedef struct llm_file_map {
    const uint8_t *bytes; /* page-aligned; NULL when nothing is mapped */
    uint64_t n_bytes;     /* the size at open */
    int64_t written_ns;   /* when it had been written to last at open */
    llm_map_guard *guard; /* NULL on Windows */
    intptr_t file;        /* the open file, a descriptor or a HANDLE, while bytes is not NULL */
} llm_file_map;

/* path is UTF-8. Refuses directories, pipes, devices and empty files with LLM_E_IO. */
llm_status llm_file_map_open(const char *path, llm_file_map *out, llm_error *err);
void llm_file_map_close(llm_file_map *map); /* safe on a zeroed or closed map */

/* A look at the map shows zeros where the file has been cut short since it was opened, or where its
 * disk fails. After looks, and before what came of them is used: LLM_E_IO if there were any. */
llm_status llm_file_map_check(const llm_file_map *map, llm_error *err);
/* The same, and also LLM_E_IO if the file has been written to since, or cut where nobody looked. */
llm_status llm_file_map_check_unchanged(const llm_file_map *map, llm_error *err);

/* Copies n bytes from byte `at` of the file, which must lie inside the map; a file that has been cut
 * short is an LLM_E_IO. Any number of threads may read. Messages of this and of the checks do not name
 * the file. */
llm_status llm_file_map_read(const llm_file_map *map, uint64_t at, uint8_t *dst, uint64_t n,
                             llm_error *err);

bool llm_file_exists(const char *path);

#endif
