// int8 linears of up to 16 rows with AMX tiles, bound by memory: the rows meet four blocks at a time,
// whose weights are prefetched all along.
#pragma once

#include "linear_tiles.h"

namespace {

constexpr int64_t kFewChunkBlocks = 4;

// Where one thread keeps the sums of the rows and four blocks, and what they start from.
struct FourSums {
  int32_t sums[4][kTileSums];
  int32_t start[kTileSums];
};

// Up to 16 rows of four blocks; `w[i]` may repeat, so that fewer blocks need no tile of their own.
inline void four_blocks(const int8_t* x, int64_t x_stride, const uint8_t* const (&w)[4],
                        int64_t depth, FourSums& s) {
  constexpr int kStride = kTileRowBytes;
  _tile_loadd(0, s.start, kStride);
  _tile_loadd(1, s.start, kStride);
  _tile_loadd(2, s.start, kStride);
  _tile_loadd(3, s.start, kStride);
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    const int64_t at = k * kTileSide;  // bytes of a block before these inputs
    for (int i = 0; i < 4; ++i) {
      for (int64_t line = 0; line < kTileBytes; line += kTileRowBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(w[i] + at + kPrefetchBytes + line), _MM_HINT_T0);
      }
    }
    _tile_loadd(4, x + k, x_stride);
    _tile_loadd(6, w[0] + at, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w[1] + at, 64);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(6, w[2] + at, 64);
    _tile_dpbsud(2, 4, 6);
    _tile_loadd(7, w[3] + at, 64);
    _tile_dpbsud(3, 4, 7);
  }
  _tile_stored(0, s.sums[0], kStride);
  _tile_stored(1, s.sums[1], kStride);
  _tile_stored(2, s.sums[2], kStride);
  _tile_stored(3, s.sums[3], kStride);
}

// Scales and stores the sums of one tile.
inline void finish_tile(const qw::LinearArgs& a, const int32_t* sums, int64_t row0, int64_t rows,
                        int64_t block) {
  const int64_t begin = block * qw::kChannelsPerBlock;
  const int64_t left = a.weight.out_features - begin;
  const int64_t channels = left < kTileSide ? left : kTileSide;
  for (int64_t r = 0; r < rows; ++r) {
    finish_row(a, sums + r * kTileSide, row0 + r, begin, channels);
  }
}

// All rows of the blocks [first, end), up to 16 rows in all.
inline void few_rows(const qw::LinearArgs& a, int64_t first, int64_t end, FourSums& s) {
  const int64_t stride = a.weight.block_bytes();
  configure_tiles(a.rows, 0);
  for (int64_t r = 0; r < a.rows; ++r) {
    const VI start = splat_int(start_of(a, r));
    memcpy(s.start + r * kTileSide, &start, sizeof start);
  }
  for (int64_t block = first; block < end; block += 4) {
    const int64_t blocks = end - block < 4 ? end - block : 4;
    const uint8_t* w[4];
    for (int64_t i = 0; i < 4; ++i) {
      w[i] = a.weight.data + (block + (i < blocks ? i : blocks - 1)) * stride;
    }
    four_blocks(a.x.data, a.x.stride, w, a.weight.in_features, s);
    for (int64_t i = 0; i < blocks; ++i) finish_tile(a, s.sums[i], 0, a.rows, block + i);
  }
}

void linear_few_rows(const qw::LinearArgs& a, qw::Team& team) {
  parallel_ranges(team, a.weight.blocks(), kFewChunkBlocks,
                  [&](int64_t begin, int64_t end, int thread) {
                    auto& sums = *reinterpret_cast<FourSums*>(team.scratch(thread, sizeof(FourSums)));
                    few_rows(a, begin, end, sums);
                    // A thread that holds tiles costs more to switch.
                    _tile_release();
                  });
}

}  // namespace
