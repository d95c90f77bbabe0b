// Operands of attention over a bfloat16 cache. Queries and weights are split into three bfloat16
// parts, which represent a float32 exactly. Products are exact; sums are float32, over dimensions
// in order and over positions 32 at a time.
#pragma once

#include "attention_tiles.h"
#include "bf16_tiles.h"

namespace {

template <>
struct TileOperands<uint16_t> {
  using Query = uint16_t;
  using Weight = uint16_t;
  using Sum = float;

  const qw::CacheView<uint16_t>& cache;
  const QueryBlock& block;
  int64_t begin, length, head_dim;
  uint16_t* k;  // [positions][head_dim], of 64 dimensions the even ones first
  uint16_t* v;  // [positions / 2][head_dim][2]

  static int64_t bytes(int64_t head_dim) { return 4 * kContextChunk * head_dim; }
  static int64_t query_bytes(int64_t head_dim) { return 2 * kParts * kTileSide * head_dim; }

  TileOperands(char* memory, const qw::CacheView<uint16_t>& cache, const QueryBlock& q,
               int64_t begin, int64_t length)
      : cache(cache),
        block(q),
        begin(begin),
        length(length),
        head_dim(cache.head_dim),
        k(reinterpret_cast<uint16_t*>(memory)),
        v(k + kContextChunk * head_dim) {
    for_runs(cache, q, begin, begin + length, [&](int64_t row, int64_t at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t d = 0; d < head_dim; d += kTileDims) {
          __m512i even, odd;
          split_64(cache.k + (row + i) * head_dim + d, even, odd);
          uint16_t* to = k + (at - begin + i) * head_dim + d;
          _mm512_storeu_si512(to, even);
          _mm512_storeu_si512(to + 32, odd);
        }
      }
    });
    // Tiles load whole groups; zeros make the scores past the end, which are ignored, defined.
    const int64_t end = qw::round_up(length, kTileSide);
    memset(k + length * head_dim, 0, 2 * (end - length) * head_dim);
  }

  // Parts of a set's rows of q as [tiles][head_dim / 32][16 pairs of dimensions][columns][2], in
  // the order of K. Columns without a row are 0.
  template <int kTiles, class RowAt>
  static void split_rows(RowAt row_at, int64_t rows, int64_t head_dim, uint16_t* q) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = even + _mm512_set1_epi64(1LL << 32 | 1);
    for (int64_t d = 0; d < head_dim; d += 32) {
      // Even or odd ones of 64 dimensions.
      const __m512i which = d / 32 % 2 == 0 ? even : odd;
      __m512i columns[kTiles][kTileSide] = {};
      for (int64_t r = 0; r < rows; ++r) {
        const float* x = row_at(r) + d / 64 * 64;
        const auto pick = [&](int64_t at) {
          return (VF)_mm512_permutex2var_ps((__m512)load(x + at), which, (__m512)load(x + at + W));
        };
        VF low = pick(0), high = pick(32);
        for (int64_t part = 0; part < kParts; ++part) {
          const VF low_part = nearest_bf16(low), high_part = nearest_bf16(high);
          (kTiles == 1 ? columns[0][part * kStackedRows + r] : columns[part % kTiles][r]) =
              as_bf16(low_part, high_part);
          low = low - low_part;
          high = high - high_part;
        }
      }
      for (int tile = 0; tile < kTiles; ++tile) {
        transpose_16x16(columns[tile]);
        memcpy(q + (tile * head_dim + d) * kTileSide, columns[tile], sizeof columns[tile]);
      }
    }
  }

  template <class RowAt>
  static void split_queries(RowAt row_at, int64_t rows, bool is_few, int64_t head_dim, char* out) {
    auto* q = reinterpret_cast<uint16_t*>(out);
    if (is_few) {
      split_rows<1>(row_at, rows, head_dim, q);
    } else {
      split_rows<kParts>(row_at, rows, head_dim, q);
    }
  }

  static int64_t groups_per_round(const TileSet&) { return 1; }

  // Products of few rows with 16 positions: [16 positions][columns].
  void multiply_keys_few(const uint16_t* q, int64_t group, float* products) const {
    const uint16_t* keys = k + group * kTileSide * head_dim;
    _tile_zero(0);
    for (int64_t d = 0; d < head_dim; d += 32) {
      _tile_loadd(1, keys + d, 2 * head_dim);
      _tile_loadd(2, q + d * kTileSide, kTileRowBytes);
      _tile_dpbf16ps(0, 1, 2);
    }
    _tile_stored(0, products, kTileRowBytes);
  }

  // The same of many rows: [parts][16 positions][rows].
  void multiply_keys_many(const uint16_t* q, int64_t group, float* products) const {
    const uint16_t* keys = k + group * kTileSide * head_dim;
    const int64_t part = head_dim * kTileSide;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    for (int64_t d = 0; d < head_dim; d += 32) {
      const uint16_t* from = q + d * kTileSide;
      _tile_loadd(3, keys + d, 2 * head_dim);
      _tile_loadd(4, from, kTileRowBytes);
      _tile_dpbf16ps(0, 3, 4);
      _tile_loadd(4, from + part, kTileRowBytes);
      _tile_dpbf16ps(1, 3, 4);
      _tile_loadd(4, from + 2 * part, kTileRowBytes);
      _tile_dpbf16ps(2, 3, 4);
    }
    _tile_stored(0, products, kTileRowBytes);
    _tile_stored(1, products + kTileNumbers, kTileRowBytes);
    _tile_stored(2, products + 2 * kTileNumbers, kTileRowBytes);
  }

  // One group of a round's products: x[row] has the positions.
  void take_group(const TileSet& set, const char* /*queries*/, const char* round, int64_t /*index*/,
                  VF* x) const {
    const auto* from = reinterpret_cast<const float*>(round);
    __m512i t[kTileSide];
    if (set.is_few) {
      for (int64_t i = 0; i < kTileSide; ++i) t[i] = line_at(from + i * kTileSide);
      transpose_16x16(t);
      for (int64_t r = 0; r < kStackedRows; ++r) {
        x[r] = ((VF)t[r] + (VF)t[kStackedRows + r]) + (VF)t[2 * kStackedRows + r];
      }
    } else {
      for (int64_t i = 0; i < kTileSide; ++i, from += kTileSide) {
        t[i] = (__m512i)((load(from) + load(from + kTileNumbers)) + load(from + 2 * kTileNumbers));
      }
      transpose_16x16(t);
      memcpy(x, t, sizeof t);
    }
  }

  void prepare_values() const {
    for_runs(cache, block, begin, begin + length, [&](int64_t row, int64_t at, int64_t count) {
      for (int64_t i = 0; i < count; i += 2) {
        for (int64_t d = 0; d < head_dim; d += kTileDims) {
          const uint16_t* from = cache.v + (row + i) * head_dim + d;
          __m512i even, odd, next_even{}, next_odd{};
          split_64(from, even, odd);
          if (i + 1 < count) split_64(from + head_dim, next_even, next_odd);
          store_pairs(even, odd, next_even, next_odd, v + (at - begin + i) * head_dim + 2 * d);
        }
      }
    });
    // Tiles load 32 positions; weights past the end are 0, which cancels finite numbers only.
    const int64_t written = qw::round_up(length, 2), end = qw::round_up(length, 32);
    memset(v + written * head_dim, 0, 2 * (end - written) * head_dim);
  }

  // A row's scores to the parts of its weights e * v_factor.
  static RowWeights weigh(const TileSet& set, int64_t row, const float* scores, float top,
                          const float* v_factor, char* scratch) {
    const int64_t length = set.lengths[row], end = qw::round_up(set.longest, 32);
    const int64_t part_stride = set.part_rows() * kContextChunk;
    auto* weights = reinterpret_cast<uint16_t*>(scratch) + row * kContextChunk;
    VF sum{};
    int64_t p = 0;
    for (; p < length; p += 32) {
      VF w[2];
      for (int64_t i = 0; i < 2; ++i) {
        const VF e = exp_below(scores, p + i * W, length, splat(top));
        sum = sum + e;
        w[i] = e * load(v_factor + p + i * W);
      }
      for (int64_t part = 0; part < kParts; ++part) {
        const VF nearest[2] = {nearest_bf16(w[0]), nearest_bf16(w[1])};
        _mm512_storeu_si512(weights + part * part_stride + p, as_bf16(nearest[0], nearest[1]));
        w[0] = w[0] - nearest[0];
        w[1] = w[1] - nearest[1];
      }
    }
    for (int64_t part = 0; part < kParts; ++part) {
      memset(weights + part * part_stride + p, 0, 2 * (end - p));
    }
    return {hsum(sum), 1.0f};
  }

  // Results of few rows, 64 dimensions.
  void multiply_values_few(const uint16_t* weights, int64_t d, int64_t longest, float* sums) const {
    const int64_t stride = 4 * head_dim;
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t p = 0; p < longest; p += 32) {
      const uint16_t* pairs = v + p * head_dim + 2 * d;
      _tile_loadd(3, weights + p, 2 * kContextChunk);
      _tile_loadd(2, pairs, stride);
      _tile_dpbf16ps(4, 3, 2);
      _tile_loadd(2, pairs + 32, stride);
      _tile_dpbf16ps(5, 3, 2);
      _tile_loadd(2, pairs + 64, stride);
      _tile_dpbf16ps(6, 3, 2);
      _tile_loadd(2, pairs + 96, stride);
      _tile_dpbf16ps(7, 3, 2);
    }
    _tile_stored(4, sums, 4 * kTileDims);
    _tile_stored(5, sums + 16, 4 * kTileDims);
    _tile_stored(6, sums + 32, 4 * kTileDims);
    _tile_stored(7, sums + 48, 4 * kTileDims);
  }

  // The same of many rows, 32 dimensions.
  void multiply_values_many(const uint16_t* weights, int64_t d, int64_t longest,
                              float* sums) const {
    constexpr int64_t kPart = kTileSide * kContextChunk, kPartSums = kTileSide * kTileDims;
    const int64_t stride = 4 * head_dim;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t p = 0; p < longest; p += 32) {
      const uint16_t* pairs = v + p * head_dim + 2 * d;
      _tile_loadd(6, weights + p, 2 * kContextChunk);
      _tile_loadd(7, pairs, stride);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(7, pairs + 32, stride);
      _tile_dpbf16ps(1, 6, 7);
      _tile_loadd(6, weights + kPart + p, 2 * kContextChunk);
      _tile_dpbf16ps(3, 6, 7);
      _tile_loadd(7, pairs, stride);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(6, weights + 2 * kPart + p, 2 * kContextChunk);
      _tile_dpbf16ps(4, 6, 7);
      _tile_loadd(7, pairs + 32, stride);
      _tile_dpbf16ps(5, 6, 7);
    }
    _tile_stored(0, sums, 4 * kTileDims);
    _tile_stored(1, sums + 16, 4 * kTileDims);
    _tile_stored(2, sums + kPartSums, 4 * kTileDims);
    _tile_stored(3, sums + kPartSums + 16, 4 * kTileDims);
    _tile_stored(4, sums + 2 * kPartSums, 4 * kTileDims);
    _tile_stored(5, sums + 2 * kPartSums + 16, 4 * kTileDims);
  }

  // A row's results from their parts, `stride` bytes apart.
  static void join_row(const char* sums, int64_t stride, float /*unit*/, float* out) {
    VF x[4];
    for (int64_t i = 0; i < 4; ++i, sums += 64) {
      x[i] = ((VF)line_at(sums) + (VF)line_at(sums + stride)) + (VF)line_at(sums + 2 * stride);
    }
    store_in_order(x, out);
  }
};

}  // namespace
