#include "program.h"

#include <cstring>
#include <stdexcept>
#include <unordered_map>

namespace qw {

Op op_from_name(const std::string& name) {
  static const std::unordered_map<std::string, Op> ops = {
      {"embed", Op::kEmbed},
      {"copy", Op::kCopy},
      {"rms_norm", Op::kRmsNorm},
      {"rms_norm_quant", Op::kRmsNormQuant},
      {"quantize", Op::kQuantize},
      {"linear", Op::kLinear},
      {"linear_add", Op::kLinearAdd},
      {"qk_norm_rope_cache", Op::kQkNormRopeCache},
      {"attention", Op::kAttention},
      {"silu_mul_quant", Op::kSiluMulQuant},
      {"gather_rows", Op::kGatherRows},
      {"lm_head", Op::kLmHead},
      {"sample", Op::kSample},
      {"linear_bf16", Op::kLinearBf16},
      {"linear_bf16_add", Op::kLinearBf16Add},
      {"concat", Op::kConcat},
      {"silu_mul", Op::kSiluMul},
      {"qk_norm_rope_cache_bf16", Op::kQkNormRopeCacheBf16},
      {"attention_bf16", Op::kAttentionBf16},
  };
  const auto found = ops.find(name);
  if (found == ops.end()) throw std::invalid_argument("no CPU kernel for the op '" + name + "'");
  return found->second;
}

std::vector<bool> find_feeding(const std::vector<RefInfo>& refs,
                               const std::vector<NodeInfo>& nodes) {
  std::vector<int> readers(refs.size(), 0);
  for (const NodeInfo& node : nodes) {
    for (const int ref : node.inputs) ++readers[ref];
  }
  std::vector<bool> feeds(nodes.size(), false);
  for (size_t n = 0; n + 1 < nodes.size(); ++n) {
    if (nodes[n].op != Op::kLinear) continue;
    const int output = nodes[n].outputs[0];
    feeds[n] = refs[output].kind == RefKind::kTemp && readers[output] == 1 &&
               nodes[n + 1].inputs[0] == output;
  }
  return feeds;
}

Program::Program(std::vector<RefInfo> refs, std::vector<NodeInfo> nodes, int counted_dim,
                 int counted_ref)
    : refs_(std::move(refs)),
      nodes_(std::move(nodes)),
      feeds_next_(find_feeding(refs_, nodes_)),
      counted_dim_(counted_dim),
      counted_ref_(counted_ref),
      constants_(refs_.size(), nullptr),
      linears_(refs_.size()) {}

void Program::bind(int ref, const void* data) { constants_.at(ref) = data; }

void Program::bind_linear(int ref, const PackedLinear& weight) { linears_.at(ref) = weight; }

void Program::close() {
  arena_.release();
  planned_dims_.clear();
}

void Program::plan(const std::vector<int64_t>& dims) {
  // An empty list of dims is a plan of its own, so `bytes` tells whether there is one.
  if (plan_.bytes != 0 && planned_dims_ == dims && arena_.size() != 0) return;
  plan_ = plan_arena(refs_, nodes_, dims);
  planned_dims_ = dims;
  arena_.reserve(static_cast<size_t>(plan_.bytes));
}

// What one dispatch resolves: addresses and extents of refs, node by node.
struct Program::Replay {
  const Program& program;
  const KernelTable& kernels;
  Team& team;
  const std::vector<int64_t>& dims;
  std::vector<char*> data;
  int64_t active = 0;

