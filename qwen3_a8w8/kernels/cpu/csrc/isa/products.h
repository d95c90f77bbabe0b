// The matrix products of the unit's instruction set, fused ones included.
#pragma once

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include "linear_amx.h"
#include "lm_head_amx.h"
#else
#include "linear.h"
#include "lm_head.h"
#endif

namespace {

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
constexpr auto kLinear = linear_amx;
constexpr auto kLmHead = lm_head_amx;
constexpr auto kLinearSiluMul = linear_silu_mul_amx;
template <class Element>
constexpr auto kLinearRopeCache = linear_rope_cache_amx<Element>;
#else
constexpr auto kLinear = linear;
constexpr auto kLmHead = lm_head;
constexpr auto kLinearSiluMul = nullptr;
template <class Element>
constexpr auto kLinearRopeCache = nullptr;
#endif

}  // namespace
