// What int8 linears with AMX tiles share. An instruction multiplies 16 rows x 64 inputs of signed
// activations by 64 inputs x 16 channels of unsigned weights. Integer sums are exact, so results
// equal those of the other paths, bit for bit. Both operands are loaded from where they lie: 64
// inputs of a packed block form a tile, and so do 64 inputs of 16 rows of activations.
#pragma once

#include "amx.h"
#include "linear.h"

namespace {

constexpr int64_t kTileDepth = 64;  // inputs of a tile

// Whether AMX tiles can be used: they need padded rows and a whole number of tiles in depth.
inline bool has_tile_rows(const qw::LinearArgs& a) {
  return a.x.has_trailer && a.weight.in_features % kTileDepth == 0;
}

inline const int8_t* row_of(const qw::LinearArgs& a, int64_t row) {
  return a.x.data + row * a.x.stride;
}

// Added to a row's sums, this cancels the 128 that packing adds to every weight.
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

// Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights. `upper` and `lower` are the numbers
// of rows of tiles 4 and 5; if `lower` is 0, tile 5 is a copy of tile 4 and its sums are ignored.
inline void configure_tiles(int64_t upper, int64_t lower) {
  TileConfig config;
  const int64_t below = lower > 0 ? lower : upper;
  const int64_t rows[8] = {upper, upper, below, below, upper, below, kTileSide, kTileSide};
  for (int tile = 0; tile < 8; ++tile) config.set(tile, rows[tile], kTileRowBytes);
  _tile_loadconfig(&config);
}

}  // namespace
