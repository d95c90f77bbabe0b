// int8 linears of many rows with AMX tiles, bound by products.
//
// A band is two tiles of rows, a pair two blocks of channels; a band meets a pair with four
// products for four loads. Depth is cut into pieces, so that a band's and a pair's operands both
// stay in the first-level cache while the band meets the pairs of a chunk, and sums wait in memory
// between pieces. Activations that don't stay in the second-level cache meet all of a piece before
// the next piece. What is needed next is asked for meanwhile, and the sums of the pair before are
// finished: products leave the vector units idle.
//
// What becomes of finished sums is an epilogue's affair:
//   pair(i)                        blocks of pair i,
//   finish(band, pair, sums, begin, end)   scales and stores rows [begin, end) of the band,
//   end_band(band)                 all pairs of the chunk are finished.
#pragma once

#include "linear_tiles.h"

namespace {

constexpr int64_t kPieceDepth = 512;   // inputs of a piece
constexpr int64_t kBandRows = 2 * kTileSide;
constexpr int64_t kChunkPairs = 6;
constexpr int64_t kPassRows = 512;     // rows whose sums stay in the second-level cache
constexpr int64_t kPairSums = 4 * kTileNumbers;  // [upper, lower][first, second][16][16]

struct Pair {
  int64_t first, second;  // blocks; without a second one the first stands in
};

struct Band {
  int64_t row, rows;
  int32_t start[kBandRows];  // what takes the +128 of the weights out again

  int64_t upper() const { return rows < kTileSide ? rows : kTileSide; }
};

inline void begin_band(const qw::LinearArgs& a, int64_t row, int64_t end, Band& band) {
  band.row = row;
  band.rows = end - row < kBandRows ? end - row : kBandRows;
  for (int64_t i = 0; i < band.rows; ++i) band.start[i] = start_of(a, row + i);
}

// Sums of row `i` of a band and the first block; those of the second one are kTileNumbers behind.
inline const int32_t* sums_of(const Band& band, const int32_t* sums, int64_t i) {
  const int64_t upper = band.upper();
  return sums + (i < upper ? i * kTileSide : 2 * kTileNumbers + (i - upper) * kTileSide);
}

// A band's pair that is yet to be finished.
struct Unfinished {
  const int32_t* sums = nullptr;
  const Band* band = nullptr;
  int64_t pair = 0, next = 0;

  int64_t left() const { return band == nullptr ? 0 : band->rows - next; }
  template <class Epilogue>
  void finish(const Epilogue& epilogue, int64_t count) {
    if (left() == 0) return;
    const int64_t end = count < left() ? next + count : band->rows;
    epilogue.finish(*band, pair, sums, next, end);
    next = end;
  }
};

// A share of the lines that will be needed next: rows of activations and two blocks of weights.
struct Fetch {
  static constexpr int64_t kRowLines = kPieceDepth / 64;
  static constexpr int64_t kBlockLines = kPieceDepth / 4;
  static constexpr int64_t kAtOnce = 4;
  static constexpr int64_t kXLines = kBandRows * kRowLines, kWLines = 2 * kBlockLines;

  const int8_t* x = nullptr;
  int64_t x_stride = 0, x_next = 0, x_end = 0;
  const uint8_t* w[2] = {};
  int64_t w_next = 0, w_end = 0;

  // Asks for a few of them; many at once would be in the products' way.
  void some() {
    const int64_t x_stop = x_next + kAtOnce < x_end ? x_next + kAtOnce : x_end;
    for (; x_next < x_stop; ++x_next) {
      const int8_t* line = x + x_next / kRowLines * x_stride + x_next % kRowLines * 64;
      _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
    }
    const int64_t w_stop = w_next + kAtOnce < w_end ? w_next + kAtOnce : w_end;
    for (; w_next < w_stop; ++w_next) {
      const uint8_t* line = w[w_next / kBlockLines] + w_next % kBlockLines * 64;
      _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
    }
  }
};

struct Operands {
  const int8_t* upper;
  const int8_t* lower;
  int64_t x_stride;
  const uint8_t* w[2];
  int64_t depth;
};

// Adds the products of a band and a pair over a piece to `sums`, or begins them.
template <class Epilogue>
inline void multiply_pair(const Operands& o, bool is_first, int32_t* sums,
                          const Epilogue& epilogue, Unfinished& before, Fetch fetch) {
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kTileRowBytes);
    _tile_loadd(1, sums + kTileNumbers, kTileRowBytes);
    _tile_loadd(2, sums + 2 * kTileNumbers, kTileRowBytes);
    _tile_loadd(3, sums + 3 * kTileNumbers, kTileRowBytes);
  }
  const int64_t rows_per_step = qw::ceil_div(before.left() * kTileDepth, o.depth);
  for (int64_t k = 0; k < o.depth; k += kTileDepth) {
    const int64_t at = k * kTileSide;
    _tile_loadd(6, o.w[0] + at, kTileRowBytes);
    _tile_loadd(4, o.upper + k, o.x_stride);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, o.w[1] + at, kTileRowBytes);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(5, o.lower + k, o.x_stride);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
    before.finish(epilogue, rows_per_step);
    fetch.some();
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + kTileNumbers, kTileRowBytes);
  _tile_stored(2, sums + 2 * kTileNumbers, kTileRowBytes);
  _tile_stored(3, sums + 3 * kTileNumbers, kTileRowBytes);
}

// Pairs [begin, end) for all rows.
template <class Epilogue>
struct ChunkOfPairs {
  const qw::LinearArgs& a;
  const Epilogue& epilogue;
  int64_t begin, end;
  int32_t* sums;  // [bands of a pass][pairs][kPairSums]
  Band bands[2]{};  // the current one and the one that is being finished
  Unfinished before{};
  int64_t configured = 0;

