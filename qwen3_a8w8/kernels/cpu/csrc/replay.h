// One dispatch of a program: what its refs resolve to, and the nodes on the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace qw {

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

}  // namespace qw
