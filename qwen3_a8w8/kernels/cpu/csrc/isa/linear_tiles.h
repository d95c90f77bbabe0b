// What int8 linears with AMX tiles share: 16 rows x 16 channels x 64 inputs per instruction, signed
// activations times unsigned weights. Integer sums are exact, so results are those of the other
// paths, bit for bit. The packed weights of 64 inputs of a block are a tile as they lie in memory,
// and so are 16 rows of activations: nothing is regrouped.
#pragma once

#include "amx.h"
#include "linear.h"

namespace {

constexpr int64_t kTileDepth = 64;  // inputs of a tile

// Whether tiles serve this linear: they need rows padded with zeros and whole groups of weights.
inline bool has_tile_rows(const qw::LinearArgs& a) {
  return a.x.has_trailer && a.weight.in_features % kTileDepth == 0;
}

inline const int8_t* row_of(const qw::LinearArgs& a, int64_t row) {
  return a.x.data + row * a.x.stride;
}

// What takes the +128 of the weights out of a row's sums again.
inline int32_t start_of(const qw::LinearArgs& a, int64_t row) {
  int32_t sum;
  memcpy(&sum, row_of(a, row) + qw::round_up(a.weight.in_features, 64), sizeof sum);
  return -128 * sum;
}

// Scaled sums of a row and a block.
inline VF scaled(const int32_t* sums, int32_t start, VF x_scale, VF w_scale) {
  VI s;
  memcpy(&s, sums, sizeof s);
  return to_float(s + splat_int(start)) * x_scale * w_scale;
}

// Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. `upper` and `lower` are
// the rows of the two tiles of activations; without lower ones all sums belong to the upper.
inline void configure_tiles(int64_t upper, int64_t lower) {
  TileConfig config;
  const int64_t below = lower > 0 ? lower : upper;
  const int64_t rows[8] = {upper, upper, below, below, upper, below, kTileSide, kTileSide};
  for (int tile = 0; tile < 8; ++tile) config.set(tile, rows[tile], kTileRowBytes);
  _tile_loadconfig(&config);
}

}  // namespace
