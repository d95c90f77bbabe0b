// int8 micro-kernels on 256 bits. AVX-VNNI has an instruction for 32 products; without it weights
// and activations are widened to 16 bits, because vpmaddubsw saturates: 2 * 255 * 127 > 32767.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <utility>

#include "tile_args.h"

namespace {

constexpr bool kUsesUnsignedWeights = true;

inline int32_t group_at(const int8_t* x) {
  int32_t group;
  memcpy(&group, x, sizeof group);
  return group;
}

inline __m256i load_256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline void add_to(int32_t* acc, __m256i sum) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc), _mm256_add_epi32(load_256(acc), sum));
}

#if defined(__AVXVNNI__)
constexpr int kSkinnyRows = 6;

// Inline assembly and index packs, for the reasons given in dot_avx512.h.
inline void add_products(__m256i& low_sum, __m256i& high_sum, __m256i low, __m256i high,
                         const int8_t* x) {
  const __m256i group = _mm256_set1_epi32(group_at(x));
  asm volatile(
      "%{vex%} vpdpbusd %[group], %[low], %[low_sum]\n\t"
      "%{vex%} vpdpbusd %[group], %[high], %[high_sum]"
      : [low_sum] "+x"(low_sum), [high_sum] "+x"(high_sum)
      : [low] "x"(low), [high] "x"(high), [group] "x"(group));
}

template <int R, size_t... I>
inline void tile_rows(const TileArgs& a, std::index_sequence<I...>) {
  __m256i low_sum[R] = {}, high_sum[R] = {};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  for (const int8_t* end = x + a.depth_groups * 4 * R; x != end; x += 4 * R, w += 64) {
    const __m256i low = load_256(w), high = load_256(w + 32);
    (add_products(low_sum[I], high_sum[I], low, high, x + 4 * I), ...);
  }
  (add_to(a.acc + I * a.acc_stride, low_sum[I]), ...);
  (add_to(a.acc + I * a.acc_stride + 8, high_sum[I]), ...);
}

template <int R>
__attribute__((noinline)) void tile(const TileArgs& a) {
  tile_rows<R>(a, std::make_index_sequence<R>());
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  return kTiles[rows - 1];
}
#else
constexpr int kSkinnyRows = 2;

// Sums of pairs of inputs: lanes are (channel 0, inputs 0 1), (channel 0, inputs 2 3), ...
template <int R>
__attribute__((noinline)) void tile(const TileArgs& a) {
  __m256i sum[R][4] = {};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  for (const int8_t* end = x + a.depth_groups * 4 * R; x != end; x += 4 * R, w += 64) {
    __m256i groups[R];
    for (int r = 0; r < R; ++r) {
      groups[r] = _mm256_cvtepi8_epi16(_mm_set1_epi32(group_at(x + 4 * r)));
    }
    for (int c = 0; c < 4; ++c) {
      const __m256i weights =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 16 * c)));
      for (int r = 0; r < R; ++r) {
        sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(weights, groups[r]));
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < 4; c += 2) {
      // hadd adds within 128-bit halves: channels come out as 0 1 4 5 2 3 6 7.
      const __m256i pairs = _mm256_hadd_epi32(sum[r][c], sum[r][c + 1]);
      add_to(a.acc + r * a.acc_stride + 4 * c, _mm256_permute4x64_epi64(pairs, 0xd8));
    }
  }
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {tile<1>, tile<2>};
  return kTiles[rows - 1];
}
#endif

constexpr int kTileRows = kSkinnyRows;
constexpr int kTileBlocks = 1;

inline TileFn tile_wide(int rows) { return tile_skinny(rows); }

}  // namespace
