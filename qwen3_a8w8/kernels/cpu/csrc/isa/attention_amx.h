// One chunk of attention with AMX tiles. Elements of the cache are bfloat16 numbers as they stand
// (int8 has 7 bits and a sign); queries are cut into three bfloat16 parts, which hold a float32
// exactly, and weights into two, which leaves 2^-17 of a weight. Products are exact, sums float32.
//
// Rows, i.e. (token, head) pairs, are taken 16 at a time and keep a lane each:
//   S^T [positions][rows]: K as it lies times Q^T, parts of q in order within 32 dimensions,
//   softmax lane by lane; e of positions at and past a row's end is 0,
//   O [rows][dimensions]: the weights' parts times V, positions in order, 32 at a time.
// A lane's arithmetic knows nothing of the others, so decode and prefill give the same bits.
#pragma once

#include "amx.h"
#include "widen.h"

namespace {

constexpr int64_t kLanes = kTileSide;
constexpr int64_t kAmxPositions = 64;  // positions of one round of products with K
constexpr int kQueryParts = 3, kWeightParts = 2;
constexpr int64_t kMostPositions = 256;
constexpr int64_t kAmxHeadDims = 64;  // dimensions of one round of products with V

// Scratch of a chunk, for heads of `head_dim` dimensions.
struct AmxChunk {
  uint16_t* k;       // [positions][head_dim]
  uint16_t* v;       // [positions / 2][head_dim][2]
  uint16_t* q;       // [parts][head_dim / 2][lanes][2]
  float* scores;     // [positions][lanes]
  uint16_t* weights;  // [parts][lanes][positions]
  float* out;        // [lanes][head_dim]

  static int64_t bytes(int64_t head_dim) {
    return kMostPositions * (4 * head_dim + (4 + 2 * kWeightParts) * kLanes) +
           head_dim * kLanes * (2 * kQueryParts + 4);
  }
  AmxChunk(char* memory, int64_t head_dim) {
    const auto take = [&](int64_t count) {
      char* taken = memory;
      memory += count;
      return taken;
    };
    k = reinterpret_cast<uint16_t*>(take(2 * kMostPositions * head_dim));
    v = reinterpret_cast<uint16_t*>(take(2 * kMostPositions * head_dim));
    q = reinterpret_cast<uint16_t*>(take(2 * kQueryParts * head_dim * kLanes));
    scores = reinterpret_cast<float*>(take(4 * kMostPositions * kLanes));
    weights = reinterpret_cast<uint16_t*>(take(2 * kWeightParts * kMostPositions * kLanes));
    out = reinterpret_cast<float*>(take(4 * head_dim * kLanes));
  }
};

inline VF cache_floats(const int8_t* x) { return load_i8(x); }
inline VF cache_floats(const uint16_t* x) { return load_bf16(x); }

inline __m512i as_bf16(VF low, VF high) {
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  __m512i bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

// `count` rows of K as bfloat16.
template <class Element>
inline void narrow_rows(const Element* x, int64_t count, int64_t width, uint16_t* out) {
  for (int64_t i = 0; i < count * width; i += 2 * W) {
    const __m512i both = as_bf16(cache_floats(x + i), cache_floats(x + i + W));
    memcpy(out + i, &both, sizeof both);
  }
}

// Row `position` of V beside its neighbour's.
template <class Element>
inline void interleave_row(const Element* x, int64_t position, int64_t width, uint16_t* v) {
  uint16_t* out = v + position / 2 * 2 * width;
  for (int64_t d = 0; d < width; d += W) {
    const VU bits = (VU)cache_floats(x + d);
    VU pairs;
    if (position % 2 == 0) {
      pairs = bits >> 16;
    } else {
      memcpy(&pairs, out + 2 * d, sizeof pairs);
      pairs |= bits & 0xffff0000u;
    }
    memcpy(out + 2 * d, &pairs, sizeof pairs);
  }
}

// Bits of the nearest bfloat16 in the upper halves, half to even; finite numbers only.
inline VU upper_bf16(VF x) {
  const VU bits = (VU)x;
  return (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
}

// Parts of up to 16 rows of q, pairs of dimensions side by side; other lanes are 0.
template <class RowAt>
inline void split_queries(RowAt row_at, int64_t rows, int64_t head_dim, uint16_t* q) {
  for (int64_t d = 0; d < head_dim; d += 2 * W) {
    __m512i pairs[kQueryParts][kLanes] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = row_at(r);
      VF low = load(x + d), high = load(x + d + W);
      for (int part = 0; part < kQueryParts; ++part) {
        const VF low_part = (VF)upper_bf16(low), high_part = (VF)upper_bf16(high);
        pairs[part][r] = as_bf16(low_part, high_part);
        low = low - low_part;
        high = high - high_part;
      }
    }
    for (int part = 0; part < kQueryParts; ++part) {
      transpose_16x16(pairs[part]);
      memcpy(q + (part * head_dim + d) * kLanes, pairs[part], sizeof pairs[part]);
    }
  }
}

inline void configure_attention() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, kTileSide, kTileRowBytes);
  _tile_loadconfig(&config);
}

