// The epilogues of linear_amx_many.h: what becomes of the sums of a linear of many rows.
#pragma once

#include "linear_amx_many.h"
#include "rope_cache.h"

namespace {

// Calls fn(row, first, second) for rows [begin, end) of a row tile, with the scaled sums of the two
// blocks of a column tile, which begin with channels `c0` and `c1`.
template <class Fn>
inline void for_scaled(const qw::LinearArgs& a, const RowTile& tile, const int32_t* sums,
                       int64_t begin, int64_t end, int64_t c0, int64_t c1, Fn fn) {
  const VF w0 = load(a.w_scale + c0), w1 = load(a.w_scale + c1);
  for (int64_t r = begin; r < end; ++r) {
    const int32_t* from = sums_of(tile, sums, r);
    const VF x_scale = splat(a.x_scale[tile.row + r]);
    fn(r, scaled(from, tile.start[r], x_scale, w0),
       scaled(from + kTileNumbers, tile.start[r], x_scale, w1));
  }
}

// y = sums * x_scale * w_scale (+ residual).
template <bool kAdds>
struct StoreSums {
  static constexpr bool kEndsRowTiles = false;
  const qw::LinearArgs& a;

  ColumnTile column_tile(int64_t i) const {
    return {2 * i, 2 * i + 1 < a.weight.blocks() ? 2 * i + 1 : 2 * i};
  }
  void finish(const RowTile& tile, int64_t i, const int32_t* sums, int64_t begin,
              int64_t end) const {
    const int64_t width = a.weight.out_features, channel = 2 * i * qw::kChannelsPerBlock;
    if (width - channel < 2 * qw::kChannelsPerBlock) {
      finish_some(tile, channel, sums, begin, end);
      return;
    }
    for_scaled(a, tile, sums, begin, end, channel, channel + W, [&](int64_t r, VF y0, VF y1) {
      const int64_t at = (tile.row + r) * width + channel;
      if (kAdds) {
        y0 = load(a.residual + at) + y0;
        y1 = load(a.residual + at + W) + y1;
      }
      store(a.y + at, y0);
      store(a.y + at + W, y1);
    });
  }
  // The last column tile, with fewer channels than the others.
  void finish_some(const RowTile& tile, int64_t channel, const int32_t* sums, int64_t begin,
                   int64_t end) const {
    for (int64_t r = begin; r < end; ++r) {
      const VF x_scale = splat(a.x_scale[tile.row + r]);
      const int64_t width = a.weight.out_features;
      const int32_t* from = sums_of(tile, sums, r);
      for (int64_t c = channel; c < width; c += W, from += kTileNumbers) {
        const int n = at_most_w(width - c);
        const int64_t at = (tile.row + r) * width + c;
        VF y = scaled(from, tile.start[r], x_scale, load_upto(a.w_scale + c, n));
        if (kAdds) y = load_upto(a.residual + at, n) + y;
        store_upto(a.y + at, y, n);
      }
    }
  }
  void end_row_tile(const RowTile&) const {}
};

// silu(gate) * up, for weights whose first half are the gates; y is [rows, half].
struct GateSums {
  static constexpr bool kEndsRowTiles = false;
  const qw::LinearArgs& a;

  int64_t half() const { return a.weight.out_features / 2; }
  ColumnTile column_tile(int64_t i) const { return {i, i + half() / qw::kChannelsPerBlock}; }
  void finish(const RowTile& tile, int64_t i, const int32_t* sums, int64_t begin,
              int64_t end) const {
    const int64_t channel = i * qw::kChannelsPerBlock;
    for_scaled(a, tile, sums, begin, end, channel, half() + channel,
               [&](int64_t r, VF gate, VF up) {
                 store(a.y + (tile.row + r) * half() + channel, silu_mul(gate, up));
               });
  }
  void end_row_tile(const RowTile&) const {}
};

// Normed and rotated heads of q, k and v, written to where `qk_norm_rope_cache` writes them. A row
// tile's scaled sums are collected in `rows` [kRowTileRows][stride] until its heads are complete.
template <class Element>
struct RopeSums {
  static constexpr bool kEndsRowTiles = true;
  const qw::LinearArgs& a;
  const qw::RopeCacheArgs<Element>& rope;
  float* rows;
  int64_t stride, first_tile, num_heads;

  ColumnTile column_tile(int64_t i) const { return {2 * i, 2 * i + 1}; }
  void finish(const RowTile& tile, int64_t i, const int32_t* sums, int64_t begin,
              int64_t end) const {
    const int64_t channel = 2 * i * qw::kChannelsPerBlock;
    float* y = rows + (i - first_tile) * 2 * qw::kChannelsPerBlock;
    for_scaled(a, tile, sums, begin, end, channel, channel + W, [&](int64_t r, VF y0, VF y1) {
      store(y + r * stride, y0);
      store(y + r * stride + W, y1);
    });
  }
  void end_row_tile(const RowTile& tile) const {
    const int64_t head_dim = rope.cache.head_dim;
    const int64_t first = first_tile * 2 * qw::kChannelsPerBlock / head_dim;
    for (int64_t r = 0; r < tile.rows; ++r) {
      for (int64_t h = 0; h < num_heads; ++h) {
        rope_cache_head(rope, tile.row + r, first + h, rows + r * stride + h * head_dim);
      }
    }
  }
};

}  // namespace
