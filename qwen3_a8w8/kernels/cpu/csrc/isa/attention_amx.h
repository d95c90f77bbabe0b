// One chunk of attention with AMX tiles. Elements of the cache are bfloat16 numbers as they stand
// (int8 has 7 bits and a sign); queries and weights are cut into three bfloat16 parts, which hold
// a float32 exactly. Products are exact, sums float32.
//
// Rows, i.e. (token, head) pairs, are taken in sets, and a set
//   products [parts][positions][rows]: K as it lies times Q^T, dimensions in order,
//   scores [rows][positions]: the parts' products added, from the largest part to the smallest,
//   weights [parts][rows][positions]: softmax; those of positions past a row's end are 0,
//   O [parts][rows][dimensions]: weights times V, positions in order, 32 at a time.
// Few rows (decode) share one tile with all their parts, many (prefill) fill one with each. A row's
// arithmetic is the same in both and knows nothing of other rows, so the bits are the same.
#pragma once

#include "amx.h"
#include "attention_block.h"
#include "bf16_tiles.h"
#include "widen.h"

namespace {

constexpr int kParts = 3;
constexpr int64_t kStackedRows = kTileSide / kParts;  // as many as fit into a tile with their parts
constexpr int64_t kAmxHeadDims = 64;  // dimensions of one round of products with V

// Scratch of a chunk, for heads of `head_dim` dimensions.
struct AmxChunk {
  uint16_t* k;        // [positions][head_dim]
  uint16_t* v;        // [positions / 2][head_dim][2]
  uint16_t* q;        // [tiles][head_dim / 32][16 pairs of dimensions][columns][2]
  float* products;    // [tiles][16 positions][columns]
  float* scores;      // [rows][positions]
  uint16_t* weights;  // [parts x rows][positions]
  float* out;         // [parts x rows][head_dim]

  static int64_t bytes(int64_t head_dim) {
    return kContextChunk * (4 * head_dim + (4 + 2 * kParts) * kTileSide) +
           kParts * kTileSide * (6 * head_dim + 4 * kTileSide);
  }
  AmxChunk(char* memory, int64_t head_dim) {
    const auto take = [&](int64_t count) {
      char* taken = memory;
      memory += count;
      return taken;
    };
    constexpr int64_t kMostRows = kParts * kTileSide;
    k = reinterpret_cast<uint16_t*>(take(2 * kContextChunk * head_dim));
    v = reinterpret_cast<uint16_t*>(take(2 * kContextChunk * head_dim));
    q = reinterpret_cast<uint16_t*>(take(2 * kMostRows * head_dim));
    products = reinterpret_cast<float*>(take(4 * kMostRows * kTileSide));
    scores = reinterpret_cast<float*>(take(4 * kTileSide * kContextChunk));
    weights = reinterpret_cast<uint16_t*>(take(2 * kMostRows * kContextChunk));
    out = reinterpret_cast<float*>(take(4 * kMostRows * head_dim));
  }
};

// Brings a chunk's keys and values into tiles' order; positions up to a whole round are 0.
template <class Element>
inline void widen_chunk(const qw::CacheView<Element>& cache, const QueryBlock& q, int64_t begin,
                        int64_t length, const AmxChunk& c) {
  const int64_t head_dim = cache.head_dim;
  for_runs(cache, q, begin, begin + length, [&](int64_t row, int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; i += 2) {
      const int64_t p = at - begin + i;
      const bool is_pair = i + 1 < count;
      for (int64_t d = 0; d < head_dim; d += kAmxHeadDims) {
        const int64_t offset = (row + i) * head_dim + d;
        __m512i even, odd, next_even{}, next_odd{};
        widen_64(cache.k + offset, even, odd);
        _mm512_storeu_si512(c.k + p * head_dim + d, even);
        _mm512_storeu_si512(c.k + p * head_dim + d + 32, odd);
        if (is_pair) widen_64(cache.k + offset + head_dim, next_even, next_odd);
        _mm512_storeu_si512(c.k + (p + 1) * head_dim + d, next_even);
        _mm512_storeu_si512(c.k + (p + 1) * head_dim + d + 32, next_odd);
        widen_64(cache.v + offset, even, odd);
        if (is_pair) widen_64(cache.v + offset + head_dim, next_even, next_odd);
        store_pairs(even, odd, next_even, next_odd, c.v + p * head_dim + 2 * d);
      }
    }
  });
  // There must be numbers, their weights are 0.
  const int64_t written = qw::round_up(length, 2), end = qw::round_up(length, 32);
  memset(c.k + written * head_dim, 0, 2 * (end - written) * head_dim);
  memset(c.v + written * head_dim, 0, 2 * (end - written) * head_dim);
}