// S^T of 64 positions.
inline void score_tiles(const uint16_t* k, const uint16_t* q, int64_t head_dim, float* scores) {
  const int64_t stride = 2 * head_dim;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < head_dim; d += 32) {
    for (int part = 0; part < kQueryParts; ++part) {
      const uint16_t* at = k + d;
      _tile_loadd(6, q + (part * head_dim + d) * kLanes, kTileRowBytes);
      _tile_loadd(4, at, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, at + 16 * head_dim, stride);
      _tile_dpbf16ps(1, 5, 6);
      _tile_loadd(4, at + 32 * head_dim, stride);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(5, at + 48 * head_dim, stride);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  _tile_stored(0, scores, kTileRowBytes);
  _tile_stored(1, scores + 16 * kLanes, kTileRowBytes);
  _tile_stored(2, scores + 32 * kLanes, kTileRowBytes);
  _tile_stored(3, scores + 48 * kLanes, kTileRowBytes);
}

// Scores to weights e * v_factor in two parts, row by row; gives each lane's m and l. `lengths` are
// the lanes' positions, `end` the largest of them rounded up to 32.
inline void softmax_lanes(const AmxChunk& c, VI lengths, int64_t end, const float* k_factor,
                          const float* v_factor, VF& m, VF& l) {
  const VF lowest = splat(-__builtin_inff());
  m = lowest;
  for (int64_t p = 0; p < end; ++p) {
    VF s = load(c.scores + p * kLanes) * splat(k_factor[p]);
    s = lengths > splat_int(static_cast<int32_t>(p)) ? s : lowest;
    store(c.scores + p * kLanes, s);
    m = vmax(s, m);
  }
  const VF top = m == lowest ? VF{} : m;
  VF sum[4] = {};
  for (int64_t p0 = 0; p0 < end; p0 += 32) {
    __m512i pairs[kWeightParts][16];
    for (int64_t i = 0; i < 32; i += 2) {
      VU parts[kWeightParts][2];
      for (int64_t j = 0; j < 2; ++j) {
        const int64_t p = p0 + i + j;
        VF e = vexp(load(c.scores + p * kLanes) - top);
        e = lengths > splat_int(static_cast<int32_t>(p)) ? e : VF{};
        sum[p % 4] = sum[p % 4] + e;
        VF rest = e * splat(v_factor[p]);
        for (int part = 0; part < kWeightParts; ++part) {
          parts[part][j] = upper_bf16(rest);
          rest = rest - (VF)parts[part][j];
        }
      }
      for (int part = 0; part < kWeightParts; ++part) {
        pairs[part][i / 2] = (__m512i)(parts[part][0] >> 16 | parts[part][1]);
      }
    }
    for (int part = 0; part < kWeightParts; ++part) {
      transpose_16x16(pairs[part]);
      for (int64_t r = 0; r < kLanes; ++r) {
        memcpy(c.weights + (part * kLanes + r) * kMostPositions + p0, &pairs[part][r], 64);
      }
    }
  }
  l = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// O of 64 dimensions.
inline void output_tiles(const AmxChunk& c, int64_t d, int64_t head_dim, int64_t end) {
  const int64_t stride = 4 * head_dim;
  constexpr int64_t kStride = 2 * kMostPositions;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t p = 0; p < end; p += 32) {
    const uint16_t* v = c.v + p * head_dim + 2 * d;
    _tile_loadd(4, c.weights + p, kStride);
    _tile_loadd(5, c.weights + kLanes * kMostPositions + p, kStride);
    _tile_loadd(6, v, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, v + 32, stride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, v + 64, stride);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, v + 96, stride);
    _tile_dpbf16ps(3, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  float* out = c.out + d;
  _tile_stored(0, out, stride);
  _tile_stored(1, out + 16, stride);
  _tile_stored(2, out + 32, stride);
  _tile_stored(3, out + 48, stride);
}

}  // namespace
