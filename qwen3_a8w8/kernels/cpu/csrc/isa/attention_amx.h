// One chunk of attention with AMX tiles. Elements of the cache are bfloat16 numbers as they stand
// (int8 has 7 bits and a sign); queries are cut into three bfloat16 parts, which hold a float32
// exactly, and weights into two, which leaves 2^-17 of a weight. Products are exact, sums float32.
//
// Rows, i.e. (token, head) pairs, are taken 5 at a time, as many as have room side by side in a
// tile with all their parts:
//   products [positions][parts x rows]: K as it lies times Q^T, dimensions in order,
//   scores [rows][positions]: the parts' products added, from the largest part to the smallest,
//   weights [parts x rows][positions]: softmax; those of positions past a row's end are 0,
//   O [parts x rows][dimensions]: weights times V, positions in order, 32 at a time.
// A row's arithmetic knows nothing of the others, so decode and prefill give the same bits.
//
// Elements are widened without crossing lanes: of 64 dimensions the even ones come first.
#pragma once

#include "amx.h"
#include "attention_block.h"
#include "widen.h"

namespace {

constexpr int kQueryParts = 3, kWeightParts = 2;
constexpr int64_t kSetRows = 5;
constexpr int64_t kAmxPositions = 64;  // positions of one round of products with K
constexpr int64_t kAmxHeadDims = 64;   // dimensions of one round of products with V
static_assert(kQueryParts * kSetRows <= kTileSide && kWeightParts * kSetRows <= kTileSide,
              "a set's parts are columns, then rows, of one tile");

// Scratch of a chunk, for heads of `head_dim` dimensions.
struct AmxChunk {
  uint16_t* k;        // [positions][head_dim]
  uint16_t* v;        // [positions / 2][head_dim][2]
  uint16_t* q;        // [head_dim / 32][16 pairs of dimensions][parts x rows][2]
  float* products;    // [kAmxPositions][parts x rows]
  float* scores;      // [rows][positions]
  uint16_t* weights;  // [parts x rows][positions]
  float* out;         // [parts x rows][head_dim]

  static int64_t bytes(int64_t head_dim) {
    return kContextChunk * (4 * head_dim + 4 * kSetRows + 2 * kWeightParts * kSetRows) +
           head_dim * (2 * kTileSide + 4 * kWeightParts * kSetRows) +
           4 * kAmxPositions * kTileSide;
  }
  AmxChunk(char* memory, int64_t head_dim) {
    const auto take = [&](int64_t count) {
      char* taken = memory;
      memory += count;
      return taken;
    };
    k = reinterpret_cast<uint16_t*>(take(2 * kContextChunk * head_dim));
    v = reinterpret_cast<uint16_t*>(take(2 * kContextChunk * head_dim));
    q = reinterpret_cast<uint16_t*>(take(2 * head_dim * kTileSide));
    products = reinterpret_cast<float*>(take(4 * kAmxPositions * kTileSide));
    scores = reinterpret_cast<float*>(take(4 * kContextChunk * kSetRows));
    weights = reinterpret_cast<uint16_t*>(take(2 * kContextChunk * kWeightParts * kSetRows));
    out = reinterpret_cast<float*>(take(4 * head_dim * kWeightParts * kSetRows));
  }
};

inline __m512i as_bf16(VF low, VF high) {
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  __m512i bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

// bfloat16 of 0 to 127, its low and its high bytes.
struct SmallNumbers {
  alignas(64) uint8_t low[128] = {}, high[128] = {};

  constexpr SmallNumbers() {
    for (int exponent = 0; exponent < 7; ++exponent) {
      for (int x = 1 << exponent; x < 2 << exponent; ++x) {
        const int bits = (127 + exponent) << 7 | (x << (7 - exponent) & 0x7f);
        low[x] = static_cast<uint8_t>(bits & 0xff);
        high[x] = static_cast<uint8_t>(bits >> 8);
      }
    }
  }
};
constexpr SmallNumbers kSmallNumbers;

// 64 elements as bfloat16: those with an even index and those with an odd one.
inline void widen_64(const int8_t* x, __m512i& even, __m512i& odd) {
  const auto find = [](const uint8_t* table, __m512i index) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index,
                                    _mm512_load_si512(table + 64));
  };
  const __m512i bytes = _mm512_loadu_si512(x);
  const __m512i size = _mm512_abs_epi8(bytes);
  const __m512i low = find(kSmallNumbers.low, size);
  const __m512i sign = _mm512_and_si512(bytes, _mm512_set1_epi8(-128));
  const __m512i high = _mm512_or_si512(find(kSmallNumbers.high, size), sign);
  const __m512i first = _mm512_set1_epi16(0xff);
  even = _mm512_or_si512(_mm512_slli_epi16(high, 8), _mm512_and_si512(low, first));
  odd = _mm512_or_si512(_mm512_srli_epi16(low, 8), _mm512_andnot_si512(first, high));
}