// Parts of rows of q as columns of `kTiles` tiles, dimensions in the order of `widen_64`: all parts
// in one tile, or one in each. Other columns are 0.
template <int kTiles, class RowAt>
inline void split_queries(RowAt row_at, int64_t rows, int64_t head_dim, uint16_t* q) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
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

// Tiles of a set. Few rows: 0 products, 1 keys, 2 queries or values, 3 weights, 4 to 7 results, of
// which weights and results are only as long as they have to be. Many: 0 to 2 products, 3 keys, 4
// queries; then 0 to 5 results, 6 weights, 7 values.
inline void configure_attention(int64_t set_rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool is_short = tile >= 3 && set_rows <= kStackedRows;
    config.set(tile, is_short ? kParts * set_rows : kTileSide, kTileRowBytes);
  }
  _tile_loadconfig(&config);
}

// Sums of the parts' products of few rows with 16 positions: x[row] has the positions.
inline void multiply_keys_few(const AmxChunk& c, const uint16_t* k, int64_t head_dim, VF* x) {
  _tile_zero(0);
  for (int64_t d = 0; d < head_dim; d += 32) {
    _tile_loadd(1, k + d, 2 * head_dim);
    _tile_loadd(2, c.q + d * kTileSide, kTileRowBytes);
    _tile_dpbf16ps(0, 1, 2);
  }
  _tile_stored(0, c.products, kTileRowBytes);
  __m512i t[kTileSide];
  for (int64_t i = 0; i < kTileSide; ++i) t[i] = _mm512_loadu_si512(c.products + i * kTileSide);
  transpose_16x16(t);
  for (int64_t r = 0; r < kStackedRows; ++r) {
    x[r] = ((VF)t[r] + (VF)t[kStackedRows + r]) + (VF)t[2 * kStackedRows + r];
  }
}

// The same of many rows.
inline void multiply_keys_many(const AmxChunk& c, const uint16_t* k, int64_t head_dim, VF* x) {
  constexpr int64_t kTile = kTileSide * kTileSide;
  const int64_t part = head_dim * kTileSide;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  for (int64_t d = 0; d < head_dim; d += 32) {
    const uint16_t* q = c.q + d * kTileSide;
    _tile_loadd(3, k + d, 2 * head_dim);
    _tile_loadd(4, q, kTileRowBytes);
    _tile_dpbf16ps(0, 3, 4);
    _tile_loadd(4, q + part, kTileRowBytes);
    _tile_dpbf16ps(1, 3, 4);
    _tile_loadd(4, q + 2 * part, kTileRowBytes);
    _tile_dpbf16ps(2, 3, 4);
  }
  _tile_stored(0, c.products, kTileRowBytes);
  _tile_stored(1, c.products + kTile, kTileRowBytes);
  _tile_stored(2, c.products + 2 * kTile, kTileRowBytes);
  __m512i t[kTileSide];
  for (int64_t i = 0; i < kTileSide; ++i) {
    const float* at = c.products + i * kTileSide;
    t[i] = (__m512i)((load(at) + load(at + kTile)) + load(at + 2 * kTile));
  }
  transpose_16x16(t);
  memcpy(x, t, sizeof t);
}

