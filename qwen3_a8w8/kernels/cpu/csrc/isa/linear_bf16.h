// Ops of linears that a checkpoint keeps in bfloat16: products, concatenated columns, and the gated
// activation without quantisation.
#pragma once

#include "products.h"

namespace {

// The arithmetic of the output projection: a (row, channel) pair is one chain of multiply-adds.
void linear_bf16(const qw::LinearBf16Args& a, qw::Team& team) {
  qw::LmHeadArgs products;
  products.x = a.x;
  products.weight = a.weight;
  products.y = a.y;
  products.rows = a.rows;
  products.width = a.width;
  products.vocab = a.channels;
  kLmHead(products, team);
  if (a.residual == nullptr) return;
  parallel_ranges(team, a.rows, row_grain(a.channels), [&](int64_t begin, int64_t end, int) {
    const int64_t last = end * a.channels;
    for (int64_t i = begin * a.channels; i < last; i += W) {
      const int n = at_most_w(last - i);
      store_upto(a.y + i, load_upto(a.residual + i, n) + load_upto(a.y + i, n), n);
    }
  });
}

void concat(const qw::ConcatArgs& a, qw::Team& team) {
  parallel_ranges(team, a.rows, row_grain(a.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* y = a.y + t * a.width;
      for (int64_t i = 0; i < a.num_parts; y += a.widths[i], ++i) {
        memcpy(y, a.parts[i] + t * a.widths[i], a.widths[i] * sizeof(float));
      }
    }
  });
}

void silu_mul(const qw::SiluMulArgs& a, qw::Team& team) {
  parallel_ranges(team, a.rows, row_grain(4 * a.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      silu_mul_row(a.gate_up + t * 2 * a.width, a.width, a.y + t * a.width);
    }
  });
}

}  // namespace
