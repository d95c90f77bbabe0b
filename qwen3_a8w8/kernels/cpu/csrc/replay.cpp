#include "replay.h"

#include <cstring>

namespace qw {

EmbedArgs Program::Replay::embed(const NodeInfo& node) const {
  const auto& in = node.inputs;
  // With a third input, which has the wanted number of rows, the columns of a single row of ids are
  // tokens.
  const bool has_rows = in.size() > 2;
  const bool is_list =
      program.refs_[in[0]].shape.size() == 1 || (has_rows && extent(in[0], 0) == 1);
  EmbedArgs a{};
  a.ids = at<const int32_t>(in[0]);
  a.id_stride = is_list ? 1 : extent(in[0], 1);
  a.table = at<const uint16_t>(in[1]);
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(has_rows ? in[2] : in[0]);
  a.width = extent(in[1], 1);
  return a;
}

RmsNormArgs Program::Replay::rms_norm(const NodeInfo& node) const {
  const auto& in = node.inputs;
  RmsNormArgs a{};
  a.x = at<const float>(in[0]);
  a.weight = at<const float>(in[1]);
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  a.width = extent(in[0], 1);
  a.eps = static_cast<float>(node.eps);
  return a;
}

RmsNormQuantArgs Program::Replay::rms_norm_quant(const NodeInfo& node) const {
  const auto& in = node.inputs;
  RmsNormQuantArgs a{};
  a.x = at<const float>(in[0]);
  a.weight = at<const float>(in[1]);
  a.q = quantised(node.outputs[0]);
  a.scale = at<float>(node.outputs[1]);
  a.rows = rows(in[0]);
  a.width = extent(in[0], 1);
  a.eps = static_cast<float>(node.eps);
  return a;
}

QuantizeArgs Program::Replay::quantize(const NodeInfo& node) const {
  QuantizeArgs a{};
  a.x = at<const float>(node.inputs[0]);
  a.q = quantised(node.outputs[0]);
  a.scale = at<float>(node.outputs[1]);
  a.rows = rows(node.inputs[0]);
  a.width = extent(node.inputs[0], 1);
  return a;
}

SiluMulQuantArgs Program::Replay::silu_mul_quant(const NodeInfo& node) const {
  SiluMulQuantArgs a{};
  a.gate_up = at<const float>(node.inputs[0]);
  a.q = quantised(node.outputs[0]);
  a.scale = at<float>(node.outputs[1]);
  a.rows = rows(node.inputs[0]);
  a.width = extent(node.inputs[0], 1) / 2;
  return a;
}

SiluMulArgs Program::Replay::silu_mul(const NodeInfo& node) const {
  SiluMulArgs a{};
  a.gate_up = at<const float>(node.inputs[0]);
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(node.inputs[0]);
  a.width = extent(node.inputs[0], 1) / 2;
  return a;
}

LinearArgs Program::Replay::linear(const NodeInfo& node) const {
  const auto& in = node.inputs;
  LinearArgs a{};
  a.x = quantised(in[0]);
  a.x_scale = at<const float>(in[1]);
  a.weight = program.linears_[in[2]];
  a.w_scale = at<const float>(in[3]);
  a.residual = node.op == Op::kLinearAdd ? at<const float>(in[4]) : nullptr;
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  return a;
}

LinearBf16Args Program::Replay::linear_bf16(const NodeInfo& node) const {
  const auto& in = node.inputs;
  LinearBf16Args a{};
  a.x = at<const float>(in[0]);
  a.weight = at<const uint16_t>(in[1]);
  a.residual = node.op == Op::kLinearBf16Add ? at<const float>(in[2]) : nullptr;
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  a.width = extent(in[0], 1);
  a.channels = extent(in[1], 0);
  return a;
}

template <class Element>
RopeCacheArgs<Element> Program::Replay::rope_cache(const NodeInfo& node) const {
  const auto& in = node.inputs;
  RopeCacheArgs<Element> a{};
  a.qkv = at<const float>(in[0]);
  a.q_norm = at<const float>(in[1]);
  a.k_norm = at<const float>(in[2]);
  a.rope = at<const float>(in[3]);
  a.positions = at<const int32_t>(in[4]);
  a.slots = at<const int32_t>(in[5]);
  a.cache = cache<Element>(node.updates.data(), node.layer);
  a.q = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  a.num_heads = extent(node.outputs[0], 1) / a.cache.head_dim;
  a.eps = static_cast<float>(node.eps);
  return a;
}

template <class Element>
AttentionArgs<Element> Program::Replay::attention(const NodeInfo& node) const {
  const auto& in = node.inputs;
  AttentionArgs<Element> a{};
  a.q = at<const float>(in[0]);
  a.cache = cache<Element>(&in[1], node.layer);
  a.block_tables = at<const int32_t>(in[5]);
  a.table_stride = extent(in[5], 1);
  a.context_lens = at<const int32_t>(in[6]);
  a.seq_index = in.size() > 7 ? at<const int32_t>(in[7]) : nullptr;
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  a.num_heads = extent(in[0], 1) / a.cache.head_dim;
  a.scale = static_cast<float>(node.scale);
  return a;
}

GatherArgs Program::Replay::gather_rows(const NodeInfo& node) const {
  const auto& in = node.inputs;
  GatherArgs a{};
  a.x = at<const float>(in[0]);
  a.indices = at<const int32_t>(in[1]);
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[1]);
  a.width = extent(in[0], 1);
  return a;
}

