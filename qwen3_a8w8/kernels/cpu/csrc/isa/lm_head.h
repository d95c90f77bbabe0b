// Output projection: bfloat16 rows of the vocabulary times activations rounded to bfloat16.
//
// A (row, token id) pair is always one chain of multiply-adds over blocks of 2 W inputs, then one
// sum across lanes, regardless of its tile: the bits don't depend on the batch. float32
// multiply-adds are used even where the machine has vdpbf16ps, which does twice the products per
// instruction but was measured at a quarter of the rate.
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
constexpr int64_t kHeadGrain = 64;    // token ids per chunk
constexpr int64_t kHeadAhead = 1024;  // inputs by which a single row's weights are prefetched

// Activations as floats. In each block the even ones come before the odd ones, since a shift and a
// mask split the weights that way.
using HeadInput = float;

inline VU head_pairs(const uint16_t* p) {
  VU pairs;
  memcpy(&pairs, p, sizeof pairs);
  return pairs;
}

inline void head_prepare(const float* x, int64_t width, HeadInput* out) {
  for (int64_t i = 0; i < width; ++i) {
    const int64_t in_block = i % kHeadBlock;
    out[i - in_block + in_block / 2 + in_block % 2 * W] = bf16_to_float(float_to_bf16(x[i]));
  }
}

// Weights to prefetch while a tile is computed: `rows` ids of the next tile, from `from` on.
struct HeadPrefetch {
  const uint16_t* from;
  int rows;
};

// Adds the products of one block of inputs: `w` is each id's block, `w_stride` apart.
template <int R, int V>
inline void head_step(VF (&sum)[R][V], const HeadInput* x, int64_t x_stride, const uint16_t* w,
                      int64_t w_stride) {
  for (int odd = 0; odd < 2; ++odd) {
    VF weights[V];
    for (int v = 0; v < V; ++v) {
      const VU pairs = head_pairs(w + v * w_stride);
      weights[v] = (VF)(odd ? pairs & 0xffff0000u : pairs << 16);
    }
    for (int r = 0; r < R; ++r) {
      const VF input = load(x + r * x_stride + odd * W);
      for (int v = 0; v < V; ++v) sum[r][v] = fma(input, weights[v], sum[r][v]);
    }
  }
}

// Logits of R rows and V ids.
template <int R, int V>
__attribute__((noinline)) void head_tile(const HeadInput* x, int64_t x_stride, const uint16_t* w,
                                         int64_t width, HeadPrefetch prefetch, float* y,
                                         int64_t y_stride) {
  VF sum[R][V] = {};
  const int64_t ahead = kHeadAhead < width ? kHeadAhead : width;
  int64_t i = 0;
  for (; i + kHeadBlock <= width; i += kHeadBlock) {
    if constexpr (R == 1) {
      // Further on in each id's row, and past its end in that of the next tile.
      const int64_t next = i + ahead < width ? i + ahead : i + ahead + (V - 1) * width;
      for (int v = 0; v < V; ++v) __builtin_prefetch(w + v * width + next);
    } else {
      for (int f = 0; f < prefetch.rows; ++f) {
        __builtin_prefetch(prefetch.from + f * width + i, 0, 2);
      }
    }
    head_step(sum, x + i, x_stride, w + i, width);
  }
  if (i < width) {
    uint16_t tail[V][kHeadBlock] = {};
    for (int v = 0; v < V; ++v) memcpy(tail[v], w + v * width + i, (width - i) * sizeof(uint16_t));
    head_step(sum, x + i, x_stride, tail[0], kHeadBlock);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) y[r * y_stride + v] = hsum(sum[r][v]);
  }
}

// V ids for all rows. Every pass over a few rows prefetches a share of the weights of the next V
// ids.
template <int V>
inline void head_ids(const qw::LmHeadArgs& a, const HeadInput* x, int64_t x_stride, int64_t id) {
  const uint16_t* w = a.weight + id * a.width;
  if (a.rows == 1) {
    head_tile<1, V>(x, x_stride, w, a.width, {w, 0}, a.y + id, a.vocab);
    return;
  }
  const int64_t passes = a.rows / kHeadRows + a.rows % kHeadRows;
  const int share = static_cast<int>(qw::ceil_div(V, passes));
  int requested = 0;
  for (int64_t t = 0; t < a.rows;) {
    const HeadPrefetch prefetch = {w + (V + requested) * a.width, requested < V ? share : 0};
    requested += share;
    const HeadInput* row = x + t * x_stride;
    float* y = a.y + t * a.vocab + id;
    if (a.rows - t >= kHeadRows) {
      head_tile<kHeadRows, V>(row, x_stride, w, a.width, prefetch, y, a.vocab);
      t += kHeadRows;
    } else {
      head_tile<1, V>(row, x_stride, w, a.width, prefetch, y, a.vocab);
      t += 1;
    }
  }
}

template <int V>
inline void head_range(const qw::LmHeadArgs& a, const HeadInput* x, int64_t x_stride,
                       int64_t begin, int64_t end) {
  int64_t id = begin;
  for (; id + V <= end; id += V) head_ids<V>(a, x, x_stride, id);
  for (; id < end; ++id) head_ids<1>(a, x, x_stride, id);
}

void lm_head(const qw::LmHeadArgs& a, qw::Team& team) {
  if (a.rows == 0) return;  // only the last prefill chunk of a prompt needs logits
  const int64_t x_stride = qw::round_up(a.width, kHeadBlock);
  const size_t bytes = a.rows * x_stride * sizeof(HeadInput);
  auto* x = reinterpret_cast<HeadInput*>(team.shared(bytes));
  memset(x, 0, bytes);
  for (int64_t t = 0; t < a.rows; ++t) head_prepare(a.x + t * a.width, a.width, x + t * x_stride);
  parallel_ranges(team, a.vocab, kHeadGrain, [&](int64_t begin, int64_t end, int) {
    if (a.rows == 1) {
      head_range<kHeadIdsOneRow>(a, x, x_stride, begin, end);
    } else {
      head_range<kHeadIds>(a, x, x_stride, begin, end);
    }
  });
}

}  // namespace
