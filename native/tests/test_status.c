/* llm_fail fills the error that it is given, cuts a long message and accepts NULL. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static int n_failed;

static void expect(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "failed: %s\n", what);
        n_failed++;
    }
}

int main(void) {
    llm_error err = {LLM_OK, ""};
    expect(llm_fail(&err, LLM_E_FORMAT, "field %s is %d", "n", 7) == LLM_E_FORMAT,
           "returned status");
    expect(err.status == LLM_E_FORMAT, "stored status");
    expect(strcmp(err.message, "field n is 7") == 0, "formatted message");
    expect(llm_fail(NULL, LLM_E_IO, "no one listens") == LLM_E_IO, "NULL error");
    expect(llm_fail(&err, LLM_E_IO, "%*d", 3 * (int)sizeof err.message, 1) == LLM_E_IO,
           "long message");
    expect(strlen(err.message) == sizeof err.message - 1, "long message is cut and terminated");
    return n_failed != 0;
}
