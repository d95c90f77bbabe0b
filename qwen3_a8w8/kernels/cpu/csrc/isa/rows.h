// Ops that read a row once or twice: embedding, norms, quantisation, gather.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace {

constexpr float kQuantEps = 1e-10f;

// Rows per chunk such that a chunk has some 16K elements.
inline int64_t row_grain(int64_t width) {
  const int64_t grain = 16384 / (width > 0 ? width : 1);
  return grain > 0 ? grain : 1;
}

inline float inverse_rms(const float* x, int64_t width, float eps) {
  VF sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= width; i += 4 * W) {
    for (int j = 0; j < 4; ++j) {
      const VF v = load(x + i + j * W);
      sum[j] = fma(v, v, sum[j]);
    }
  }
  for (; i < width; i += W) {
    const VF v = load_upto(x + i, at_most_w(width - i));
    sum[0] = fma(v, v, sum[0]);
  }
  const float total = hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(width) + eps);
}

// Quantises a row whose elements `produce(i, count)` computes; returns the scale. Elements are
// produced twice: the row is in the first-level cache, and no copy of it is needed.
template <class Produce>
float quantise_row(int64_t width, Produce produce, int8_t* q, bool has_trailer) {
  VF largest[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= width; i += 2 * W) {
    largest[0] = vmax(vabs(produce(i, W)), largest[0]);
    largest[1] = vmax(vabs(produce(i + W, W)), largest[1]);
  }
  for (; i < width; i += W) largest[0] = vmax(vabs(produce(i, at_most_w(width - i))), largest[0]);
  float absmax = hmax(vmax(largest[0], largest[1]));
  absmax = absmax > kQuantEps ? absmax : kQuantEps;
  const float scale = absmax / 127.0f;
  // A division, not a product with the reciprocal: the two differ at ties.
  const VF divisor = splat(scale);
  VI sum{};
  for (i = 0; i < width; i += W) {
    const int count = at_most_w(width - i);
    VI v = to_int(produce(i, count) / divisor);
    v = v > 127 ? splat_int(127) : v;
    v = v < -127 ? splat_int(-127) : v;
    store_i8(q + i, v, count);
    if (has_trailer) sum += v;
  }
  if (has_trailer) {
    const int64_t padded = qw::round_up(width, 64);
    memset(q + width, 0, padded - width);
    const int32_t total = static_cast<int32_t>(hsum_int(sum));
    memcpy(q + padded, &total, sizeof total);
  }
  return scale;
}

void embed(const qw::EmbedArgs& a, qw::Team& team) {
  parallel_ranges(team, a.rows, row_grain(a.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const uint16_t* row = a.table + static_cast<int64_t>(a.ids[t * a.id_stride]) * a.width;
      float* y = a.y + t * a.width;
      int64_t i = 0;
      for (; i + W <= a.width; i += W) store(y + i, load_bf16(row + i));
      for (; i < a.width; ++i) y[i] = bf16_to_float(row[i]);
    }
  });
}

void rms_norm(const qw::RmsNormArgs& a, qw::Team& team) {
  parallel_ranges(team, a.rows, row_grain(a.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x + t * a.width;
      const VF inverse = splat(inverse_rms(x, a.width, a.eps));
      for (int64_t i = 0; i < a.width; i += W) {
        const int count = at_most_w(a.width - i);
        const VF y = load_upto(x + i, count) * inverse * load_upto(a.weight + i, count);
        store_upto(a.y + t * a.width + i, y, count);
      }
    }
  });
}

void rms_norm_quant(const qw::RmsNormQuantArgs& a, qw::Team& team) {
  parallel_ranges(team, a.rows, row_grain(a.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x + t * a.width;
      const VF inverse = splat(inverse_rms(x, a.width, a.eps));
      const auto produce = [&](int64_t i, int count) {
        return load_upto(x + i, count) * inverse * load_upto(a.weight + i, count);
      };
      a.scale[t] = quantise_row(a.width, produce, a.q.data + t * a.q.stride, a.q.has_trailer);
    }
  });
}

void quantize(const qw::QuantizeArgs& a, qw::Team& team) {
  parallel_ranges(team, a.rows, row_grain(a.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x + t * a.width;
      const auto produce = [&](int64_t i, int count) { return load_upto(x + i, count); };
      a.scale[t] = quantise_row(a.width, produce, a.q.data + t * a.q.stride, a.q.has_trailer);
    }
  });
}

inline VF silu_mul(VF gate, VF up) { return gate / (splat(1.0f) + vexp(-gate)) * up; }

inline void silu_mul_row(const float* gate_up, int64_t width, float* h) {
  for (int64_t i = 0; i < width; i += W) {
    const int count = at_most_w(width - i);
    const VF gate = load_upto(gate_up + i, count);
    store_upto(h + i, silu_mul(gate, load_upto(gate_up + width + i, count)), count);
  }
}

void silu_mul_quant(const qw::SiluMulQuantArgs& a, qw::Team& team) {
  const auto some_rows = [&](int64_t begin, int64_t end, int thread) {
    float* h = reinterpret_cast<float*>(team.scratch(thread, a.width * sizeof(float)));
    for (int64_t t = begin; t < end; ++t) {
      silu_mul_row(a.gate_up + t * 2 * a.width, a.width, h);
      const auto produce = [&](int64_t i, int count) { return load_upto(h + i, count); };
      a.scale[t] = quantise_row(a.width, produce, a.q.data + t * a.q.stride, a.q.has_trailer);
    }
  };
  parallel_ranges(team, a.rows, row_grain(4 * a.width), some_rows);
}

void gather_rows(const qw::GatherArgs& a, qw::Team&) {
  for (int64_t s = 0; s < a.rows; ++s) {
    memcpy(a.y + s * a.width, a.x + a.indices[s] * a.width, a.width * sizeof(float));
  }
}

}  // namespace
