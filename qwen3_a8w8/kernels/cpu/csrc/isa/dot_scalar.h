// int8 micro-kernels in plain C++.
#pragma once

#include "tile_args.h"

namespace {

constexpr bool kUsesUnsignedWeights = true;
constexpr int kSkinnyRows = 4;
constexpr int kTileRows = 4;
constexpr int kTileBlocks = 1;

template <int R>
__attribute__((noinline)) void tile(const TileArgs& a) {
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  for (int64_t k = 0; k < a.depth_groups; ++k, x += 4 * R, w += 64) {
    for (int r = 0; r < R; ++r) {
      const int8_t* group = x + 4 * r;
      int32_t* acc = a.acc + r * a.acc_stride;
      for (int c = 0; c < 16; ++c) {
        acc[c] += w[4 * c] * group[0] + w[4 * c + 1] * group[1] + w[4 * c + 2] * group[2] +
                  w[4 * c + 3] * group[3];
      }
    }
  }
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>};
  return kTiles[rows - 1];
}

inline TileFn tile_wide(int rows) { return tile_skinny(rows); }

}  // namespace
