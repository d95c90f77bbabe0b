#include "packing.h"

#include <cstring>

namespace qw {
namespace {

struct Job {
  const int8_t* w;
  const PackedLinear* packed;
  uint8_t* out;
};

void pack_block(void* context, int64_t block, int) {
  const Job& job = *static_cast<Job*>(context);
  const PackedLinear& packed = *job.packed;
  uint8_t* out = job.out + block * packed.block_bytes();
  const int64_t whole = packed.in_features / kDepthPerGroup;
  for (int64_t c = 0; c < kChannelsPerBlock; ++c) {
    const int64_t channel = block * kChannelsPerBlock + c;
    if (channel >= packed.out_features) {
      for (int64_t k = 0; k < packed.depth_groups(); ++k) std::memset(out + k * 64 + c * 4, 128, 4);
      continue;
    }
    const int8_t* row = job.w + channel * packed.in_features;
    for (int64_t k = 0; k < whole; ++k) {
      uint32_t four;
      std::memcpy(&four, row + 4 * k, 4);
      four ^= 0x80808080u;  // adds 128 to each byte
      std::memcpy(out + k * 64 + c * 4, &four, 4);
    }
    for (int64_t i = whole * 4; i < packed.depth_groups() * 4; ++i) {
      out[i / 4 * 64 + c * 4 + i % 4] =
          static_cast<uint8_t>((i < packed.in_features ? row[i] : 0) + 128);
    }
  }
}

}  // namespace

LinearWeights::LinearWeights(const int8_t* w, int64_t out_features, int64_t in_features,
                             Team& team) {
  view_.out_features = out_features;
  view_.in_features = in_features;
  // Micro-kernels prefetch past the end; prefetches can't fault, so no padding is needed.
  buffer_ = AlignedBuffer(view_.bytes());
  view_.data = reinterpret_cast<const uint8_t*>(buffer_.data());
  Job job{w, &view_, reinterpret_cast<uint8_t*>(buffer_.data())};
  team.parallel(view_.blocks(), pack_block, &job);
}

LinearWeights::LinearWeights(const uint8_t* packed, int64_t out_features, int64_t in_features) {
  view_ = {packed, out_features, in_features};
}

}  // namespace qw
