// One chunk of attention with AMX tiles, set by set; see attention_tiles.h.
#pragma once

#include "attention_tiles.h"
#include "attention_tiles_bf16.h"
#include "attention_tiles_int8.h"

namespace {

// Whether AMX tiles can be used with this cache. This depends on the model's dimensions alone, so
// all of its rows are computed alike.
template <class Element>
inline bool has_tiles(const qw::CacheView<Element>& cache) {
  return cache.head_dim % kTileDims == 0 && cache.block_size % kTileSide == 0;
}

inline int64_t rows_of_set(int64_t rows) { return rows <= kStackedRows ? kStackedRows : kTileSide; }

// Bytes of the parts of `rows` rows of q.
template <class Element>
inline int64_t split_bytes(int64_t rows, int64_t head_dim) {
  return qw::ceil_div(rows, rows_of_set(rows)) * TileOperands<Element>::query_bytes(head_dim);
}

template <class Element>
inline int64_t tile_bytes(int64_t head_dim) {
  return TileScratch::kBytes + TileOperands<Element>::bytes(head_dim);
}

// Splits a block's rows of q into parts.
template <class Element>
inline void split_queries(const qw::AttentionArgs<Element>& a, const QueryBlock& q, char* out) {
  using Operands = TileOperands<Element>;
  const int64_t head_dim = a.cache.head_dim;
  const int64_t group = a.num_heads / a.cache.kv_heads, rows = q.count * group;
  const int64_t set_rows = rows_of_set(rows);
  for (int64_t r0 = 0; r0 < rows; r0 += set_rows, out += Operands::query_bytes(head_dim)) {
    const auto row_at = [&](int64_t i) {
      const int64_t token = q.first_token + (r0 + i) / group;
      return a.q + (token * a.num_heads + q.kv_head * group + (r0 + i) % group) * head_dim;
    };
    const int64_t left = rows - r0;
    Operands::split_queries(row_at, left < set_rows ? left : set_rows, rows <= kStackedRows,
                            head_dim, out);
  }
}

// Products of a set's rows with a round of groups of positions, into `out`.
template <class Element>
inline void multiply_keys(const TileOperands<Element>& operands, const TileSet& set,
                          const char* queries, int64_t group, char* out) {
  const auto* q = reinterpret_cast<const typename TileOperands<Element>::Query*>(queries);
  auto* products = reinterpret_cast<typename TileOperands<Element>::Sum*>(out);
  if (set.is_few) {
    operands.multiply_keys_few(q, group, products);
  } else {
    operands.multiply_keys_many(q, group, products);
  }
}

// Parts of a set's results, 64 dimensions from `d` on.
template <class Element>
inline void multiply_values(const TileOperands<Element>& operands, const TileSet& set,
                            const TileScratch& s, int64_t d) {
  const auto* weights = reinterpret_cast<typename TileOperands<Element>::Weight*>(s.weights);
  auto* sums = reinterpret_cast<typename TileOperands<Element>::Sum*>(s.sums);
  if (set.is_few) {
    operands.multiply_values_few(weights, d, set.longest, sums);
  } else {
    operands.multiply_values_many(weights, d, set.longest, sums);
    operands.multiply_values_many(weights, d + 32, set.longest, sums + 32);
  }
}

// Scores of a set's rows; writes each row's largest one to `m`. The next round's products are
// issued before those of the current round are combined, so that tiles and vectors work at the same
// time.
template <class Element>
inline void score(const TileOperands<Element>& operands, const TileSet& set, const char* queries,
                  const TileScratch& s, const float* k_factor, float* m) {
  __m512 largest[kTileSide];
  for (__m512& x : largest) x = _mm512_set1_ps(-__builtin_inff());
  const int64_t per_round = operands.groups_per_round(set);
  const int64_t groups = qw::ceil_div(set.longest, kTileSide);
  if (groups > 0) multiply_keys(operands, set, queries, 0, s.products);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t round = group / per_round, index = group % per_round;
    if (index == 0 && group + per_round < groups) {
      multiply_keys(operands, set, queries, group + per_round,
                    s.products + (round + 1) % 2 * TileScratch::kRound);
    }
    VF x[kTileSide];
    operands.take_group(set, queries, s.products + round % 2 * TileScratch::kRound, index, x);
    const int64_t p = group * kTileSide;
    const VF factor = load(k_factor + p);
    for (int64_t r = 0; r < set.rows; ++r) {
      const VF y = x[r] * factor;
      store(s.scores + r * kContextChunk + p, y);
      const __mmask16 mask = positions_below(set.lengths[r], p);
      largest[r] = _mm512_mask_max_ps(largest[r], mask, largest[r], (__m512)y);
    }
  }
  for (int64_t r = 0; r < set.rows; ++r) m[r] = _mm512_reduce_max_ps(largest[r]);
}

// Partial m, l and o (rows `stride` apart) of all rows of a block. `queries` is the output of
// `split_queries`, `scratch` has `tile_bytes`.
template <class Element>
inline void attend_chunk_tiles(const qw::AttentionArgs<Element>& a, const QueryBlock& q,
                               const char* queries, int64_t chunk, int64_t length,
                               const ChunkFactors& factors, char* scratch, float* m, float* l,
                               float* o, int64_t stride) {
  const int64_t head_dim = a.cache.head_dim;
  const int64_t group = a.num_heads / a.cache.kv_heads, rows = q.count * group;
  const TileScratch s(scratch);
  const TileOperands<Element> operands(scratch + TileScratch::kBytes, a.cache, q,
                                       chunk * kContextChunk, length);
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, kTileSide, kTileRowBytes);
  _tile_loadconfig(&config);

  TileSet set;
  set.is_few = rows <= kStackedRows;
  for (set.first_row = 0; set.first_row < rows; set.first_row += rows_of_set(rows)) {
    const int64_t r0 = set.first_row, left = rows - r0;
    set.rows = left < rows_of_set(rows) ? left : rows_of_set(rows);
    set.longest = 0;
    for (int64_t r = 0; r < set.rows; ++r) {
      set.lengths[r] = length_in_chunk(a, q.first_token + (r0 + r) / group, chunk);
      set.longest = set.lengths[r] > set.longest ? set.lengths[r] : set.longest;
    }
    score(operands, set, queries, s, factors.k, m + r0);
    queries += TileOperands<Element>::query_bytes(head_dim);
    if (r0 == 0) operands.prepare_values();
    float unit[kTileSide];
    for (int64_t r = 0; r < set.rows; ++r) {
      const RowWeights weights = operands.weigh(set, r, s.scores + r * kContextChunk, m[r0 + r],
                                                factors.v, s.weights);
      l[r0 + r] = weights.sum;
      unit[r] = weights.unit;
    }
    constexpr int64_t kRowBytes = 4 * kTileDims;
    for (int64_t d = 0; d < head_dim; d += kTileDims) {
      multiply_values(operands, set, s, d);
      for (int64_t r = 0; r < set.rows; ++r) {
        operands.join_row(s.sums + r * kRowBytes, set.part_rows() * kRowBytes, unit[r],
                          o + (r0 + r) * stride + d);
      }
    }
  }
  _tile_release();
}

}  // namespace
