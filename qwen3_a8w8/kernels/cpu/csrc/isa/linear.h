// int8 linears: packs activations, cuts the work, applies scales. The products are in the
// dot_*.h of the instruction set, which defines
//   kSkinnyRows                 most rows of one pass when there are few,
//   kTileRows, kTileBlocks      the register tile when there are many,
//   tile_skinny(rows)           tile of `rows` x 1 block,
//   tile_wide(rows)             tile of `rows` x kTileBlocks blocks.
// A tile adds products of `depth_groups` groups of 4 inputs to the int32 sums `acc`.
// Integer sums are exact, so no order matters here.
#pragma once

#include "rows.h"

namespace {

struct TileArgs {
  const uint8_t* w;         // [blocks][depth_groups][16][4]
  int64_t w_block_stride;   // bytes between blocks
  const int8_t* x;          // [depth_groups][rows][4]
  int32_t* acc;             // [rows][.]: 16 sums per block
  int64_t acc_stride;       // elements
  int64_t depth_groups;
};

using TileFn = void (*)(const TileArgs&);

}  // namespace

#include "dot.h"

namespace {

constexpr int64_t kPieceGroups = 128;        // depth groups of a piece: 8 KiB of a block
constexpr int64_t kSkinnyPieceGroups = 256;  // with up to 16 rows the activations take 16 KiB
constexpr int64_t kRowsPerPass = 512;        // rows whose sums stay in the second-level cache
constexpr int64_t kChunkBytes = 192 * 1024;  // weights of one chunk when memory is the limit

// Activations regrouped for tiles: groups of `group_rows` rows as [depth_groups][rows][4], the
// last group with what is left.
struct PackedRows {
  int8_t* data;
  int32_t* sums;
  int64_t rows, group_rows, depth_groups;

  int64_t groups() const { return qw::ceil_div(rows, group_rows); }
  int64_t rows_of(int64_t group) const {
    const int64_t left = rows - group * group_rows;
    return left < group_rows ? left : group_rows;
  }
  const int8_t* piece(int64_t group, int64_t first_depth_group) const {
    return data + 4 * (group * group_rows * depth_groups + first_depth_group * rows_of(group));
  }
};

inline void pack_rows(const qw::LinearArgs& a, const PackedRows& packed, qw::Team& team) {
  const int64_t width = a.weight.in_features, padded = qw::round_up(width, 64);
  constexpr int64_t kGrain = 256;  // depth groups
  const int64_t pieces = qw::ceil_div(packed.depth_groups, kGrain);
  parallel_for(team, packed.groups() * pieces, [&](int64_t i, int) {
    const int64_t group = i / pieces, begin = i % pieces * kGrain;
    const int64_t end = begin + kGrain < packed.depth_groups ? begin + kGrain : packed.depth_groups;
    const int64_t rows = packed.rows_of(group), first = group * packed.group_rows;
    int8_t* out = packed.data + 4 * group * packed.group_rows * packed.depth_groups;
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* x = a.x.data + (first + r) * a.x.stride;
      for (int64_t k = begin; k < end; ++k) {
        // Rows from outside end where they end; ours are padded with zeros.
        int8_t four[4] = {};
        memcpy(four, x + 4 * k, a.x.has_trailer || 4 * k + 4 <= width ? 4 : width - 4 * k);
        memcpy(out + 4 * (k * rows + r), four, 4);
      }
      if (begin != 0) continue;
      int32_t sum = 0;
      if (a.x.has_trailer) {
        memcpy(&sum, x + padded, sizeof sum);
      } else {
        for (int64_t k = 0; k < width; ++k) sum += x[k];
      }
      packed.sums[first + r] = sum;
    }
  });
}

// y = acc * x_scale * w_scale (+ residual) for one row of a chunk.
inline void finish_row(const qw::LinearArgs& a, const int32_t* acc, int64_t row, int64_t begin,
                       int64_t count) {
  const VF x_scale = splat(a.x_scale[row]);
  const int64_t at = row * a.weight.out_features + begin;
  for (int64_t i = 0; i < count; i += W) {
    const int n = at_most_w(count - i);
    VI sums;
    memcpy(&sums, acc + i, sizeof sums);  // the buffer covers whole blocks of 16
    VF y = to_float(sums) * x_scale * load_upto(a.w_scale + begin + i, n);
    if (a.residual != nullptr) y = load_upto(a.residual + at + i, n) + y;
    store_upto(a.y + at + i, y, n);
  }
}

