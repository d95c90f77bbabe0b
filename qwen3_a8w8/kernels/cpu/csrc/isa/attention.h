// Attention over the paged cache, one arithmetic for decode and prefill, and for int8 and
// bfloat16 elements (whose k_scale and v_scale are 1).
//
// A sequence's positions are split into chunks of 256. Within a chunk a (token, head) gets
//   s[p] = (q . k[p]) * (scale * k_scale[p]), summed over the head dimension in order,
//   m = max s, e[p] = exp(s[p] - m), l = sum e (lane by lane, then across lanes),
//   o = sum over p, in order, of (e[p] * v_scale[p]) * v[p];
// chunks are then merged from the first to the last. None of this depends on how many tokens are
// computed together or on which thread computes a chunk. So decode may spread the chunks of a row
// over all threads, while prefill takes them in turn for a block of tokens, with the same bits.
#pragma once

#include "attention_block.h"
#include "bf16_cache.h"
#include "rows.h"
#include "sgemm.h"
#include "widen.h"

#if defined(__AMX_BF16__)
#include "attention_amx.h"
#endif

namespace {

constexpr int64_t kRowsPerTask = 64;  // query rows (tokens x heads of a group) of a prefill task

// Scratch of one thread.
template <class Element>
struct AttentionScratch {
  float* scores;   // [rows][kContextChunk]
  float* tile;     // widened K or V
  float* partial;  // [rows][padded head dim]
  float* m;        // [rows]
  float* l;        // [rows]
  char* tiles;     // of tile_bytes
  char* queries;   // of split_bytes

