// A 64-bit checksum at the speed of memory, to tell a damaged file of weights from a good one.
// It depends on every byte and its place; it doesn't depend on threads or instruction path, and
// it is no defence against someone who wants to deceive.
#pragma once

#include "team.h"

namespace qw {

uint64_t checksum(const char* data, int64_t bytes, Team& team);

}  // namespace qw