  static int64_t sum_bytes(int64_t rows, int64_t pairs) {
    const int64_t most = rows < kPassRows ? rows : kPassRows;
    return qw::ceil_div(most, kBandRows) * pairs * kPairSums * 4;
  }

  const uint8_t* weights(int64_t block, int64_t k) const {
    return a.weight.data + block * a.weight.block_bytes() + k * kTileSide;
  }

  // Rows [row0, row1) and all pieces, piece by piece.
  void pass(int64_t row0, int64_t row1) {
    const int64_t depth = a.weight.in_features;
    for (int64_t k = 0; k < depth; k += kPieceDepth) {
      for (int64_t row = row0; row < row1; row += kBandRows) {
        Band& band = &bands[0] == before.band ? bands[1] : bands[0];
        begin_band(a, row, row1, band);
        if (band.rows != configured) configure_tiles(band.upper(), band.rows - band.upper());
        configured = band.rows;
        piece(band, k, row0, row1);
      }
    }
  }

  // One piece of a band and all pairs.
  void piece(const Band& band, int64_t k, int64_t row0, int64_t row1) {
    const int64_t depth = a.weight.in_features, pairs = end - begin;
    const bool is_last = depth - k <= kPieceDepth;
    Operands o;
    o.upper = row_of(a, band.row) + k;
    o.lower = band.rows > kTileSide ? o.upper + kTileSide * a.x.stride : o.upper;
    o.x_stride = a.x.stride;
    o.depth = is_last ? depth - k : kPieceDepth;
    for (int64_t i = begin; i < end; ++i) {
      const Pair blocks = epilogue.pair(i);
      o.w[0] = weights(blocks.first, k);
      o.w[1] = weights(blocks.second, k);
      int32_t* to = sums + ((band.row - row0) / kBandRows * pairs + i - begin) * kPairSums;
      if (before.sums == to) before.finish(epilogue, kBandRows);
      multiply_pair(o, k == 0, to, epilogue, before, next_lines(band, i, k, row0, row1));
      if (is_last) before = {to, &band, i, 0};
    }
    if (Epilogue::kEndsBands && is_last) {
      before.finish(epilogue, kBandRows);
      epilogue.end_band(band);
    }
  }

  // What to ask for while a band meets a pair: with a pass over all rows the next piece of both, a
  // share of it; with a pass of one band only the same weights of the next chunk.
  Fetch next_lines(const Band& band, int64_t i, int64_t k, int64_t row0, int64_t row1) const {
    const bool is_one_band = row1 - row0 <= kBandRows;
    const bool is_last = a.weight.in_features - k <= kPieceDepth;
    Fetch fetch;
    const int64_t bands = qw::ceil_div(is_one_band ? a.rows : row1 - row0, kBandRows);
    const int64_t at = (is_one_band ? band.row : band.row - row0) / kBandRows;
    fetch.w_next = Fetch::kWLines * at / bands;
    fetch.w_end = Fetch::kWLines * (at + 1) / bands;
    const bool is_next_chunk = is_one_band || is_last;
    const Pair next = epilogue.pair(is_next_chunk ? i + end - begin : i);
    const int64_t next_k = is_one_band ? k : is_last ? 0 : k + kPieceDepth;
    fetch.w[0] = weights(next.first, next_k);
    fetch.w[1] = weights(next.second, next_k);
    if (is_one_band) return fetch;
    fetch.x = row_of(a, band.row) + next_k;
    fetch.x_stride = a.x.stride;
    fetch.x_next = Fetch::kXLines * (i - begin) / (end - begin);
    fetch.x_end = Fetch::kXLines * (i - begin + 1) / (end - begin);
    return fetch;
  }

  void run() {
    const bool is_near = a.rows * a.weight.in_features <= kNearBytes;
    const int64_t rows = is_near ? kBandRows : kPassRows;
    for (int64_t row = 0; row < a.rows; row += rows) {
      pass(row, row + rows < a.rows ? row + rows : a.rows);
    }
    before.finish(epilogue, kBandRows);
  }
};

// Calls make(memory, begin, end) for the epilogue of each chunk: pairs [begin, end), in whole
// units, and `memory_bytes` of its own.
template <class Make>
void linear_many_rows(const qw::LinearArgs& a, int64_t pairs, int64_t unit, int64_t memory_bytes,
                      qw::Team& team, Make make) {
  const int64_t units = pairs / unit;
  const int64_t fit = kChunkPairs / unit > 0 ? kChunkPairs / unit : 1;
  // As many chunks for every thread.
  const int64_t even = qw::round_up(qw::ceil_div(units, fit), team.size());
  const int64_t chunks = even < units ? even : units;
  const int64_t most = qw::ceil_div(units, chunks) * unit;
  using Epilogue = decltype(make(static_cast<char*>(nullptr), int64_t{}, int64_t{}));
  const int64_t sum_bytes = ChunkOfPairs<Epilogue>::sum_bytes(a.rows, most);
  parallel_for(team, chunks, [&](int64_t i, int thread) {
    const int64_t begin = units * i / chunks * unit, end = units * (i + 1) / chunks * unit;
    char* memory = team.scratch(thread, sum_bytes + memory_bytes);
    const Epilogue epilogue = make(memory + sum_bytes, begin, end);
    ChunkOfPairs<Epilogue>{a, epilogue, begin, end, reinterpret_cast<int32_t*>(memory)}.run();
    _tile_release();
  });
}

}  // namespace
