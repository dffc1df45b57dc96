/* portable_math.h: log, exp and power made of + - * / and integers only, never of libm: the same
 * bits on every platform, compiler and instruction set. */
#ifndef LLM_PORTABLE_MATH_H
#define LLM_PORTABLE_MATH_H

#include <stdint.h>
#include <string.h>

#define LLM_LN2 0.69314718055994531
#define LLM_EXP_LOWEST (-700.0) /* llm_portable_exp needs no less; its result is still normal */

/* Natural logarithm. x must be positive, finite and normal. */
double llm_portable_log(double x);
/* base to a power; base in (0, 1], power >= 0. 0 when the result is below e^-700. */
double llm_portable_power(double base, double power);
/* base to a whole power, by squaring; infinity when it is too large. */
double llm_whole_power(double base, int32_t power);

/* e^x for LLM_EXP_LOWEST <= x <= 700. x = k ln 2 + r with |r| <= ln 2 / 2; e^r is its Taylor sum to
 * r^13 / 13!, whose rest is below 2^-56. No branch, so that a loop over it becomes vector code. */
static inline double llm_portable_exp(double x) {
    const double round = 0x1.8p52; /* t + round has the nearest whole number of t in its low bits */
    double shifted = x * 1.4426950408889634 + round, k = shifted - round;
    /* ln 2 in two parts: the first has 21 trailing zero bits, so that k times it is exact. */
    double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    double sum = 1.0 / 6227020800;
    sum = sum * r + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^k */
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

#endif
