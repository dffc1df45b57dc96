/* table.c: this instruction set's row of kernels. */
#include "backend/cpu/cpu.h"

const llm_kernels LLM_FN(llm_kernels) = {
    .isa = LLM_ISA_NAME,
    .quantize = LLM_FN(quantize),
    .matmul = LLM_FN(matmul),
    .matmul_scratch = LLM_FN(matmul_scratch),
    .kv_write = LLM_FN(kv_write),
    .attention = LLM_FN(attention),
    .attention_merge = LLM_FN(attention_merge),
    .attention_finish = LLM_FN(attention_finish),
    .rms_norm = LLM_FN(rms_norm),
    .add = LLM_FN(add),
    .scale = LLM_FN(scale),
    .swiglu = LLM_FN(swiglu),
    .geglu = LLM_FN(geglu),
    .softcap = LLM_FN(softcap),
    .rope = LLM_FN(rope),
    .int8_ops = LLM_FN(int8_ops),
    .f32_ops = LLM_FN(f32_ops),
    .read_sum = LLM_FN(read_sum),
};
