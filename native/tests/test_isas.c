/* test_isas.c: which instruction sets this CPU gets: best last, each found by its name. With arguments (as
 * scripts/cross.py runs it on several emulated CPUs): exactly those, in that order. */
#include <string.h>

#include "check.h"
#include "backend/kernels.h"
#include "localllm.h"

static void test_names(void) {
    int32_t n = llm_n_isas();
    CHECK(n >= 1, "%d instruction sets", (int)n);
    CHECK(!llm_isa_name(-1) && !llm_isa_name(n), "a name outside the list");
    CHECK(!llm_kernels_of("sse9"), "kernels of an unknown name");
    for (int32_t i = 0; i < n; i++) {
        const llm_kernels *k = llm_kernels_of(llm_isa_name(i));
        CHECK(k && !strcmp(k->isa, llm_isa_name(i)), "%s", llm_isa_name(i));
        for (int32_t j = 0; j < i; j++)
            CHECK(strcmp(llm_isa_name(i), llm_isa_name(j)) != 0, "%s twice", llm_isa_name(i));
    }
    CHECK(llm_kernels_of(NULL) == llm_kernels_of(llm_isa_name(n - 1)), "the best is not the last");
}

static void test_exactly(int32_t n, char **names) {
    CHECK(llm_n_isas() == n, "%d instruction sets, not %d", (int)llm_n_isas(), (int)n);
    for (int32_t i = 0; i < n; i++) {
        const char *name = llm_isa_name(i);
        CHECK(name && !strcmp(name, names[i]), "%s instead of %s", name ? name : "none", names[i]);
    }
}

int main(int argc, char **argv) {
    test_names();
    if (argc > 1) test_exactly(argc - 1, argv + 1);
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
