// A small float32 product C = A B (or C += A B) for attention. Every element is one chain of
// multiply-adds over the depth in order, so its bits don't depend on how rows are grouped.
#pragma once

#include "vec.h"

namespace {

#if defined(__AVX512F__)
constexpr int kGemmVectors = 4, kGemmRows = 6;
#elif defined(__AVX2__)
constexpr int kGemmVectors = 2, kGemmRows = 5;
#else
constexpr int kGemmVectors = 2, kGemmRows = 4;
#endif
constexpr int64_t kGemmColumns = kGemmVectors * W;  // columns come in multiples of this

template <int R>
__attribute__((noinline)) void sgemm_tile(const float* a, int64_t lda, const float* b, int64_t ldb,
                                          int64_t depth, float* c, int64_t ldc, bool is_added) {
  VF sum[R][kGemmVectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kGemmVectors; ++v) {
      sum[r][v] = is_added ? load(c + r * ldc + v * W) : VF{};
    }
  }
  for (int64_t k = 0; k < depth; ++k, b += ldb) {
    VF right[kGemmVectors];
    for (int v = 0; v < kGemmVectors; ++v) right[v] = load(b + v * W);
    for (int r = 0; r < R; ++r) {
      const VF left = splat(a[r * lda + k]);
      for (int v = 0; v < kGemmVectors; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kGemmVectors; ++v) store(c + r * ldc + v * W, sum[r][v]);
  }
}

template <int R>
inline void sgemm_rows(int rows, const float* a, int64_t lda, const float* b, int64_t ldb,
                       int64_t depth, float* c, int64_t ldc, bool is_added) {
  if (rows == R) {
    sgemm_tile<R>(a, lda, b, ldb, depth, c, ldc, is_added);
  } else if constexpr (R > 1) {
    sgemm_rows<R - 1>(rows, a, lda, b, ldb, depth, c, ldc, is_added);
  }
}

// A [rows, depth], B [depth, columns], C [rows, columns].
inline void sgemm(const float* a, int64_t lda, int64_t rows, const float* b, int64_t ldb,
                  int64_t columns, int64_t depth, float* c, int64_t ldc, bool is_added) {
  for (int64_t j = 0; j < columns; j += kGemmColumns) {
    for (int64_t r = 0; r < rows; r += kGemmRows) {
      const int n = static_cast<int>(rows - r < kGemmRows ? rows - r : kGemmRows);
      sgemm_rows<kGemmRows>(n, a + r * lda, lda, b + j, ldb, depth, c + r * ldc + j, ldc, is_added);
    }
  }
}

}  // namespace
