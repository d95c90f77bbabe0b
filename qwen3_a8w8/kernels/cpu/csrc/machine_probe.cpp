#include "machine_probe.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "aligned_buffer.h"

namespace qw {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kChunksPerThread = 16;  // short waits for a thread that loses its core

template <class F>
double seconds_of(F&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class F>
void run_parallel(Team& team, int64_t count, F& body) {
  team.parallel(
      count, [](void* context, int64_t i, int) { (*static_cast<F*>(context))(i); }, &body);
}

}  // namespace

std::vector<double> probe_read(const KernelTable& kernels, Team& team, int64_t bytes,
                               int64_t prefetch_bytes, int passes) {
  const int64_t chunks = ceil_div(bytes, kChunkBytes);
  const AlignedBuffer buffer(static_cast<size_t>(chunks * kChunkBytes));
  // Untouched pages would all be the same page of zeros.
  auto touch = [&](int64_t i) { std::memset(buffer.data() + i * kChunkBytes, 1, kChunkBytes); };
  run_parallel(team, chunks, touch);
  auto read = [&](int64_t i) {
    kernels.read_memory(buffer.data() + i * kChunkBytes, kChunkBytes, prefetch_bytes);
  };
  std::vector<double> seconds;
  for (int i = 0; i < passes; ++i) {
    seconds.push_back(seconds_of([&] { run_parallel(team, chunks, read); }));
  }
  return seconds;
}

std::vector<double> probe_multiply(const KernelTable& kernels, Team& team, int64_t rounds,
                                   int passes) {
  std::vector<double> rates;
  for (int i = 0; i < passes; ++i) {
    std::atomic<int64_t> products{0};
    auto multiply = [&](int64_t) { products += kernels.multiply_in_registers(rounds); };
    const double seconds =
        seconds_of([&] { run_parallel(team, kChunksPerThread * team.size(), multiply); });
    rates.push_back(static_cast<double>(products) / seconds);
  }
  return rates;
}

}  // namespace qw
