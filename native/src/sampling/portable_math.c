#include "sampling/portable_math.h"

/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh s with s = (m - 1) / (m + 1), and
 * atanh s = s + s^3/3 + s^5/5 + ...; s^2 < 0.0295, so 11 terms reach double precision. */
double llm_portable_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* Adding what lies between sqrt(1/2) and 1 carries into the exponent just for m >= sqrt(2). */
    uint64_t shifted = bits + (UINT64_C(0x3ff0000000000000) - UINT64_C(0x3fe6a09e667f3bcd));
    int64_t e = (int64_t)(shifted >> 52) - 1023;
    bits -= (uint64_t)e << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s, sum = 1.0 / 23;
    for (int32_t n = 21; n >= 1; n -= 2) sum = sum * z + 1.0 / n;
    double log_m = 2 * s * sum;
    /* ln 2 in two parts: the first has 21 trailing zero bits, so that e times it is exact. */
    return (double)e * 0x1.62e42fee00000p-1 + ((double)e * 0x1.a39ef35793c76p-33 + log_m);
}

double llm_portable_power(double base, double power) {
    double x = power * llm_portable_log(base);
    return x < LLM_EXP_LOWEST ? 0 : llm_portable_exp(x);
}

double llm_whole_power(double base, int32_t power) {
    double result = 1;
    for (; power > 0; power /= 2) {
        if (power % 2) result *= base;
        base *= base;
    }
    return result;
}
