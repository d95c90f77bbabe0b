// The kernel set: arguments of every kernel, and the table of functions that each instruction path
// fills. What an op computes is written in kernels/ops/.
#pragma once

#include "layout.h"
#include "team.h"

namespace qw {

struct EmbedArgs {
  const int32_t* ids;
  int64_t id_stride;
  const uint16_t* table;  // bfloat16 [vocab, width]
  float* y;
  int64_t rows, width;
};

struct RmsNormArgs {
  const float* x;
  const float* weight;
  float* y;
  int64_t rows, width;
  float eps;
};

struct RmsNormQuantArgs {
  const float* x;
  const float* weight;
  QuantisedRows q;
  float* scale;
  int64_t rows, width;
  float eps;
};

struct QuantizeArgs {
  const float* x;
  QuantisedRows q;
  float* scale;
  int64_t rows, width;
};

struct SiluMulQuantArgs {
  const float* gate_up;  // [rows, 2 * width]
  QuantisedRows q;
  float* scale;
  int64_t rows, width;
};

struct LinearArgs {
  QuantisedRows x;
  const float* x_scale;
  PackedLinear weight;
  const float* w_scale;
  const float* residual;  // null for a plain linear; may be y
  float* y;
  int64_t rows;
};

struct LinearBf16Args {
  const float* x;
  const uint16_t* weight;  // bfloat16 [channels, width]
  const float* residual;   // null for a plain linear; not y
  float* y;
  int64_t rows, width, channels;
};

struct ConcatArgs {
  const float* const* parts;
  const int64_t* widths;
  int64_t num_parts;
  float* y;
  int64_t rows, width;
};

struct SiluMulArgs {
  const float* gate_up;  // [rows, 2 * width]
  float* y;
  int64_t rows, width;
};

// One layer's part of the paged cache: [blocks, kv_heads, block_size, head_dim] of int8_t with
// scales, or of uint16_t (bfloat16) whose scales are null.
template <class Element>
struct CacheView {
  Element* k;
  Element* v;
  float* k_scale;
  float* v_scale;
  int64_t kv_heads, block_size, head_dim;

  // Index of (slot's token, head) in the scale arrays; times head_dim in k and v.
  QW_INLINE int64_t row(int64_t block, int64_t head, int64_t offset) const {
    return (block * kv_heads + head) * block_size + offset;
  }
};

template <class Element>
struct RopeCacheArgs {
  const float* qkv;
  const float* q_norm;
  const float* k_norm;
  const float* rope;
  const int32_t* positions;
  const int32_t* slots;
  CacheView<Element> cache;
  float* q;
  int64_t rows, num_heads;
  float eps;
};

template <class Element>
struct AttentionArgs {
  const float* q;
  CacheView<Element> cache;
  const int32_t* block_tables;
  int64_t table_stride;
  const int32_t* context_lens;
  const int32_t* seq_index;  // null: row t is sequence t
  float* y;
  int64_t rows, num_heads;
  float scale;
};

struct GatherArgs {
  const float* x;
  const int32_t* indices;
  float* y;
  int64_t rows, width;
};

struct LmHeadArgs {
  const float* x;
  const uint16_t* weight;  // bfloat16 [vocab, width]
  float* y;
  int64_t rows, width, vocab;
};

// Inputs of `sample`, X(element type, name), under the names that kernels/ops/sampling.py gives
// them. backend.py arranges a node's inputs by these names, so the order is free after the logits.
#define QW_SAMPLE_INPUTS(X)                                                      \
  X(float, logits)                                                               \
  X(float, temperature)                                                          \
  X(int32_t, top_k)                                                              \
  X(float, top_p)                                                                \
  X(float, min_p)                                                                \
  X(int64_t, seeds)                                                              \
  X(int32_t, positions)                                                          \
  X(float, repetition_penalty)                                                   \
  X(float, presence_penalty)                                                     \
  X(float, frequency_penalty)                                                    \
  X(int32_t, num_logprobs)                                                       \
  X(int32_t, bias_range)                                                         \
  X(int32_t, bias_ids)                                                           \
  X(float, bias_values)                                                          \
  X(int32_t, history_range)                                                      \
  X(int32_t, history_ids)                                                        \
  X(int32_t, history_counts)                                                     \
  X(int32_t, allowed_start) /* of the row's words in allowed_words, or -1 */     \
  X(int32_t, allowed_words) /* a bit per token */

struct SampleArgs {
#define QW_MEMBER(Element, name) const Element* name;
  QW_SAMPLE_INPUTS(QW_MEMBER)
#undef QW_MEMBER
  int32_t* sampled_ids;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
  int64_t rows, vocab, id_stride, top_stride;
};

// Kernels that every instruction path has, X(name, argument type): void name(const Args&, Team&).
#define QW_KERNELS(X)                                  \
  X(embed, EmbedArgs)                                  \
  X(rms_norm, RmsNormArgs)                             \
  X(rms_norm_quant, RmsNormQuantArgs)                  \
  X(quantize, QuantizeArgs)                            \
  X(silu_mul_quant, SiluMulQuantArgs)                  \
  X(silu_mul, SiluMulArgs)                             \
  X(linear, LinearArgs)                                \
  X(linear_bf16, LinearBf16Args)                       \
  X(concat, ConcatArgs)                                \
  X(qk_norm_rope_cache, RopeCacheArgs<int8_t>)         \
  X(qk_norm_rope_cache_bf16, RopeCacheArgs<uint16_t>)  \
  X(attention, AttentionArgs<int8_t>)                  \
  X(attention_bf16, AttentionArgs<uint16_t>)           \
  X(gather_rows, GatherArgs)                           \
  X(lm_head, LmHeadArgs)                               \
  X(sample, SampleArgs)

// The functions of one instruction path; isa/table.h fills it by name and checks that nothing is
// missing.
struct KernelTable {
#define QW_MEMBER(name, Args) void (*name)(const Args&, Team&) = nullptr;
  QW_KERNELS(QW_MEMBER)
#undef QW_MEMBER
  // A linear fused with the op that follows, with the same bits as the two kernels one after the
  // other: the gated activation of its two halves, written to y [rows, half of the channels], or
  // `qk_norm_rope_cache` of its q, k and v (`qkv` isn't read). They return false, with nothing
  // written, for shapes that they don't support. Null on paths without fusion.
  bool (*linear_silu_mul)(const LinearArgs&, Team&) = nullptr;
  bool (*linear_rope_cache)(const LinearArgs&, const RopeCacheArgs<int8_t>&, Team&) = nullptr;
  bool (*linear_rope_cache_bf16)(const LinearArgs&, const RopeCacheArgs<uint16_t>&,
                                 Team&) = nullptr;
  // Measurements of the machine's limits, see isa/probe.h.
  int64_t (*multiply_in_registers)(int64_t rounds) = nullptr;
  void (*read_memory)(const char* data, int64_t bytes, int64_t prefetch_bytes) = nullptr;
};

constexpr int64_t kMaxHeadDim = 512;

}  // namespace qw
