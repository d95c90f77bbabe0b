// What kernels with AMX tiles share. Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 1, chapter "Programming with Intel Advanced Matrix Extensions".
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int64_t kTileSide = 16;        // rows of a tile at most
constexpr int64_t kTileRowBytes = 64;    // bytes of a row at most
constexpr int64_t kTileBytes = kTileSide * kTileRowBytes;
constexpr int64_t kTileNumbers = kTileSide * kTileSide;  // of 32 bits

// Operand of LDTILECFG.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t num_rows, int64_t bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

}  // namespace
