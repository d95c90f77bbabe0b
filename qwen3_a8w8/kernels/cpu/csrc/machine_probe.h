// The two limits that kernels are compared with: how fast the threads read memory, and how many
// int8 products they do per second when nothing has to be read.
#pragma once

#include <vector>

#include "kernels.h"

namespace qw {

// Seconds of each pass over `bytes` of memory, prefetching that far ahead (0: not at all).
std::vector<double> probe_read(const KernelTable& kernels, Team& team, int64_t bytes,
                               int64_t prefetch_bytes, int passes);

// int8 multiply-adds per second of each pass; `rounds` per chunk.
std::vector<double> probe_multiply(const KernelTable& kernels, Team& team, int64_t rounds,
                                   int passes);

}  // namespace qw
