// The largest weights of a distribution without sorting it.
//
// A candidate is one 64-bit key: the bits of its (non-negative) weight above the complement of
// its id. Greater keys come first: by weight, then lower ids first. Keys are distinct.
#pragma once

#include "vec.h"

namespace {

inline uint64_t candidate_key(float weight, int32_t id) {
  uint32_t bits;
  memcpy(&bits, &weight, sizeof bits);
  return uint64_t{bits} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

inline float candidate_weight(uint64_t key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  float weight;
  memcpy(&weight, &bits, sizeof weight);
  return weight;
}

inline int32_t candidate_id(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Keys of all weights >= least, in the order of ids; returns how many.
inline int64_t gather_candidates(const float* weights, int64_t count, float least, uint64_t* keys) {
  const VF floor = splat(least);
  int64_t n = 0, i = 0;
  for (; i + W <= count; i += W) {
    if (!any(load(weights + i) >= floor)) continue;
    for (int j = 0; j < W; ++j) {
      const float weight = weights[i + j];
      if (weight >= least) keys[n++] = candidate_key(weight, static_cast<int32_t>(i + j));
    }
  }
  for (; i < count; ++i) {
    if (weights[i] >= least) keys[n++] = candidate_key(weights[i], static_cast<int32_t>(i));
  }
  return n;
}

inline double candidate_mass(const uint64_t* keys, int64_t count) {
  double mass = 0;
  for (int64_t i = 0; i < count; ++i) mass += candidate_weight(keys[i]);
  return mass;
}

// Last key of the smallest leading set that has `most` members or a mass of `mass`; reorders
// `keys`. Expected time is linear.
inline uint64_t select_boundary(uint64_t* keys, int64_t count, int64_t most, double mass) {
  int64_t begin = 0, end = count, members = 0;
  if (!(mass > 0)) mass = 1e-300;  // below every weight: no set is empty
  double sum = 0;
  uint64_t last = 0;  // all are kept
  while (begin < end) {
    // Median of three, moved to the end.
    uint64_t *a = keys + begin, *b = keys + begin + (end - begin) / 2, *c = keys + end - 1;
    const bool is_a = (*a > *b) != (*a > *c), is_b = (*b > *a) != (*b > *c);
    uint64_t* median = is_a ? a : is_b ? b : c;
    const uint64_t pivot = *median;
    *median = *c;
    *c = pivot;
    int64_t middle = begin;
    double before = 0;
    for (int64_t i = begin; i < end - 1; ++i) {
      const uint64_t key = keys[i];
      if (key < pivot) continue;
      before += candidate_weight(key);
      keys[i] = keys[middle];
      keys[middle++] = key;
    }
    if (members + middle - begin >= most || sum + before >= mass) {
      end = middle;
      continue;
    }
    keys[end - 1] = keys[middle];
    keys[middle++] = pivot;
    members += middle - begin;
    sum += before + candidate_weight(pivot);
    if (members >= most || sum >= mass) return pivot;
    last = pivot;
    begin = middle;
  }
  return last;
}

// Drops keys after `boundary` in the candidates' order; keeps the order of ids.
inline int64_t keep_until(uint64_t* keys, int64_t count, uint64_t boundary) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (keys[i] >= boundary) keys[n++] = keys[i];
  }
  return n;
}

// The `most` largest values with their ids, largest first, lower ids first among equals.
inline void largest_values(const float* x, int64_t count, int most, float* values, int32_t* ids) {
  int n = 0;
  float least = 0;  // of the values once there are `most`
  const auto offer = [&](float value, int32_t id) {
    if (n == most && !(value > least)) return;
    int at = n < most ? n++ : most - 1;
    for (; at > 0 && values[at - 1] < value; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
    least = values[n - 1];
  };
  int64_t i = 0;
  for (; i + W <= count; i += W) {
    if (n == most && !any(load(x + i) > splat(least))) continue;
    for (int j = 0; j < W; ++j) offer(x[i + j], static_cast<int32_t>(i + j));
  }
  for (; i < count; ++i) offer(x[i], static_cast<int32_t>(i));
}

}  // namespace
