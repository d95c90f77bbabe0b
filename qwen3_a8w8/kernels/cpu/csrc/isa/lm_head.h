// Output projection: bfloat16 rows of the vocabulary times activations rounded to bfloat16.
//
// A (row, token id) pair is always one chain of multiply-adds over blocks of 2 W inputs, then
// one sum across lanes, whatever the tile around it: the bits know nothing of the batch.
#pragma once

#include "rows.h"

namespace {

constexpr int64_t kHeadBlock = 2 * W;  // inputs per step
#if defined(__AVX512F__)
constexpr int kHeadIds = 4, kHeadRows = 4;
#elif defined(__AVX2__)
constexpr int kHeadIds = 2, kHeadRows = 4;
#else
constexpr int kHeadIds = 2, kHeadRows = 2;
#endif
constexpr int kHeadIdsOneRow = 8;
constexpr int64_t kHeadGrain = 64;  // token ids per chunk

#if defined(__AVX512BF16__)
// Activations stay bfloat16.
using HeadInput = uint16_t;
using HeadVector = __m512bh;

inline HeadVector head_load(const HeadInput* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline HeadVector head_weights(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline VF head_step(VF sum, HeadVector x, HeadVector w) {
  return (VF)_mm512_dpbf16_ps((__m512)sum, x, w);
}
inline void head_prepare(const float* x, int64_t width, HeadInput* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = float_to_bf16(x[i]);
}
#else
// Activations of a block as floats, the even ones and then the odd ones, to meet weights whose
// pairs are split by a shift and a mask.
using HeadInput = float;
struct HeadVector {
  VF even, odd;
};

inline HeadVector head_load(const HeadInput* p) { return {load(p), load(p + W)}; }
inline HeadVector head_weights(const uint16_t* p) {
  VU pairs;
  memcpy(&pairs, p, sizeof pairs);
  return {(VF)(pairs << 16), (VF)(pairs & 0xffff0000u)};
}
inline VF head_step(VF sum, HeadVector x, HeadVector w) {
  return fma(x.odd, w.odd, fma(x.even, w.even, sum));
}
inline void head_prepare(const float* x, int64_t width, HeadInput* out) {
  for (int64_t i = 0; i < width; ++i) {
    const int64_t in_block = i % kHeadBlock;
    out[i - in_block + in_block / 2 + in_block % 2 * W] = bf16_to_float(float_to_bf16(x[i]));
  }
}
#endif

// Logits of R rows and V ids.
template <int R, int V>
__attribute__((noinline)) void head_tile(const HeadInput* x, int64_t x_stride, const uint16_t* w,
                                         int64_t width, float* y, int64_t y_stride) {
  VF sum[R][V] = {};
  int64_t i = 0;
  for (; i + kHeadBlock <= width; i += kHeadBlock) {
    HeadVector weights[V];
    for (int v = 0; v < V; ++v) weights[v] = head_weights(w + v * width + i);
    if constexpr (R == 1) {
      for (int v = 0; v < V; ++v) __builtin_prefetch(w + v * width + i + 1024);
    }
    for (int r = 0; r < R; ++r) {
      const HeadVector input = head_load(x + r * x_stride + i);
      for (int v = 0; v < V; ++v) sum[r][v] = head_step(sum[r][v], input, weights[v]);
    }
  }
  if (i < width) {
    for (int v = 0; v < V; ++v) {
      uint16_t tail[kHeadBlock] = {};
      memcpy(tail, w + v * width + i, (width - i) * sizeof(uint16_t));
      const HeadVector weights = head_weights(tail);
      for (int r = 0; r < R; ++r) {
        sum[r][v] = head_step(sum[r][v], head_load(x + r * x_stride + i), weights);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) y[r * y_stride + v] = hsum(sum[r][v]);
  }
}

// R rows against ids [0, count).
template <int R, int V>
inline void head_rows(const HeadInput* x, int64_t x_stride, const uint16_t* w, int64_t width,
                      int64_t count, float* y, int64_t y_stride) {
  int64_t v = 0;
  for (; v + V <= count; v += V) head_tile<R, V>(x, x_stride, w + v * width, width, y + v, y_stride);
  for (; v < count; ++v) head_tile<R, 1>(x, x_stride, w + v * width, width, y + v, y_stride);
}

void lm_head(const qw::LmHeadArgs& a, qw::Team& team) {
  const int64_t x_stride = qw::round_up(a.width, kHeadBlock);
  const size_t bytes = a.rows * x_stride * sizeof(HeadInput);
  auto* x = reinterpret_cast<HeadInput*>(team.shared(bytes));
  memset(x, 0, bytes);
  for (int64_t t = 0; t < a.rows; ++t) head_prepare(a.x + t * a.width, a.width, x + t * x_stride);
  parallel_ranges(team, a.vocab, kHeadGrain, [&](int64_t begin, int64_t end, int) {
    const uint16_t* w = a.weight + begin * a.width;
    for (int64_t t = 0; t < a.rows;) {
      float* y = a.y + t * a.vocab + begin;
      const HeadInput* row = x + t * x_stride;
      if (a.rows == 1) {
        head_rows<1, kHeadIdsOneRow>(row, x_stride, w, a.width, end - begin, y, a.vocab);
        t += 1;
      } else if (a.rows - t >= kHeadRows) {
        head_rows<kHeadRows, kHeadIds>(row, x_stride, w, a.width, end - begin, y, a.vocab);
        t += kHeadRows;
      } else {
        head_rows<1, kHeadIds>(row, x_stride, w, a.width, end - begin, y, a.vocab);
        t += 1;
      }
    }
  });
}

}  // namespace
