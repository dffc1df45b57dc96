#include "localllm.h"

const char *llm_source(void) { return LLM_SOURCE; }
