// A 64-bit checksum at the speed of memory, to tell a damaged file of weights from a good one. It
// depends on every byte and its position, not on threads or instruction path. It is no protection
// against deliberate changes.
#pragma once

#include "team.h"

namespace qw {

uint64_t checksum(const char* data, int64_t bytes, Team& team);

}  // namespace qw
