#include "checksum.h"

#include <atomic>
#include <cstring>

#include "layout.h"

namespace qw {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

using Lanes = uint64_t __attribute__((vector_size(64)));

// Source: Steele et al. 2014, "Fast splittable pseudorandom number generators", mix64.
uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Job {
  const char* data;
  int64_t bytes;
  std::atomic<uint64_t> total{0};
};

// Two running sums per lane (Fletcher 1982): the second weighs each word with its distance from
// the end. Additions only, so that any instruction set keeps up with memory.
void sum_chunk(void* context, int64_t chunk, int) {
  Job& job = *static_cast<Job*>(context);
  const int64_t begin = chunk * kChunkBytes;
  const int64_t length = job.bytes - begin < kChunkBytes ? job.bytes - begin : kChunkBytes;
  Lanes first = {}, second = {};
  const char* data = job.data + begin;
  const auto add = [&](const char* from, size_t bytes) {
    Lanes words = {};
    std::memcpy(&words, from, bytes);
    first += words;
    second += first;
  };
  // Whole rows apart from the last, since a copy of constant size is a load.
  const int64_t whole = length & ~int64_t{63};
  for (int64_t i = 0; i < whole; i += 64) {
    __builtin_prefetch(data + i + 4096);
    add(data + i, 64);
  }
  if (whole < length) add(data + whole, static_cast<size_t>(length - whole));
  uint64_t hash = mix(static_cast<uint64_t>(chunk)) ^ static_cast<uint64_t>(length);
  for (int lane = 0; lane < 8; ++lane) hash = mix(mix(hash ^ first[lane]) ^ second[lane]);
  job.total.fetch_add(hash, std::memory_order_relaxed);
}

}  // namespace

uint64_t checksum(const char* data, int64_t bytes, Team& team) {
  Job job{data, bytes};
  team.parallel(ceil_div(bytes, kChunkBytes), sum_chunk, &job);
  return job.total.load();
}

}  // namespace qw
