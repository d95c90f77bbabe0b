// Memory layouts that more than one kernel agrees on.
#pragma once

#include <cstddef>
#include <cstdint>

// Always inlined: a copy emitted by one instruction set's unit must not serve all others.
#define QW_INLINE inline __attribute__((always_inline))

namespace qw {

constexpr int64_t kChannelsPerBlock = 16;  // output channels that lie side by side in a weight
constexpr int64_t kDepthPerGroup = 4;      // neighbouring inputs of one channel: one dot4 operand

QW_INLINE constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

QW_INLINE constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Names the layout of all packed constants, on every instruction path. Files of packed weights
// carry it: change it whenever PackedLinear or anything else that `pack` returns changes.
constexpr const char* kPackedLayout = "u8-16x4-1";

// A packed int8 linear: [blocks][depth_groups][16 channels][4 inputs], each weight + 128 as an
// unsigned byte, so that the activation is the signed operand of a dot4 instruction. Channels
// and inputs beyond the true extents hold 128, i.e. zero.
struct PackedLinear {
  const uint8_t* data = nullptr;
  int64_t out_features = 0;
  int64_t in_features = 0;

  QW_INLINE int64_t blocks() const { return ceil_div(out_features, kChannelsPerBlock); }
  QW_INLINE int64_t depth_groups() const { return ceil_div(in_features, kDepthPerGroup); }
  QW_INLINE int64_t block_bytes() const {
    return depth_groups() * kChannelsPerBlock * kDepthPerGroup;
  }
  QW_INLINE int64_t bytes() const { return blocks() * block_bytes(); }
};

// Rows of int8 activations. A row is followed by zeros up to a multiple of 64 bytes and then by
// a trailer of 64 bytes that begins with the int32 sum of the row (the +128 of the weights is
// taken out with it). Rows that are arguments of the callable have neither: `has_trailer` is false.
struct QuantisedRows {
  int8_t* data = nullptr;
  int64_t stride = 0;
  bool has_trailer = false;
};

QW_INLINE constexpr int64_t quantised_stride(int64_t width) { return round_up(width, 64) + 64; }

}  // namespace qw
