#include <algorithm>
#include <stdexcept>

#include "replay.h"

namespace qw {

namespace {

constexpr size_t kAny = ~size_t{0};

#define QW_COUNT(Element, name) +1
constexpr size_t kNumSampleInputs = 0 QW_SAMPLE_INPUTS(QW_COUNT);
#undef QW_COUNT

// An op under its name in kernels/ops/, and how many operands its node has.
struct OpInfo {
  const char* name;
  Op op;
  size_t fewest_inputs, most_inputs, outputs, updates;
};

constexpr OpInfo kOps[] = {
    {"embed", Op::kEmbed, 2, 3, 1, 0},
    {"copy", Op::kCopy, 1, 1, 1, 0},
    {"rms_norm", Op::kRmsNorm, 2, 2, 1, 0},
    {"rms_norm_quant", Op::kRmsNormQuant, 2, 2, 2, 0},
    {"quantize", Op::kQuantize, 1, 1, 2, 0},
    {"linear", Op::kLinear, 4, 4, 1, 0},
    {"linear_add", Op::kLinearAdd, 5, 5, 1, 0},
    {"linear_bf16", Op::kLinearBf16, 2, 2, 1, 0},
    {"linear_bf16_add", Op::kLinearBf16Add, 3, 3, 1, 0},
    {"qk_norm_rope_cache", Op::kQkNormRopeCache, 6, 6, 1, 4},
    {"qk_norm_rope_cache_bf16", Op::kQkNormRopeCacheBf16, 6, 6, 1, 4},
    {"attention", Op::kAttention, 7, 8, 1, 0},
    {"attention_bf16", Op::kAttentionBf16, 7, 8, 1, 0},
    {"silu_mul_quant", Op::kSiluMulQuant, 1, 1, 2, 0},
    {"silu_mul", Op::kSiluMul, 1, 1, 1, 0},
    {"concat", Op::kConcat, 1, kAny, 1, 0},
    {"gather_rows", Op::kGatherRows, 2, 2, 1, 0},
    {"lm_head", Op::kLmHead, 2, 2, 1, 0},
    {"sample", Op::kSample, kNumSampleInputs, kNumSampleInputs, 4, 0},
};

void check_refs(const std::vector<RefInfo>& refs, const std::vector<NodeInfo>& nodes) {
  for (const NodeInfo& node : nodes) {
    for (const auto* operands : {&node.inputs, &node.outputs, &node.updates}) {
      for (const int ref : *operands) {
        if (ref >= 0 && static_cast<size_t>(ref) < refs.size()) continue;
        throw std::invalid_argument("a node refers to " + std::to_string(ref) + " of " +
                                    std::to_string(refs.size()) + " refs");
      }
    }
  }
}

}  // namespace

RefKind ref_kind(const std::string& name) {
  if (name == "arg") return RefKind::kArg;
  if (name == "const") return RefKind::kConst;
  if (name == "temp") return RefKind::kTemp;
  throw std::invalid_argument("no kind of ref is called '" + name + "'");
}

Op find_op(const std::string& name, const std::vector<int>& inputs,
           const std::vector<int>& outputs, const std::vector<int>& updates) {
  for (const OpInfo& info : kOps) {
    if (name != info.name) continue;
    if (inputs.size() < info.fewest_inputs || inputs.size() > info.most_inputs ||
        outputs.size() != info.outputs || updates.size() != info.updates) {
      const auto counts = std::to_string(inputs.size()) + " inputs, " +
                          std::to_string(outputs.size()) + " outputs and " +
                          std::to_string(updates.size()) + " updates";
      throw std::invalid_argument("the CPU kernel of '" + name + "' doesn't take " + counts);
    }
    return info.op;
  }
  throw std::invalid_argument("no CPU kernel for the op '" + name + "'");
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
      counted_dim_(counted_dim),
      counted_ref_(counted_ref),
      constants_(refs_.size(), nullptr),
      linears_(refs_.size()) {
  check_refs(refs_, nodes_);
  feeds_next_ = find_feeding(refs_, nodes_);
  for (const RefInfo& ref : refs_) {
    if (ref.kind == RefKind::kArg) ++num_args_;
    for (const int64_t extent : ref.shape) {
      if (extent < 0) num_dims_ = std::max(num_dims_, static_cast<size_t>(-extent));
    }
  }
}

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

void Program::run(const KernelTable& kernels, Team& team, const std::vector<uintptr_t>& args,
                  const std::vector<int64_t>& dims) {
  if (args.size() != num_args_ || dims.size() < num_dims_) {
    throw std::invalid_argument("a program of " + std::to_string(num_args_) + " arguments and " +
                                std::to_string(num_dims_) + " dims got " +
                                std::to_string(args.size()) + " and " +
                                std::to_string(dims.size()));
  }
  plan(dims);
  Replay replay{*this, kernels, team, dims, std::vector<char*>(refs_.size(), nullptr)};
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
