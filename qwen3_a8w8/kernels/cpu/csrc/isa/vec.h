// Vectors of the unit's instruction set, and loops over the thread pool. Compiled once per
// instruction set, inside an anonymous namespace. Vector width and fused multiply-add differ
// between sets, so float results may differ in the last bits from set to set, but never within one.
#pragma once

#include <cstdint>
#include <cstring>

#include "../layout.h"
#include "../team.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float VF __attribute__((vector_size(W * 4)));
typedef int32_t VI __attribute__((vector_size(W * 4)));
typedef uint32_t VU __attribute__((vector_size(W * 4)));

inline VF load(const float* p) {
  VF v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, VF v) { memcpy(p, &v, sizeof v); }

inline VF splat(float x) {
#if defined(__AVX512F__)
  return (VF)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (VF)_mm256_set1_ps(x);
#else
  return VF{x, x, x, x};
#endif
}

inline VI splat_int(int32_t x) { return (VI{} + 1) * x; }

// The first `count` < W elements, zeros after them.
inline VF load_partial(const float* p, int count) {
#if defined(__AVX512F__)
  return (VF)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
#else
  VF v{};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
#endif
}

inline void store_partial(float* p, VF v, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
#else
  for (int i = 0; i < count; ++i) p[i] = v[i];
#endif
}

inline VF load_upto(const float* p, int count) {
  return count >= W ? load(p) : load_partial(p, count);
}

inline void store_upto(float* p, VF v, int count) {
  if (count >= W) {
    store(p, v);
  } else {
    store_partial(p, v, count);
  }
}

// a * b + c, rounded once where the set has the instruction. The only fused multiply-add of the
// vector code: the compiler may not contract other expressions (-ffp-contract=off).
inline VF fma(VF a, VF b, VF c) {
#if defined(__AVX512F__)
  return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// A NaN in `b` stays, a NaN in `a` is dropped.
#if defined(__AVX512F__)
inline VF vmax(VF a, VF b) { return (VF)_mm512_max_ps((__m512)a, (__m512)b); }
inline VF vmin(VF a, VF b) { return (VF)_mm512_min_ps((__m512)a, (__m512)b); }
#else
inline VF vmax(VF a, VF b) { return a > b ? a : b; }
inline VF vmin(VF a, VF b) { return a < b ? a : b; }
#endif

inline VF vabs(VF x) { return (VF)((VI)x & 0x7fffffff); }

// Whether any lane of a comparison is true.
inline bool any(VI mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

// Sum of the lanes, in halves.
inline float hsum(VF v) {
#if defined(__AVX512F__)
  const __m512 x = (__m512)v;
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#elif defined(__AVX2__)
  __m256 h = (__m256)v;
#endif
#if defined(__AVX2__)
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

inline float hmax(VF v) {
  float best = v[0];
  for (int i = 1; i < W; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

inline int64_t hsum_int(VI v) {
  int64_t sum = 0;
  for (int i = 0; i < W; ++i) sum += v[i];
  return sum;
}

inline VF to_float(VI v) { return __builtin_convertvector(v, VF); }

// Nearest integers, half to even; |x| below 2^22.
inline VI to_int(VF x) {
#if defined(__AVX512F__)
  return (VI)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (VI)_mm256_cvtps_epi32((__m256)x);
#elif defined(__ARM_NEON)
  return (VI)vcvtnq_s32_f32((float32x4_t)x);
#else
  // Adding 1.5 * 2^23 leaves no bits for a fraction; the addition itself rounds half to even.
  const VF magic = splat(12582912.0f);
  return (VI)(x + magic) - (VI)magic;
#endif
}

inline VF load_i8(const int8_t* p) {
#if defined(__AVX512F__)
  __m128i bytes;
  memcpy(&bytes, p, sizeof bytes);
  return (VF)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  return (VF)_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return to_float(VI{p[0], p[1], p[2], p[3]});
#endif
}

// The low bytes of `v`; `count` <= W of them.
inline void store_i8(int8_t* p, VI v, int count) {
#if defined(__AVX512F__)
  if (count >= W) {
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)v);
    memcpy(p, &bytes, sizeof bytes);
    return;
  }
#elif defined(__AVX2__)
  if (count >= W) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v),
                                          _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
    return;
  }
#endif
  for (int i = 0; i < count && i < W; ++i) p[i] = static_cast<int8_t>(v[i]);
}

inline VF load_bf16(const uint16_t* p) {
#if defined(__AVX512F__)
  __m256i half;
  memcpy(&half, p, sizeof half);
  return (VF)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#elif defined(__AVX2__)
  __m128i half;
  memcpy(&half, p, sizeof half);
  return (VF)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
#else
  const VU bits{p[0], p[1], p[2], p[3]};
  return (VF)(bits << 16);
#endif
}

inline float bf16_to_float(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint16_t float_to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

// exp(x) within 2 units in the last place; 0 and infinity beyond the range, NaN stays NaN.
// Source: Cody and Waite 1980, chapter 6 (argument reduction); Taylor coefficients suffice on
// |r| <= ln(2) / 2 at degree 7.
inline VF vexp(VF x) {
  x = vmin(splat(89.0f), vmax(splat(-104.0f), x));
#if defined(__AVX512F__)
  const VF nf =
      (VF)_mm512_roundscale_ps((__m512)(x * splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
#else
  const VI n = to_int(x * splat(1.44269504f));
  const VF nf = to_float(n);
#endif
  VF r = fma(nf, splat(-0.693359375f), x);
  r = fma(nf, splat(2.12194440e-4f), r);
  VF p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r * r, r) + splat(1.0f);
#if defined(__AVX512F__)
  return (VF)_mm512_scalef_ps((__m512)p, (__m512)nf);
#else
  // 2^n in two factors, so that neither leaves the range of normal numbers.
  const VI half = n >> 1;
  p = p * (VF)((half + 127) << 23);
  return p * (VF)((n - half + 127) << 23);
#endif
}

// Calls fn(i, thread) for every index below `count`; threads take indices dynamically.
template <class Fn>
void parallel_for(qw::Team& team, int64_t count, Fn fn) {
  team.parallel(
      count,
      [](void* context, int64_t i, int thread) { (*static_cast<Fn*>(context))(i, thread); },
      &fn);
}

// The same in runs of `grain` indices: fn(begin, end, thread).
template <class Fn>
void parallel_ranges(qw::Team& team, int64_t count, int64_t grain, Fn fn) {
  parallel_for(team, qw::ceil_div(count, grain), [&](int64_t i, int thread) {
    const int64_t begin = i * grain;
    fn(begin, begin + grain < count ? begin + grain : count, thread);
  });
}

inline int at_most_w(int64_t count) { return count < W ? static_cast<int>(count) : W; }

}  // namespace
