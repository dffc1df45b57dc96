#include "quant/formats.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/status.h"
#include "quant/blocks256.h"
#include "quant/blocks32.h"
#include "quant/floats.h"

#define NATIVE(NAME, type, elements, bytes, act, fn)                                               \
    {NAME,                                                                                         \
     type,                                                                                         \
     elements,                                                                                     \
     bytes,                                                                                        \
     true,                                                                                         \
     act,                                                                                          \
     llm_dequantize_##fn,                                                                          \
     llm_pack_##fn,                                                                                \
     llm_unpack_row_##fn}
#define SIZE_ONLY(NAME, type, elements, bytes)                                                     \
    {NAME, type, elements, bytes, false, LLM_ACT_F32, NULL, NULL, NULL}

/* By type number. Removed numbers (4, 5, 31 to 33, 36 to 38) are unknown on purpose. */
static const llm_format formats[] = {
    NATIVE("F32", LLM_F32, 1, 4, LLM_ACT_F32, f32),
    NATIVE("F16", LLM_F16, 1, 2, LLM_ACT_F32, f16),
    NATIVE("Q4_0", LLM_Q4_0, 32, 18, LLM_ACT_Q32, q4_0),
    NATIVE("Q4_1", LLM_Q4_1, 32, 20, LLM_ACT_Q32, q4_1),
    NATIVE("Q5_0", LLM_Q5_0, 32, 22, LLM_ACT_Q32, q5_0),
    NATIVE("Q5_1", LLM_Q5_1, 32, 24, LLM_ACT_Q32, q5_1),
    NATIVE("Q8_0", LLM_Q8_0, 32, 34, LLM_ACT_Q32, q8_0),
    SIZE_ONLY("Q8_1", 9, 32, 40),
    NATIVE("Q2_K", LLM_Q2_K, 256, 84, LLM_ACT_Q256, q2_k),
    NATIVE("Q3_K", LLM_Q3_K, 256, 110, LLM_ACT_Q256, q3_k),
    NATIVE("Q4_K", LLM_Q4_K, 256, 144, LLM_ACT_Q256, q4_k),
    NATIVE("Q5_K", LLM_Q5_K, 256, 176, LLM_ACT_Q256, q5_k),
    NATIVE("Q6_K", LLM_Q6_K, 256, 210, LLM_ACT_Q256, q6_k),
    SIZE_ONLY("Q8_K", 15, 256, 292),
    SIZE_ONLY("IQ2_XXS", 16, 256, 66),
    SIZE_ONLY("IQ2_XS", 17, 256, 74),
    SIZE_ONLY("IQ3_XXS", 18, 256, 98),
    SIZE_ONLY("IQ1_S", 19, 256, 50),
    NATIVE("IQ4_NL", LLM_IQ4_NL, 32, 18, LLM_ACT_Q32, iq4_nl),
    SIZE_ONLY("IQ3_S", 21, 256, 110),
    SIZE_ONLY("IQ2_S", 22, 256, 82),
    NATIVE("IQ4_XS", LLM_IQ4_XS, 256, 136, LLM_ACT_Q256, iq4_xs),
    SIZE_ONLY("I8", 24, 1, 1),
    SIZE_ONLY("I16", 25, 1, 2),
    SIZE_ONLY("I32", 26, 1, 4),
    SIZE_ONLY("I64", 27, 1, 8),
    SIZE_ONLY("F64", 28, 1, 8),
    SIZE_ONLY("IQ1_M", 29, 256, 56),
    NATIVE("BF16", LLM_BF16, 1, 2, LLM_ACT_F32, bf16),
    SIZE_ONLY("TQ1_0", 34, 256, 54),
    SIZE_ONLY("TQ2_0", 35, 256, 66),
    NATIVE("MXFP4", LLM_MXFP4, 32, 17, LLM_ACT_Q32, mxfp4),
    SIZE_ONLY("NVFP4", 40, 64, 36),
    SIZE_ONLY("Q1_0", 41, 128, 18),
};

#define N_FORMATS ((int32_t)(sizeof formats / sizeof *formats))

const llm_format *llm_format_of(int32_t type) {
    for (int32_t i = 0; i < N_FORMATS; i++)
        if (formats[i].type == type) return &formats[i];
    return NULL;
}

uint64_t llm_row_bytes(const llm_format *f, int64_t n) {
    uint64_t bytes = 0;
    if (n < 0 || n % f->block_elements) return 0;
    if (!llm_mul_u64((uint64_t)(n / f->block_elements), (uint64_t)f->block_bytes, &bytes)) return 0;
    return bytes;
}

static void describe(const llm_format *f, llm_format_info *out) {
    *out = (llm_format_info){f->name, f->type, f->block_elements, f->block_bytes, f->native};
}

int32_t llm_n_formats(void) { return N_FORMATS; }

llm_status llm_format_at(int32_t i, llm_format_info *out) {
    if (i < 0 || i >= N_FORMATS || !out) return LLM_E_ARGUMENT;
    describe(&formats[i], out);
    return LLM_OK;
}

llm_status llm_format_find(int32_t type, llm_format_info *out) {
    const llm_format *f = llm_format_of(type);
    if (!out) return LLM_E_ARGUMENT;
    if (!f) return LLM_E_UNSUPPORTED;
    describe(f, out);
    return LLM_OK;
}

llm_status llm_dequantize(int32_t type, const uint8_t *src, uint64_t src_bytes, float *dst,
                          int64_t n, llm_error *err) {
    const llm_format *f = llm_format_of(type);
    if (!f) return llm_fail(err, LLM_E_UNSUPPORTED, "dequantize: unknown tensor type %d", type);
    if (!f->native)
        return llm_fail(err, LLM_E_UNSUPPORTED, "dequantize: type %s is not supported", f->name);
    if (n < 0 || n % f->block_elements)
        return llm_fail(err, LLM_E_ARGUMENT,
                        "dequantize: %" PRId64 " elements is not a multiple of the %s block of %d",
                        n, f->name, f->block_elements);
    uint64_t need = llm_row_bytes(f, n);
    if (src_bytes != need || (n && !need))
        return llm_fail(err, LLM_E_ARGUMENT,
                        "dequantize: %" PRIu64 " bytes given, %" PRId64
                        " elements of %s take %" PRIu64,
                        src_bytes, n, f->name, need);
    if (n && (!src || !dst)) return llm_fail(err, LLM_E_ARGUMENT, "dequantize: null buffer");
    f->dequantize(src, dst, n);
    return LLM_OK;
}
