// int8 linears with AMX tiles, alone and with what follows them.
#pragma once

#include "linear_amx_few.h"
#include "linear_amx_many.h"
#include "linear_epilogues.h"

namespace {

constexpr int64_t kAmxLeastRows = 5;  // with fewer, vectors do as well

inline void linear_many_rows(const qw::LinearArgs& a, qw::Team& team) {
  const int64_t pairs = qw::ceil_div(a.weight.blocks(), 2);
  if (a.residual != nullptr) {
    linear_many_rows(a, pairs, 1, 0, team,
                     [&](char*, int64_t, int64_t) { return StoreSums<true>{a}; });
  } else {
    linear_many_rows(a, pairs, 1, 0, team,
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

// The gated activation of a linear of gates and of what they act on, in one go; y is [rows, half of
// the channels]. False if that isn't to be had.
bool linear_silu_mul_amx(const qw::LinearArgs& a, qw::Team& team) {
  const int64_t half = a.weight.out_features / 2;
  if (a.rows <= kTileSide || !has_tile_rows(a) || half % qw::kChannelsPerBlock != 0) return false;
  linear_many_rows(a, half / qw::kChannelsPerBlock, 1, 0, team,
                   [&](char*, int64_t, int64_t) { return GateSums{a}; });
  return true;
}

// Heads of q, k and v from their linear, in one go. False if that isn't to be had.
template <class Element>
bool linear_rope_cache_amx(const qw::LinearArgs& a, const qw::RopeCacheArgs<Element>& rope,
                           qw::Team& team) {
  const int64_t pair_channels = 2 * qw::kChannelsPerBlock, head_dim = rope.cache.head_dim;
  if (a.rows <= kTileSide || !has_tile_rows(a) || head_dim % pair_channels != 0) return false;
  const int64_t unit = head_dim / pair_channels;
  const int64_t heads = kChunkPairs / unit > 0 ? kChunkPairs / unit : 1;
  const int64_t stride = heads * head_dim;
  linear_many_rows(a, a.weight.out_features / pair_channels, unit,
                   kBandRows * stride * sizeof(float), team,
                   [&](char* memory, int64_t begin, int64_t end) {
                     return RopeSums<Element>{a, rope, reinterpret_cast<float*>(memory),
                                              stride, begin, (end - begin) / unit};
                   });
  return true;
}

}  // namespace