// Positions below `length` among the 16 from `at`.
inline __mmask16 positions_below(int64_t length, int64_t at) {
  const int64_t count = length - at;
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// Scores of a set's rows, `end` positions of them; gives each row's largest.
inline void score(const AmxChunk& c, int64_t rows, int64_t set_rows, const int64_t* lengths,
                  int64_t end, int64_t head_dim, const float* k_factor, float* m) {
  __m512 largest[kTileSide];
  for (__m512& x : largest) x = _mm512_set1_ps(-__builtin_inff());
  for (int64_t p = 0; p < end; p += 16) {
    VF x[kTileSide];
    const auto multiply = set_rows > kStackedRows ? multiply_keys_many : multiply_keys_few;
    multiply(c, c.k + p * head_dim, head_dim, x);
    const VF factor = load(k_factor + p);
    for (int64_t r = 0; r < rows; ++r) {
      const VF s = x[r] * factor;
      store(c.scores + r * kContextChunk + p, s);
      const __mmask16 mask = positions_below(lengths[r], p);
      largest[r] = _mm512_mask_max_ps(largest[r], mask, largest[r], (__m512)s);
    }
  }
  for (int64_t r = 0; r < rows; ++r) m[r] = _mm512_reduce_max_ps(largest[r]);
}

// A row's scores to the parts of its weights e * v_factor, `stride` apart, `end` positions of them;
// gives the sum of e.
inline float weigh(const float* scores, int64_t length, int64_t end, float m, const float* v_factor,
                   uint16_t* weights, int64_t stride) {
  const VF top = splat(m);
  VF sum{};
  int64_t p = 0;
  for (; p < length; p += 32) {
    VF w[2];
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t at = p + i * W;
      const VF e = (VF)_mm512_maskz_mov_ps(positions_below(length, at),
                                           (__m512)vexp(load(scores + at) - top));
      sum = sum + e;
      w[i] = e * load(v_factor + at);
    }
    for (int64_t part = 0; part < kParts; ++part) {
      const VF nearest[2] = {nearest_bf16(w[0]), nearest_bf16(w[1])};
      _mm512_storeu_si512(weights + part * stride + p, as_bf16(nearest[0], nearest[1]));
      w[0] = w[0] - nearest[0];
      w[1] = w[1] - nearest[1];
    }
  }
  for (int64_t part = 0; part < kParts; ++part) {
    memset(weights + part * stride + p, 0, 2 * (end - p));
  }
  return hsum(sum);
}

// Results of few rows over `end` positions, 64 dimensions.
inline void multiply_values_few(const AmxChunk& c, int64_t d, int64_t head_dim, int64_t end) {
  const int64_t stride = 4 * head_dim;
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t p = 0; p < end; p += 32) {
    const uint16_t* v = c.v + p * head_dim + 2 * d;
    _tile_loadd(3, c.weights + p, 2 * kContextChunk);
    _tile_loadd(2, v, stride);
    _tile_dpbf16ps(4, 3, 2);
    _tile_loadd(2, v + 32, stride);
    _tile_dpbf16ps(5, 3, 2);
    _tile_loadd(2, v + 64, stride);
    _tile_dpbf16ps(6, 3, 2);
    _tile_loadd(2, v + 96, stride);
    _tile_dpbf16ps(7, 3, 2);
  }
  float* out = c.out + d;
  _tile_stored(4, out, stride);
  _tile_stored(5, out + 16, stride);
  _tile_stored(6, out + 32, stride);
  _tile_stored(7, out + 48, stride);
}

