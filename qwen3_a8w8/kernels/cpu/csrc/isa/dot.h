// The int8 micro-kernels of the unit's instruction set; see tile_args.h.
#pragma once

#if defined(__AVX512VNNI__)
#include "dot_avx512.h"
#elif defined(__AVX2__)
#include "dot_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "dot_neon.h"
#else
#include "dot_scalar.h"
#endif

namespace {

#if defined(QW_WIDENS)
constexpr bool kWidens = true;
#else
constexpr bool kWidens = false;
// Never called.
inline void widen_weights(const uint8_t*, int64_t, uint8_t*) {}
inline void widen_group(const int8_t*, int8_t*) {}
#endif

}  // namespace