  int64_t extent(int ref, size_t axis) const {
    const int64_t coded = program.refs_[ref].shape.at(axis);
    return coded >= 0 ? coded : dims[static_cast<size_t>(-1 - coded)];
  }
  // Leading extent, live rows only.
  int64_t rows(int ref) const {
    const bool has_idle = program.counted_dim_ >= 0;
    const bool is_counted = program.refs_[ref].shape.at(0) == -1 - program.counted_dim_;
    return has_idle && is_counted ? active : extent(ref, 0);
  }
  template <class T>
  T* at(int ref) const {
    return reinterpret_cast<T*>(data[ref]);
  }
  QuantisedRows quantised(int ref) const {
    const bool is_ours = program.refs_[ref].kind == RefKind::kTemp;
    const int64_t width = extent(ref, 1);
    return {at<int8_t>(ref), is_ours ? quantised_stride(width) : width, is_ours};
  }
  // The four arguments of the cache; one of bfloat16 has no scales.
  template <class Element>
  CacheView<Element> cache(const int* refs, int64_t layer) const {
    CacheView<Element> view;
    view.kv_heads = extent(refs[0], 2);
    view.block_size = extent(refs[0], 3);
    view.head_dim = extent(refs[0], 4);
    const int64_t first = layer * extent(refs[0], 1) * view.kv_heads * view.block_size;
    view.k = at<Element>(refs[0]) + first * view.head_dim;
    view.v = at<Element>(refs[1]) + first * view.head_dim;
    const bool has_scales = extent(refs[2], 3) != 0;
    view.k_scale = has_scales ? at<float>(refs[2]) + first : nullptr;
    view.v_scale = has_scales ? at<float>(refs[3]) + first : nullptr;
    return view;
  }
  template <class Element>
  RopeCacheArgs<Element> rope_cache(const NodeInfo& node) const {
    const auto& in = node.inputs;
    const CacheView<Element> view = cache<Element>(node.updates.data(), node.layer);
    return {at<const float>(in[0]), at<const float>(in[1]), at<const float>(in[2]),
            at<const float>(in[3]), at<const int32_t>(in[4]), at<const int32_t>(in[5]), view,
            at<float>(node.outputs[0]), rows(in[0]),
            extent(node.outputs[0], 1) / view.head_dim, static_cast<float>(node.value)};
  }
  template <class Element>
  AttentionArgs<Element> attention(const NodeInfo& node) const {
    const auto& in = node.inputs;
    const CacheView<Element> view = cache<Element>(&in[1], node.layer);
    return {at<const float>(in[0]), view, at<const int32_t>(in[5]), extent(in[5], 1),
            at<const int32_t>(in[6]), in.size() > 7 ? at<const int32_t>(in[7]) : nullptr,
            at<float>(node.outputs[0]), rows(in[0]), extent(in[0], 1) / view.head_dim,
            static_cast<float>(node.value)};
  }
  void execute(const NodeInfo& node) const;
  bool execute_both(const NodeInfo& node, const NodeInfo& next) const;
  LinearArgs linear(const NodeInfo& node) const;
  void sample(const NodeInfo& node) const;
};

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

void Program::run(const KernelTable& kernels, ThreadPool& pool, const std::vector<uintptr_t>& args,
                  const std::vector<int64_t>& dims) {
  const std::lock_guard<std::mutex> lock(pool.run_mutex());
  pool.adopt_process();
  plan(dims);
  Replay replay{*this, kernels, pool, dims, std::vector<char*>(refs_.size(), nullptr)};
  size_t next_arg = 0;
  for (size_t i = 0; i < refs_.size(); ++i) {
    switch (refs_[i].kind) {
      case RefKind::kArg:
        replay.data[i] = reinterpret_cast<char*>(args.at(next_arg++));
        break;
      case RefKind::kConst:
        replay.data[i] = const_cast<char*>(static_cast<const char*>(constants_[i]));
        break;
      case RefKind::kTemp:
        replay.data[i] = plan_.offsets[i] < 0 ? nullptr : arena_.data() + plan_.offsets[i];
        break;
    }
  }
  if (counted_dim_ >= 0) {
    replay.active = *replay.at<const int32_t>(counted_ref_);
    const int64_t limit = dims.at(static_cast<size_t>(counted_dim_));
    if (replay.active < 0 || replay.active > limit) {
      throw std::out_of_range("number of live rows is " + std::to_string(replay.active) +
                              ", expected 0 to " + std::to_string(limit));
    }
    if (replay.active == 0) return;
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (feeds_next_[n] && replay.execute_both(nodes_[n], nodes_[n + 1])) {
      ++n;
    } else {
      replay.execute(nodes_[n]);
    }
  }
}

}  // namespace qw
