/* floats.h: F32, F16 and BF16 as formats of one-element blocks. A panel is [input][16 rows]. */
#ifndef LLM_FLOATS_H
#define LLM_FLOATS_H

#include "quant/blocks32.h"

LLM_DECLARE_FORMAT(f32)
LLM_DECLARE_FORMAT(f16)
LLM_DECLARE_FORMAT(bf16)

#endif
