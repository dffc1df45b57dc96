/* vec_i8.h (amx: AVX-512 and the int8 tiles of AMX). Vectors are those of AVX-512; products with many
 * tokens run on tiles.
 *
 * A tile is 16 rows of 64 bytes. One instruction multiplies a tile of activations, [tokens][group],
 * with a tile of weights, [group / 4][16 rows][4] (which is how panels lie), and adds exact 32-bit
 * sums to a tile [tokens][16 rows]: the same integers as any other order gives. Activations
 * are signed and so are weights, whose zero point is taken off when they are unpacked; the low bytes of
 * 16-bit weights are unsigned.
 *
 * The instructions are written as assembly: gcc 12 drops the stores that fill a tile configuration
 * when it is passed to its intrinsic (docs/decisions/0002).
 */
#ifndef LLM_AMX_VEC_I8_H
#define LLM_AMX_VEC_I8_H

#include "../avx512/vec_i8.h"

#define LLM_TILES 16 /* tokens, and weight rows, of a tile of sums */

typedef struct llm_tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} llm_tile_shapes;

/* Tiles 0 to 3 hold sums, 4 and 5 activations of n tokens, 6 and 7 weights of `group` inputs. */
LLM_INLINE void tiles_open(int group, int32_t n) {
    llm_tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = (uint8_t)(i < 6 ? n : group / 4);
        shapes.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? group : 64);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

/* Gives the tiles back: a thread that holds some costs more to switch. */
LLM_INLINE void tiles_close(void) { __asm__ volatile("tilerelease"); }

#define LLM_TILE_DOT(sums, acts, weights)                                                          \
    __asm__ volatile("tilezero %%tmm" sums "\n\t"                                                  \
                     "tileloadd (%0, %2, 1), %%tmm" acts "\n\t"                                    \
                     "tileloadd (%1, %3, 1), %%tmm" weights "\n\t"                                 \
                     "tdpbssd %%tmm" weights ", %%tmm" acts ", %%tmm" sums                         \
                     :                                                                             \
                     : "r"(q), "r"(w), "r"((int64_t)256), "r"((int64_t)64)                         \
                     : "memory")

/* Begins the product of a group: which (0 or 1) names its tile of sums. w: signed weights
 * [inputs / 4][16][4]; q: activations, 256 bytes from one token to the next. */
LLM_INLINE void tiles_dot(const int which, const uint8_t *w, const int8_t *q) {
    if (which == 0)
        LLM_TILE_DOT("0", "4", "6");
    else
        LLM_TILE_DOT("1", "5", "7");
}

/* Its sums [16 tokens][16 rows]. The product takes some fifty cycles: other work belongs between. */
LLM_INLINE void tiles_store(const int which, int32_t (*dots)[16]) {
    if (which == 0)
        __asm__ volatile("tilestored %%tmm0, (%0, %1, 1)" ::"r"(dots), "r"((int64_t)64) : "memory");
    else
        __asm__ volatile("tilestored %%tmm1, (%0, %1, 1)" ::"r"(dots), "r"((int64_t)64) : "memory");
}

/* A scale s of each of 16 rows, and s * z, as the products below take them. */
typedef struct llm_fold {
    vi even, odd, zero; /* s in bytes 0 and 2 of a row's four; in 1 and 3; s * z twice */
} llm_fold;

LLM_INLINE llm_fold fold_by(vf scale, int zero) {
    vi s = vf_rint(scale), pair = _mm512_mask_blend_epi16(0xaaaaaaaa, s, vi_shl(s, 16));
    vi even = _mm512_and_si512(pair, vi_set1(0x00ff00ff));
    return (llm_fold){even, vi_shl(even, 8),
                      _mm512_mullo_epi16(pair, _mm512_set1_epi16((short)zero))};
}

/* p = s * (w - z) of 16 rows x 4 inputs, cut into low and high bytes; adds each row's p * p. */
LLM_INLINE vi fold(const llm_fold *f, vb w, vi squares, uint8_t *low, uint8_t *high) {
    const vi lower = _mm512_set1_epi16(0xff);
    vi even = _mm512_sub_epi16(_mm512_maddubs_epi16(w.v, f->even), f->zero);
    vi odd = _mm512_sub_epi16(_mm512_maddubs_epi16(w.v, f->odd), f->zero);
    /* lower ? second : third */
    vb_store(low, vb_of(_mm512_ternarylogic_epi32(lower, even, _mm512_slli_epi16(odd, 8), 0xca)));
    vb_store(high, vb_of(_mm512_ternarylogic_epi32(lower, _mm512_srli_epi16(even, 8), odd, 0xca)));
    return _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(squares, even, even), odd, odd);
}

LLM_INLINE void tiles_clear(void) {
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tilezero %%tmm1\n\t"
                     "tilezero %%tmm2\n\t"
                     "tilezero %%tmm3" ::
                         : "memory");
}