inline void widen_64(const uint16_t* x, __m512i& even, __m512i& odd) {
  const __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 32);
  const __m512i low = _mm512_set1_epi32(0xffff);
  // Even elements of a and b by truncation to words, a's before b's.
  const auto words = [](__m512i p, __m512i q) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(p)),
                              _mm512_cvtepi32_epi16(q), 1);
  };
  even = words(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
  odd = words(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
}

// Stores the same 64 dimensions of two positions in pairs: four tiles' rows of 16 dimensions.
inline void store_pairs(__m512i even, __m512i odd, __m512i next_even, __m512i next_odd,
                        uint16_t* v) {
  _mm512_storeu_si512(v, _mm512_unpacklo_epi16(even, next_even));
  _mm512_storeu_si512(v + 32, _mm512_unpackhi_epi16(even, next_even));
  _mm512_storeu_si512(v + 64, _mm512_unpacklo_epi16(odd, next_odd));
  _mm512_storeu_si512(v + 96, _mm512_unpackhi_epi16(odd, next_odd));
}

// 64 dimensions in the order of `store_pairs` to their own.
inline void store_in_order(const VF* x, float* out) {
  const __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
  // In each 128-bit lane L: dimensions 16 L + 0..3, 4..7, 8..11, 12..15.
  const __m512 r[4] = {_mm512_unpacklo_ps(a, c), _mm512_unpackhi_ps(a, c),
                       _mm512_unpacklo_ps(b, d), _mm512_unpackhi_ps(b, d)};
  const __m512 e = _mm512_shuffle_f32x4(r[0], r[1], 0x44);
  const __m512 f = _mm512_shuffle_f32x4(r[2], r[3], 0x44);
  const __m512 g = _mm512_shuffle_f32x4(r[0], r[1], 0xee);
  const __m512 h = _mm512_shuffle_f32x4(r[2], r[3], 0xee);
  _mm512_storeu_ps(out, _mm512_shuffle_f32x4(e, f, 0x88));
  _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(e, f, 0xdd));
  _mm512_storeu_ps(out + 32, _mm512_shuffle_f32x4(g, h, 0x88));
  _mm512_storeu_ps(out + 48, _mm512_shuffle_f32x4(g, h, 0xdd));
}

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
  const int64_t written = qw::round_up(length, 2), end = qw::round_up(length, kAmxPositions);
  memset(c.k + written * head_dim, 0, 2 * (end - written) * head_dim);
  memset(c.v + written * head_dim, 0, 2 * (end - written) * head_dim);
}

// Bits of the nearest bfloat16 in the upper halves, half to even; finite numbers only.
inline VF nearest_bf16(VF x) {
  const VU bits = (VU)x;
  return (VF)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

// Parts of a set's rows of q as columns, dimensions in the order of `widen_64`; other columns are 0.
template <class RowAt>
inline void split_queries(RowAt row_at, int64_t rows, int64_t head_dim, uint16_t* q) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = even + _mm512_set1_epi64(1LL << 32 | 1);
  for (int64_t d = 0; d < head_dim; d += 64) {
    __m512i columns[2][kTileSide] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = row_at(r) + d;
      const auto pick = [&](int64_t at, __m512i which) {
        return (VF)_mm512_permutex2var_ps((__m512)load(x + at), which, (__m512)load(x + at + W));
      };
      for (int half = 0; half < 2; ++half) {
        VF low = pick(0, half ? odd : even), high = pick(32, half ? odd : even);
        for (int part = 0; part < kQueryParts; ++part) {
          const VF low_part = nearest_bf16(low), high_part = nearest_bf16(high);
          columns[half][part * kSetRows + r] = as_bf16(low_part, high_part);
          low = low - low_part;
          high = high - high_part;
        }
      }
    }
    for (int half = 0; half < 2; ++half, q += 2 * kTileSide * kTileSide) {
      transpose_16x16(columns[half]);
      memcpy(q, columns[half], sizeof columns[half]);
    }
  }
}

// Tiles: 0 products, 1 keys, 2 queries or values, 3 weights, 4 to 7 results.
inline void configure_attention(int64_t set_rows) {
  TileConfig config;
  for (int tile = 0; tile < 3; ++tile) config.set(tile, kTileSide, kTileRowBytes);
  for (int tile = 3; tile < 8; ++tile) config.set(tile, kWeightParts * set_rows, kTileRowBytes);
  _tile_loadconfig(&config);
}

// Products of 16 positions.
inline void multiply_keys(const uint16_t* k, const uint16_t* q, int64_t head_dim, float* products) {
  _tile_zero(0);
  for (int64_t d = 0; d < head_dim; d += 32) {
    _tile_loadd(1, k + d, 2 * head_dim);
    _tile_loadd(2, q + d * kTileSide, kTileRowBytes);
    _tile_dpbf16ps(0, 1, 2);
  }
  _tile_stored(0, products, kTileRowBytes);
}

