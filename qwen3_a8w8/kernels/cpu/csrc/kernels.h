// The kernel set: arguments of every op, and the table of functions that one instruction set
// fills. What each op computes is written in kernels/ops/.
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

struct SampleArgs {
  const float* logits;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int32_t* positions;
  const float* repetition_penalty;
  const float* presence_penalty;
  const float* frequency_penalty;
  const int32_t* num_logprobs;
  const int32_t* bias_range;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* history_range;
  const int32_t* history_ids;
  const int32_t* history_counts;
  const int32_t* allowed_start;  // of the row's words in allowed_words, or -1
  const int32_t* allowed_words;  // a bit per token
  int32_t* sampled_ids;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
  int64_t rows, vocab, id_stride, top_stride;
};

struct KernelTable {
  void (*embed)(const EmbedArgs&, Team&);
  void (*rms_norm)(const RmsNormArgs&, Team&);
  void (*rms_norm_quant)(const RmsNormQuantArgs&, Team&);
  void (*quantize)(const QuantizeArgs&, Team&);
  void (*silu_mul_quant)(const SiluMulQuantArgs&, Team&);
  void (*linear)(const LinearArgs&, Team&);
  void (*qk_norm_rope_cache)(const RopeCacheArgs<int8_t>&, Team&);
  void (*attention)(const AttentionArgs<int8_t>&, Team&);
  void (*gather_rows)(const GatherArgs&, Team&);
  void (*lm_head)(const LmHeadArgs&, Team&);
  void (*sample)(const SampleArgs&, Team&);
  void (*linear_bf16)(const LinearBf16Args&, Team&);
  void (*concat)(const ConcatArgs&, Team&);
  void (*silu_mul)(const SiluMulArgs&, Team&);
  void (*qk_norm_rope_cache_bf16)(const RopeCacheArgs<uint16_t>&, Team&);
  void (*attention_bf16)(const AttentionArgs<uint16_t>&, Team&);
  // A linear and what follows it in one go, with the same bits: the gated activation of its halves,
  // written to y [rows, half of the channels], or the heads of its q, k and v (`qkv` isn't read).
  // False where that isn't to be had, and null where it never is.
  bool (*linear_silu_mul)(const LinearArgs&, Team&);
  bool (*linear_rope_cache)(const LinearArgs&, const RopeCacheArgs<int8_t>&, Team&);
  bool (*linear_rope_cache_bf16)(const LinearArgs&, const RopeCacheArgs<uint16_t>&, Team&);
  // What the machine can do at most; see isa/probe.h.
  int64_t (*multiply_in_registers)(int64_t rounds);
  void (*read_memory)(const char* data, int64_t bytes, int64_t prefetch_bytes);
};

constexpr int64_t kMaxHeadDim = 512;

}  // namespace qw
