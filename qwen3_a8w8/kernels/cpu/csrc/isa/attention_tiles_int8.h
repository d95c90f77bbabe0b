// Operands of attention over an int8 cache: queries and weights as three bytes each (byte_parts.h),
// signed for queries, unsigned for weights. K is loaded from the cache as it is; V is rearranged,
// four neighbouring positions side by side. Sums of products are exact, so their order doesn't
// matter.
#pragma once

#include "attention_tiles.h"
#include "byte_parts.h"

namespace {

template <>
struct TileOperands<int8_t> {
  using Query = int8_t;
  using Weight = uint8_t;
  using Sum = int32_t;
  static constexpr int64_t kGroups = kContextChunk / kTileSide;

  const int8_t* k[kGroups];  // groups of 16 positions in the cache: [16][head_dim]
  const int8_t* v[kGroups];
  int8_t* values;  // [positions / 64][head_dim / 16][16 fours of positions][16 dimensions][4]
  int64_t head_dim;
  int64_t next_head;  // bytes to the same positions of the next KV head, 0 if there is none
  int64_t groups;

  static int64_t bytes(int64_t head_dim) { return kContextChunk * head_dim; }
  static int64_t query_bytes(int64_t head_dim) { return kTileSide * (kParts * head_dim + 4); }

  TileOperands(char* memory, const qw::CacheView<int8_t>& cache, const QueryBlock& q,
               int64_t begin, int64_t length)
      : values(reinterpret_cast<int8_t*>(memory)), head_dim(cache.head_dim) {
    next_head = q.kv_head + 1 < cache.kv_heads ? cache.block_size * head_dim : 0;
    groups = qw::ceil_div(length, kTileSide);
    for (int64_t g = 0; g < kGroups; ++g) {
      // Groups past the end repeat the last one.
      const int64_t at = begin + (g < groups ? g : groups - 1) * kTileSide;
      const int64_t row =
          cache.row(q.table[at / cache.block_size], q.kv_head, at % cache.block_size);
      k[g] = cache.k + row * head_dim;
      v[g] = cache.v + row * head_dim;
    }
  }

  // Parts of a set's rows of q as [tiles][head_dim / 64][16 fours of dimensions][columns][4], and
  // each row's unit, the value of 1 in its integers. Columns without a row are 0.
  template <int kTiles, class RowAt>
  static void split_rows(RowAt row_at, int64_t rows, int64_t head_dim, int8_t* q, float* units) {
    float factors[kTileSide];
    for (int64_t r = 0; r < rows; ++r) {
      LargestSize largest;
      for (int64_t d = 0; d < head_dim; d += W) largest.add(load(row_at(r) + d));
      units[r] = largest.get() / kMostSigned;
      factors[r] = kMostSigned / largest.get();
    }
    // 128 is added to every byte before the split and subtracted (by flipping the top bit) after
    // it, which gives signed bytes.
    const __m512i bias = _mm512_set1_epi32(0x808080), flip = _mm512_set1_epi8(-128);
    for (int64_t d = 0; d < head_dim; d += 64) {
      __m512i columns[kTiles][kTileSide] = {};
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = row_at(r) + d;
        __m512i x[4], parts[kParts];
        for (int64_t j = 0; j < 4; ++j) {
          x[j] = (__m512i)to_int(load(from + j * W) * splat(factors[r])) + bias;
        }
        take_bytes(x, parts);
        for (int part = 0; part < kParts; ++part) {
          (kTiles == 1 ? columns[0][part * kStackedRows + r] : columns[part % kTiles][r]) =
              _mm512_xor_si512(parts[part], flip);
        }
      }
      for (int tile = 0; tile < kTiles; ++tile) {
        transpose_16x16(columns[tile]);
        int8_t* to = q + (tile * head_dim + d) * kTileSide;
        for (int64_t i = 0; i < kTileSide; ++i) {
          _mm512_storeu_si512(to + (i % 4 * 4 + i / 4) * kTileRowBytes, columns[tile][i]);
        }
      }
    }
  }

  template <class RowAt>
  static void split_queries(RowAt row_at, int64_t rows, bool is_few, int64_t head_dim, char* out) {
    auto* q = reinterpret_cast<int8_t*>(out);
    auto* units = reinterpret_cast<float*>(out + kTileSide * kParts * head_dim);
    if (is_few) {
      split_rows<1>(row_at, rows, head_dim, q, units);
    } else {
      split_rows<kParts>(row_at, rows, head_dim, q, units);
    }
  }

