/* float_env.h: the floating-point mode that the arithmetic of docs/ARITHMETIC.md assumes.
 *
 * Round to nearest, subnormals kept. Another library in the process may have switched a thread to
 * flush-to-zero, and a new thread inherits that, so the pool sets the mode around every job.
 */
#ifndef LLM_FLOAT_ENV_H
#define LLM_FLOAT_ENV_H

#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>

static inline uint64_t llm_float_env_get(void) { return _mm_getcsr(); }
static inline void llm_float_env_set(uint64_t mode) { _mm_setcsr((unsigned)mode); }
#define LLM_FLOAT_ENV_DEFAULT 0x1f80u /* all exceptions masked */
#elif defined(__aarch64__)
static inline uint64_t llm_float_env_get(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void llm_float_env_set(uint64_t mode) {
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#define LLM_FLOAT_ENV_DEFAULT 0u
#else
static inline uint64_t llm_float_env_get(void) { return 0; }
static inline void llm_float_env_set(uint64_t mode) { (void)mode; }
#define LLM_FLOAT_ENV_DEFAULT 0u
#endif

#endif
