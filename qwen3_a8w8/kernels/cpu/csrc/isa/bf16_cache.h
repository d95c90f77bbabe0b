// A cache of bfloat16: rows are rounded when they are written, and widened to float32 tiles when
// they are read, V row-major, K transposed. The int8 counterparts are in rope_cache.h and widen.h.
#pragma once

#include "widen.h"

namespace {

inline void store_head(const float* x, int64_t head_dim, uint16_t* to, float* /*scale*/,
                       int64_t /*index*/) {
  for (int64_t i = 0; i < head_dim; ++i) to[i] = float_to_bf16(x[i]);
}

// out[p][d] = float(x[p][d]); columns up to `stride` are zeroed.
inline void widen_rows(const uint16_t* x, int64_t count, int64_t width, float* out,
                       int64_t stride) {
  for (int64_t p = 0; p < count; ++p, x += width, out += stride) {
    int64_t d = 0;
    for (; d + W <= width; d += W) store(out + d, load_bf16(x + d));
    for (; d < width; ++d) out[d] = bf16_to_float(x[d]);
    for (; d < stride; ++d) out[d] = 0.0f;
  }
}

// Two neighbouring dimensions of W positions, a dword each, to their rows of `out`.
inline void store_pairs(VU pairs, float* out) {
  store(out, (VF)(pairs << 16));
  store(out + kTilePositions, (VF)(pairs & 0xffff0000u));
}

#if defined(__AVX512F__)
// 16 positions of 32 dimensions.
inline void widen_transposed_16x32(const uint16_t* x, int64_t width, float* out) {
  __m512i r[16];
  for (int p = 0; p < 16; ++p) r[p] = _mm512_loadu_si512(x + p * width);
  transpose_16x16(r);
  for (int j = 0; j < 16; ++j) store_pairs((VU)r[j], out + 2 * j * kTilePositions);
}
#endif

// out[d][p] = float(x[p][d]), rows of out are kTilePositions apart; `width` is even.
inline void widen_transposed(const uint16_t* x, int64_t count, int64_t width, float* out) {
  int64_t p = 0;
  for (; p + W <= count; p += W) {
    int64_t d = 0;
#if defined(__AVX512F__)
    for (; d + 32 <= width; d += 32) {
      widen_transposed_16x32(x + p * width + d, width, out + d * kTilePositions + p);
    }
#endif
    for (; d < width; d += 2) {
      VU pairs{};
      for (int i = 0; i < W; ++i) {
        uint32_t dword;
        memcpy(&dword, x + (p + i) * width + d, sizeof dword);
        pairs[i] = dword;
      }
      store_pairs(pairs, out + d * kTilePositions + p);
    }
  }
  for (; p < count; ++p) {
    for (int64_t d = 0; d < width; ++d) {
      out[d * kTilePositions + p] = bf16_to_float(x[p * width + d]);
    }
  }
}

}  // namespace
