// Counter-based random numbers. Source: Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3", section 3.3 (philox4x32-10).
#pragma once

#include <cstdint>

namespace {

struct Philox {
  uint32_t word[4];
};

inline Philox philox4x32(Philox counter, uint32_t key0, uint32_t key1) {
  uint32_t* c = counter.word;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0,
                              static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1,
                              static_cast<uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// In [0, 1), from 53 bits.
inline double uniform(int64_t seed, int32_t position) {
  const auto key = static_cast<uint64_t>(seed);
  const Philox draw = philox4x32({{static_cast<uint32_t>(position), 0, 0, 0}},
                                 static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  const uint64_t bits = (uint64_t{draw.word[0]} << 21) ^ (draw.word[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace
