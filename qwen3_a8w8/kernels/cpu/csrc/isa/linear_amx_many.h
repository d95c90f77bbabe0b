// int8 linears of many rows with AMX tiles, bound by multiplication.
//
// A row tile is two AMX tiles of rows, a column tile two blocks of channels; the micro-kernel
// multiplies one by the other with four products for four tile loads. Depth is split into k-panels,
// so that the operands of a row tile and of a column tile both stay in the first-level cache while
// the row tile goes through the column tiles of a chunk; sums wait in memory between k-panels.
// Activations that don't fit into the second-level cache are taken k-panel by k-panel: all row
// tiles of a pass use one k-panel before the next one. Products leave the vector units idle;
// meanwhile the micro-kernel runs the pending epilogue, that of the column tile before, and
// prefetches what is needed next.
//
// An epilogue decides what becomes of complete sums:
//   column_tile(i)                 blocks of column tile i,
//   finish(row_tile, i, sums, begin, end)   scales and stores rows [begin, end) of the row tile,
//   kEndsRowTiles, end_row_tile(row_tile)   work after all column tiles of the chunk, if any.
#pragma once

#include "linear_tiles.h"

namespace {

constexpr int64_t kPanelDepth = 512;   // inputs of a k-panel
constexpr int64_t kRowTileRows = 2 * kTileSide;
constexpr int64_t kChunkColumnTiles = 6;
constexpr int64_t kPassRows = 512;     // rows whose sums stay in the second-level cache
constexpr int64_t kTileSums = 4 * kTileNumbers;  // [upper, lower][first, second][16][16]

struct ColumnTile {
  int64_t first, second;  // blocks; equal where a linear has no second one
};

struct RowTile {
  int64_t row, rows;
  int32_t start[kRowTileRows];  // by row, see start_of

  int64_t upper() const { return rows < kTileSide ? rows : kTileSide; }
};

inline void begin_row_tile(const qw::LinearArgs& a, int64_t row, int64_t end, RowTile& tile) {
  tile.row = row;
  tile.rows = end - row < kRowTileRows ? end - row : kRowTileRows;
  for (int64_t i = 0; i < tile.rows; ++i) tile.start[i] = start_of(a, row + i);
}

// Sums of row `i` of a row tile and the first block; those of the second block follow after
// kTileNumbers.
inline const int32_t* sums_of(const RowTile& tile, const int32_t* sums, int64_t i) {
  const int64_t upper = tile.upper();
  return sums + (i < upper ? i * kTileSide : 2 * kTileNumbers + (i - upper) * kTileSide);
}

// The epilogue of a row tile and a column tile whose sums are complete, as far as it is yet to run.
struct PendingEpilogue {
  const int32_t* sums = nullptr;
  const RowTile* row_tile = nullptr;
  int64_t column_tile = 0, next = 0;

  int64_t left() const { return row_tile == nullptr ? 0 : row_tile->rows - next; }
  template <class Epilogue>
  void run(const Epilogue& epilogue, int64_t count) {
    if (left() == 0) return;
    const int64_t end = count < left() ? next + count : row_tile->rows;
    epilogue.finish(*row_tile, column_tile, sums, next, end);
    next = end;
  }
};

// Cache lines that will be needed next: rows of activations and two blocks of weights.
struct Prefetch {
  static constexpr int64_t kRowLines = kPanelDepth / 64;
  static constexpr int64_t kBlockLines = kPanelDepth / 4;
  static constexpr int64_t kAtOnce = 4;
  static constexpr int64_t kXLines = kRowTileRows * kRowLines, kWLines = 2 * kBlockLines;

  const int8_t* x = nullptr;
  int64_t x_stride = 0, x_next = 0, x_end = 0;
  const uint8_t* w[2] = {};
  int64_t w_next = 0, w_end = 0;

  // Requests a few of the lines; many at once would delay the products' own loads.
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

// Adds the products of a row tile and a column tile over a k-panel to `sums`; the first k-panel
// starts them at 0.
template <class Epilogue>
inline void micro_kernel(const Operands& o, bool is_first, int32_t* sums, const Epilogue& epilogue,
                         PendingEpilogue& pending, Prefetch prefetch) {
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
  const int64_t rows_per_step = qw::ceil_div(pending.left() * kTileDepth, o.depth);
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
    pending.run(epilogue, rows_per_step);
    prefetch.some();
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + kTileNumbers, kTileRowBytes);
  _tile_stored(2, sums + 2 * kTileNumbers, kTileRowBytes);
  _tile_stored(3, sums + 3 * kTileNumbers, kTileRowBytes);
}

// Column tiles [begin, end) for all rows.
template <class Epilogue>
struct ChunkOfColumnTiles {
  const qw::LinearArgs& a;
  const Epilogue& epilogue;
  int64_t begin, end;
  int32_t* sums;  // [row tiles of a pass][column tiles][kTileSums]
  RowTile row_tiles[2]{};  // the current one and the one whose epilogue is pending
  PendingEpilogue pending{};
  int64_t configured = 0;

  static int64_t sum_bytes(int64_t rows, int64_t column_tiles) {
    const int64_t most = rows < kPassRows ? rows : kPassRows;
    return qw::ceil_div(most, kRowTileRows) * column_tiles * kTileSums * 4;
  }

  const uint8_t* weights(int64_t block, int64_t k) const {
    return a.weight.data + block * a.weight.block_bytes() + k * kTileSide;
  }