/* Adds 64 inputs of n (1 or 2) tiles of 16 tokens, 256 bytes apart, times the low and high bytes of
 * 16 rows: tiles 0 and 1 are the high and low dots of the first tile of tokens, 2 and 3 of the other. */
LLM_INLINE void tiles_fold(int n, const int8_t *q0, const int8_t *q1, const uint8_t *low,
                           const uint8_t *high) {
    const int64_t token = 256, row = 64;
    __asm__ volatile("tileloadd (%0, %3, 1), %%tmm4\n\t"
                     "tileloadd (%1, %4, 1), %%tmm6\n\t"
                     "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tileloadd (%2, %4, 1), %%tmm7\n\t"
                     "tdpbsud %%tmm7, %%tmm4, %%tmm1"
                     :
                     : "r"(q0), "r"(high), "r"(low), "r"(token), "r"(row)
                     : "memory");
    if (n == 2)
        __asm__ volatile("tileloadd (%0, %1, 1), %%tmm5\n\t"
                         "tdpbssd %%tmm6, %%tmm5, %%tmm2\n\t"
                         "tdpbsud %%tmm7, %%tmm5, %%tmm3"
                         :
                         : "r"(q1), "r"(token)
                         : "memory");
}

LLM_INLINE void tiles_store_folded(int n, int32_t (*dots)[LLM_TILES][16]) {
    const int64_t row = 64;
    __asm__ volatile("tilestored %%tmm0, (%0, %2, 1)\n\t"
                     "tilestored %%tmm1, (%1, %2, 1)"
                     :
                     : "r"(dots[0]), "r"(dots[1]), "r"(row)
                     : "memory");
    if (n == 2)
        __asm__ volatile("tilestored %%tmm2, (%0, %2, 1)\n\t"
                         "tilestored %%tmm3, (%1, %2, 1)"
                         :
                         : "r"(dots[2]), "r"(dots[3]), "r"(row)
                         : "memory");
}

/* The same with 32 inputs, 16 rows and any strides, for two tiles of sums from one tile a and from the
 * tiles b and b + next. Tiles 0 to 3 hold sums, 4 and 5 a, 6 and 7 b: */
LLM_INLINE void tiles_open_pairs(void) {
    llm_tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = i < 6 ? 16 : 8;
        shapes.row_bytes[i] = i == 4 || i == 5 ? 32 : 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

#define LLM_TILE_LOAD(tile, p, stride)                                                             \
    __asm__ volatile("tileloadd (%0, %1, 1), %%tmm" tile::"r"(p), "r"((int64_t)(stride)) : "memory")
#define LLM_TILE_STORE(tile, p)                                                                    \
    __asm__ volatile("tilestored %%tmm" tile ", (%0, %1, 1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define LLM_TILE_PRODUCT(op, c, a, b)                                                              \
    __asm__ volatile("tilezero %%tmm" c "\n\t" op " %%tmm" b ", %%tmm" a ", %%tmm" c::)

/* Signed a [16][32] with two tiles of unsigned b, [8][16][4] each, 64 bytes apart. */
LLM_INLINE void tiles_two_b(const int8_t *a, int64_t a_stride, const uint8_t *b, int64_t b_stride) {
    LLM_TILE_LOAD("4", a, a_stride);
    LLM_TILE_LOAD("6", b, b_stride);
    LLM_TILE_LOAD("7", b + 64, b_stride);
    LLM_TILE_PRODUCT("tdpbsud", "0", "4", "6");
    LLM_TILE_PRODUCT("tdpbsud", "1", "4", "7");
}
LLM_INLINE void tiles_store_two(int32_t (*dots)[16]) {
    LLM_TILE_STORE("0", dots);
    LLM_TILE_STORE("1", dots + 16);
}

/* Two tiles of unsigned a, [16][32] each, 32 bytes apart, with two of signed b as above: sums of the
 * first a, then of the second one. */
LLM_INLINE void tiles_two_ab(const uint8_t *a, int64_t a_stride, const uint8_t *b,
                             int64_t b_stride) {
    LLM_TILE_LOAD("4", a, a_stride);
    LLM_TILE_LOAD("6", b, b_stride);
    LLM_TILE_PRODUCT("tdpbusd", "0", "4", "6");
    LLM_TILE_LOAD("7", b + 64, b_stride);
    LLM_TILE_PRODUCT("tdpbusd", "1", "4", "7");
    LLM_TILE_LOAD("5", a + 32, a_stride);
    LLM_TILE_PRODUCT("tdpbusd", "2", "5", "6");
    LLM_TILE_PRODUCT("tdpbusd", "3", "5", "7");
}
LLM_INLINE void tiles_store_four(int32_t (*dots)[16]) {
    tiles_store_two(dots);
    LLM_TILE_STORE("2", dots + 32);
    LLM_TILE_STORE("3", dots + 48);
}

#endif
