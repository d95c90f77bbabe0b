// Per-head norms and rotation of q and k; k and v go into the cache, quantised or as bfloat16.
#pragma once

#include "bf16_cache.h"
#include "rows.h"

namespace {

// Norms and rotates one head; y may not be x.
inline void norm_rotate(const float* x, const float* weight, const float* rope, int64_t head_dim,
                        float eps, float* y) {
  const VF inverse = splat(inverse_rms(x, head_dim, eps));
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += W) {
    const int count = at_most_w(half - i);
    const VF a = load_upto(x + i, count) * inverse * load_upto(weight + i, count);
    const VF b = load_upto(x + half + i, count) * inverse * load_upto(weight + half + i, count);
    const VF cosine = load_upto(rope + i, count), sine = load_upto(rope + half + i, count);
    store_upto(y + i, a * cosine - b * sine, count);
    store_upto(y + half + i, b * cosine + a * sine, count);
  }
}

inline float quantise_head(const float* x, int64_t head_dim, int8_t* q) {
  const auto produce = [&](int64_t i, int count) { return load_upto(x + i, count); };
  return quantise_row(head_dim, produce, q, false);
}

// Writes one head of a token to `to`, and its scale to `scale[index]`.
inline void store_head(const float* x, int64_t head_dim, int8_t* to, float* scale, int64_t index) {
  scale[index] = quantise_head(x, head_dim, to);
}

// Head `h` of a token's q, k and v in their order, from its numbers `x`.
template <class Element>
inline void rope_cache_head(const qw::RopeCacheArgs<Element>& a, int64_t t, int64_t h,
                            const float* x) {
  const qw::CacheView<Element>& cache = a.cache;
  const int64_t head_dim = cache.head_dim, kv_heads = cache.kv_heads;
  const float* rope = a.rope + static_cast<int64_t>(a.positions[t]) * head_dim;
  if (h < a.num_heads) {
    norm_rotate(x, a.q_norm, rope, head_dim, a.eps, a.q + (t * a.num_heads + h) * head_dim);
    return;
  }
  const bool is_key = h < a.num_heads + kv_heads;
  const int64_t kv_head = h - a.num_heads - (is_key ? 0 : kv_heads);
  const int64_t slot = a.slots[t];
  const int64_t index = cache.row(slot / cache.block_size, kv_head, slot % cache.block_size);
  if (!is_key) {
    store_head(x, head_dim, cache.v + index * head_dim, cache.v_scale, index);
    return;
  }
  float key[qw::kMaxHeadDim];
  norm_rotate(x, a.k_norm, rope, head_dim, a.eps, key);
  store_head(key, head_dim, cache.k + index * head_dim, cache.k_scale, index);
}

template <class Element>
void qk_norm_rope_cache(const qw::RopeCacheArgs<Element>& a, qw::Team& team) {
  const int64_t head_dim = a.cache.head_dim, heads = a.num_heads + 2 * a.cache.kv_heads;
  const int64_t grain = 4096 / head_dim + 1;
  parallel_ranges(team, a.rows * heads, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      rope_cache_head(a, i / heads, i % heads, a.qkv + i * head_dim);
    }
  });
}

}  // namespace
