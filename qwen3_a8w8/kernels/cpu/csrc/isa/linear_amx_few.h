// int8 linears of up to 16 rows with AMX tiles, bound by memory: all rows are multiplied by four
// blocks at a time, and the weights are prefetched throughout.
#pragma once

#include "linear_tiles.h"

namespace {

constexpr int64_t kFewChunkBlocks = 4;

// Sums of up to 16 rows and four blocks; entries of `w` may be equal, which covers fewer blocks.
// Prefetches run ahead in each block and, near its end, in the block four places on.
inline void four_blocks(const qw::LinearArgs& a, const uint8_t* const (&w)[4],
                        int32_t (&sums)[4][kTileNumbers]) {
  const int64_t block_bytes = a.weight.block_bytes();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < a.weight.in_features; k += kTileDepth) {
    const int64_t at = k * kTileSide;  // bytes of a block before these inputs
    const int64_t next = at + kPrefetchBytes;
    const int64_t ahead = next < block_bytes ? next : next + 3 * block_bytes;
    for (int i = 0; i < 4; ++i) {
      for (int64_t line = 0; line < kTileBytes; line += kTileRowBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(w[i] + ahead + line), _MM_HINT_T0);
      }
    }
    _tile_loadd(4, a.x.data + k, a.x.stride);
    _tile_loadd(6, w[0] + at, kTileRowBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w[1] + at, kTileRowBytes);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(6, w[2] + at, kTileRowBytes);
    _tile_dpbsud(2, 4, 6);
    _tile_loadd(7, w[3] + at, kTileRowBytes);
    _tile_dpbsud(3, 4, 7);
  }
  _tile_stored(0, sums[0], kTileRowBytes);
  _tile_stored(1, sums[1], kTileRowBytes);
  _tile_stored(2, sums[2], kTileRowBytes);
  _tile_stored(3, sums[3], kTileRowBytes);
}

// Scales and stores the sums of a block.
inline void finish_block(const qw::LinearArgs& a, const int32_t* start, const int32_t* sums,
                         int64_t block) {
  const int64_t begin = block * qw::kChannelsPerBlock;
  const int n = at_most_w(a.weight.out_features - begin);
  const VF w_scale = load_upto(a.w_scale + begin, n);
  for (int64_t r = 0; r < a.rows; ++r) {
    VF y = scaled(sums + r * kTileSide, start[r], splat(a.x_scale[r]), w_scale);
    const int64_t at = r * a.weight.out_features + begin;
    if (a.residual != nullptr) y = load_upto(a.residual + at, n) + y;
    store_upto(a.y + at, y, n);
  }
}

// All rows of the blocks [first, end), up to 16 rows in all.
inline void few_rows(const qw::LinearArgs& a, int64_t first, int64_t end) {
  configure_tiles(a.rows, 0);
  int32_t start[kTileSide];
  for (int64_t r = 0; r < a.rows; ++r) start[r] = start_of(a, r);
  for (int64_t block = first; block < end; block += 4) {
    const int64_t blocks = end - block < 4 ? end - block : 4;
    const uint8_t* w[4];
    for (int64_t i = 0; i < 4; ++i) {
      w[i] = a.weight.data + (block + (i < blocks ? i : blocks - 1)) * a.weight.block_bytes();
    }
    alignas(64) int32_t sums[4][kTileNumbers];
    four_blocks(a, w, sums);
    for (int64_t i = 0; i < blocks; ++i) finish_block(a, start, sums[i], block + i);
  }
}

void linear_few_rows(const qw::LinearArgs& a, qw::Team& team) {
  parallel_ranges(team, a.weight.blocks(), kFewChunkBlocks, [&](int64_t begin, int64_t end, int) {
    few_rows(a, begin, end);
    // A thread that holds tiles costs more to switch.
    _tile_release();
  });
}

}  // namespace
