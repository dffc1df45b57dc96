/* vec_i8.h (scalar): bytes of a panel vector as plain C, on top of vec_f32.h. This file defines
 * what every operation means; everything here is exact, so all instruction sets agree.
 *
 *   vb: 64 bytes, [16 rows][4 inputs]; lane i of a vi is row i
 */
#ifndef LLM_VEC_I8_H
#define LLM_VEC_I8_H

#include "vec_f32.h"

#define LLM_TILE 1  /* most tokens of one register tile */
#define LLM_FUSED 1 /* most tokens of the unpack-in-registers path */

typedef struct vb {
    uint8_t v[64];
} vb;

#define VB_EACH for (int i = 0; i < 64; i++)

LLM_INLINE vb vb_load(const uint8_t *p) {
    vb r;
    memcpy(r.v, p, 64);
    return r;
}
/* The same where the vector is used more than once. */
#define vb_load_once(p) vb_load(p)
LLM_INLINE void vb_store(uint8_t *p, vb a) { memcpy(p, a.v, 64); }
LLM_INLINE vb vb_and1(vb a, uint8_t mask) {
    VB_EACH a.v[i] &= mask;
    return a;
}
LLM_INLINE vb vb_or(vb a, vb b) {
    VB_EACH a.v[i] |= b.v[i];
    return a;
}
/* shift by a literal, then mask; the mask must clear what a 16-bit shift drags in */
#define vb_shl(a, n, mask) vb_shl_(a, n, mask)
#define vb_shr(a, n, mask) vb_shr_(a, n, mask)
LLM_INLINE vb vb_shl_(vb a, int n, uint8_t mask) {
    VB_EACH a.v[i] = (uint8_t)(a.v[i] << n & mask);
    return a;
}
LLM_INLINE vb vb_shr_(vb a, int n, uint8_t mask) {
    VB_EACH a.v[i] = (uint8_t)(a.v[i] >> n & mask);
    return a;
}
/* value is added to byte i where bit i of the 8 bytes at p is set; it must not carry */
LLM_INLINE vb vb_add_where(vb a, const uint8_t *p, uint8_t value) {
    VB_EACH if (p[i / 8] >> i % 8 & 1) a.v[i] = (uint8_t)(a.v[i] + value);
    return a;
}
LLM_INLINE vb vb_minus(vb a, uint8_t value) {
    VB_EACH a.v[i] = (uint8_t)(a.v[i] - value);
    return a;
}
/* Bits [4j, 4j + 4) of the 16 words at p as bytes 16 j to 16 j + 15. */
LLM_INLINE vb vb_nibbles(const uint16_t *p) {
    vb r;
    VB_EACH r.v[i] = (uint8_t)(p[i % 16] >> i / 16 * 4 & 15);
    return r;
}
/* a table of 16 bytes for vb_lookup, whose indices are 0..15 */
LLM_INLINE vb vb_table(const uint8_t *p) {
    vb r;
    VB_EACH r.v[i] = p[i % 16];
    return r;
}
LLM_INLINE vb vb_lookup(vb table, vb index) {
    VB_EACH index.v[i] = table.v[index.v[i]];
    return index;
}

/* acc + dot over 4 inputs of each row with the 4 activations at a. The plain form may assume
 * weights below 128, the wide form takes all of u8. */
LLM_INLINE vi vb_dot_wide(vi acc, vb w, const int8_t *a) {
    VF_EACH {
        const uint8_t *r = w.v + 4 * i;
        acc.v[i] += r[0] * a[0] + r[1] * a[1] + r[2] * a[2] + r[3] * a[3];
    }
    return acc;
}
#define vb_dot(acc, w, a) vb_dot_wide(acc, w, a)

/* 4 bytes in every lane. */
LLM_INLINE vb vb_set4(const void *p) {
    vb r;
    for (int i = 0; i < 64; i += 4) memcpy(r.v + i, p, 4);
    return r;
}
/* low bytes of a and of b, then their second bytes */
LLM_INLINE vb vb_split(vi a, vi b) {
    vb r;
    VF_EACH {
        r.v[i] = (uint8_t)a.v[i];
        r.v[16 + i] = (uint8_t)b.v[i];
        r.v[32 + i] = (uint8_t)(a.v[i] >> 8);
        r.v[48 + i] = (uint8_t)(b.v[i] >> 8);
    }
    return r;
}
/* acc + dot of the 4 bytes of every lane, u unsigned, s signed, all values of both. */
LLM_INLINE vi vb_dot_each(vi acc, vb u, vb s) {
    VF_EACH {
        for (int j = 0; j < 4; j++) acc.v[i] += u.v[4 * i + j] * (int8_t)s.v[4 * i + j];
    }
    return acc;
}

/* The same with 4 activations of its own for every row; weights below 128. */
LLM_INLINE vi vb_dot_pair(vi acc, vb w, vb a) {
    VF_EACH {
        for (int j = 0; j < 4; j++) acc.v[i] += w.v[4 * i + j] * (int8_t)a.v[4 * i + j];
    }
    return acc;
}

LLM_INLINE vi vi_load_u8(const uint8_t *p) {
    vi r;
    VF_EACH r.v[i] = p[i];
    return r;
}
/* The 16 bytes at p (low) and those after them as pairs for vi_dot_s16. */
LLM_INLINE vi vi_load_pairs(const uint8_t *p) {
    vi r;
    VF_EACH r.v[i] = p[i] | p[16 + i] << 16;
    return r;
}
/* Products of s16 pairs, both added to the lane: pairs a lane's (low, high), pair the two s16 at p. */
LLM_INLINE vi vi_dot_s16(vi acc, vi pairs, const int16_t *p) {
    VF_EACH {
        int32_t low = (int16_t)(pairs.v[i] & 0xffff), high = pairs.v[i] >> 16;
        acc.v[i] += low * p[0] + high * p[1];
    }
    return acc;
}

LLM_INLINE void vb_prefetch(const uint8_t *p) { (void)p; }
LLM_INLINE void vb_prefetch_l2(const uint8_t *p) { (void)p; }
/* Hides from the compiler where a value comes from, so that it is not hoisted out of a loop. */
#define vb_opaque(a) (a)

#endif
