// What becomes of the sums of a linear of many rows, see linear_amx_many.h.
#pragma once

#include "linear_amx_many.h"
#include "rope_cache.h"

namespace {

// Calls fn(row of the band, first, second) with the scaled sums of a pair whose blocks begin with
// channels `c0` and `c1`, for the rows [begin, end).
template <class Fn>
inline void for_scaled(const qw::LinearArgs& a, const Band& band, const int32_t* sums,
                       int64_t begin, int64_t end, int64_t c0, int64_t c1, Fn fn) {
  const VF w0 = load(a.w_scale + c0), w1 = load(a.w_scale + c1);
  for (int64_t r = begin; r < end; ++r) {
    const int32_t* from = sums_of(band, sums, r);
    const VF x_scale = splat(a.x_scale[band.row + r]);
    fn(r, scaled(from, band.start[r], x_scale, w0),
       scaled(from + kTileNumbers, band.start[r], x_scale, w1));
  }
}

// y = sums * x_scale * w_scale (+ residual).
template <bool kAdds>
struct StoreSums {
  static constexpr bool kEndsBands = false;
  const qw::LinearArgs& a;

  Pair pair(int64_t i) const {
    return {2 * i, 2 * i + 1 < a.weight.blocks() ? 2 * i + 1 : 2 * i};
  }
  void finish(const Band& band, int64_t i, const int32_t* sums, int64_t begin, int64_t end) const {
    const int64_t width = a.weight.out_features, channel = 2 * i * qw::kChannelsPerBlock;
    if (width - channel < 2 * qw::kChannelsPerBlock) {
      finish_some(band, channel, sums, begin, end);
      return;
    }
    for_scaled(a, band, sums, begin, end, channel, channel + W, [&](int64_t r, VF y0, VF y1) {
      const int64_t at = (band.row + r) * width + channel;
      if (kAdds) {
        y0 = load(a.residual + at) + y0;
        y1 = load(a.residual + at + W) + y1;
      }
      store(a.y + at, y0);
      store(a.y + at + W, y1);
    });
  }
  // Fewer channels than a pair has.
  void finish_some(const Band& band, int64_t channel, const int32_t* sums, int64_t begin,
                   int64_t end) const {
    for (int64_t r = begin; r < end; ++r) {
      const VF x_scale = splat(a.x_scale[band.row + r]);
      const int64_t width = a.weight.out_features;
      const int32_t* from = sums_of(band, sums, r);
      for (int64_t c = channel; c < width; c += W, from += kTileNumbers) {
        const int n = at_most_w(width - c);
        const int64_t at = (band.row + r) * width + c;
        VF y = scaled(from, band.start[r], x_scale, load_upto(a.w_scale + c, n));
        if (kAdds) y = load_upto(a.residual + at, n) + y;
        store_upto(a.y + at, y, n);
      }
    }
  }
  void end_band(const Band&) const {}
};

// silu(gate) * up, for weights whose first half are the gates; y is [rows, half].
struct GateSums {
  static constexpr bool kEndsBands = false;
  const qw::LinearArgs& a;

  int64_t half() const { return a.weight.out_features / 2; }
  Pair pair(int64_t i) const { return {i, i + half() / qw::kChannelsPerBlock}; }
  void finish(const Band& band, int64_t i, const int32_t* sums, int64_t begin, int64_t end) const {
    const int64_t channel = i * qw::kChannelsPerBlock;
    for_scaled(a, band, sums, begin, end, channel, half() + channel,
               [&](int64_t r, VF gate, VF up) {
                 store(a.y + (band.row + r) * half() + channel, silu_mul(gate, up));
               });
  }
  void end_band(const Band&) const {}
};

// Heads of q, k and v as `qk_norm_rope_cache` leaves them; a chunk's sums of a band are scaled in
// `rows` [kBandRows][stride] before.
template <class Element>
struct RopeSums {
  static constexpr bool kEndsBands = true;
  const qw::LinearArgs& a;
  const qw::RopeCacheArgs<Element>& rope;
  float* rows;
  int64_t stride, first_pair, num_heads;

  Pair pair(int64_t i) const { return {2 * i, 2 * i + 1}; }
  void finish(const Band& band, int64_t i, const int32_t* sums, int64_t begin, int64_t end) const {
    const int64_t channel = 2 * i * qw::kChannelsPerBlock;
    float* y = rows + (i - first_pair) * 2 * qw::kChannelsPerBlock;
    for_scaled(a, band, sums, begin, end, channel, channel + W, [&](int64_t r, VF y0, VF y1) {
      store(y + r * stride, y0);
      store(y + r * stride + W, y1);
    });
  }
  void end_band(const Band& band) const {
    const int64_t head_dim = rope.cache.head_dim;
    const int64_t first = first_pair * 2 * qw::kChannelsPerBlock / head_dim;
    for (int64_t r = 0; r < band.rows; ++r) {
      for (int64_t h = 0; h < num_heads; ++h) {
        rope_cache_head(rope, band.row + r, first + h, rows + r * stride + h * head_dim);
      }
    }
  }
};

}  // namespace