// Positions below `length` among the 16 from `at`.
inline __mmask16 positions_below(int64_t length, int64_t at) {
  const int64_t count = length - at;
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// Scores of a set's rows, `end` positions of them; gives each row's largest.
inline void score(const AmxChunk& c, int64_t rows, const int64_t* lengths, int64_t end,
                  int64_t head_dim, const float* k_factor, float* m) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 largest[kSetRows];
  for (__m512& x : largest) x = lowest;
  for (int64_t p0 = 0; p0 < end; p0 += kAmxPositions) {
    for (int64_t p = 0; p < kAmxPositions; p += 16) {
      multiply_keys(c.k + (p0 + p) * head_dim, c.q, head_dim, c.products + p * kTileSide);
    }
    for (int64_t p = 0; p < kAmxPositions; p += 16) {
      __m512i t[kTileSide];
      for (int64_t i = 0; i < kTileSide; ++i) {
        t[i] = _mm512_loadu_si512(c.products + (p + i) * kTileSide);
      }
      transpose_16x16(t);
      const VF factor = load(k_factor + p0 + p);
      for (int64_t r = 0; r < rows; ++r) {
        const VF s = (((VF)t[r] + (VF)t[kSetRows + r]) + (VF)t[2 * kSetRows + r]) * factor;
        store(c.scores + r * kContextChunk + p0 + p, s);
        const __mmask16 mask = positions_below(lengths[r], p0 + p);
        largest[r] = _mm512_mask_max_ps(largest[r], mask, largest[r], (__m512)s);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) m[r] = _mm512_reduce_max_ps(largest[r]);
}

// A row's scores to weights e * v_factor in two parts, `end` positions of them; gives the sum of e.
inline float weigh(const float* scores, int64_t length, int64_t end, float m, const float* v_factor,
                   uint16_t* large, uint16_t* small) {
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
    const VF part[2] = {nearest_bf16(w[0]), nearest_bf16(w[1])};
    _mm512_storeu_si512(large + p, as_bf16(part[0], part[1]));
    _mm512_storeu_si512(small + p, as_bf16(w[0] - part[0], w[1] - part[1]));
  }
  memset(large + p, 0, 2 * (end - p));
  memset(small + p, 0, 2 * (end - p));
  return hsum(sum);
}

// Results of 64 dimensions over `end` positions.
inline void multiply_values(const AmxChunk& c, int64_t d, int64_t head_dim, int64_t end) {
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

// Partial m, l and o (rows `stride` apart) of all rows of a block.
template <class Element>
inline void attend_chunk_tiles(const qw::AttentionArgs<Element>& a, const QueryBlock& q,
                               int64_t chunk, int64_t length, const ChunkFactors& factors,
                               char* scratch, float* m, float* l, float* o, int64_t stride) {
  const int64_t head_dim = a.cache.head_dim;
  const int64_t group = a.num_heads / a.cache.kv_heads, rows = q.count * group;
  const AmxChunk c(scratch, head_dim);
  widen_chunk(a.cache, q, chunk * kContextChunk, length, c);
  const int64_t set_rows = rows < kSetRows ? rows : kSetRows;
  configure_attention(set_rows);
  for (int64_t r0 = 0; r0 < rows; r0 += set_rows) {
    const int64_t count = rows - r0 < set_rows ? rows - r0 : set_rows;
    const auto token_of = [&](int64_t r) { return q.first_token + (r0 + r) / group; };
    int64_t lengths[kSetRows], longest = 0;
    for (int64_t r = 0; r < count; ++r) {
      lengths[r] = length_in_chunk(a, token_of(r), chunk);
      longest = lengths[r] > longest ? lengths[r] : longest;
    }
    const auto query = [&](int64_t r) {
      const int64_t head = token_of(r) * a.num_heads + q.kv_head * group + (r0 + r) % group;
      return a.q + head * head_dim;
    };
    split_queries(query, count, head_dim, c.q);
    score(c, count, lengths, longest, head_dim, factors.k, m + r0);
    const int64_t end = qw::round_up(longest, 32);
    for (int64_t r = 0; r < count; ++r) {
      uint16_t* weights = c.weights + r * kContextChunk;
      l[r0 + r] = weigh(c.scores + r * kContextChunk, lengths[r], end, m[r0 + r], factors.v,
                        weights, weights + set_rows * kContextChunk);
    }
    for (int64_t d = 0; d < head_dim; d += kAmxHeadDims) {
      multiply_values(c, d, head_dim, end);
      for (int64_t r = 0; r < count; ++r) {
        const float* parts = c.out + r * head_dim + d;
        VF sums[4];
        for (int64_t i = 0; i < 4; ++i) {
          sums[i] = load(parts + i * W) + load(parts + set_rows * head_dim + i * W);
        }
        store_in_order(sums, o + (r0 + r) * stride + d);
      }
    }
  }
  _tile_release();
}

}  // namespace
