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
