#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace qw {

extern const KernelTable kernels_portable;
#if defined(__x86_64__)
extern const KernelTable kernels_amx, kernels_avx512vnni, kernels_avxvnni, kernels_avx2;
#elif defined(__aarch64__)
extern const KernelTable kernels_neon;
#endif

namespace {

#if defined(__x86_64__)
struct CpuId {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  CpuId(unsigned leaf, unsigned subleaf) {
    // Leaves a machine lacks read as zeros.
    if (!__get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx)) eax = ebx = ecx = edx = 0;
  }
};

bool bit(unsigned word, int index) { return (word >> index & 1) != 0; }

// Which register states the operating system saves.
unsigned saved_states() {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Asks Linux to save tile registers for this process and its children, which it does on request
// only.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, Linux 5.16
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::vector<InstructionPath> detect() {
  const CpuId basic(1, 0), extended(7, 0), extended1(7, 1);
  const unsigned states = bit(basic.ecx, 27) ? saved_states() : 0;
  const bool saves_ymm = (states & 0x6) == 0x6, saves_zmm = (states & 0xe6) == 0xe6;
  const bool avx2 = saves_ymm && bit(extended.ebx, 5) && bit(basic.ecx, 12);
  const bool avxvnni = avx2 && bit(extended1.eax, 4);
  // F, DQ, BW, VL and VNNI.
  const bool avx512 = avx2 && saves_zmm && bit(extended.ebx, 16) && bit(extended.ebx, 17) &&
                      bit(extended.ebx, 30) && bit(extended.ebx, 31) && bit(extended.ecx, 11);
  // Tiles, and their products of int8 and bfloat16.
  const bool has_amx = (states & 0x60000) == 0x60000 && bit(extended.edx, 24) &&
                       bit(extended.edx, 25) && bit(extended.edx, 22) &&
                       bit(extended1.eax, 5);  // and conversions to bfloat16
  return {{"amx", &kernels_amx, avx512 && has_amx && may_use_tiles()},
          {"avx512vnni", &kernels_avx512vnni, avx512},
          {"avxvnni", &kernels_avxvnni, avxvnni},
          {"avx2", &kernels_avx2, avx2},
          {"portable", &kernels_portable, true}};
}
#elif defined(__aarch64__)
std::vector<InstructionPath> detect() {
#if defined(__linux__)
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  const bool dotprod = true;  // every 64-bit Apple machine
#endif
  return {{"neon", &kernels_neon, dotprod}, {"portable", &kernels_portable, true}};
}
#else
std::vector<InstructionPath> detect() { return {{"portable", &kernels_portable, true}}; }
#endif

}  // namespace

const std::vector<InstructionPath>& instruction_paths() {
  static const std::vector<InstructionPath> paths = detect();
  return paths;
}

}  // namespace qw
