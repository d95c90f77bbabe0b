// All kernels of the unit's instruction set as a table. A unit defines QW_TABLE and includes
// this file, and nothing else.
#pragma once

#include "../kernels.h"
#include "attention.h"
#include "linear_bf16.h"
#include "probe.h"
#include "products.h"
#include "rope_cache.h"
#include "rows.h"
#include "sample.h"

namespace qw {

extern const KernelTable QW_TABLE;
const KernelTable QW_TABLE = {
    embed,      rms_norm, rms_norm_quant,     quantize,    silu_mul_quant,
    kLinear,    qk_norm_rope_cache,           attention,   gather_rows,
    kLmHead,    sample,   linear_bf16,        concat,      silu_mul,
    qk_norm_rope_cache,   attention,  // of a bfloat16 cache
    kLinearSiluMul, kLinearRopeCache<int8_t>, kLinearRopeCache<uint16_t>,
    multiply_in_registers, read_memory};

}  // namespace qw
