/* tile_switch.h: a token count as a constant, so that a tile's sums are registers. */
#ifndef LLM_TILE_SWITCH_H
#define LLM_TILE_SWITCH_H

#include "vec_i8.h" /* LLM_TILE, LLM_FUSED */

/* Calls f(..., n) with n as a constant, 1 <= n <= LLM_TILE. */
/* clang-format off */
#define LLM_CASE(n, f, ...) case n: f(__VA_ARGS__, n); break;
#if LLM_TILE == 14
#define LLM_TILE_SWITCH(n, f, ...)                                                 \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
        LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__)                    \
        LLM_CASE(7, f, __VA_ARGS__) LLM_CASE(8, f, __VA_ARGS__)                    \
        LLM_CASE(9, f, __VA_ARGS__) LLM_CASE(10, f, __VA_ARGS__)                   \
        LLM_CASE(11, f, __VA_ARGS__) LLM_CASE(12, f, __VA_ARGS__)                  \
        LLM_CASE(13, f, __VA_ARGS__) LLM_CASE(14, f, __VA_ARGS__)                  \
    }
#elif LLM_TILE == 6
#define LLM_TILE_SWITCH(n, f, ...)                                                 \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
        LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__)                    \
    }
#elif LLM_TILE == 4
#define LLM_TILE_SWITCH(n, f, ...)                                                 \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
    }
#elif LLM_TILE == 1
#define LLM_TILE_SWITCH(n, f, ...) f(__VA_ARGS__, 1);
#endif

/* The same for 1 <= n <= LLM_FUSED. */
#if LLM_FUSED == 8
#define LLM_FUSED_SWITCH(n, f, ...)                                                \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
        LLM_CASE(5, f, __VA_ARGS__) LLM_CASE(6, f, __VA_ARGS__)                    \
        LLM_CASE(7, f, __VA_ARGS__) LLM_CASE(8, f, __VA_ARGS__)                    \
    }
#elif LLM_FUSED == 4
#define LLM_FUSED_SWITCH(n, f, ...)                                                \
    switch (n) {                                                                   \
        LLM_CASE(1, f, __VA_ARGS__) LLM_CASE(2, f, __VA_ARGS__)                    \
        LLM_CASE(3, f, __VA_ARGS__) LLM_CASE(4, f, __VA_ARGS__)                    \
    }
#else
#define LLM_FUSED_SWITCH(n, f, ...) f(__VA_ARGS__, 1);
#endif
/* clang-format on */

#endif
