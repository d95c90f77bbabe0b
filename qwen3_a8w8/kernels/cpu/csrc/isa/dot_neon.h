// int8 micro-kernels with sdot: weights become signed again by flipping their top bit.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "tile_args.h"

namespace {

constexpr bool kUsesUnsignedWeights = false;
constexpr int kSkinnyRows = 4;
constexpr int kTileRows = 4;
constexpr int kTileBlocks = 1;

template <int R>
__attribute__((noinline)) void tile(const TileArgs& a) {
  int32x4_t sum[R][4] = {};
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  const uint8x16_t flip = vdupq_n_u8(0x80);
  for (const int8_t* end = x + a.depth_groups * 4 * R; x != end; x += 4 * R, w += 64) {
    int8x16_t groups[R];
    for (int r = 0; r < R; ++r) {
      int32_t group;
      memcpy(&group, x + 4 * r, sizeof group);
      groups[r] = vreinterpretq_s8_s32(vdupq_n_s32(group));
    }
    for (int c = 0; c < 4; ++c) {
      const int8x16_t weights = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + 16 * c), flip));
      for (int r = 0; r < R; ++r) sum[r][c] = vdotq_s32(sum[r][c], weights, groups[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < 4; ++c) {
      int32_t* acc = a.acc + r * a.acc_stride + 4 * c;
      vst1q_s32(acc, vaddq_s32(vld1q_s32(acc), sum[r][c]));
    }
  }
}

inline TileFn tile_skinny(int rows) {
  static constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>};
  return kTiles[rows - 1];
}

inline TileFn tile_wide(int rows) { return tile_skinny(rows); }

}  // namespace
