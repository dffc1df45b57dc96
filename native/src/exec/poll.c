/* poll.c: the flag of a step that another engine computes. */
#include "localllm.h"

int32_t llm_step_poll(void *flag) {
    volatile int32_t *at = flag; /* one thread of a step asks; any thread may set and read */
    at[1] = (int32_t)((uint32_t)at[1] + 1);
    return at[0] != 0;
}