  static int64_t floats(int64_t rows, int64_t padded_dim) {
    return rows * (kContextChunk + padded_dim) + kTilePositions * padded_dim +
           2 * qw::round_up(rows, 16) + (tile_part(padded_dim) + query_part(rows, padded_dim)) / 4;
  }
#if defined(__AMX_BF16__)
  static int64_t tile_part(int64_t padded_dim) { return tile_bytes<Element>(padded_dim); }
  static int64_t query_part(int64_t rows, int64_t padded_dim) {
    return split_bytes<Element>(rows, padded_dim);
  }
#else
  static int64_t tile_part(int64_t) { return 0; }
  static int64_t query_part(int64_t, int64_t) { return 0; }
#endif
  AttentionScratch(char* memory, int64_t rows, int64_t padded_dim) {
    tiles = memory;
    queries = tiles + tile_part(padded_dim);
    scores = reinterpret_cast<float*>(queries + query_part(rows, padded_dim));
    tile = scores + rows * kContextChunk;
    partial = tile + kTilePositions * padded_dim;
    m = partial + rows * padded_dim;
    l = m + qw::round_up(rows, 16);
  }
};

inline int64_t padded_head_dim(int64_t head_dim) { return qw::round_up(head_dim, kGemmColumns); }

// Replaces a row's products by e * v_scale; writes m and l.
inline void softmax_row(float* scores, int64_t length, const float* k_factor, const float* v_factor,
                        float* m, float* l) {
  const VF lowest = splat(-__builtin_inff());
  VF largest = lowest;
  for (int64_t i = 0; i < length; i += W) {
    VF s = load(scores + i) * load(k_factor + i);
    store(scores + i, s);
    const int n = at_most_w(length - i);
    if (n < W) {
      store_partial(scores + i, s, n);
      for (int j = n; j < W; ++j) scores[i + j] = -__builtin_inff();
      s = load(scores + i);
    }
    largest = vmax(s, largest);
  }
  *m = hmax(largest);
  const VF top = splat(*m);
  VF sum{};
  int64_t i = 0;
  for (; i < length; i += W) {
    VF e = vexp(load(scores + i) - top);
    VF weighted = e * load(v_factor + i);
    const int n = at_most_w(length - i);
    if (n < W) {
      for (int j = n; j < W; ++j) e[j] = weighted[j] = 0.0f;
    }
    sum = sum + e;
    store(scores + i, weighted);
  }
  *l = hsum(sum);
  for (; i < kContextChunk; i += W) store(scores + i, VF{});
}

// Work that all chunks of a block share.
template <class Element>
inline void begin_block([[maybe_unused]] const qw::AttentionArgs<Element>& a,
                        [[maybe_unused]] const QueryBlock& q,
                        [[maybe_unused]] const AttentionScratch<Element>& s) {
#if defined(__AMX_BF16__)
  if (has_tiles(a.cache)) split_queries(a, q, s.queries);
#endif
}

// One chunk for all rows of a block: partial o, m and l in `s`. Rows are token by token.
template <class Element>
inline void attend_chunk(const qw::AttentionArgs<Element>& a, const QueryBlock& q, int64_t chunk,
                         const AttentionScratch<Element>& s) {
  const qw::CacheView<Element>& cache = a.cache;
  const int64_t head_dim = cache.head_dim, padded = padded_head_dim(head_dim);
  const int64_t group = a.num_heads / cache.kv_heads;
  const int64_t begin = chunk * kContextChunk, length = longest_in_chunk(a, q, chunk);
  ChunkFactors factors;
  read_factors(a, q, begin, length, factors);
#if defined(__AMX_BF16__)
  if (has_tiles(cache)) {
    attend_chunk_tiles(a, q, s.queries, chunk, length, factors, s.tiles, s.m, s.l, s.partial,
                       padded);
    return;
  }
#endif

  for (int64_t p = 0; p < length; p += kTilePositions) {
    const int64_t end = p + kTilePositions < length ? p + kTilePositions : length;
    for_runs(cache, q, begin + p, begin + end, [&](int64_t row, int64_t at, int64_t count) {
      widen_transposed(cache.k + row * head_dim, count, head_dim, s.tile + (at - begin - p));
    });
    for (int64_t t = 0; t < q.count; ++t) {
      // Tokens whose context ends before this tile don't need it.
      if (length_in_chunk(a, q.first_token + t, chunk) <= p) continue;
      const int64_t head = (q.first_token + t) * a.num_heads + q.kv_head * group;
      sgemm(a.q + head * head_dim, head_dim, group, s.tile, kTilePositions, kTilePositions,
            head_dim, s.scores + t * group * kContextChunk + p, kContextChunk, false);
    }
  }

  for (int64_t r = 0; r < q.count * group; ++r) {
    const int64_t own = length_in_chunk(a, q.first_token + r / group, chunk);
    if (own > 0) {
      softmax_row(s.scores + r * kContextChunk, own, factors.k, factors.v, s.m + r, s.l + r);
    } else {
      memset(s.scores + r * kContextChunk, 0, kContextChunk * sizeof(float));
    }
  }

  for (int64_t p = 0; p < length; p += kTilePositions) {
    const int64_t end = p + kTilePositions < length ? p + kTilePositions : length;
    for_runs(cache, q, begin + p, begin + end, [&](int64_t row, int64_t at, int64_t count) {
      widen_rows(cache.v + row * head_dim, count, head_dim, s.tile + (at - begin - p) * padded,
                 padded);
    });
    // Past a token's own context e is 0 and adds nothing to its sums.
    sgemm(s.scores + p, kContextChunk, q.count * group, s.tile, padded, padded, end - p, s.partial,
          padded, p > 0);
  }
}

// Merges the running result (m, l, o) with that of the next chunk.
inline void merge(float& m, float& l, float* o, float m2, float l2, const float* o2,
                  int64_t head_dim) {
  const float top = m > m2 ? m : m2;
  const VF a = vexp(splat(m - top)), b = vexp(splat(m2 - top));
  for (int64_t i = 0; i < head_dim; i += W) {
    const int n = at_most_w(head_dim - i);
    store_upto(o + i, load_upto(o + i, n) * a + load_upto(o2 + i, n) * b, n);
  }
  l = l * a[0] + l2 * b[0];
  m = top;
}

inline void copy_head(const float* from, int64_t head_dim, float* to) {
  memcpy(to, from, head_dim * sizeof(float));
}

// y = o / l; y may be o.
inline void divide(const float* o, float l, int64_t head_dim, float* y) {
  for (int64_t i = 0; i < head_dim; i += W) {
    const int n = at_most_w(head_dim - i);
    store_upto(y + i, load_upto(o + i, n) / splat(l), n);
  }
}

template <class Element>
inline int64_t num_chunks(const qw::AttentionArgs<Element>& a, int64_t token) {
  return qw::ceil_div(a.context_lens[token], kContextChunk);
}

// Prefill: a task takes the chunks of a block of tokens in turn.
template <class Element>
inline void attend_block(const qw::AttentionArgs<Element>& a, const QueryBlock& q, char* memory) {
  const int64_t head_dim = a.cache.head_dim, padded = padded_head_dim(head_dim);
  const int64_t group = a.num_heads / a.cache.kv_heads, rows = q.count * group;
  const AttentionScratch<Element> s(memory, rows, padded);
  float* m = reinterpret_cast<float*>(memory) + AttentionScratch<Element>::floats(rows, padded);
  float* l = m + qw::round_up(rows, 16);
  const auto out = [&](int64_t r) {
    const int64_t token = q.first_token + r / group;
    return a.y + (token * a.num_heads + q.kv_head * group + r % group) * head_dim;
  };
  // Contexts grow along a block, so its last token has the most chunks.
  const int64_t chunks = num_chunks(a, q.first_token + q.count - 1);
  begin_block(a, q, s);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    attend_chunk(a, q, chunk, s);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t own_chunks = num_chunks(a, q.first_token + r / group);
      if (chunk >= own_chunks) continue;
      const float* o = s.partial + r * padded;
      const bool is_last = chunk + 1 == own_chunks;
      if (chunk > 0) {
        merge(m[r], l[r], out(r), s.m[r], s.l[r], o, head_dim);
        if (is_last) divide(out(r), l[r], head_dim, out(r));
      } else if (is_last) {
        divide(o, s.l[r], head_dim, out(r));
      } else {
        m[r] = s.m[r];
        l[r] = s.l[r];
        copy_head(o, head_dim, out(r));
      }
    }
  }
}