// All rows of one range of blocks.
inline void linear_chunk(const qw::LinearArgs& a, const PackedRows& packed, int64_t first_block,
                         int64_t num_blocks, int64_t tile_blocks, int64_t piece_groups,
                         int32_t* acc) {
  const int64_t channels = num_blocks * qw::kChannelsPerBlock;
  const int64_t begin = first_block * qw::kChannelsPerBlock;
  const int64_t left = a.weight.out_features - begin;
  const int64_t groups_per_pass = qw::ceil_div(kRowsPerPass, packed.group_rows);
  for (int64_t g0 = 0; g0 < packed.groups(); g0 += groups_per_pass) {
    const int64_t g1 = g0 + groups_per_pass < packed.groups() ? g0 + groups_per_pass : packed.groups();
    const int64_t row0 = g0 * packed.group_rows;
    const int64_t row1 = g1 * packed.group_rows < packed.rows ? g1 * packed.group_rows : packed.rows;
    for (int64_t row = row0; row < row1; ++row) {
      int32_t* sums = acc + (row - row0) * channels;
      const int32_t start = kUsesUnsignedWeights ? -128 * packed.sums[row] : 0;
      for (int64_t i = 0; i < channels; ++i) sums[i] = start;
    }
    for (int64_t k = 0; k < packed.depth_groups; k += piece_groups) {
      const int64_t depth = packed.depth_groups - k < piece_groups ? packed.depth_groups - k : piece_groups;
      for (int64_t b = 0; b < num_blocks; b += tile_blocks) {
        const bool is_wide = tile_blocks > 1 && num_blocks - b >= tile_blocks;
        const int64_t end = num_blocks - b < tile_blocks ? num_blocks : b + tile_blocks;
        for (int64_t g = g0; g < g1; ++g) {
          const int rows = static_cast<int>(packed.rows_of(g));
          TileArgs tile;
          tile.w_block_stride = a.weight.block_bytes();
          tile.x = packed.piece(g, k);
          tile.acc_stride = channels;
          tile.depth_groups = depth;
          for (int64_t c = b; c < end; c += is_wide ? tile_blocks : 1) {
            tile.w = a.weight.data + (first_block + c) * tile.w_block_stride + k * 64;
            tile.acc = acc + (g * packed.group_rows - row0) * channels + c * qw::kChannelsPerBlock;
            (is_wide ? tile_wide(rows) : tile_skinny(rows))(tile);
          }
        }
      }
    }
    for (int64_t row = row0; row < row1; ++row) {
      finish_row(a, acc + (row - row0) * channels, row, begin, left < channels ? left : channels);
    }
  }
}

void linear(const qw::LinearArgs& a, qw::Team& team) {
  const int64_t depth_groups = a.weight.depth_groups(), blocks = a.weight.blocks();
  const bool is_skinny = a.rows <= kSkinnyRows;
  PackedRows packed;
  packed.rows = a.rows;
  packed.group_rows = is_skinny ? a.rows : kTileRows;
  packed.depth_groups = depth_groups;
  const int64_t packed_bytes = qw::round_up(a.rows * depth_groups * 4, 64);
  int32_t one_sum;
  if (a.rows == 1 && a.x.has_trailer) {
    // A single row is already in the order of tiles.
    packed.data = a.x.data;
    packed.sums = &one_sum;
    memcpy(&one_sum, a.x.data + qw::round_up(a.weight.in_features, 64), sizeof one_sum);
  } else {
    char* memory = team.shared(packed_bytes + a.rows * sizeof(int32_t));
    packed.data = reinterpret_cast<int8_t*>(memory);
    packed.sums = reinterpret_cast<int32_t*>(memory + packed_bytes);
    pack_rows(a, packed, team);
  }

  int64_t chunk_blocks = kTileBlocks;
  if (is_skinny) {
    // Large enough to be worth a claim, small enough to leave several to every thread.
    chunk_blocks = kChunkBytes / (depth_groups * 64);
    const int64_t fair = blocks / (4 * team.size());
    chunk_blocks = chunk_blocks < fair ? chunk_blocks : fair;
    chunk_blocks = chunk_blocks > 1 ? chunk_blocks : 1;
    if (chunk_blocks > 16) chunk_blocks = 16;
  }
  const int64_t tile_blocks = is_skinny ? 1 : kTileBlocks;
  const int64_t piece = a.rows == 1 ? depth_groups : is_skinny ? kSkinnyPieceGroups : kPieceGroups;
  const int64_t pass_rows = a.rows < kRowsPerPass + kTileRows ? a.rows : kRowsPerPass + kTileRows;
  const int64_t acc_bytes = pass_rows * chunk_blocks * qw::kChannelsPerBlock * sizeof(int32_t);
  parallel_ranges(team, blocks, chunk_blocks, [&](int64_t begin, int64_t end, int thread) {
    auto* acc = reinterpret_cast<int32_t*>(team.scratch(thread, acc_bytes));
    linear_chunk(a, packed, begin, end - begin, tile_blocks, piece, acc);
  });
}

}  // namespace
