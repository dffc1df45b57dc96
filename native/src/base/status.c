#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

llm_status llm_fail(llm_error *err, llm_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}
