// int8 rows of the cache to float32 tiles: V row-major, K transposed.
#pragma once

#include "vec.h"

namespace {

constexpr int64_t kTilePositions = 64;

// out[p][d] = float(x[p][d]); columns up to `stride` are zeroed.
inline void widen_rows(const int8_t* x, int64_t count, int64_t width, float* out, int64_t stride) {
  for (int64_t p = 0; p < count; ++p, x += width, out += stride) {
    int64_t d = 0;
    for (; d + W <= width; d += W) store(out + d, load_i8(x + d));
    for (; d < width; ++d) out[d] = x[d];
    for (; d < stride; ++d) out[d] = 0.0f;
  }
}

#if defined(__AVX512F__)
// Transposes 16 rows of 16 dwords in place.
inline void transpose_16x16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4 g + j] now holds, in 128-bit lane L, dword 4 L + j of rows 4 g .. 4 g + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xee);
    t[j] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[8 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// 64 numbers of which lane L of x[t] has those from 16 L + 4 t on, in order.
inline void store_lanes(const __m512 (&x)[4], float* out) {
  const __m512 low01 = _mm512_shuffle_f32x4(x[0], x[1], 0x44);
  const __m512 low23 = _mm512_shuffle_f32x4(x[2], x[3], 0x44);
  const __m512 high01 = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
  const __m512 high23 = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
  _mm512_storeu_ps(out, _mm512_shuffle_f32x4(low01, low23, 0x88));
  _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(low01, low23, 0xdd));
  _mm512_storeu_ps(out + 32, _mm512_shuffle_f32x4(high01, high23, 0x88));
  _mm512_storeu_ps(out + 48, _mm512_shuffle_f32x4(high01, high23, 0xdd));
}

// 16 positions of 64 dimensions.
inline void widen_transposed_16x64(const int8_t* x, int64_t width, float* out) {
  __m512i r[16];
  for (int p = 0; p < 16; ++p) r[p] = _mm512_loadu_si512(x + p * width);
  transpose_16x16(r);
  for (int j = 0; j < 16; ++j) {
    float* to = out + 4 * j * kTilePositions;
    for (int byte = 0; byte < 4; ++byte) {
      const __m512i low = _mm512_slli_epi32(r[j], 24 - 8 * byte);
      _mm512_storeu_ps(to + byte * kTilePositions, _mm512_cvtepi32_ps(_mm512_srai_epi32(low, 24)));
    }
  }
}
#endif

// Four dimensions of W positions.
inline void widen_four(const int8_t* x, int64_t width, float* out) {
  VI four{};
  for (int p = 0; p < W; ++p) {
    int32_t dword;
    memcpy(&dword, x + p * width, sizeof dword);
    four[p] = dword;
  }
  store(out, to_float((four << 24) >> 24));
  store(out + kTilePositions, to_float((four << 16) >> 24));
  store(out + 2 * kTilePositions, to_float((four << 8) >> 24));
  store(out + 3 * kTilePositions, to_float(four >> 24));
}

// out[d][p] = float(x[p][d]), rows of out are kTilePositions apart.
inline void widen_transposed(const int8_t* x, int64_t count, int64_t width, float* out) {
  int64_t p = 0;
  for (; p + W <= count; p += W) {
    int64_t d = 0;
#if defined(__AVX512F__)
    for (; d + 64 <= width; d += 64) {
      widen_transposed_16x64(x + p * width + d, width, out + d * kTilePositions + p);
    }
#endif
    for (; d + 4 <= width; d += 4) {
      widen_four(x + p * width + d, width, out + d * kTilePositions + p);
    }
    for (; d < width; ++d) {
      for (int i = 0; i < W; ++i) out[d * kTilePositions + p + i] = x[(p + i) * width + d];
    }
  }
  for (; p < count; ++p) {
    for (int64_t d = 0; d < width; ++d) out[d * kTilePositions + p] = x[p * width + d];
  }
}

}  // namespace
