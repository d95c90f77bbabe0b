// int8 linears with AMX tiles, alone and fused with the op that follows.
#pragma once

#include "linear_amx_few.h"
#include "linear_amx_many.h"
#include "linear_epilogues.h"

namespace {

constexpr int64_t kAmxLeastRows = 5;  // with fewer rows, the vector path is as fast

inline void linear_many_rows(const qw::LinearArgs& a, qw::Team& team) {
  const int64_t column_tiles = qw::ceil_div(a.weight.blocks(), 2);
  if (a.residual != nullptr) {
    linear_many_rows(a, column_tiles, 1, 0, team,
                     [&](char*, int64_t, int64_t) { return StoreSums<true>{a}; });
  } else {
    linear_many_rows(a, column_tiles, 1, 0, team,
                     [&](char*, int64_t, int64_t) { return StoreSums<false>{a}; });
  }
}

void linear_amx(const qw::LinearArgs& a, qw::Team& team) {
  if (a.rows < kAmxLeastRows || !has_tile_rows(a)) {
    linear(a, team);
  } else if (a.rows <= kTileSide) {
    linear_few_rows(a, team);
  } else {
    linear_many_rows(a, team);
  }
}

// A linear whose first half of channels are gates, fused with the gated activation; y is [rows,
// half of the channels]. Returns false, with nothing written, where the shape doesn't allow it.
bool linear_silu_mul_amx(const qw::LinearArgs& a, qw::Team& team) {
  const int64_t half = a.weight.out_features / 2;
  if (a.rows <= kTileSide || !has_tile_rows(a) || half % qw::kChannelsPerBlock != 0) return false;
  linear_many_rows(a, half / qw::kChannelsPerBlock, 1, 0, team,
                   [&](char*, int64_t, int64_t) { return GateSums{a}; });
  return true;
}

// A linear of q, k and v, fused with `qk_norm_rope_cache`. Returns false, with nothing written,
// where the shape doesn't allow it.
template <class Element>
bool linear_rope_cache_amx(const qw::LinearArgs& a, const qw::RopeCacheArgs<Element>& rope,
                           qw::Team& team) {
  const int64_t tile_channels = 2 * qw::kChannelsPerBlock, head_dim = rope.cache.head_dim;
  if (a.rows <= kTileSide || !has_tile_rows(a) || head_dim % tile_channels != 0) return false;
  const int64_t unit = head_dim / tile_channels;
  const int64_t heads = kChunkColumnTiles / unit > 0 ? kChunkColumnTiles / unit : 1;
  const int64_t stride = heads * head_dim;
  linear_many_rows(a, a.weight.out_features / tile_channels, unit,
                   kRowTileRows * stride * sizeof(float), team,
                   [&](char* memory, int64_t begin, int64_t end) {
                     return RopeSums<Element>{a, rope, reinterpret_cast<float*>(memory),
                                              stride, begin, (end - begin) / unit};
                   });
  return true;
}

}  // namespace
