// The output projection with AMX tiles: 16 token ids x 16 rows x 32 inputs per instruction.
//
// A (row, token id) pair is one chain of the instruction's multiply-adds over the inputs in order,
// regardless of what else is in its tiles. The left operand is the weights as stored, the right one
// activations with pairs of inputs side by side. Two tiles of ids make two independent chains, so
// that a product doesn't wait for the one before it.
#pragma once

#include "amx.h"
#include "lm_head.h"
#include "widen.h"

namespace {

constexpr int64_t kHeadDepth = 32;      // inputs of a tile
constexpr int64_t kHeadAheadAmx = 256;  // inputs by which weights are prefetched

// Activations as bfloat16, in groups of up to 16 rows: [groups][width / 2][rows][2].
struct HeadRows {
  uint16_t* data;
  int64_t rows, width;

  int64_t groups() const { return qw::ceil_div(rows, kTileSide); }
  int64_t rows_of(int64_t group) const {
    const int64_t left = rows - group * kTileSide;
    return left < kTileSide ? left : kTileSide;
  }
  uint16_t* group(int64_t g) const { return data + g * kTileSide * width; }
};

inline void pack_head_rows(const float* x, const HeadRows& packed, qw::Team& team) {
  parallel_for(team, packed.groups(), [&](int64_t g, int) {
    const int64_t rows = packed.rows_of(g);
    uint16_t* out = packed.group(g);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + (g * kTileSide + r) * packed.width;
      for (int64_t i = 0; i < packed.width; i += 2) {
        out[i * rows + 2 * r] = float_to_bf16(row[i]);
        out[i * rows + 2 * r + 1] = float_to_bf16(row[i + 1]);
      }
    }
  });
}

// Sums in tiles 0 and 1, weights in 2 and 3, activations in 4: `upper` and `lower` ids.
inline void configure_head(int64_t upper, int64_t lower, int64_t rows) {
  TileConfig config;
  config.set(0, upper, 4 * rows);
  config.set(1, lower, 4 * rows);
  config.set(2, upper, kTileRowBytes);
  config.set(3, lower, kTileRowBytes);
  config.set(4, kTileSide, 4 * rows);
  _tile_loadconfig(&config);
}

// Sums [32][16] of two tiles of ids and one group of rows.
inline void head_products(const uint16_t* upper, const uint16_t* lower, int64_t width,
                          const uint16_t* x, int64_t rows, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t k = 0; k < width; k += kHeadDepth) {
    // Further on in each id's row, and past its end in that of the next tiles.
    const int64_t ahead = k + kHeadAheadAmx;
    const int64_t next = ahead < width ? ahead : ahead + (2 * kTileSide - 1) * width;
    for (int64_t id = 0; id < 2 * kTileSide; ++id) __builtin_prefetch(upper + id * width + next);
    _tile_loadd(4, x + k * rows, 4 * rows);
    _tile_loadd(2, upper + k, 2 * width);
    _tile_dpbf16ps(0, 2, 4);
    _tile_loadd(3, lower + k, 2 * width);
    _tile_dpbf16ps(1, 3, 4);
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + kTileNumbers, kTileRowBytes);
}

// Stores the sums [ids][rows] of one tile as logits [rows][ids].
inline void store_logits(const qw::LmHeadArgs& a, const float* sums, int64_t row0, int64_t rows,
                         int64_t id0, int64_t ids) {
  __m512i t[kTileSide];
  for (int64_t id = 0; id < kTileSide; ++id) t[id] = _mm512_loadu_si512(sums + id * kTileSide);
  transpose_16x16(t);
  for (int64_t r = 0; r < rows; ++r) {
    store_upto(a.y + (row0 + r) * a.vocab + id0, (VF)t[r], at_most_w(ids));
  }
}

// All rows of up to 32 ids.
inline void head_tiles(const qw::LmHeadArgs& a, const HeadRows& x, int64_t id0, int64_t ids) {
  alignas(64) float sums[2 * kTileNumbers];
  const uint16_t* w = a.weight + id0 * a.width;
  // Without lower ids, the lower tile repeats the upper one and its sums are ignored.
  const int64_t upper = ids < kTileSide ? ids : kTileSide, lower = ids - upper;
  const uint16_t* second = lower > 0 ? w + kTileSide * a.width : w;
  int64_t configured = 0;
  for (int64_t g = 0; g < x.groups(); ++g) {
    const int64_t rows = x.rows_of(g);
    if (rows != configured) configure_head(upper, lower > 0 ? lower : upper, rows);
    configured = rows;
    head_products(w, second, a.width, x.group(g), rows, sums);
    store_logits(a, sums, g * kTileSide, rows, id0, upper);
    if (lower > 0) {
      store_logits(a, sums + kTileNumbers, g * kTileSide, rows, id0 + kTileSide, lower);
    }
  }
}

void lm_head_amx(const qw::LmHeadArgs& a, qw::Team& team) {
  if (a.width % kHeadDepth != 0) {  // for any number of rows: a model's logits are computed alike
    lm_head(a, team);
    return;
  }
  if (a.rows == 0) return;
  char* memory = team.shared(a.rows * a.width * sizeof(uint16_t));
  const HeadRows x = {reinterpret_cast<uint16_t*>(memory), a.rows, a.width};
  pack_head_rows(a.x, x, team);
  parallel_ranges(team, a.vocab, kHeadGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t id = begin; id < end; id += 2 * kTileSide) {
      head_tiles(a, x, id, end - id < 2 * kTileSide ? end - id : 2 * kTileSide);
    }
    _tile_release();
  });
}

}  // namespace
