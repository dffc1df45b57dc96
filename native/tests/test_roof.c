/* The roofs: every instruction set reads the same bytes and gives figures that can be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "backend/kernels.h"

#define N_BYTES (256 * 24) /* divisible by 256 x 1, 2, 4, 8 */

static void test_every_byte_is_read_once(void) {
    int32_t *data = malloc(N_BYTES + 64 * 1024);
    if (!data) exit(1);
    memset(data, 0x55, N_BYTES + 64 * 1024); /* what a read past the end would add */
    uint32_t expected = 0;
    for (int32_t i = 0; i < N_BYTES / 4; i++) expected += (uint32_t)(data[i] = i * 7 + 1);
    for (int32_t isa = 0; isa < llm_n_isas(); isa++) {
        const llm_kernels *k = llm_kernels_of(llm_isa_name(isa));
        for (int32_t n_streams = 1; n_streams <= 8; n_streams *= 2) {
            for (uint64_t ahead = 0; ahead <= 4096; ahead += 4096) {
                int32_t sum = k->read_sum((const uint8_t *)data, N_BYTES, n_streams, ahead);
                CHECK((uint32_t)sum == expected, "%s, %d streams", k->isa, (int)n_streams);
            }
        }
    }
    free(data);
}

static void test_figures(void) {
    llm_threads *t;
    llm_error err = {0};
    if (llm_threads_create(2, &t, &err)) exit(1);
    double bandwidth = 0, ops = 0;
    CHECK(llm_roof_bandwidth(t, 16 << 20, &bandwidth, &err) == LLM_OK, "%s", err.message);
    CHECK(bandwidth > 0.05 && bandwidth < 20000, "%g GB/s", bandwidth);
    llm_status (*const rates[])(llm_threads *, const char *, double *,
                                llm_error *) = {llm_roof_int8, llm_roof_f32};
    for (int32_t i = 0; i < 2; i++) {
        for (int32_t isa = 0; isa < llm_n_isas(); isa++) {
            CHECK(rates[i](t, llm_isa_name(isa), &ops, &err) == LLM_OK, "%s", err.message);
            CHECK(ops > 0.05 && ops < 1e6, "%g Gop/s", ops);
        }
        double best = 0;
        CHECK(rates[i](t, NULL, &best, &err) == LLM_OK && best > 0, "%s", err.message);
        CHECK(rates[i](t, "sse9", &ops, &err) == LLM_E_UNSUPPORTED && ops == 0, "%g", ops);
        CHECK(strstr(err.message, "sse9") != NULL, "%s", err.message);
    }
    static const uint64_t bad[] = {0, 1, 4095, UINT64_MAX, UINT64_C(1) << 62};
    for (int32_t i = 0; i < 5; i++) {
        llm_status status = llm_roof_bandwidth(t, bad[i], &bandwidth, &err);
        CHECK(status == LLM_E_ARGUMENT, "%d: %s", (int)status, err.message);
    }
    llm_threads_destroy(t);
}

int main(void) {
    test_every_byte_is_read_once();
    test_figures();
    if (n_failed) fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed != 0;
}
