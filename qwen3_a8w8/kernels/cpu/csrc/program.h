// A lowered program: refs, nodes, bound constants and the scratch arena. `run` replays all nodes in
// one call. Mirrors kernels/program.py, whose shapes are trusted; names and numbers of operands are
// checked when a program is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aligned_buffer.h"
#include "kernels.h"
#include "live_object.h"

namespace qw {

enum class RefKind { kArg, kConst, kTemp };

// The ops that have kernels; program.cpp lists their names and numbers of operands.
enum class Op {
  kEmbed,
  kCopy,
  kRmsNorm,
  kRmsNormQuant,
  kQuantize,
  kLinear,
  kLinearAdd,
  kQkNormRopeCache,
  kAttention,
  kSiluMulQuant,
  kGatherRows,
  kLmHead,
  kSample,
  kLinearBf16,
  kLinearBf16Add,
  kConcat,
  kSiluMul,
  kQkNormRopeCacheBf16,
  kAttentionBf16,
};

struct RefInfo {
  RefKind kind;
  int64_t item_bytes;
  std::vector<int64_t> shape;  // extents; -1 - d stands for run-time dim d
};

struct NodeInfo {
  Op op;
  std::vector<int> inputs, outputs, updates;  // indices of refs
  int64_t layer = 0;                          // of ops on a cache
  double eps = 0;                             // of norms
  double scale = 0;                           // of attention
};

// Throw std::invalid_argument: there is no kind or op of this name, or the op's kernel takes other
// numbers of operands than the node has.
RefKind ref_kind(const std::string& name);
Op find_op(const std::string& name, const std::vector<int>& inputs,
           const std::vector<int>& outputs, const std::vector<int>& updates);

// Offsets of temporaries in one arena, planned by liveness.
struct ArenaPlan {
  std::vector<int64_t> offsets;  // by ref; -1 where the arena holds nothing
  int64_t bytes = 0;
};

class Program : public LiveObject {
 public:
  // `counted_dim` and `counted_ref`: the dim whose live rows an argument counts; -1 if none. Throws
  // std::invalid_argument if a node refers to no ref.
  Program(std::vector<RefInfo> refs, std::vector<NodeInfo> nodes, int counted_dim,
          int counted_ref);

  void bind(int ref, const void* data);
  void bind_linear(int ref, const PackedLinear& weight);

  // `args`: addresses of the argument refs in their order; `dims`: values of the run-time dims.
  // Throws std::invalid_argument if there are too few or too many.
  // The caller makes sure that nothing else uses the team meanwhile.
  void run(const KernelTable& kernels, Team& team, const std::vector<uintptr_t>& args,
           const std::vector<int64_t>& dims);

  // Bytes of scratch held.
  size_t arena_bytes() const { return arena_.size(); }
  void close();

 private:
  struct Replay;

  std::vector<RefInfo> refs_;
  std::vector<NodeInfo> nodes_;
  std::vector<bool> feeds_next_;  // by node, see find_feeding
  int counted_dim_, counted_ref_;
  size_t num_args_ = 0, num_dims_ = 0;
  std::vector<const void*> constants_;
  std::vector<PackedLinear> linears_;
  AlignedBuffer arena_;
  ArenaPlan plan_;
  std::vector<int64_t> planned_dims_;

  void plan(const std::vector<int64_t>& dims);
};

// Bytes of a ref when the dims have these values. Rows of int8 temporaries are padded and
// carry their trailer.
int64_t ref_bytes(const RefInfo& ref, const std::vector<int64_t>& dims);

// By node: whether it is a linear whose output is a temporary that only the next node reads, as its
// first input. Kernels may fuse the two, so the linear's inputs stay alive while the next node
// runs.
std::vector<bool> find_feeding(const std::vector<RefInfo>& refs,
                               const std::vector<NodeInfo>& nodes);

ArenaPlan plan_arena(const std::vector<RefInfo>& refs, const std::vector<NodeInfo>& nodes,
                     const std::vector<int64_t>& dims);

}  // namespace qw
