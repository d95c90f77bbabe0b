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

// Writes one head of a token to `to`; gives its scale to `scale[index]`.
inline void store_head(const float* x, int64_t head_dim, int8_t* to, float* scale, int64_t index) {
  scale[index] = quantise_head(x, head_dim, to);
}

template <class Element>
void qk_norm_rope_cache(const qw::RopeCacheArgs<Element>& a, qw::Team& team) {
  const qw::CacheView<Element>& cache = a.cache;
  const int64_t head_dim = cache.head_dim, kv_heads = cache.kv_heads;
  const int64_t q_size = a.num_heads * head_dim;
  const int64_t width = q_size + 2 * kv_heads * head_dim;
  // One unit is a KV head of a token with its query heads, its key and its value.
  const int64_t group = a.num_heads / kv_heads;
  const int64_t grain = 4096 / ((group + 2) * head_dim) + 1;
  parallel_ranges(team, a.rows * kv_heads, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t t = unit / kv_heads, head = unit % kv_heads;
      const float* row = a.qkv + t * width;
      const float* rope = a.rope + static_cast<int64_t>(a.positions[t]) * head_dim;
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        norm_rotate(row + h * head_dim, a.q_norm, rope, head_dim, a.eps,
                    a.q + t * q_size + h * head_dim);
      }
      const int64_t block = a.slots[t] / cache.block_size, offset = a.slots[t] % cache.block_size;
      const int64_t index = cache.row(block, head, offset);
      float key[qw::kMaxHeadDim];
      norm_rotate(row + q_size + head * head_dim, a.k_norm, rope, head_dim, a.eps, key);
      store_head(key, head_dim, cache.k + index * head_dim, cache.k_scale, index);
      const float* value = row + q_size + (kv_heads + head) * head_dim;
      store_head(value, head_dim, cache.v + index * head_dim, cache.v_scale, index);
    }
  });
}

}  // namespace
