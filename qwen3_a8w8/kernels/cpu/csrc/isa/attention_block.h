// Shared by all implementations of attention: which rows use the same keys and values, and where
// those lie in the paged cache.
#pragma once

#include <type_traits>

#include "../kernels.h"
#include "vec.h"

namespace {

constexpr int64_t kContextChunk = 256;  // positions whose partial result is merged with others

// Tokens [first_token, first_token + count) of one sequence with one KV head: the rows that share
// K and V.
struct QueryBlock {
  int64_t first_token, count, kv_head;
  const int32_t* table;
};

// Positions of the chunk that a token sees.
template <class Element>
inline int64_t length_in_chunk(const qw::AttentionArgs<Element>& a, int64_t token, int64_t chunk) {
  const int64_t length = a.context_lens[token] - chunk * kContextChunk;
  return length < 0 ? 0 : length < kContextChunk ? length : kContextChunk;
}

// The same for the block's token with the longest context.
template <class Element>
inline int64_t longest_in_chunk(const qw::AttentionArgs<Element>& a, const QueryBlock& q,
                                int64_t chunk) {
  int64_t longest = 0;
  for (int64_t t = q.first_token; t < q.first_token + q.count; ++t) {
    const int64_t own = length_in_chunk(a, t, chunk);
    longest = own > longest ? own : longest;
  }
  return longest;
}

// Calls fn(row of the cache, first position, count) for runs of neighbouring cache rows among
// the positions [begin, end) of a sequence. Blocks hold a multiple of 16 positions.
template <class Element, class Fn>
void for_runs(const qw::CacheView<Element>& cache, const QueryBlock& q, int64_t begin, int64_t end,
              Fn fn) {
  while (begin < end) {
    const int64_t offset = begin % cache.block_size;
    const int64_t in_block = cache.block_size - offset;
    const int64_t count = in_block < end - begin ? in_block : end - begin;
    fn(cache.row(q.table[begin / cache.block_size], q.kv_head, offset), begin, count);
    begin += count;
  }
}

// By position: the factor of its product with q, and that of its weight; 0 past the end.
struct ChunkFactors {
  alignas(64) float k[kContextChunk] = {}, v[kContextChunk] = {};
};

template <class Element>
inline void read_factors(const qw::AttentionArgs<Element>& a, const QueryBlock& q, int64_t begin,
                         int64_t length, ChunkFactors& factors) {
  for_runs(a.cache, q, begin, begin + length, [&](int64_t row, int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const bool is_scaled = std::is_same_v<Element, int8_t>;
      factors.k[at - begin + i] = is_scaled ? a.scale * a.cache.k_scale[row + i] : a.scale;
      factors.v[at - begin + i] = is_scaled ? a.cache.v_scale[row + i] : 1.0f;
    }
  });
}

}  // namespace
