// Numbers as three bytes: 24-bit integers relative to the largest magnitude of their row. Their
// bytes are operands of integer products, which are exact.
#pragma once

#include <immintrin.h>

#include "vec.h"

namespace {

// The largest integers of three signed and three unsigned bytes, with room for rounding.
constexpr float kMostSigned = 0x7f7f70, kMostUnsigned = 0xfffff0;
constexpr float kLeastLargest = 1e-30f;  // lower bound, for rows of zeros

// The three lower bytes of 64 integers, the highest first: 128-bit lane L of x[j] becomes dword
// 4 L + j.
inline void take_bytes(const __m512i (&x)[4], __m512i (&parts)[3]) {
  const __m512i order = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m512i t[4];
  for (int j = 0; j < 4; ++j) t[j] = _mm512_shuffle_epi8(x[j], order);
  const __m512i low01 = _mm512_unpacklo_epi32(t[0], t[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(t[2], t[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(t[0], t[1]);
  const __m512i high23 = _mm512_unpackhi_epi32(t[2], t[3]);
  parts[0] = _mm512_unpacklo_epi64(high01, high23);
  parts[1] = _mm512_unpackhi_epi64(low01, low23);
  parts[2] = _mm512_unpacklo_epi64(low01, low23);
}

// Results from the sums of their parts' products, which are below 2^24.
inline VF join_parts(__m512i high, __m512i middle, __m512i low) {
  const VF lower = fma(to_float((VI)middle), splat(256.0f), to_float((VI)low));
  return fma(to_float((VI)high), splat(65536.0f), lower);
}

// The largest magnitude, compared as bits, where a NaN ranks above all numbers.
struct LargestSize {
  __m512i bits = _mm512_castps_si512(_mm512_set1_ps(kLeastLargest));

  void add(VF x) { bits = _mm512_max_epu32(bits, (__m512i)vabs(x)); }
  float get() const {
    const auto most = static_cast<int32_t>(_mm512_reduce_max_epu32(bits));
    float size;
    memcpy(&size, &most, sizeof size);
    return size;
  }
};

}  // namespace