LmHeadArgs Program::Replay::lm_head(const NodeInfo& node) const {
  const auto& in = node.inputs;
  LmHeadArgs a{};
  a.x = at<const float>(in[0]);
  a.weight = at<const uint16_t>(in[1]);
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  a.width = extent(in[0], 1);
  a.vocab = extent(in[1], 0);
  return a;
}

SampleArgs Program::Replay::sample(const NodeInfo& node) const {
  const auto& out = node.outputs;
  SampleArgs a{};
  auto input = node.inputs.begin();  // in the order of QW_SAMPLE_INPUTS
#define QW_TAKE(Element, name) a.name = at<const Element>(*input++);
  QW_SAMPLE_INPUTS(QW_TAKE)
#undef QW_TAKE
  a.sampled_ids = at<int32_t>(out[0]);
  a.logprobs = at<float>(out[1]);
  a.top_ids = at<int32_t>(out[2]);
  a.top_logprobs = at<float>(out[3]);
  a.rows = rows(node.inputs[0]);
  a.vocab = extent(node.inputs[0], 1);
  a.id_stride = extent(out[0], 1);
  a.top_stride = extent(out[2], 1);
  return a;
}

void Program::Replay::copy(const NodeInfo& node) const {
  const int x = node.inputs[0];
  std::memcpy(at<float>(node.outputs[0]), at<const float>(x),
              static_cast<size_t>(rows(x) * extent(x, 1)) * sizeof(float));
}

void Program::Replay::concat(const NodeInfo& node) const {
  std::vector<const float*> parts;
  std::vector<int64_t> widths;
  for (const int ref : node.inputs) {
    parts.push_back(at<const float>(ref));
    widths.push_back(extent(ref, 1));
  }
  ConcatArgs a{};
  a.parts = parts.data();
  a.widths = widths.data();
  a.num_parts = static_cast<int64_t>(parts.size());
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(node.inputs[0]);
  a.width = extent(node.outputs[0], 1);
  kernels.concat(a, team);
}

bool Program::Replay::execute_both(const NodeInfo& node, const NodeInfo& next) const {
  const LinearArgs a = linear(node);
  if (a.rows == 0) return false;
  switch (next.op) {
    case Op::kSiluMulQuant: {
      if (kernels.linear_silu_mul == nullptr || !kernels.linear_silu_mul(a, team)) return false;
      // The activation is where the linear would have been; only quantisation is left.
      QuantizeArgs q{};
      q.x = a.y;
      q.q = quantised(next.outputs[0]);
      q.scale = at<float>(next.outputs[1]);
      q.rows = a.rows;
      q.width = a.weight.out_features / 2;
      kernels.quantize(q, team);
      return true;
    }
    case Op::kQkNormRopeCache:
      return kernels.linear_rope_cache != nullptr &&
             kernels.linear_rope_cache(a, rope_cache<int8_t>(next), team);
    case Op::kQkNormRopeCacheBf16:
      return kernels.linear_rope_cache_bf16 != nullptr &&
             kernels.linear_rope_cache_bf16(a, rope_cache<uint16_t>(next), team);
    default:
      return false;
  }
}

void Program::Replay::execute(const NodeInfo& node) const {
  // Kernels get at least one row; a prefill that needs no logits has nodes without any.
  if (rows(node.outputs[0]) == 0) return;
  switch (node.op) {
    case Op::kEmbed:
      kernels.embed(embed(node), team);
      break;
    case Op::kCopy:
      copy(node);
      break;
    case Op::kRmsNorm:
      kernels.rms_norm(rms_norm(node), team);
      break;
    case Op::kRmsNormQuant:
      kernels.rms_norm_quant(rms_norm_quant(node), team);
      break;
    case Op::kQuantize:
      kernels.quantize(quantize(node), team);
      break;
    case Op::kSiluMulQuant:
      kernels.silu_mul_quant(silu_mul_quant(node), team);
      break;
    case Op::kSiluMul:
      kernels.silu_mul(silu_mul(node), team);
      break;
    case Op::kLinear:
    case Op::kLinearAdd:
      kernels.linear(linear(node), team);
      break;
    case Op::kLinearBf16:
    case Op::kLinearBf16Add:
      kernels.linear_bf16(linear_bf16(node), team);
      break;
    case Op::kConcat:
      concat(node);
      break;
    case Op::kQkNormRopeCache:
      kernels.qk_norm_rope_cache(rope_cache<int8_t>(node), team);
      break;
    case Op::kQkNormRopeCacheBf16:
      kernels.qk_norm_rope_cache_bf16(rope_cache<uint16_t>(node), team);
      break;
    case Op::kAttention:
      kernels.attention(attention<int8_t>(node), team);
      break;
    case Op::kAttentionBf16:
      kernels.attention_bf16(attention<uint16_t>(node), team);
      break;
    case Op::kGatherRows:
      kernels.gather_rows(gather_rows(node), team);
      break;
    case Op::kLmHead:
      kernels.lm_head(lm_head(node), team);
      break;
    case Op::kSample:
      kernels.sample(sample(node), team);
      break;
  }
}

}  // namespace qw
