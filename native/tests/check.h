/* check.h: a check that says where and what failed, and goes on. main returns n_failed != 0. */
#ifndef LLM_CHECK_H
#define LLM_CHECK_H

#include <stdio.h>

static int n_failed;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            n_failed++;                                                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

#endif
