/* fields.h: rows of raw blocks into the planes of a panel block (see layout.h), word by word.
 *
 * A raw block keeps inputs that are far apart in one byte, a plane keeps groups of 4 inputs that
 * follow each other in one word: the same fields of bits, transposed. Each function here takes some
 * raw bytes of one row (or of two, where a plane byte is shared by two rows), transposes their
 * fields in registers and stores whole words. Unaligned little-endian loads and stores.
 */
#ifndef LLM_FIELDS_H
#define LLM_FIELDS_H

#include <stdint.h>
#include <string.h>

static inline uint64_t llm_get_u64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

static inline uint32_t llm_get_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

static inline void llm_put_u32(uint8_t *p, uint32_t x) { memcpy(p, &x, 4); }

/* The low word of x to one place, the high word to another. */
static inline void llm_put_words(uint64_t x, uint8_t *low, uint8_t *high) {
    llm_put_u32(low, (uint32_t)x);
    llm_put_u32(high, (uint32_t)(x >> 32));
}

/* 8 n bytes of nibbles, whose low ones are 8 n inputs and whose high ones are the next 8 n, to row
 * r of 2 n vectors of a plane of 4 bits. */
static inline void llm_put_nibbles(const uint8_t *raw, int32_t n, int32_t r, uint8_t *plane) {
    for (int32_t i = 0; i < n; i++) {
        uint64_t x = llm_get_u64(raw + 8 * i);
        uint64_t t = (x >> 4 ^ x >> 32) & 0x0f0f0f0fu;
        llm_put_words(x ^ t << 4 ^ t << 32, plane + 64 * i + 4 * r, plane + 64 * (n + i) + 4 * r);
    }
}

/* 32 bytes of 2-bit fields, field j of byte l being input 32 j + l, to row r of 8 vectors of a
 * plane of 2 bits. Four words are transposed as a matrix of 4 x 4 fields. */
static inline void llm_put_quarters(const uint8_t *raw, int32_t r, uint8_t *plane) {
    for (int32_t s = 0; s < 2; s++) {
        uint64_t x = llm_get_u64(raw + 16 * s), y = llm_get_u64(raw + 16 * s + 8);
        uint64_t t = (x >> 4 ^ y) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        x ^= t << 4;
        y ^= t;
        t = (x >> 2 ^ x >> 32) & 0x33333333u;
        x ^= t << 2 ^ t << 32;
        t = (y >> 2 ^ y >> 32) & 0x33333333u;
        y ^= t << 2 ^ t << 32;
        uint8_t *out = plane + 64 * s + 4 * r;
        llm_put_words(x, out, out + 128);
        llm_put_words(y, out + 256, out + 384);
    }
}

/* 4 bytes of bits of two rows, bit i being input i, to byte `pair` of 8 words of a 1-bit plane. */
static inline void llm_put_bits32(const uint8_t *even, const uint8_t *odd, int32_t pair,
                                  uint8_t *plane) {
    uint32_t a = llm_get_u32(even), b = llm_get_u32(odd);
    uint32_t t = (a >> 4 ^ b) & 0x0f0f0f0fu;
    a ^= t << 4;
    b ^= t;
    for (int32_t i = 0; i < 4; i++) {
        plane[16 * i + pair] = (uint8_t)(a >> 8 * i);
        plane[16 * i + 8 + pair] = (uint8_t)(b >> 8 * i);
    }
}

/* 32 bytes of bits of two rows, bit j of byte l being input 32 j + l, to byte `pair` of 64 words of
 * a 1-bit plane. 4 bytes of either row are transposed as a matrix of 8 x 8 bits. */
static inline void llm_put_bits256(const uint8_t *even, const uint8_t *odd, int32_t pair,
                                   uint8_t *plane) {
    for (int32_t m = 0; m < 8; m++) {
        uint64_t x = llm_get_u32(even + 4 * m) | (uint64_t)llm_get_u32(odd + 4 * m) << 32;
        uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);
        x ^= t ^ t << 7;
        t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
        x ^= t ^ t << 14;
        t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
        x ^= t ^ t << 28;
        for (int32_t j = 0; j < 8; j++) plane[8 * (8 * j + m) + pair] = (uint8_t)(x >> 8 * j);
    }
}

#endif
