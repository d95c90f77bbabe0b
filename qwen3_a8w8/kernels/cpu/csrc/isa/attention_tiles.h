// Attention with AMX tiles: what int8 and bfloat16 caches share. Queries and weights are split into
// three parts, which together represent a float32; products of parts are exact.
//
// Rows, i.e. (token, head) pairs, are taken in sets. A set has these arrays:
//   products [parts][positions][rows]: K as it lies times Q^T,
//   scores [rows][positions]: the products of all parts, added up,
//   weights [parts][rows][positions]: softmax; those of positions past a row's end are 0,
//   O [parts][rows][dimensions]: weights times V.
// All parts of few rows (decode) share one tile; of many rows (prefill), each part fills a tile.
// The arithmetic of a row is the same in both cases and doesn't depend on other rows, so the bits
// are the same.
//
// TileOperands<Element> converts numbers to operands, see attention_tiles_int8.h and
// attention_tiles_bf16.h; attention_amx.h loops over the sets.
#pragma once

#include "amx.h"
#include "attention_block.h"
#include "widen.h"

namespace {

constexpr int kParts = 3;
constexpr int64_t kStackedRows = kTileSide / kParts;  // rows of which all parts fit into a tile
constexpr int64_t kTileDims = 64;  // dimensions of one round of products with V

// Rows of a block that are computed together, at most 16.
struct TileSet {
  int64_t first_row, rows;
  bool is_few;
  int64_t lengths[kTileSide];  // positions of the chunk that a row sees
  int64_t longest;

  int64_t part_rows() const { return is_few ? kStackedRows : kTileSide; }
};

// Scratch of a set.
struct TileScratch {
  char* products;  // two rounds of 32-bit numbers: [tiles][16 positions][columns]
  float* scores;   // [rows][kContextChunk]
  char* weights;   // [parts x rows][kContextChunk], of 8 or 16 bits
  char* sums;      // 32-bit numbers: [parts x rows][kTileDims]

  static constexpr int64_t kRound = 2 * kParts * kTileBytes;
  static constexpr int64_t kScores = 4 * kTileSide * kContextChunk;
  static constexpr int64_t kWeights = 2 * kParts * kTileSide * kContextChunk;
  static constexpr int64_t kSums = 4 * kParts * kTileSide * kTileDims;
  static constexpr int64_t kBytes = 2 * kRound + kScores + kWeights + kSums;

  explicit TileScratch(char* memory)
      : products(memory),
        scores(reinterpret_cast<float*>(memory + 2 * kRound)),
        weights(memory + 2 * kRound + kScores),
        sums(memory + 2 * kRound + kScores + kWeights) {}
};

// A row's weights.
struct RowWeights {
  float sum;   // of e
  float unit;  // value of 1 in integer weights
};

template <class Element>
struct TileOperands;

inline __m512i line_at(const void* p) { return _mm512_loadu_si512(p); }

// Positions below `length` among the 16 from `at`.
inline __mmask16 positions_below(int64_t length, int64_t at) {
  const int64_t count = length - at;
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// e of 16 positions from `at`; 0 past the row's end.
inline VF exp_below(const float* scores, int64_t at, int64_t length, VF top) {
  return (VF)_mm512_maskz_mov_ps(positions_below(length, at),
                                 (__m512)vexp(load(scores + at) - top));
}

}  // namespace
