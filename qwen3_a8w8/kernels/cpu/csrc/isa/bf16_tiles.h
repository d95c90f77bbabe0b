// Conversions to bfloat16 in the order of attention's operands: of every 64 dimensions, the even
// ones come first.
#pragma once

#include "widen.h"

namespace {

// Bits of the nearest bfloat16 in the upper halves, half to even; finite numbers only.
inline VF nearest_bf16(VF x) {
  const VU bits = (VU)x;
  return (VF)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

inline __m512i as_bf16(VF low, VF high) {
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  __m512i bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

// 64 elements: those with an even index and those with an odd one.
inline void split_64(const uint16_t* x, __m512i& even, __m512i& odd) {
  const __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 32);
  const __m512i low = _mm512_set1_epi32(0xffff);
  // Even elements of a and b by truncation to words, a's before b's.
  const auto words = [](__m512i p, __m512i q) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(p)),
                              _mm512_cvtepi32_epi16(q), 1);
  };
  even = words(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
  odd = words(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
}

// Stores the same 64 dimensions of two positions in pairs: four tiles' rows of 16 dimensions.
inline void store_pairs(__m512i even, __m512i odd, __m512i next_even, __m512i next_odd,
                        uint16_t* v) {
  _mm512_storeu_si512(v, _mm512_unpacklo_epi16(even, next_even));
  _mm512_storeu_si512(v + 32, _mm512_unpackhi_epi16(even, next_even));
  _mm512_storeu_si512(v + 64, _mm512_unpacklo_epi16(odd, next_odd));
  _mm512_storeu_si512(v + 96, _mm512_unpackhi_epi16(odd, next_odd));
}

// 64 dimensions from the order of `store_pairs` back to ascending order.
inline void store_in_order(const VF* x, float* out) {
  const __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
  store_lanes({_mm512_unpacklo_ps(a, c), _mm512_unpackhi_ps(a, c), _mm512_unpacklo_ps(b, d),
               _mm512_unpackhi_ps(b, d)},
              out);
}

}  // namespace
