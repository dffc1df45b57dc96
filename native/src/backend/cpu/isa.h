/* isa.h: the name of the instruction set that a kernel file is being compiled for.
 *
 * CMake compiles every kernel file once per instruction set with -DLLM_ISA=<isa> and the include
 * path src/backend/cpu/<isa>/. Every exported name goes through LLM_FN, so that the copies never
 * collide and a linker can never pick AVX-512 code for a machine that lacks it.
 */
#ifndef LLM_ISA_H
#define LLM_ISA_H

#ifndef LLM_ISA
#error "compile kernel files with -DLLM_ISA=<isa>"
#endif

#define LLM_PASTE_(a, b) a##_##b
#define LLM_PASTE(a, b) LLM_PASTE_(a, b)
#define LLM_FN(name) LLM_PASTE(name, LLM_ISA) /* LLM_FN(dot) is dot_avx2 */

#define LLM_QUOTE_(a) #a
#define LLM_QUOTE(a) LLM_QUOTE_(a)
#define LLM_ISA_NAME LLM_QUOTE(LLM_ISA) /* "avx2" */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LLM_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LLM_SANITIZED
#endif

/* Operations on vector types must vanish into their callers: as calls they would pass registers
 * through memory, and differ in calling convention between compiler flags. The scalar vectors are
 * arrays in memory: a call costs little there. Inlined sanitizer checks take minutes to compile. */
#define LLM_IS_scalar 1
#if !defined(__GNUC__)
#define LLM_INLINE static inline
#elif LLM_FN(LLM_IS) && defined(LLM_SANITIZED)
#define LLM_INLINE static __attribute__((noinline, unused))
#elif LLM_FN(LLM_IS) || defined(LLM_SANITIZED)
#define LLM_INLINE static inline __attribute__((unused))
#else
#define LLM_INLINE static inline __attribute__((always_inline, unused))
#endif

/* Arrays of vectors are registers only if every index is a constant. Those of the scalar vectors
 * stay in memory: unrolled they take minutes to compile. */
#if LLM_FN(LLM_IS)
#define LLM_UNROLL
#elif defined(__clang__)
#define LLM_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define LLM_UNROLL _Pragma("GCC unroll 16")
#else
#define LLM_UNROLL
#endif

#if defined(__GNUC__)
#define LLM_PREFETCH(p) __builtin_prefetch(p)
#define LLM_PREFETCH_L2(p) __builtin_prefetch(p, 0, 2) /* past the first level */
#else
#define LLM_PREFETCH(p) ((void)(p))
#define LLM_PREFETCH_L2(p) ((void)(p))
#endif

#endif
