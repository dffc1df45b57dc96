/* vec_math.h: exp, tanh and sigmoid over vf, from additions, multiplications and fused
 * multiply-adds only, so that every instruction set gives the same bits and a lane does not depend
 * on its neighbours. The coefficients are least-maximum fits made for this file. How exact they are
 * stands in docs/ARITHMETIC.md. */
#ifndef LLM_VEC_MATH_H
#define LLM_VEC_MATH_H

#include "vec_f32.h"

/* e^x for x <= 88; 0 below -87.33 (results would be subnormal, and slow), so also
 * for -inf; NaN for NaN; exactly 1 for 0.
 * x = n ln 2 + r, |r| <= 0.347; n + 127 is left in the low bits of t by adding 1.5 * 2^23 + 127. */
LLM_INLINE vf vf_exp(vf x) {
    const vf shift = vf_set1(12583039.0f);
    vf t = vf_fma(x, vf_set1(0x1.715476p+0f), shift);
    vf n = vf_sub(t, shift);
    vf r = vf_fnma(n, vf_set1(0x1.62e430p-1f), x);
    r = vf_fnma(n, vf_set1(-0x1.05c610p-29f), r);
    vf q = vf_fma(r, vf_set1(0x1.6a23d0p-10f), vf_set1(0x1.123a20p-7f));
    q = vf_fma(q, r, vf_set1(0x1.5558f2p-5f));
    q = vf_fma(q, r, vf_set1(0x1.555492p-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    vf e = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set1(1.0f));
    e = vf_mul(e, vi_as_f(vi_shl(vf_bits(t), 23)));
    return vf_select(vf_lt(x, vf_set1(-87.33f)), vf_zero(), e);
}

/* 1 / d for 1 <= d <= 2^120. A division would be three times as slow. */
LLM_INLINE vf vf_reciprocal(vf d) {
    const vf one = vf_set1(1.0f);
    vf y = vi_as_f(vi_sub(vi_set1(0x7ef311c3), vf_bits(d))); /* within 12 % */
    for (int i = 0; i < 2; i++) {                            /* the error is cubed */
        vf e = vf_fnma(d, y, one);
        y = vf_fma(y, vf_fma(e, e, e), y);
    }
    return vf_fma(y, vf_fnma(d, y, one), y);
}

/* 1 / (1 + e^-x). Below -80 it stays at e^-80 (1.8e-35): no subnormals. */
LLM_INLINE vf vf_sigmoid(vf x) {
    vf e = vf_exp(vf_min(vf_set1(80.0f), vf_neg(x)));
    return vf_reciprocal(vf_add(vf_set1(1.0f), e));
}

LLM_INLINE vf vf_tanh(vf x) {
    vf z = vf_mul(x, x);
    vf p = vf_fma(z, vf_set1(-0x1.76ac1ap-8f), vf_set1(0x1.5256d8p-6f));
    p = vf_fma(p, z, vf_set1(-0x1.b84448p-5f));
    p = vf_fma(p, z, vf_set1(0x1.110768p-3f));
    p = vf_fma(p, z, vf_set1(-0x1.555534p-2f));
    vf small = vf_fma(vf_mul(x, z), p, x);
    vf a = vf_abs(x);
    vf b = vf_min(vf_set1(10.0f), a); /* tanh(10) rounds to 1 */
    vf e = vf_add(vf_exp(vf_add(b, b)), vf_set1(1.0f));
    vf large = vf_fnma(vf_set1(2.0f), vf_reciprocal(e), vf_set1(1.0f));
    return vf_select(vf_lt(a, vf_set1(0.625f)), small, vf_copysign(large, x));
}

#endif
