// Instruction paths: which are compiled in, which the machine can run, which is best.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace qw {

struct InstructionPath {
  const char* name;
  const KernelTable* table;
  bool is_runnable;
};

// Compiled paths, fastest first; the portable one is last and always runnable.
const std::vector<InstructionPath>& instruction_paths();

}  // namespace qw