// The same of many rows, 32 dimensions.
inline void multiply_values_many(const AmxChunk& c, int64_t d, int64_t head_dim, int64_t end) {
  const int64_t stride = 4 * head_dim;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t p = 0; p < end; p += 32) {
    const uint16_t* v = c.v + p * head_dim + 2 * d;
    const uint16_t* weights = c.weights + p;
    constexpr int64_t kPart = kTileSide * kContextChunk;
    _tile_loadd(6, weights, 2 * kContextChunk);
    _tile_loadd(7, v, stride);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, v + 32, stride);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, weights + kPart, 2 * kContextChunk);
    _tile_dpbf16ps(3, 6, 7);
    _tile_loadd(7, v, stride);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, weights + 2 * kPart, 2 * kContextChunk);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(7, v + 32, stride);
    _tile_dpbf16ps(5, 6, 7);
  }
  float* out = c.out + d;
  const int64_t part = kTileSide * head_dim;
  _tile_stored(0, out, stride);
  _tile_stored(1, out + 16, stride);
  _tile_stored(2, out + part, stride);
  _tile_stored(3, out + part + 16, stride);
  _tile_stored(4, out + 2 * part, stride);
  _tile_stored(5, out + 2 * part + 16, stride);
}

// Partial m, l and o (rows `stride` apart) of all rows of a block.
template <class Element>
inline void attend_chunk_tiles(const qw::AttentionArgs<Element>& a, const QueryBlock& q,
                               int64_t chunk, int64_t length, const ChunkFactors& factors,
                               char* scratch, float* m, float* l, float* o, int64_t stride) {
  const int64_t head_dim = a.cache.head_dim;
  const int64_t group = a.num_heads / a.cache.kv_heads, rows = q.count * group;
  const AmxChunk c(scratch, head_dim);
  widen_chunk(a.cache, q, chunk * kContextChunk, length, c);
  const int64_t set_rows = rows <= kStackedRows ? rows : kTileSide;
  configure_attention(set_rows);
  for (int64_t r0 = 0; r0 < rows; r0 += set_rows) {
    const int64_t count = rows - r0 < set_rows ? rows - r0 : set_rows;
    const auto token_of = [&](int64_t r) { return q.first_token + (r0 + r) / group; };
    int64_t lengths[kTileSide], longest = 0;
    for (int64_t r = 0; r < count; ++r) {
      lengths[r] = length_in_chunk(a, token_of(r), chunk);
      longest = lengths[r] > longest ? lengths[r] : longest;
    }
    const auto query = [&](int64_t r) {
      const int64_t head = token_of(r) * a.num_heads + q.kv_head * group + (r0 + r) % group;
      return a.q + head * head_dim;
    };
    if (set_rows > kStackedRows) {
      split_queries<kParts>(query, count, head_dim, c.q);
    } else {
      split_queries<1>(query, count, head_dim, c.q);
    }
    score(c, count, set_rows, lengths, longest, head_dim, factors.k, m + r0);
    const int64_t end = qw::round_up(longest, 32);
    for (int64_t r = 0; r < count; ++r) {
      l[r0 + r] = weigh(c.scores + r * kContextChunk, lengths[r], end, m[r0 + r], factors.v,
                        c.weights + r * kContextChunk, set_rows * kContextChunk);
    }
    for (int64_t d = 0; d < head_dim; d += kAmxHeadDims) {
      if (set_rows > kStackedRows) {
        multiply_values_many(c, d, head_dim, end);
        multiply_values_many(c, d + 32, head_dim, end);
      } else {
        multiply_values_few(c, d, head_dim, end);
      }
      for (int64_t r = 0; r < count; ++r) {
        const auto part = [&](int64_t index, int64_t i) {
          return load(c.out + (index * set_rows + r) * head_dim + d + i * W);
        };
        VF sums[4];
        for (int64_t i = 0; i < 4; ++i) sums[i] = (part(0, i) + part(1, i)) + part(2, i);
        store_in_order(sums, o + (r0 + r) * stride + d);
      }
    }
  }
  _tile_release();
}

}  // namespace
