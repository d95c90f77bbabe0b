// Loops that measure the machine instead of computing anything: the products of the unit's int8
// instruction on registers alone, and reads of memory.
#pragma once

#include "vec.h"

namespace {

// Number of independent sums: more than latency times throughput where one instruction multiplies
// and adds; few where intermediate results need registers.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int kProbeChains = 12;
#else
constexpr int kProbeChains = 6;
#endif

// Hides a value from the compiler, which then can't fold or drop the loop around it.
#if defined(__x86_64__)
#define QW_HIDE(value) asm volatile("" : "+v"(value))
#elif defined(__aarch64__)
#define QW_HIDE(value) asm volatile("" : "+w"(value))
#else
#define QW_HIDE(value) asm volatile("" : "+m"(value))
#endif

#if defined(__AVX512VNNI__)
using ProbeVector = __m512i;
inline ProbeVector probe_step(ProbeVector sum, ProbeVector w, ProbeVector x) {
  // Not the intrinsic: GCC 12 would copy the sum before and after.
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  return sum;
}
#elif defined(__AVXVNNI__)
using ProbeVector = __m256i;
inline ProbeVector probe_step(ProbeVector sum, ProbeVector w, ProbeVector x) {
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
  return sum;
}
#elif defined(__AVX2__)
using ProbeVector = __m256i;
inline ProbeVector probe_step(ProbeVector sum, ProbeVector w, ProbeVector x) {
  // The exact product: vpmaddubsw saturates.
  return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
}
#elif defined(__ARM_FEATURE_DOTPROD)
using ProbeVector = int32x4_t;
inline ProbeVector probe_step(ProbeVector sum, ProbeVector w, ProbeVector x) {
  return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}
#else
using ProbeVector = int32_t __attribute__((vector_size(16)));
inline ProbeVector probe_step(ProbeVector sum, ProbeVector w, ProbeVector x) {
  // Without an instruction for it a lane holds one product.
  return sum + w * x;
}
#endif

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr int64_t kProbeProducts = sizeof(ProbeVector) / sizeof(int16_t);
#elif defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int64_t kProbeProducts = sizeof(ProbeVector);
#else
constexpr int64_t kProbeProducts = sizeof(ProbeVector) / sizeof(int32_t);
#endif

// Returns the number of int8 multiply-adds done.
__attribute__((noinline)) int64_t multiply_in_registers(int64_t rounds) {
  ProbeVector sums[kProbeChains] = {};
  ProbeVector w = {}, x = {};
  for (int64_t i = 0; i < rounds; ++i) {
    for (int c = 0; c < kProbeChains; ++c) {
      // In every step: otherwise steps of several instructions would share some of them.
      QW_HIDE(w);
      QW_HIDE(x);
      sums[c] = probe_step(sums[c], w, x);
    }
  }
  for (int c = 0; c < kProbeChains; ++c) QW_HIDE(sums[c]);
  return rounds * kProbeChains * kProbeProducts;
}

// Reads whole lines; `data` is 64-byte aligned and `bytes` a multiple of 512.
__attribute__((noinline)) void read_memory(const char* data, int64_t bytes,
                                           int64_t prefetch_bytes) {
  using Words = int64_t __attribute__((vector_size(64)));
  Words sums[4] = {};
  for (const char* end = data + bytes; data != end; data += 512) {
    for (int line = 0; line < 8; ++line) {
      if (prefetch_bytes != 0) __builtin_prefetch(data + 64 * line + prefetch_bytes, 0, 3);
      Words words;
      memcpy(&words, data + 64 * line, sizeof words);
      sums[line % 4] ^= words;
    }
  }
  for (int i = 0; i < 4; ++i) asm volatile("" : : "m"(sums[i]));
}

}  // namespace
