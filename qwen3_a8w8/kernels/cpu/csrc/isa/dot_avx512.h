// Tiles with vpdpbusd on 512 bits: unsigned weights times signed activations.
#pragma once

namespace {

constexpr bool kUsesUnsignedWeights = true;
constexpr int kSkinnyRows = 16;
constexpr int kTileRows = 8;
constexpr int kTileBlocks = 3;
constexpr int64_t kPrefetchBytes = 4096;

inline __m512i broadcast_group(const int8_t* x) {
  int32_t group;
  memcpy(&group, x, sizeof group);
  return _mm512_set1_epi32(group);
}

// Each tile is a function of its own with its sums in fully unrolled arrays: inlined into a
// larger loop, GCC 12 copies the sums about and loses half the speed.
template <int R, int C>
__attribute__((noinline)) void tile(const TileArgs& a) {
  __m512i sum[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sum[r][c] = _mm512_loadu_si512(a.acc + r * a.acc_stride + 16 * c);
  }
  const uint8_t* w = a.w;
  const int64_t stride = a.w_block_stride;
  const int8_t* x = a.x;
  for (const int8_t* end = x + a.depth_groups * 4 * R; x != end; x += 4 * R, w += 64) {
    __m512i weights[C];
    for (int c = 0; c < C; ++c) weights[c] = _mm512_loadu_si512(w + c * stride);
    if constexpr (C == 1) _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes), _MM_HINT_T0);
    for (int r = 0; r < R; ++r) {
      const __m512i group = broadcast_group(x + 4 * r);
      for (int c = 0; c < C; ++c) sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], weights[c], group);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) _mm512_storeu_si512(a.acc + r * a.acc_stride + 16 * c, sum[r][c]);
  }
}

// One row: four chains, as one would wait for the latency of its own sums.
__attribute__((noinline)) void tile_one_row(const TileArgs& a) {
  __m512i sum[4] = {_mm512_loadu_si512(a.acc), _mm512_setzero_si512(), _mm512_setzero_si512(),
                    _mm512_setzero_si512()};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  int64_t k = 0;
  for (; k + 4 <= a.depth_groups; k += 4, x += 16, w += 256) {
    for (int j = 0; j < 4; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(w + 64 * j + kPrefetchBytes), _MM_HINT_T0);
      sum[j] = _mm512_dpbusd_epi32(sum[j], _mm512_loadu_si512(w + 64 * j), broadcast_group(x + 4 * j));
    }
  }
  for (; k < a.depth_groups; ++k, x += 4, w += 64) {
    sum[0] = _mm512_dpbusd_epi32(sum[0], _mm512_loadu_si512(w), broadcast_group(x));
  }
  const __m512i total = _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]),
                                         _mm512_add_epi32(sum[2], sum[3]));
  _mm512_storeu_si512(a.acc, total);
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {
      tile_one_row, tile<2, 1>,  tile<3, 1>,  tile<4, 1>,  tile<5, 1>,  tile<6, 1>,
      tile<7, 1>,   tile<8, 1>,  tile<9, 1>,  tile<10, 1>, tile<11, 1>, tile<12, 1>,
      tile<13, 1>,  tile<14, 1>, tile<15, 1>, tile<16, 1>};
  return kTiles[rows - 1];
}

inline TileFn tile_wide(int rows) {
  static constexpr TileFn kTiles[] = {tile<1, 3>, tile<2, 3>, tile<3, 3>, tile<4, 3>,
                                      tile<5, 3>, tile<6, 3>, tile<7, 3>, tile<8, 3>};
  return kTiles[rows - 1];
}

}  // namespace
