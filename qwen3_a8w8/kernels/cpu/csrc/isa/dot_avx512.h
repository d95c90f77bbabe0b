// int8 micro-kernels with vpdpbusd on 512 bits: unsigned weights times signed activations.
//
// The instruction is inline assembly: with the intrinsic, GCC 12 copies and spills the sums at
// every step. Index packs instead of loops keep the sums in registers.
#pragma once

#include <immintrin.h>

#include <utility>

#include "tile_args.h"

namespace {

constexpr bool kUsesUnsignedWeights = true;
constexpr int kSkinnyRows = 8;
constexpr int kTileRows = 8;
constexpr int kTileBlocks = 3;
constexpr int64_t kPrefetchBytes = 2048;      // ahead in one stream of weights
constexpr int64_t kWidePrefetchBytes = 1024;  // ahead in each of three streams

inline __m512i load_512(const void* p) { return _mm512_loadu_si512(p); }

// Four neighbouring activations: a memory operand of the instruction.
struct Group {
  int8_t x[4];
};
inline const Group& group_at(const int8_t* x) { return *reinterpret_cast<const Group*>(x); }

// Adds the products of one block; the instruction broadcasts the activations itself.
inline void add_products(__m512i& sum, __m512i weights, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(group_at(x)));
}

// Adds the products of three blocks with the activations of one row.
inline void add_products(__m512i& s0, __m512i& s1, __m512i& s2, __m512i w0, __m512i w1, __m512i w2,
                         const int8_t* x) {
  __m512i group;
  asm volatile(
      "vpbroadcastd %[x], %[group]\n\t"
      "vpdpbusd %[group], %[w0], %[s0]\n\t"
      "vpdpbusd %[group], %[w1], %[s1]\n\t"
      "vpdpbusd %[group], %[w2], %[s2]"
      : [s0] "+v"(s0), [s1] "+v"(s1), [s2] "+v"(s2), [group] "=&v"(group)
      : [w0] "v"(w0), [w1] "v"(w1), [w2] "v"(w2), [x] "m"(group_at(x)));
}

inline void prefetch_ahead(const uint8_t* w) {
  _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes), _MM_HINT_T0);
}

// R rows of one block. Reading the weights is the bottleneck, so they are prefetched throughout.
template <int R, size_t... I>
inline void tile_one_block(const TileArgs& a, std::index_sequence<I...>) {
  __m512i sum[R] = {load_512(a.acc + I * a.acc_stride)...};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  for (const uint8_t* end = w + a.depth_groups * 64; w != end; x += 4 * R, w += 64) {
    const __m512i weights = load_512(w);
    prefetch_ahead(w);
    (add_products(sum[I], weights, x + 4 * I), ...);
  }
  (_mm512_storeu_si512(a.acc + I * a.acc_stride, sum[I]), ...);
}

template <int R>
__attribute__((noinline)) void tile_skinny_rows(const TileArgs& a) {
  tile_one_block<R>(a, std::make_index_sequence<R>());
}

// One row: four chains of sums, since a single one would be bound by the instruction's latency.
__attribute__((noinline)) void tile_one_row(const TileArgs& a) {
  __m512i s0 = load_512(a.acc), s1 = _mm512_setzero_si512(), s2 = s1, s3 = s1;
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  int64_t k = 0;
  for (; k + 4 <= a.depth_groups; k += 4, x += 16, w += 256) {
    prefetch_ahead(w);
    prefetch_ahead(w + 64);
    prefetch_ahead(w + 128);
    prefetch_ahead(w + 192);
    add_products(s0, load_512(w), x);
    add_products(s1, load_512(w + 64), x + 4);
    add_products(s2, load_512(w + 128), x + 8);
    add_products(s3, load_512(w + 192), x + 12);
  }
  for (; k < a.depth_groups; ++k, x += 4, w += 64) add_products(s0, load_512(w), x);
  s0 = _mm512_add_epi32(_mm512_add_epi32(s0, s1), _mm512_add_epi32(s2, s3));
  _mm512_storeu_si512(a.acc, s0);
}

// R rows of three blocks. With `kPrefetches` the weights come from memory; later row groups find
// the same weights in the first-level cache.
template <int R, bool kPrefetches, size_t... I>
inline void tile_three_blocks(const TileArgs& a, std::index_sequence<I...>) {
  __m512i sum0[R] = {load_512(a.acc + I * a.acc_stride)...};
  __m512i sum1[R] = {load_512(a.acc + I * a.acc_stride + 16)...};
  __m512i sum2[R] = {load_512(a.acc + I * a.acc_stride + 32)...};
  const uint8_t* w = a.w;
  const int64_t stride = a.w_block_stride;
  const int8_t* x = a.x;
  for (const uint8_t* end = w + a.depth_groups * 64; w != end; x += 4 * R, w += 64) {
    if constexpr (kPrefetches) {
      const uint8_t* ahead = w + kWidePrefetchBytes;
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(ahead + stride), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(ahead + 2 * stride), _MM_HINT_T0);
    }
    const __m512i w0 = load_512(w), w1 = load_512(w + stride), w2 = load_512(w + 2 * stride);
    (add_products(sum0[I], sum1[I], sum2[I], w0, w1, w2, x + 4 * I), ...);
  }
  (_mm512_storeu_si512(a.acc + I * a.acc_stride, sum0[I]), ...);
  (_mm512_storeu_si512(a.acc + I * a.acc_stride + 16, sum1[I]), ...);
  (_mm512_storeu_si512(a.acc + I * a.acc_stride + 32, sum2[I]), ...);
}

template <int R>
__attribute__((noinline)) void tile_wide_rows(const TileArgs& a) {
  if (a.is_first_use) {
    tile_three_blocks<R, true>(a, std::make_index_sequence<R>());
  } else {
    tile_three_blocks<R, false>(a, std::make_index_sequence<R>());
  }
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {
      tile_one_row,        tile_skinny_rows<2>, tile_skinny_rows<3>, tile_skinny_rows<4>,
      tile_skinny_rows<5>, tile_skinny_rows<6>, tile_skinny_rows<7>, tile_skinny_rows<8>};
  return kTiles[rows - 1];
}

inline TileFn tile_wide(int rows) {
  static constexpr TileFn kTiles[] = {
      tile_wide_rows<1>, tile_wide_rows<2>, tile_wide_rows<3>, tile_wide_rows<4>,
      tile_wide_rows<5>, tile_wide_rows<6>, tile_wide_rows<7>, tile_wide_rows<8>};
  return kTiles[rows - 1];
}

}  // namespace
