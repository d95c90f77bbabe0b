// int8 micro-kernels on 256 bits. AVX-VNNI has an instruction for 32 products; without it weights
// and activations are widened to 16 bits, because vpmaddubsw saturates: 2 * 255 * 127 > 32767.
// Inputs 0 and 2 of a depth group are a pair that vpmaddwd multiplies and adds, 1 and 3 the other:
// a mask and a shift then widen 32 bytes, and every lane of a sum is a channel.
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
constexpr int kTileRows = kSkinnyRows;
inline TileFn tile_wide(int rows) { return tile_skinny(rows); }
#else
#define QW_WIDENS
constexpr int kSkinnyRows = 2;
constexpr int kTileRows = 4;
constexpr int64_t kPrefetchBytes = 2048;

inline __m256i even_inputs(__m256i w) { return _mm256_and_si256(w, _mm256_set1_epi16(0xff)); }
inline __m256i odd_inputs(__m256i w) { return _mm256_srli_epi16(w, 8); }

// sum += pairs of one row; a lane of `x` has two inputs of the row.
inline void add_products(__m256i& low_sum, __m256i& high_sum, __m256i low, __m256i high,
                         __m256i x) {
  low_sum = _mm256_add_epi32(low_sum, _mm256_madd_epi16(low, x));
  high_sum = _mm256_add_epi32(high_sum, _mm256_madd_epi16(high, x));
}

// Few rows: weights are widened as they come from memory.
template <int R>
__attribute__((noinline)) void skinny_tile(const TileArgs& a) {
  __m256i low_sum[R] = {}, high_sum[R] = {}, low_odd[R] = {}, high_odd[R] = {};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  for (const int8_t* end = x + a.depth_groups * 4 * R; x != end; x += 4 * R, w += kGroupBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes), _MM_HINT_T0);
    const __m256i low = load_256(w), high = load_256(w + 32);
    const __m256i low_even = even_inputs(low), high_even = even_inputs(high);
    const __m256i low_rest = odd_inputs(low), high_rest = odd_inputs(high);
    for (int r = 0; r < R; ++r) {
      const __m256i group = _mm256_set1_epi32(group_at(x + 4 * r));
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(group, 8), 8);
      add_products(low_sum[r], high_sum[r], low_even, high_even, even);
      add_products(low_odd[r], high_odd[r], low_rest, high_rest, _mm256_srai_epi16(group, 8));
    }
  }
  for (int r = 0; r < R; ++r) {
    add_to(a.acc + r * a.acc_stride, _mm256_add_epi32(low_sum[r], low_odd[r]));
    add_to(a.acc + r * a.acc_stride + 8, _mm256_add_epi32(high_sum[r], high_odd[r]));
  }
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {skinny_tile<1>, skinny_tile<2>};
  return kTiles[rows - 1];
}

// Widens a k-panel of a block, once for all rows that use it: per depth group 16 channels of inputs
// (0, 2), then of inputs (1, 3), as 16-bit pairs.
inline void widen_weights(const uint8_t* w, int64_t depth_groups, uint8_t* out) {
  auto* to = reinterpret_cast<__m256i*>(out);
  for (int64_t k = 0; k < depth_groups; ++k, w += kGroupBytes, to += 4) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes), _MM_HINT_T0);
    const __m256i low = load_256(w), high = load_256(w + 32);
    _mm256_store_si256(to, even_inputs(low));
    _mm256_store_si256(to + 1, even_inputs(high));
    _mm256_store_si256(to + 2, odd_inputs(low));
    _mm256_store_si256(to + 3, odd_inputs(high));
  }
}

// The same for a depth group of one row of activations, 4 bytes to 8.
inline void widen_group(const int8_t* x, int8_t* out) {
  const int16_t pairs[4] = {x[0], x[2], x[1], x[3]};
  memcpy(out, pairs, sizeof pairs);
}

// One row's products of a depth group. Inline assembly: GCC 12 would copy and spill the sums, and
// there is a register for each of them, for the weights, and four more.
inline void add_row(__m256i& low_sum, __m256i& high_sum, const __m256i (&w)[4], const int8_t* x) {
  __m256i even, odd, product;
  asm("vpbroadcastd %[x0], %[even]\n\t"
      "vpbroadcastd %[x1], %[odd]\n\t"
      "vpmaddwd %[even], %[w0], %[product]\n\t"
      "vpmaddwd %[even], %[w1], %[even]\n\t"
      "vpaddd %[product], %[low], %[low]\n\t"
      "vpmaddwd %[odd], %[w2], %[product]\n\t"
      "vpaddd %[even], %[high], %[high]\n\t"
      "vpmaddwd %[odd], %[w3], %[odd]\n\t"
      "vpaddd %[product], %[low], %[low]\n\t"
      "vpaddd %[odd], %[high], %[high]"
      : [low] "+x"(low_sum), [high] "+x"(high_sum), [even] "=&x"(even), [odd] "=&x"(odd),
        [product] "=&x"(product)
      : [w0] "x"(w[0]), [w1] "x"(w[1]), [w2] "x"(w[2]), [w3] "x"(w[3]),
        [x0] "m"(*reinterpret_cast<const int32_t(*)[1]>(x)),
        [x1] "m"(*reinterpret_cast<const int32_t(*)[1]>(x + 4)));
}

template <int R, size_t... I>
inline void widened_rows(const TileArgs& a, std::index_sequence<I...>) {
  __m256i low_sum[R] = {}, high_sum[R] = {};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  for (const int8_t* end = x + a.depth_groups * 8 * R; x != end;
       x += 8 * R, w += kWidenedGroupBytes) {
    const __m256i weights[4] = {load_256(w), load_256(w + 32), load_256(w + 64), load_256(w + 96)};
    (add_row(low_sum[I], high_sum[I], weights, x + 8 * I), ...);
  }
  (add_to(a.acc + I * a.acc_stride, low_sum[I]), ...);
  (add_to(a.acc + I * a.acc_stride + 8, high_sum[I]), ...);
}

template <int R>
__attribute__((noinline)) void widened_tile(const TileArgs& a) {
  widened_rows<R>(a, std::make_index_sequence<R>());
}

inline TileFn tile_wide(int rows) {
  static constexpr TileFn kTiles[] = {widened_tile<1>, widened_tile<2>, widened_tile<3>,
                                      widened_tile<4>};
  return kTiles[rows - 1];
}
#endif

constexpr int kTileBlocks = 1;

}  // namespace
