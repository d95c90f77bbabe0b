#include "replay.h"

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
