/* status.h: how an internal function reports a failure. */
#ifndef LLM_STATUS_H
#define LLM_STATUS_H

#include "localllm.h"

#if defined(__GNUC__)
#define LLM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define LLM_PRINTF(fmt, args)
#endif

/* Fills err (which may be NULL) and returns status, so that a caller can `return llm_fail(...)`. */
llm_status llm_fail(llm_error *err, llm_status status, const char *format, ...) LLM_PRINTF(3, 4);

#endif
