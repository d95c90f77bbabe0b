// One dispatch of a program: resolves its refs and runs its nodes on the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace qw {

// Addresses and extents of the refs in one dispatch, and what its nodes do with them.
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
  // Temporaries have padded rows with a trailer, arguments have plain ones.
  QuantisedRows quantised(int ref) const {
    const int64_t width = extent(ref, 1);
    QuantisedRows rows;
    rows.data = at<int8_t>(ref);
    rows.has_trailer = program.refs_[ref].kind == RefKind::kTemp;
    rows.stride = rows.has_trailer ? quantised_stride(width) : width;
    return rows;
  }
  // A layer of the cache, whose refs are k, v, k_scale and v_scale; bfloat16 caches have no scales.
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
  void execute(const NodeInfo& node) const;
  // A linear and the node that it feeds, fused. False if no fused kernel takes them; nothing is
  // written then.
  bool execute_both(const NodeInfo& node, const NodeInfo& next) const;

  // The kernels' arguments of a node. Operands come in the order of the op's method in
  // kernels/ops/.
  EmbedArgs embed(const NodeInfo& node) const;
  RmsNormArgs rms_norm(const NodeInfo& node) const;
  RmsNormQuantArgs rms_norm_quant(const NodeInfo& node) const;
  QuantizeArgs quantize(const NodeInfo& node) const;
  SiluMulQuantArgs silu_mul_quant(const NodeInfo& node) const;
  SiluMulArgs silu_mul(const NodeInfo& node) const;
  LinearArgs linear(const NodeInfo& node) const;
  LinearBf16Args linear_bf16(const NodeInfo& node) const;
  template <class Element>
  RopeCacheArgs<Element> rope_cache(const NodeInfo& node) const;
  template <class Element>
  AttentionArgs<Element> attention(const NodeInfo& node) const;
  GatherArgs gather_rows(const NodeInfo& node) const;
  LmHeadArgs lm_head(const NodeInfo& node) const;
  SampleArgs sample(const NodeInfo& node) const;
  void copy(const NodeInfo& node) const;
  void concat(const NodeInfo& node) const;
};

}  // namespace qw