  // Rows [row0, row1) for all k-panels, one after the other.
  void pass(int64_t row0, int64_t row1) {
    const int64_t depth = a.weight.in_features;
    for (int64_t k = 0; k < depth; k += kPanelDepth) {
      for (int64_t row = row0; row < row1; row += kRowTileRows) {
        RowTile& tile = &row_tiles[0] == pending.row_tile ? row_tiles[1] : row_tiles[0];
        begin_row_tile(a, row, row1, tile);
        if (tile.rows != configured) configure_tiles(tile.upper(), tile.rows - tile.upper());
        configured = tile.rows;
        panel(tile, k, row0, row1);
      }
    }
  }

  // One k-panel of a row tile and all column tiles.
  void panel(const RowTile& tile, int64_t k, int64_t row0, int64_t row1) {
    const int64_t depth = a.weight.in_features, column_tiles = end - begin;
    const bool is_last = depth - k <= kPanelDepth;
    Operands o;
    o.upper = row_of(a, tile.row) + k;
    o.lower = tile.rows > kTileSide ? o.upper + kTileSide * a.x.stride : o.upper;
    o.x_stride = a.x.stride;
    o.depth = is_last ? depth - k : kPanelDepth;
    for (int64_t i = begin; i < end; ++i) {
      const ColumnTile blocks = epilogue.column_tile(i);
      o.w[0] = weights(blocks.first, k);
      o.w[1] = weights(blocks.second, k);
      const int64_t at = (tile.row - row0) / kRowTileRows * column_tiles + i - begin;
      int32_t* to = sums + at * kTileSums;
      if (pending.sums == to) pending.run(epilogue, kRowTileRows);
      micro_kernel(o, k == 0, to, epilogue, pending, next_lines(tile, i, k, row0, row1));
      if (is_last) pending = {to, &tile, i, 0};
    }
    if (Epilogue::kEndsRowTiles && is_last) {
      pending.run(epilogue, kRowTileRows);
      epilogue.end_row_tile(tile);
    }
  }

  // What to prefetch while a row tile meets column tile i. In a pass of several row tiles: a share
  // of the next k-panel of both operands. In a pass of one: a share of the same k-panel of the next
  // chunk's weights.
  Prefetch next_lines(const RowTile& tile, int64_t i, int64_t k, int64_t row0,
                      int64_t row1) const {
    const bool is_one_tile = row1 - row0 <= kRowTileRows;
    const bool is_last = a.weight.in_features - k <= kPanelDepth;
    Prefetch prefetch;
    const int64_t row_tiles = qw::ceil_div(is_one_tile ? a.rows : row1 - row0, kRowTileRows);
    const int64_t at = (is_one_tile ? tile.row : tile.row - row0) / kRowTileRows;
    prefetch.w_next = Prefetch::kWLines * at / row_tiles;
    prefetch.w_end = Prefetch::kWLines * (at + 1) / row_tiles;
    const bool is_next_chunk = is_one_tile || is_last;
    const ColumnTile next = epilogue.column_tile(is_next_chunk ? i + end - begin : i);
    const int64_t next_k = is_one_tile ? k : is_last ? 0 : k + kPanelDepth;
    prefetch.w[0] = weights(next.first, next_k);
    prefetch.w[1] = weights(next.second, next_k);
    if (is_one_tile) return prefetch;
    prefetch.x = row_of(a, tile.row) + next_k;
    prefetch.x_stride = a.x.stride;
    prefetch.x_next = Prefetch::kXLines * (i - begin) / (end - begin);
    prefetch.x_end = Prefetch::kXLines * (i - begin + 1) / (end - begin);
    return prefetch;
  }

  void run() {
    const bool fits_l2 = a.rows * a.weight.in_features <= kL2Activations;
    const int64_t rows = fits_l2 ? kRowTileRows : kPassRows;
    for (int64_t row = 0; row < a.rows; row += rows) {
      pass(row, row + rows < a.rows ? row + rows : a.rows);
    }
    pending.run(epilogue, kRowTileRows);
  }
};

// Column tiles [0, column_tiles) in chunks of whole units of `unit` column tiles. For each chunk
// [begin, end) make(memory, begin, end) returns its epilogue, which owns `memory_bytes` there.
template <class Make>
void linear_many_rows(const qw::LinearArgs& a, int64_t column_tiles, int64_t unit,
                      int64_t memory_bytes, qw::Team& team, Make make) {
  const int64_t units = column_tiles / unit;
  const int64_t fit = kChunkColumnTiles / unit > 0 ? kChunkColumnTiles / unit : 1;
  // The same number of chunks for every thread.
  const int64_t even = qw::round_up(qw::ceil_div(units, fit), team.size());
  const int64_t chunks = even < units ? even : units;
  const int64_t most = qw::ceil_div(units, chunks) * unit;
  using Epilogue = decltype(make(static_cast<char*>(nullptr), int64_t{}, int64_t{}));
  using Chunk = ChunkOfColumnTiles<Epilogue>;
  const int64_t sum_bytes = Chunk::sum_bytes(a.rows, most);
  parallel_for(team, chunks, [&](int64_t i, int thread) {
    const int64_t begin = units * i / chunks * unit, end = units * (i + 1) / chunks * unit;
    char* memory = team.scratch(thread, sum_bytes + memory_bytes);
    const Epilogue epilogue = make(memory + sum_bytes, begin, end);
    Chunk{a, epilogue, begin, end, reinterpret_cast<int32_t*>(memory)}.run();
    _tile_release();
  });
}

}  // namespace
