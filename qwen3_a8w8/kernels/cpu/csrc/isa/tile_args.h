// The interface of the int8 micro-kernels. Each dot_*.h implements it for one instruction set:
//   kUsesUnsignedWeights        weights are multiplied as they are stored, with 128 added,
//   kSkinnyRows                 most rows for which reading the weights is the bottleneck,
//   kTileRows, kTileBlocks      size of the register tile when there are more rows,
//   tile_skinny(rows)           micro-kernel of 1 block and up to kSkinnyRows or kTileRows rows,
//   tile_wide(rows)             micro-kernel of kTileBlocks blocks and up to kTileRows rows,
//   QW_WIDENS                   defined if tiles of more than kSkinnyRows rows take weights and
//                               activations in 16 bits, from widen_weights and widen_group
//                               (kTileBlocks is 1 then).
// A micro-kernel adds the products of `depth_groups` groups of 4 inputs to the int32 sums `acc`.
// Integer sums are exact, so their order doesn't matter.
#pragma once

#include <cstdint>

namespace {

struct TileArgs {
  const uint8_t* w;         // [blocks][depth_groups][16][4]; widened: as widen_weights writes it
  int64_t w_block_stride;   // bytes between blocks
  const int8_t* x;          // [depth_groups][rows][4]; widened: [depth_groups][rows][4] int16
  int32_t* acc;             // [rows][.]: 16 sums per block
  int64_t acc_stride;       // elements
  int64_t depth_groups;
  bool is_first_use;        // the weights are read from memory, not from a cache
};

constexpr int64_t kGroupBytes = 64;          // of a depth group of a block of weights
constexpr int64_t kWidenedGroupBytes = 128;  // the same in 16 bits

using TileFn = void (*)(const TileArgs&);

}  // namespace
