// Places temporaries in one arena: first fit among what is alive, node by node.
#include <algorithm>

#include "program.h"

namespace qw {
namespace {

int64_t extent(int64_t coded, const std::vector<int64_t>& dims) {
  return coded >= 0 ? coded : dims[static_cast<size_t>(-1 - coded)];
}

struct Span {
  int64_t begin, end;
  int ref;
};

// Lowest gap of `bytes` between the spans, which are in ascending order.
int64_t lowest_gap(const std::vector<Span>& alive, int64_t bytes) {
  int64_t at = 0;
  for (const Span& span : alive) {
    if (span.begin - at >= bytes) break;
    at = std::max(at, span.end);
  }
  return at;
}

}  // namespace

int64_t ref_bytes(const RefInfo& ref, const std::vector<int64_t>& dims) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < ref.shape.size(); ++i) rows *= extent(ref.shape[i], dims);
  const int64_t width = ref.shape.empty() ? 1 : extent(ref.shape.back(), dims);
  const bool is_quantised = ref.kind == RefKind::kTemp && ref.item_bytes == 1;
  return rows * (is_quantised ? quantised_stride(width) : width * ref.item_bytes);
}

ArenaPlan plan_arena(const std::vector<RefInfo>& refs, const std::vector<NodeInfo>& nodes,
                     const std::vector<int64_t>& dims) {
  std::vector<int> last_use(refs.size(), -1);
  const std::vector<bool> feeds_next = find_feeding(refs, nodes);
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const int ref : nodes[n].inputs) {
      last_use[ref] = std::max(last_use[ref], static_cast<int>(feeds_next[n] ? n + 1 : n));
    }
    for (const int ref : nodes[n].outputs) last_use[ref] = static_cast<int>(n);
  }
  ArenaPlan plan;
  plan.offsets.assign(refs.size(), -1);
  std::vector<Span> alive;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const NodeInfo& node = nodes[n];
    for (const int ref : node.outputs) {
      if (refs[ref].kind != RefKind::kTemp || plan.offsets[ref] >= 0) continue;
      // A sum may take the place of a residual that nobody reads afterwards.
      if (node.op == Op::kLinearAdd) {
        const int residual = node.inputs[4];
        const auto span = std::find_if(alive.begin(), alive.end(),
                                       [&](const Span& s) { return s.ref == residual; });
        if (span != alive.end() && last_use[residual] == static_cast<int>(n)) {
          span->ref = ref;
          plan.offsets[ref] = span->begin;
          continue;
        }
      }
      const int64_t bytes = round_up(std::max<int64_t>(ref_bytes(refs[ref], dims), 1), 64);
      const int64_t at = lowest_gap(alive, bytes);
      plan.offsets[ref] = at;
      plan.bytes = std::max(plan.bytes, at + bytes);
      alive.push_back({at, at + bytes, ref});
      std::sort(alive.begin(), alive.end(),
                [](const Span& a, const Span& b) { return a.begin < b.begin; });
    }
    alive.erase(std::remove_if(alive.begin(), alive.end(),
                               [&](const Span& span) {
                                 return last_use[span.ref] <= static_cast<int>(n);
                               }),
                alive.end());
  }
  return plan;
}

}  // namespace qw
