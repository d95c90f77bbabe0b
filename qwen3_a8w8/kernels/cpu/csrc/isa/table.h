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

namespace {

constexpr qw::KernelTable make_table() {
  qw::KernelTable table;
  table.embed = embed;
  table.rms_norm = rms_norm;
  table.rms_norm_quant = rms_norm_quant;
  table.quantize = quantize;
  table.silu_mul_quant = silu_mul_quant;
  table.silu_mul = silu_mul;
  table.linear = kLinear;
  table.linear_bf16 = linear_bf16;
  table.concat = concat;
  table.qk_norm_rope_cache = qk_norm_rope_cache<int8_t>;
  table.qk_norm_rope_cache_bf16 = qk_norm_rope_cache<uint16_t>;
  table.attention = attention<int8_t>;
  table.attention_bf16 = attention<uint16_t>;
  table.gather_rows = gather_rows;
  table.lm_head = kLmHead;
  table.sample = sample;
  table.linear_silu_mul = kLinearSiluMul;
  table.linear_rope_cache = kLinearRopeCache<int8_t>;
  table.linear_rope_cache_bf16 = kLinearRopeCache<uint16_t>;
  table.multiply_in_registers = multiply_in_registers;
  table.read_memory = read_memory;
  return table;
}

#define QW_CHECK(name, ...) \
  static_assert(make_table().name != nullptr, "this instruction path has no function '" #name "'");
QW_KERNELS(QW_CHECK)
QW_CHECK(multiply_in_registers)
QW_CHECK(read_memory)
#undef QW_CHECK

}  // namespace

namespace qw {

extern const KernelTable QW_TABLE;
constexpr KernelTable QW_TABLE = make_table();

}  // namespace qw
