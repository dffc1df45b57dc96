/* tile_switch.h: a token count as a constant, so that a tile's sums are registers. */
#ifndef LLM_TILE_SWITCH_H
#define LLM_TILE_SWITCH_H

#include "vec_i8.h" /* LLM_TILE, LLM_FUSED */

/* clang-format off */
#define LLM_CASE(n, f, ...) case n: f(__VA_ARGS__, n); break;
#define LLM_CASES_1(f, ...) LLM_CASE(1, f, __VA_ARGS__)
#define LLM_CASES_4(f, ...)                                                        \
    LLM_CASES_1(f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                        \
    LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)
#define LLM_CASES_6(f, ...)                                                        \
    LLM_CASES_4(f, __VA_ARGS__) LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__)
#define LLM_CASES_8(f, ...)                                                        \
    LLM_CASES_6(f, __VA_ARGS__) LLM_CASE(7, f, __VA_ARGS__) LLM_CASE(8, f, __VA_ARGS__)
#define LLM_CASES_14(f, ...)                                                       \
    LLM_CASES_8(f, __VA_ARGS__) LLM_CASE(9, f, __VA_ARGS__)                        \
    LLM_CASE(10, f, __VA_ARGS__) LLM_CASE(11, f, __VA_ARGS__)                      \
    LLM_CASE(12, f, __VA_ARGS__) LLM_CASE(13, f, __VA_ARGS__)                      \
    LLM_CASE(14, f, __VA_ARGS__)
/* clang-format on */
#define LLM_CASES_(most) LLM_CASES_##most
#define LLM_CASES(most) LLM_CASES_(most)

/* Calls f(..., n) with n as a constant, 1 <= n <= LLM_TILE. */
#define LLM_TILE_SWITCH(n, f, ...)                                                                 \
    switch (n) { LLM_CASES(LLM_TILE)(f, __VA_ARGS__) }
/* The same for 1 <= n <= LLM_FUSED. */
#define LLM_FUSED_SWITCH(n, f, ...)                                                                \
    switch (n) { LLM_CASES(LLM_FUSED)(f, __VA_ARGS__) }

#endif