template <class Element>
inline void attend_prefill(const qw::AttentionArgs<Element>& a, qw::Team& team) {
  const int64_t kv_heads = a.cache.kv_heads, group = a.num_heads / kv_heads;
  const int64_t most = kRowsPerTask / group > 0 ? kRowsPerTask / group : 1;
  // First tokens of the blocks; a block stays within a sequence.
  auto* first = reinterpret_cast<int64_t*>(team.shared((a.rows + 1) * sizeof(int64_t)));
  int64_t blocks = 0;
  for (int64_t t = 0; t < a.rows; ++t) {
    if (blocks == 0 || t - first[blocks - 1] == most || a.seq_index[t] != a.seq_index[t - 1]) {
      first[blocks++] = t;
    }
  }
  first[blocks] = a.rows;
  const int64_t rows = most * group, padded = padded_head_dim(a.cache.head_dim);
  const int64_t floats = AttentionScratch<Element>::floats(rows, padded);
  const size_t bytes = (floats + 2 * qw::round_up(rows, 16)) * sizeof(float);
  parallel_for(team, blocks * kv_heads, [&](int64_t i, int thread) {
    // The last blocks have the longest contexts: they come first, so that no long task starts last.
    const int64_t b = blocks - 1 - i / kv_heads;
    const QueryBlock q{first[b], first[b + 1] - first[b], i % kv_heads,
                       a.block_tables + a.seq_index[first[b]] * a.table_stride};
    attend_block(a, q, team.scratch(thread, bytes));
  });
}

// Decode: every (row, KV head, chunk) is a task; a second pass merges the chunks.
template <class Element>
inline void attend_decode(const qw::AttentionArgs<Element>& a, qw::Team& team) {
  const int64_t kv_heads = a.cache.kv_heads, group = a.num_heads / kv_heads;
  const int64_t head_dim = a.cache.head_dim, padded = padded_head_dim(head_dim);
  // Index of each row's first chunk, then the partial results.
  int64_t chunks = 0;
  for (int64_t t = 0; t < a.rows; ++t) chunks += num_chunks(a, t);
  const int64_t entry = group * (head_dim + 2);
  const int64_t index_bytes = qw::round_up((a.rows + 1) * sizeof(int64_t), 64);
  char* memory = team.shared(index_bytes + chunks * kv_heads * entry * sizeof(float));
  auto* first = reinterpret_cast<int64_t*>(memory);
  auto* partials = reinterpret_cast<float*>(memory + index_bytes);
  first[0] = 0;
  for (int64_t t = 0; t < a.rows; ++t) first[t + 1] = first[t] + num_chunks(a, t);

  const size_t bytes = AttentionScratch<Element>::floats(group, padded) * sizeof(float);
  parallel_for(team, chunks * kv_heads, [&](int64_t i, int thread) {
    const int64_t at = i / kv_heads;
    int64_t t = 0;
    while (first[t + 1] <= at) ++t;
    const QueryBlock q{t, 1, i % kv_heads, a.block_tables + t * a.table_stride};
    const AttentionScratch<Element> s(team.scratch(thread, bytes), group, padded);
    begin_block(a, q, s);
    attend_chunk(a, q, at - first[t], s);
    for (int64_t h = 0; h < group; ++h) {
      float* out = partials + i * entry + h * (head_dim + 2);
      out[0] = s.m[h];
      out[1] = s.l[h];
      copy_head(s.partial + h * padded, head_dim, out + 2);
    }
  });
  parallel_ranges(team, a.rows * a.num_heads, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / a.num_heads, head = i % a.num_heads;
      const auto partial = [&](int64_t chunk) {
        return partials + ((first[t] + chunk) * kv_heads + head / group) * entry +
               head % group * (head_dim + 2);
      };
      float* o = a.y + i * head_dim;
      if (first[t] == first[t + 1]) {
        memset(o, 0, head_dim * sizeof(float));
        continue;
      }
      const float* start = partial(0);
      float m = start[0], l = start[1];
      copy_head(start + 2, head_dim, o);
      for (int64_t c = 1; c < first[t + 1] - first[t]; ++c) {
        merge(m, l, o, partial(c)[0], partial(c)[1], partial(c) + 2, head_dim);
      }
      divide(o, l, head_dim, o);
    }
  });
}

template <class Element>
void attention(const qw::AttentionArgs<Element>& a, qw::Team& team) {
  if (a.seq_index != nullptr) {
    attend_prefill(a, team);
  } else {
    attend_decode(a, team);
  }
}

}  // namespace
