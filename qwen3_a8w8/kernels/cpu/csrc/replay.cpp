#include "replay.h"

#include <cstring>

namespace qw {

LinearArgs Program::Replay::linear(const NodeInfo& node) const {
  const auto& in = node.inputs;
  LinearArgs a;
  a.x = quantised(in[0]);
  a.x_scale = at<const float>(in[1]);
  a.weight = program.linears_[in[2]];
  a.w_scale = at<const float>(in[3]);
  a.residual = node.op == Op::kLinearAdd ? at<const float>(in[4]) : nullptr;
  a.y = at<float>(node.outputs[0]);
  a.rows = rows(in[0]);
  return a;
}

// A linear and the node that it feeds; false if the kernels want to be called one by one.
bool Program::Replay::execute_both(const NodeInfo& node, const NodeInfo& next) const {
  const LinearArgs a = linear(node);
  if (a.rows == 0) return false;
  switch (next.op) {
    case Op::kSiluMulQuant: {
      if (kernels.linear_silu_mul == nullptr || !kernels.linear_silu_mul(a, team)) return false;
      const auto& out = next.outputs;
      kernels.quantize({a.y, quantised(out[0]), at<float>(out[1]), a.rows,
                        a.weight.out_features / 2},
                       team);
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

void Program::Replay::sample(const NodeInfo& node) const {
  const auto& in = node.inputs;
  const auto& out = node.outputs;
  SampleArgs a;
  a.logits = at<const float>(in[0]);
  a.temperature = at<const float>(in[1]);
  a.top_k = at<const int32_t>(in[2]);
  a.top_p = at<const float>(in[3]);
  a.min_p = at<const float>(in[4]);
  a.seeds = at<const int64_t>(in[5]);
  a.positions = at<const int32_t>(in[6]);
  a.repetition_penalty = at<const float>(in[7]);
  a.presence_penalty = at<const float>(in[8]);
  a.frequency_penalty = at<const float>(in[9]);
  a.num_logprobs = at<const int32_t>(in[10]);
  a.bias_range = at<const int32_t>(in[11]);
  a.bias_ids = at<const int32_t>(in[12]);
  a.bias_values = at<const float>(in[13]);
  a.history_range = at<const int32_t>(in[14]);
  a.history_ids = at<const int32_t>(in[15]);
  a.history_counts = at<const int32_t>(in[16]);
  a.allowed_start = at<const int32_t>(in[17]);
  a.allowed_words = at<const int32_t>(in[18]);
  a.sampled_ids = at<int32_t>(out[0]);
  a.logprobs = at<float>(out[1]);
  a.top_ids = at<int32_t>(out[2]);
  a.top_logprobs = at<float>(out[3]);
  a.rows = rows(in[0]);
  a.vocab = extent(in[0], 1);
  a.id_stride = extent(out[0], 1);
  a.top_stride = extent(out[2], 1);
  kernels.sample(a, team);
}

void Program::Replay::execute(const NodeInfo& node) const {
  const auto& in = node.inputs;
  const auto& out = node.outputs;
  const auto value = static_cast<float>(node.value);
  // Kernels may count on at least one row; a prefill without wanted logits ends without any.
  if (rows(out[0]) == 0) return;
  switch (node.op) {
    case Op::kEmbed: {
      // With rows of their own (in[2]) the columns of a single row of ids are tokens.
      const bool has_rows = in.size() > 2;
      const bool is_list = program.refs_[in[0]].shape.size() == 1 ||
                           (has_rows && extent(in[0], 0) == 1);
      kernels.embed({at<const int32_t>(in[0]), is_list ? 1 : extent(in[0], 1),
                     at<const uint16_t>(in[1]), at<float>(out[0]),
                     rows(has_rows ? in[2] : in[0]), extent(in[1], 1)},
                    team);
      break;
    }
    case Op::kCopy:
      std::memcpy(at<float>(out[0]), at<const float>(in[0]),
                  static_cast<size_t>(rows(in[0]) * extent(in[0], 1)) * sizeof(float));
      break;
    case Op::kRmsNorm:
      kernels.rms_norm({at<const float>(in[0]), at<const float>(in[1]), at<float>(out[0]),
                        rows(in[0]), extent(in[0], 1), value},
                       team);
      break;
    case Op::kRmsNormQuant:
      kernels.rms_norm_quant({at<const float>(in[0]), at<const float>(in[1]), quantised(out[0]),
                              at<float>(out[1]), rows(in[0]), extent(in[0], 1), value},
                             team);
      break;
    case Op::kQuantize:
      kernels.quantize({at<const float>(in[0]), quantised(out[0]), at<float>(out[1]), rows(in[0]),
                        extent(in[0], 1)},
                       team);
      break;
    case Op::kSiluMulQuant:
      kernels.silu_mul_quant({at<const float>(in[0]), quantised(out[0]), at<float>(out[1]),
                              rows(in[0]), extent(in[0], 1) / 2},
                             team);
      break;
    case Op::kLinear:
    case Op::kLinearAdd:
      kernels.linear(linear(node), team);
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
      kernels.gather_rows({at<const float>(in[0]), at<const int32_t>(in[1]), at<float>(out[0]),
                           rows(in[1]), extent(in[0], 1)},
                          team);
      break;
    case Op::kLmHead:
      kernels.lm_head({at<const float>(in[0]), at<const uint16_t>(in[1]), at<float>(out[0]),
                       rows(in[0]), extent(in[0], 1), extent(in[1], 0)},
                      team);
      break;
    case Op::kSample:
      sample(node);
      break;
    case Op::kLinearBf16:
    case Op::kLinearBf16Add: {
      const bool is_added = node.op == Op::kLinearBf16Add;
      if (rows(in[0]) == 0) break;
      kernels.linear_bf16({at<const float>(in[0]), at<const uint16_t>(in[1]),
                           is_added ? at<const float>(in[2]) : nullptr, at<float>(out[0]),
                           rows(in[0]), extent(in[0], 1), extent(in[1], 0)},
                          team);
      break;
    }
    case Op::kConcat: {
      std::vector<const float*> parts;
      std::vector<int64_t> widths;
      for (const int ref : in) {
        parts.push_back(at<const float>(ref));
        widths.push_back(extent(ref, 1));
      }
      kernels.concat({parts.data(), widths.data(), static_cast<int64_t>(in.size()),
                      at<float>(out[0]), rows(in[0]), extent(out[0], 1)},
                     team);
      break;
    }
    case Op::kSiluMul:
      kernels.silu_mul({at<const float>(in[0]), at<float>(out[0]), rows(in[0]),
                        extent(in[0], 1) / 2},
                       team);
      break;
  }
}

}  // namespace qw
