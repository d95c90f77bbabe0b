// Draws a token per row, in the steps that Ops.sample lists.
#pragma once

#include "candidates.h"
#include "philox.h"
#include "rows.h"

namespace {

constexpr int64_t kMassBlock = 512;

inline bool all_finite(const float* x, int64_t count) {
  VI bad{};
  for (int64_t i = 0; i < count; i += W) {
    bad |= ((VI)load_upto(x + i, at_most_w(count - i)) & 0x7f800000) == 0x7f800000;
  }
  return !any(bad);
}

inline float largest(const float* x, int64_t count) {
  VF best = splat(x[0]);
  int64_t i = 0;
  for (; i + W <= count; i += W) best = vmax(load(x + i), best);
  float result = hmax(best);
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

inline int32_t index_of(const float* x, int64_t count, float value) {
  const VF wanted = splat(value);
  int64_t i = 0;
  while (i + W <= count && !any(load(x + i) == wanted)) i += W;
  while (i < count - 1 && x[i] != value) ++i;
  return static_cast<int32_t>(i);
}

// Sum of the weights that are at least `least`, lane by lane in float64.
inline double block_mass(const float* weights, int64_t count, float least) {
  double lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += weights[i + j] >= least ? weights[i + j] : 0.0f;
  }
  for (; i < count; ++i) lane[0] += weights[i] >= least ? weights[i] : 0.0f;
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

inline double total_mass(const float* weights, int64_t count, float least) {
  double mass = 0;
  for (int64_t i = 0; i < count; i += kMassBlock) {
    mass += block_mass(weights + i, count - i < kMassBlock ? count - i : kMassBlock, least);
  }
  return mass;
}

// Bars the tokens whose bit is 0.
inline void bar(const int32_t* allowed, int64_t vocab, float* l) {
  for (int64_t i = 0; i < vocab; i += 32) {
    const auto word = static_cast<uint32_t>(allowed[i / 32]);
    if (word == 0xffffffffu) continue;
    const int64_t count = vocab - i < 32 ? vocab - i : 32;
    for (int64_t j = 0; j < count; ++j) {
      if ((word >> j & 1) == 0) l[i + j] = -__builtin_inff();
    }
  }
}

inline void adjust(const qw::SampleArgs& a, int64_t row, float* l) {
  for (int32_t j = a.bias_range[2 * row]; j < a.bias_range[2 * row + 1]; ++j) {
    l[a.bias_ids[j]] += a.bias_values[j];
  }
  if (a.allowed_start[row] >= 0) bar(a.allowed_words + a.allowed_start[row], a.vocab, l);
  const float repetition = a.repetition_penalty[row];
  for (int32_t j = a.history_range[2 * row]; j < a.history_range[2 * row + 1]; ++j) {
    const int32_t count = a.history_counts[j];
    float value = l[a.history_ids[j]];
    value = value > 0 ? value / repetition : value * repetition;
    value -= static_cast<float>(count) * a.frequency_penalty[row];
    if (count > 0) value -= a.presence_penalty[row];
    l[a.history_ids[j]] = value;
  }
}

// A token from all weights: blocks first, then within the block.
inline int32_t draw_from_all(const float* weights, int64_t vocab, double u) {
  const double wanted = u * total_mass(weights, vocab, 0.0f);
  double before = 0;
  int32_t last = 0;
  for (int64_t i = 0; i < vocab; i += kMassBlock) {
    const int64_t count = vocab - i < kMassBlock ? vocab - i : kMassBlock;
    const double after = before + block_mass(weights + i, count, 0.0f);
    if (after > wanted) {
      double running = before;
      for (int64_t j = i; j < i + count; ++j) {
        running += weights[j];
        if (weights[j] > 0) last = static_cast<int32_t>(j);
        if (running > wanted) return last;
      }
    }
    before = after;
  }
  return last;
}

// Gathers weights above ever lower thresholds, down to `least`, until the candidates include all
// that the filters can keep. `mass` is top_p's share of all weights, or negative if top_k applies
// first.
inline int64_t enough_candidates(const float* weights, int64_t vocab, float least, int64_t top_k,
                                 double mass, uint64_t* keys) {
  constexpr float kLevels[] = {0.02f, 1e-4f, 1e-8f, 0.0f};
  int64_t count = 0;
  for (const float level : kLevels) {
    const float floor = level > least ? level : least;
    count = gather_candidates(weights, vocab, floor, keys);
    if (floor == least) break;
    if (mass < 0 ? count >= top_k : candidate_mass(keys, count) >= mass) break;
  }
  return count;
}

inline int32_t draw_filtered(const qw::SampleArgs& a, int64_t row, const float* weights,
                             uint64_t* keys, uint64_t* scratch, double u) {
  const bool has_top_k = a.top_k[row] > 0 && a.top_k[row] < a.vocab;
  const double top_p = a.top_p[row];
  // Weights of 0 are never kept; the largest weight is 1, so min_p is a bound as it stands.
  const float tiny = 1e-45f;
  const float min_p = a.min_p[row] < 1.0f ? a.min_p[row] : 1.0f;
  const float least = min_p > tiny ? min_p : tiny;
  const double mass = has_top_k     ? -1.0
                      : top_p < 1.0 ? top_p * total_mass(weights, a.vocab, least)
                                    : __builtin_inf();
  int64_t count = enough_candidates(weights, a.vocab, least, a.top_k[row], mass, keys);
  if (has_top_k && count > a.top_k[row]) {
    memcpy(scratch, keys, count * sizeof *keys);
    count = keep_until(keys, count, select_boundary(scratch, count, a.top_k[row], __builtin_inf()));
  }
  if (top_p < 1.0) {
    memcpy(scratch, keys, count * sizeof *keys);
    const double wanted = has_top_k ? top_p * candidate_mass(keys, count) : mass;
    count = keep_until(keys, count, select_boundary(scratch, count, count, wanted));
  }
  const double wanted = u * candidate_mass(keys, count);
  double running = 0;
  for (int64_t i = 0; i < count; ++i) {
    running += candidate_weight(keys[i]);
    if (running > wanted) return candidate_id(keys[i]);
  }
  return candidate_id(keys[count - 1]);
}

inline int32_t draw(const qw::SampleArgs& a, int64_t row, float* l, uint64_t* keys,
                    uint64_t* scratch) {
  const float top = largest(l, a.vocab);
  const float temperature = a.temperature[row];
  // With every token barred there is no distribution; the result is the argmax, the first id.
  if (temperature == 0.0f || top == -__builtin_inff()) return index_of(l, a.vocab, top);
  for (int64_t i = 0; i < a.vocab; i += W) {
    const int n = at_most_w(a.vocab - i);
    store_upto(l + i, vexp((load_upto(l + i, n) - splat(top)) / splat(temperature)), n);
  }
  const double u = uniform(a.seeds[row], a.positions[row]);
  const bool is_filtered = (a.top_k[row] > 0 && a.top_k[row] < a.vocab) || a.top_p[row] < 1.0f ||
                           a.min_p[row] > 0.0f;
  return is_filtered ? draw_filtered(a, row, l, keys, scratch, u) : draw_from_all(l, a.vocab, u);
}

inline void report(const qw::SampleArgs& a, int64_t row, int32_t token) {
  const float* logits = a.logits + row * a.vocab;
  const float top = largest(logits, a.vocab);
  double sum = 0;
  for (int64_t i = 0; i < a.vocab; i += kMassBlock) {
    const int64_t end = a.vocab - i < kMassBlock ? a.vocab : i + kMassBlock;
    VF lanes{};
    for (int64_t j = i; j < end; j += W) {
      const int n = at_most_w(end - j);
      VF e = vexp(load_upto(logits + j, n) - splat(top));
      for (int lane = n; lane < W; ++lane) e[lane] = 0.0f;
      lanes = lanes + e;
    }
    sum += hsum(lanes);
  }
  const double log_sum = __builtin_log(sum);
  const auto logprob = [&](float x) { return static_cast<float>(double{x} - top - log_sum); };
  a.logprobs[row] = logprob(logits[token]);
  const int wanted = a.num_logprobs[row];
  const int n = wanted < a.top_stride ? wanted : static_cast<int>(a.top_stride);
  if (n == 0) return;
  float* values = a.top_logprobs + row * a.top_stride;
  largest_values(logits, a.vocab, n < a.vocab ? n : static_cast<int>(a.vocab), values,
                 a.top_ids + row * a.top_stride);
  for (int i = 0; i < n && i < a.vocab; ++i) values[i] = logprob(values[i]);
}

void sample(const qw::SampleArgs& a, qw::Team& team) {
  const int64_t padded = qw::round_up(a.vocab, 16);
  parallel_for(team, a.rows, [&](int64_t row, int thread) {
    int32_t* ids = a.sampled_ids + row * a.id_stride;
    for (int64_t i = 0; i < a.id_stride; ++i) ids[i] = 0;
    const float* logits = a.logits + row * a.vocab;
    if (!all_finite(logits, a.vocab)) {
      ids[0] = -1;
      return;
    }
    char* memory = team.scratch(thread, padded * (sizeof(float) + 2 * sizeof(uint64_t)));
    auto* l = reinterpret_cast<float*>(memory);
    auto* keys = reinterpret_cast<uint64_t*>(memory + padded * sizeof(float));
    memcpy(l, logits, a.vocab * sizeof(float));
    adjust(a, row, l);
    ids[0] = draw(a, row, l, keys, keys + padded);
    if (a.num_logprobs[row] >= 0) report(a, row, ids[0]);
  });
}

}  // namespace
