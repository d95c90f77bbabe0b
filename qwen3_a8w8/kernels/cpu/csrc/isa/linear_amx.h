// int8 linears with AMX tiles: signed activations times unsigned weights, 16 rows x 16 channels x 64
// inputs per instruction. Integer sums are exact, so results are those of the other tiles, bit for
// bit. The packed weights of 64 inputs of a block are a tile as they lie in memory, and so are 16
// rows of activations: nothing is regrouped.
//
// With few rows memory is the limit, and a tile of rows meets four blocks at a time, whose weights
// are prefetched all along. With many, two tiles of rows meet two blocks: four products for four
// loads.
#pragma once

#include "amx.h"
#include "linear.h"

namespace {

constexpr int64_t kTileDepth = 64;       // inputs of a tile
constexpr int64_t kAmxLeastRows = 5;     // with fewer, vectors do as well
constexpr int64_t kAmxChunkBlocks = 12;  // their weights stay in the second-level cache

// Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. `upper` and `lower` are
// the rows of the two tiles of activations; without lower ones all sums belong to the upper.
inline void configure_tiles(int upper, int lower) {
  TileConfig config;
  const int below = lower > 0 ? lower : upper;
  const int rows[8] = {upper, upper, below, below, upper, below, kTileSide, kTileSide};
  for (int tile = 0; tile < 8; ++tile) config.set(tile, rows[tile], kTileRowBytes);
  _tile_loadconfig(&config);
}

// Where one thread keeps the sums of a tile of rows and blocks, and what they start from.
struct TileSums {
  int32_t sums[4][kTileSide * kTileSide];
  int32_t start[2][kTileSide * kTileSide];
};

inline const int8_t* row_of(const qw::LinearArgs& a, int64_t row) {
  return a.x.data + row * a.x.stride;
}

// The +128 of the weights is taken out with the sum of the row.
inline void prepare_start(const qw::LinearArgs& a, int64_t row0, int64_t rows, int32_t* start) {
  const int64_t padded = qw::round_up(a.weight.in_features, 64);
  for (int64_t r = 0; r < rows; ++r) {
    int32_t sum;
    memcpy(&sum, row_of(a, row0 + r) + padded, sizeof sum);
    const VI value = splat_int(-128 * sum);
    memcpy(start + r * kTileSide, &value, sizeof value);
  }
}

// Up to 16 rows of four blocks; `w[i]` may repeat, so that fewer blocks need no tile of their own.
inline void four_blocks(const int8_t* x, int64_t x_stride, const uint8_t* const (&w)[4],
                        int64_t depth, TileSums& s) {
  constexpr int kStride = kTileRowBytes;
  _tile_loadd(0, s.start[0], kStride);
  _tile_loadd(1, s.start[0], kStride);
  _tile_loadd(2, s.start[0], kStride);
  _tile_loadd(3, s.start[0], kStride);
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

// Two tiles of rows and two blocks.
inline void two_by_two(const int8_t* upper, const int8_t* lower, int64_t x_stride,
                       const uint8_t* w0, const uint8_t* w1, int64_t depth, TileSums& s) {
  constexpr int kStride = kTileRowBytes;
  _tile_loadd(0, s.start[0], kStride);
  _tile_loadd(1, s.start[0], kStride);
  _tile_loadd(2, s.start[1], kStride);
  _tile_loadd(3, s.start[1], kStride);
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    const int64_t at = k * kTileSide;
    _tile_loadd(6, w0 + at, 64);
    _tile_loadd(4, upper + k, x_stride);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w1 + at, 64);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(5, lower + k, x_stride);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
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
inline void amx_few_rows(const qw::LinearArgs& a, int64_t first, int64_t end, TileSums& s) {
  const int64_t stride = a.weight.block_bytes();
  configure_tiles(static_cast<int>(a.rows), 0);
  prepare_start(a, 0, a.rows, s.start[0]);
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

// All rows of the blocks [first, end).
inline void amx_many_rows(const qw::LinearArgs& a, int64_t first, int64_t end, TileSums& s) {
  const int64_t stride = a.weight.block_bytes();
  int64_t configured = 0;
  for (int64_t row = 0; row < a.rows; row += 2 * kTileSide) {
    const int64_t left = a.rows - row;
    const int64_t rows = left < 2 * kTileSide ? left : 2 * kTileSide;
    const int64_t upper = rows < kTileSide ? rows : kTileSide, lower = rows - upper;
    if (rows != configured) {
      configure_tiles(static_cast<int>(upper), static_cast<int>(lower));
      configured = rows;
    }
    prepare_start(a, row, upper, s.start[0]);
    prepare_start(a, row + upper, lower, s.start[1]);
    // Without lower rows the upper ones stand in for them.
    const int8_t* x0 = row_of(a, row);
    const int8_t* x1 = lower > 0 ? row_of(a, row + upper) : x0;
    for (int64_t block = first; block < end; block += 2) {
      const bool is_pair = block + 1 < end;
      const uint8_t* w = a.weight.data + block * stride;
      two_by_two(x0, x1, a.x.stride, w, is_pair ? w + stride : w, a.weight.in_features, s);
      finish_tile(a, s.sums[0], row, upper, block);
      if (is_pair) finish_tile(a, s.sums[1], row, upper, block + 1);
      finish_tile(a, s.sums[2], row + upper, lower, block);
      if (is_pair) finish_tile(a, s.sums[3], row + upper, lower, block + 1);
    }
  }
}

void linear_amx(const qw::LinearArgs& a, qw::Team& team) {
  // Tiles of 64 inputs need rows padded with zeros and whole groups of weights.
  if (a.rows < kAmxLeastRows || !a.x.has_trailer || a.weight.in_features % kTileDepth != 0) {
    linear(a, team);
    return;
  }
  const bool has_few_rows = a.rows <= kTileSide;
  const int64_t blocks = a.weight.blocks();
  const int64_t fair = blocks / (4 * team.size()) / 4 * 4;
  int64_t chunk = has_few_rows ? 4 : kAmxChunkBlocks;
  if (chunk > fair) chunk = fair > 4 ? fair : 4;
  parallel_ranges(team, blocks, chunk, [&](int64_t begin, int64_t end, int thread) {
    auto& sums = *reinterpret_cast<TileSums*>(team.scratch(thread, sizeof(TileSums)));
    if (has_few_rows) {
      amx_few_rows(a, begin, end, sums);
    } else {
      amx_many_rows(a, begin, end, sums);
    }
    // A thread that holds tiles costs more to switch.
    _tile_release();
  });
}

}  // namespace
