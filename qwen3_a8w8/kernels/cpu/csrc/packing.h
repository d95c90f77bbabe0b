// Packs int8 weights for the micro-kernels; see PackedLinear in layout.h.
#pragma once

#include "aligned_buffer.h"
#include "layout.h"
#include "live_object.h"
#include "team.h"

namespace qw {

class LinearWeights : public LiveObject {
 public:
  // Reads w [out_features, in_features] int8, row-major.
  LinearWeights(const int8_t* w, int64_t out_features, int64_t in_features, Team& team);
  // Refers to weights that were packed before, 64-byte aligned; the caller keeps them alive.
  LinearWeights(const uint8_t* packed, int64_t out_features, int64_t in_features);

  const PackedLinear& view() const { return view_; }

 private:
  AlignedBuffer buffer_;
  PackedLinear view_;
};

}  // namespace qw
