// int8 linears: packs activations, chooses the tiling, scales the sums. The products are in the
// micro-kernels of dot.h.
#pragma once

#include "dot.h"
#include "rows.h"

namespace {

constexpr int64_t kPanelGroups = 128;        // depth groups of a k-panel: 8 KiB of a block
constexpr int64_t kFewRows = 4 * kTileRows;  // with so few, k-panels are half as long
constexpr int64_t kRowsPerPass = 512;        // rows whose sums stay in the second-level cache
constexpr int64_t kChunkBytes = 384 * 1024;  // weights of a chunk if reading them is the bottleneck
constexpr int64_t kL2Activations = 1 << 20;  // bytes that stay in the second-level cache

// Activations packed for the micro-kernels: groups of `group_rows` rows as [depth_groups][rows][4];
// the last group has the remaining rows.
struct PackedRows {
  int8_t* data;
  int32_t* sums;
  int64_t rows, group_rows, depth_groups;
  int64_t input_bytes;  // of four inputs of a row: 4, or 8 if they are widened

  int64_t groups() const { return qw::ceil_div(rows, group_rows); }
  int64_t rows_of(int64_t group) const {
    const int64_t left = rows - group * group_rows;
    return left < group_rows ? left : group_rows;
  }
  const int8_t* panel(int64_t group, int64_t first_depth_group) const {
    const int64_t before = group * group_rows * depth_groups + first_depth_group * rows_of(group);
    return data + input_bytes * before;
  }
};

inline void pack_inputs(const PackedRows& packed, const int8_t* x, int8_t* out) {
  if constexpr (kWidens) {
    if (packed.input_bytes == 8) {
      widen_group(x, out);
      return;
    }
  }
  memcpy(out, x, 4);
}

inline void pack_rows(const qw::LinearArgs& a, const PackedRows& packed, qw::Team& team) {
  const int64_t width = a.weight.in_features, padded = qw::round_up(width, 64);
  constexpr int64_t kGrain = 256;  // depth groups
  const int64_t ranges = qw::ceil_div(packed.depth_groups, kGrain);
  parallel_for(team, packed.groups() * ranges, [&](int64_t i, int) {
    const int64_t group = i / ranges, begin = i % ranges * kGrain;
    const int64_t end = begin + kGrain < packed.depth_groups ? begin + kGrain : packed.depth_groups;
    const int64_t rows = packed.rows_of(group), first = group * packed.group_rows;
    const int64_t before = group * packed.group_rows * packed.depth_groups;
    int8_t* out = packed.data + packed.input_bytes * before;
    // Rows that are arguments of the callable have no padding; temporaries are padded with zeros.
    const int64_t readable = a.x.has_trailer ? end : width / 4;
    const int64_t whole = readable < end ? readable : end;
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* x = a.x.data + (first + r) * a.x.stride;
      for (int64_t k = begin; k < whole; ++k) {
        pack_inputs(packed, x + 4 * k, out + packed.input_bytes * (k * rows + r));
      }
      if (whole < end) {
        int8_t last[4];
        for (int64_t i = 0; i < 4; ++i) last[i] = 4 * whole + i < width ? x[4 * whole + i] : 0;
        pack_inputs(packed, last, out + packed.input_bytes * (whole * rows + r));
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

// y = acc * x_scale * w_scale (+ residual) for `count` channels of one row. Plain stores, since the
// next op reads y from the caches.
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

// The loop structure over a range of blocks.
struct Tiling {
  int64_t chunk_blocks, tile_blocks, panel_groups;
  bool is_depth_outer;  // all column tiles of a k-panel before the next k-panel
};

// A column tile and a k-panel.
struct Step {
  int64_t block, first_group;  // block relative to the chunk
};

inline Step step_at(const Tiling& tiling, int64_t index, int64_t columns, int64_t panels) {
  const int64_t column = tiling.is_depth_outer ? index % columns : index / panels;
  const int64_t panel = tiling.is_depth_outer ? index / columns : index % panels;
  return {column * tiling.tile_blocks, panel * tiling.panel_groups};
}

// Row groups [g0, g1) of one range of blocks. `acc` holds the sums, tile by tile: they are
// initialised at a tile's first k-panel, and scaled right after its last one, still in cache.
// `widened` has room for a k-panel of a block in 16 bits, where the path widens.
inline void linear_pass(const qw::LinearArgs& a, const PackedRows& packed, const Tiling& tiling,
                        int64_t first_block, int64_t num_blocks, int64_t g0, int64_t g1,
                        int32_t* acc, uint8_t* widened) {
  const int64_t stride = a.weight.block_bytes();
  const uint8_t* weights = a.weight.data + first_block * stride;
  const int64_t columns = qw::ceil_div(num_blocks, tiling.tile_blocks);
  const int64_t panels = qw::ceil_div(packed.depth_groups, tiling.panel_groups);
  TileArgs tile;
  tile.w_block_stride = stride;
  tile.acc_stride = tiling.tile_blocks * qw::kChannelsPerBlock;
  const int64_t tile_sums = packed.group_rows * tile.acc_stride;
  for (int64_t i = 0; i < columns * panels; ++i) {
    const Step step = step_at(tiling, i, columns, panels);
    const int64_t left = packed.depth_groups - step.first_group;
    const bool is_first = step.first_group == 0, is_last = left <= tiling.panel_groups;
    const int64_t blocks = num_blocks - step.block < tiling.tile_blocks ? num_blocks - step.block
                                                                     : tiling.tile_blocks;
    const bool is_wide = tiling.tile_blocks > 1 && blocks == tiling.tile_blocks;
    const int64_t begin = (first_block + step.block) * qw::kChannelsPerBlock;
    const int64_t channels = blocks * qw::kChannelsPerBlock;
    const int64_t beyond = a.weight.out_features - begin;
    tile.depth_groups = is_last ? left : tiling.panel_groups;
    const uint8_t* panel = weights + step.block * stride + step.first_group * kGroupBytes;
    const bool is_widened = packed.input_bytes != 4;
    if constexpr (kWidens) {
      if (is_widened) widen_weights(panel, tile.depth_groups, widened);
    }
    for (int64_t g = g0; g < g1; ++g) {
      const int rows = static_cast<int>(packed.rows_of(g));
      const int64_t row0 = g * packed.group_rows;
      int32_t* sums = acc + (step.block / tiling.tile_blocks * (g1 - g0) + g - g0) * tile_sums;
      for (int64_t r = 0; is_first && r < rows; ++r) {
        const VI start = splat_int(kUsesUnsignedWeights ? -128 * packed.sums[row0 + r] : 0);
        for (int64_t c = 0; c < channels; c += W) {
          memcpy(sums + r * tile.acc_stride + c, &start, sizeof start);
        }
      }
      tile.x = packed.panel(g, step.first_group);
      tile.is_first_use = g == g0;
      for (int64_t block = 0; block < blocks; block += is_wide ? tiling.tile_blocks : 1) {
        tile.w = is_widened ? widened : panel + block * stride;
        tile.acc = sums + block * qw::kChannelsPerBlock;
        (is_wide || is_widened ? tile_wide(rows) : tile_skinny(rows))(tile);
      }
      for (int64_t r = 0; is_last && r < rows; ++r) {
        finish_row(a, sums + r * tile.acc_stride, row0 + r, begin,
                   beyond < channels ? beyond : channels);
      }
    }
  }
}

// All rows of one range of blocks.
inline void linear_chunk(const qw::LinearArgs& a, const PackedRows& packed, const Tiling& tiling,
                         int64_t first_block, int64_t num_blocks, int32_t* acc,
                         uint8_t* widened) {
  const int64_t groups_per_pass = kRowsPerPass / packed.group_rows;
  for (int64_t g0 = 0; g0 < packed.groups(); g0 += groups_per_pass) {
    const int64_t left = packed.groups() - g0;
    const int64_t g1 = g0 + (left < groups_per_pass ? left : groups_per_pass);
    linear_pass(a, packed, tiling, first_block, num_blocks, g0, g1, acc, widened);
  }
}

inline Tiling choose_tiling(const qw::LinearArgs& a, int threads) {
  const int64_t depth_groups = a.weight.depth_groups(), blocks = a.weight.blocks();
  const bool is_skinny = a.rows <= kSkinnyRows;
  Tiling tiling;
  tiling.tile_blocks = is_skinny ? 1 : kTileBlocks;
  tiling.panel_groups = is_skinny            ? depth_groups
                        : a.rows <= kFewRows ? kPanelGroups / 2
                                             : kPanelGroups;
  // Many activations don't stay in the second-level cache from one column tile to the next; then
  // all column tiles of a chunk use a k-panel of them in turn.
  tiling.is_depth_outer = !is_skinny && a.rows * depth_groups * 4 > kL2Activations;
  // Large enough to outweigh taking a chunk, small enough that every thread gets several.
  tiling.chunk_blocks = tiling.is_depth_outer ? 4 * kTileBlocks : kChunkBytes / (depth_groups * 64);
  const int64_t fair = blocks / (4 * threads);
  tiling.chunk_blocks = tiling.chunk_blocks < fair ? tiling.chunk_blocks : fair;
  tiling.chunk_blocks = tiling.chunk_blocks / tiling.tile_blocks * tiling.tile_blocks;
  if (tiling.chunk_blocks < tiling.tile_blocks) tiling.chunk_blocks = tiling.tile_blocks;
  if (tiling.chunk_blocks > 15) tiling.chunk_blocks = 15 / tiling.tile_blocks * tiling.tile_blocks;
  return tiling;
}

void linear(const qw::LinearArgs& a, qw::Team& team) {
  const Tiling tiling = choose_tiling(a, team.size());
  // Groups of about equal size, because a tile of few rows is less efficient.
  const int64_t most = a.rows <= kSkinnyRows ? kSkinnyRows : kTileRows;
  PackedRows packed;
  packed.rows = a.rows;
  packed.group_rows = qw::ceil_div(a.rows, qw::ceil_div(a.rows, most));
  packed.depth_groups = a.weight.depth_groups();
  packed.input_bytes = kWidens && a.rows > kSkinnyRows ? 8 : 4;
  const int64_t packed_bytes =
      qw::round_up(a.rows * packed.depth_groups * packed.input_bytes, 64);
  int32_t one_sum;
  if (a.rows == 1 && a.x.has_trailer) {
    // A single row already has the packed layout.
    packed.data = a.x.data;
    packed.sums = &one_sum;
    memcpy(&one_sum, a.x.data + qw::round_up(a.weight.in_features, 64), sizeof one_sum);
  } else {
    char* memory = team.shared(packed_bytes + a.rows * sizeof(int32_t));
    packed.data = reinterpret_cast<int8_t*>(memory);
    packed.sums = reinterpret_cast<int32_t*>(memory + packed_bytes);
    pack_rows(a, packed, team);
  }
  const int64_t groups_per_pass = kRowsPerPass / packed.group_rows;
  const int64_t groups = packed.groups() < groups_per_pass ? packed.groups() : groups_per_pass;
  const int64_t acc_bytes = groups * packed.group_rows *
                            qw::round_up(tiling.chunk_blocks, tiling.tile_blocks) *
                            qw::kChannelsPerBlock * sizeof(int32_t);
  const int64_t widened_bytes =
      packed.input_bytes == 4 ? 0 : tiling.panel_groups * kWidenedGroupBytes;
  const auto chunk = [&](int64_t begin, int64_t end, int thread) {
    char* scratch = team.scratch(thread, widened_bytes + acc_bytes);
    linear_chunk(a, packed, tiling, begin, end - begin,
                 reinterpret_cast<int32_t*>(scratch + widened_bytes),
                 reinterpret_cast<uint8_t*>(scratch));
  };
  parallel_ranges(team, a.weight.blocks(), tiling.chunk_blocks, chunk);
}

}  // namespace