  // Products of few rows with 64 positions: [4][16 positions][columns].
  void multiply_keys_few(const int8_t* q, int64_t group, int32_t* products) const {
    const int8_t* const* from = k + group;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < head_dim; d += 64) {
      _tile_loadd(4, q + d * kTileSide, kTileRowBytes);
      _tile_loadd(5, from[0] + d, head_dim);
      _tile_dpbssd(0, 5, 4);
      _tile_loadd(6, from[1] + d, head_dim);
      _tile_dpbssd(1, 6, 4);
      _tile_loadd(7, from[2] + d, head_dim);
      _tile_dpbssd(2, 7, 4);
      _tile_loadd(5, from[3] + d, head_dim);
      _tile_dpbssd(3, 5, 4);
    }
    _tile_stored(0, products, kTileRowBytes);
    _tile_stored(1, products + kTileNumbers, kTileRowBytes);
    _tile_stored(2, products + 2 * kTileNumbers, kTileRowBytes);
    _tile_stored(3, products + 3 * kTileNumbers, kTileRowBytes);
  }

  // Products of many rows with 32 positions: [2][parts][16 positions][rows].
  void multiply_keys_many(const int8_t* q, int64_t group, int32_t* products) const {
    const int64_t part = head_dim * kTileSide;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t d = 0; d < head_dim; d += 64) {
      const int8_t* from = q + d * kTileSide;
      _tile_loadd(6, k[group] + d, head_dim);
      _tile_loadd(7, from, kTileRowBytes);
      _tile_dpbssd(0, 6, 7);
      _tile_loadd(7, from + part, kTileRowBytes);
      _tile_dpbssd(1, 6, 7);
      _tile_loadd(7, from + 2 * part, kTileRowBytes);
      _tile_dpbssd(2, 6, 7);
      _tile_loadd(6, k[group + 1] + d, head_dim);
      _tile_dpbssd(5, 6, 7);
      _tile_loadd(7, from + part, kTileRowBytes);
      _tile_dpbssd(4, 6, 7);
      _tile_loadd(7, from, kTileRowBytes);
      _tile_dpbssd(3, 6, 7);
    }
    _tile_stored(0, products, kTileRowBytes);
    _tile_stored(1, products + kTileNumbers, kTileRowBytes);
    _tile_stored(2, products + 2 * kTileNumbers, kTileRowBytes);
    _tile_stored(3, products + 3 * kTileNumbers, kTileRowBytes);
    _tile_stored(4, products + 4 * kTileNumbers, kTileRowBytes);
    _tile_stored(5, products + 5 * kTileNumbers, kTileRowBytes);
  }

  static int64_t groups_per_round(const TileSet& set) { return set.is_few ? 4 : 2; }

  // One group of a round's products: x[row] has the positions.
  void take_group(const TileSet& set, const char* queries, const char* round, int64_t index,
                  VF* x) const {
    const auto* units = reinterpret_cast<const float*>(queries + kTileSide * kParts * head_dim);
    const auto* from = reinterpret_cast<const int32_t*>(round);
    __m512i t[kTileSide];
    if (set.is_few) {
      from += index * kTileNumbers;
      for (int64_t i = 0; i < kTileSide; ++i) t[i] = line_at(from + i * kTileSide);
      transpose_16x16(t);
      for (int64_t r = 0; r < kStackedRows; ++r) {
        x[r] = join_parts(t[r], t[kStackedRows + r], t[2 * kStackedRows + r]);
      }
    } else {
      from += index * kParts * kTileNumbers;
      for (int64_t i = 0; i < kTileSide; ++i, from += kTileSide) {
        t[i] = (__m512i)join_parts(line_at(from), line_at(from + kTileNumbers),
                                   line_at(from + 2 * kTileNumbers));
      }
      transpose_16x16(t);
      memcpy(x, t, sizeof t);
    }
    for (int64_t r = 0; r < set.rows; ++r) x[r] = x[r] * splat(units[r]);
  }

  // Rearranges V into operands, with positions in the order that `take_bytes` gives to weights. Of
  // 64 dimensions, 128-bit lane L of tile t has the four from 16 L + 4 t on. Also prefetches the
  // next head's keys.
  void prepare_values() const {
    for (int64_t group = 0; group < groups; ++group) {
      int8_t* to = values + group / 4 * 64 * head_dim + group % 4 * kTileRowBytes;
      if (next_head != 0) {
        for (int64_t line = 0; line < kTileSide * head_dim; line += 64) {
          __builtin_prefetch(k[group] + next_head + line, 0, 2);
        }
      }
      for (int64_t four = 0; four < 4; ++four, to += 4 * kTileRowBytes) {
        const int8_t* from = v[group] + 4 * four * head_dim;
        for (int64_t d = 0; d < head_dim; d += kTileDims) {
          __m512i rows[4];
          for (int64_t i = 0; i < 4; ++i) rows[i] = line_at(from + i * head_dim + d);
          const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]);
          const __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]);
          const __m512i high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
          const __m512i high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
          int8_t* tiles = to + d * 64;
          _mm512_storeu_si512(tiles, _mm512_unpacklo_epi16(low01, low23));
          _mm512_storeu_si512(tiles + kTileBytes, _mm512_unpackhi_epi16(low01, low23));
          _mm512_storeu_si512(tiles + 2 * kTileBytes, _mm512_unpacklo_epi16(high01, high23));
          _mm512_storeu_si512(tiles + 3 * kTileBytes, _mm512_unpackhi_epi16(high01, high23));
        }
      }
    }
  }

  // A row's scores to the parts of its weights e * v_factor, which take the place of the scores.
  static RowWeights weigh(const TileSet& set, int64_t row, float* scores, float top,
                          const float* v_factor, char* scratch) {
    const int64_t length = set.lengths[row], end = qw::round_up(set.longest, 64);
    const int64_t part_stride = set.part_rows() * kContextChunk;
    auto* weights = reinterpret_cast<uint8_t*>(scratch) + row * kContextChunk;
    LargestSize largest;
    VF sum{};
    int64_t p = 0;
    for (; p < qw::round_up(length, 64); p += W) {
      const VF e = exp_below(scores, p, length, splat(top));
      sum = sum + e;
      // Factors past the row's end may be anything.
      const VF weight = (VF)_mm512_maskz_mul_ps(positions_below(length, p), (__m512)e,
                                                (__m512)load(v_factor + p));
      largest.add(weight);
      store(scores + p, weight);
    }
    const VF factor = splat(kMostUnsigned / largest.get());
    for (p = 0; p < length; p += 64) {
      __m512i x[4], parts[kParts];
      for (int64_t j = 0; j < 4; ++j) {
        x[j] = (__m512i)to_int(load(scores + p + j * W) * factor);
      }
      take_bytes(x, parts);
      for (int64_t part = 0; part < kParts; ++part) {
        _mm512_storeu_si512(weights + part * part_stride + p, parts[part]);
      }
    }
    for (int64_t part = 0; part < kParts; ++part) {
      memset(weights + part * part_stride + p, 0, end - p);
    }
    return {hsum(sum), largest.get() / kMostUnsigned};
  }

  // Results of few rows, 64 dimensions.
  void multiply_values_few(const uint8_t* weights, int64_t d, int64_t longest,
                           int32_t* sums) const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < longest; p += 64) {
      const int8_t* tiles = values + p * head_dim + d * 64;
      _tile_loadd(4, weights + p, kContextChunk);
      _tile_loadd(5, tiles, kTileRowBytes);
      _tile_dpbusd(0, 4, 5);
      _tile_loadd(6, tiles + kTileBytes, kTileRowBytes);
      _tile_dpbusd(1, 4, 6);
      _tile_loadd(7, tiles + 2 * kTileBytes, kTileRowBytes);
      _tile_dpbusd(2, 4, 7);
      _tile_loadd(5, tiles + 3 * kTileBytes, kTileRowBytes);
      _tile_dpbusd(3, 4, 5);
    }
    _tile_stored(0, sums, 4 * kTileDims);
    _tile_stored(1, sums + 16, 4 * kTileDims);
    _tile_stored(2, sums + 32, 4 * kTileDims);
    _tile_stored(3, sums + 48, 4 * kTileDims);
  }

  // The same of many rows, 32 dimensions.
  void multiply_values_many(const uint8_t* weights, int64_t d, int64_t longest,
                            int32_t* sums) const {
    constexpr int64_t kPart = kTileSide * kContextChunk, kPartSums = kTileSide * kTileDims;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t p = 0; p < longest; p += 64) {
      const int8_t* tiles = values + p * head_dim + d * 64;
      _tile_loadd(6, weights + p, kContextChunk);
      _tile_loadd(7, tiles, kTileRowBytes);
      _tile_dpbusd(0, 6, 7);
      _tile_loadd(7, tiles + kTileBytes, kTileRowBytes);
      _tile_dpbusd(1, 6, 7);
      _tile_loadd(6, weights + kPart + p, kContextChunk);
      _tile_dpbusd(3, 6, 7);
      _tile_loadd(7, tiles, kTileRowBytes);
      _tile_dpbusd(2, 6, 7);
      _tile_loadd(6, weights + 2 * kPart + p, kContextChunk);
      _tile_dpbusd(4, 6, 7);
      _tile_loadd(7, tiles + kTileBytes, kTileRowBytes);
      _tile_dpbusd(5, 6, 7);
    }
    _tile_stored(0, sums, 4 * kTileDims);
    _tile_stored(1, sums + 16, 4 * kTileDims);
    _tile_stored(2, sums + kPartSums, 4 * kTileDims);
    _tile_stored(3, sums + kPartSums + 16, 4 * kTileDims);
    _tile_stored(4, sums + 2 * kPartSums, 4 * kTileDims);
    _tile_stored(5, sums + 2 * kPartSums + 16, 4 * kTileDims);
  }

  // A row's results from their parts, `stride` bytes apart.
  static void join_row(const char* sums, int64_t stride, float unit, float* out) {
    __m512 x[4];
    for (int64_t i = 0; i < 4; ++i, sums += 64) {
      const VF joined =
          join_parts(line_at(sums), line_at(sums + stride), line_at(sums + 2 * stride));
      x[i] = (__m512)(joined * splat(unit));
    }
    store_lanes(x, out);
  }
};

}  // namespace
