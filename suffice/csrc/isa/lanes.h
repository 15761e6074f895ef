// Register blocking of small matrix products, tail loads, exp2 and transposes in registers.

#pragma once

#include "simd.h"

namespace SUFFICE_ISA {

#if defined(__AVX512F__)
constexpr int ROWS = 8, FEATURES = 12;
#elif defined(__AVX2__)
constexpr int ROWS = 6, FEATURES = 6;
#else
constexpr int ROWS = 6, FEATURES = 6;
#endif
// register tiles: ROWS x COLUMNS vectors of scores, FEATURES x COLUMNS of outputs
constexpr int COLUMNS = 2;
constexpr int64_t MAX_LANES = COLUMNS * WIDE;

// Tail load: the first n < WIDE numbers, then zeros.
INLINE Wide read_some(const float *from, int64_t n) {
  float few[WIDE] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = from[i];
  return read<Wide>(few);
}

INLINE void write_some(float *to, Wide v, int64_t n) {
  float few[WIDE];
  write(few, v);
  for (int64_t i = 0; i < n; ++i) to[i] = few[i];
}

// 2^x for x <= 0, to 2 ulp; exactly 0 below -126, as denormals are slow.
INLINE Wide exp2_negative(Wide x) {
#if defined(__AVX512F__)
  const __mmask16 alive = _mm512_cmp_ps_mask((__m512)x, (__m512)wide(-125.0f), _CMP_NLE_UQ);
  Wide n = (Wide)_mm512_maskz_roundscale_ps(
      alive, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = maximum(wide(-126.0f), x);
  const Wide shift = wide(0x1.8p23f);
  Wide n = (x + shift) - shift;
#endif
  Wide r = x - n;
  Wide p = wide(1.3264727e-3f);
  p = p * r + wide(9.6715130e-3f);
  p = p * r + wide(5.5507336e-2f);
  p = p * r + wide(2.4022242e-1f);
  p = p * r + wide(6.9314700e-1f);
  p = p * r + wide(1.0f);
#if defined(__AVX512F__)
  return (Wide)_mm512_maskz_scalef_ps(alive, (__m512)p, (__m512)n);
#else
  WideInts bits = (__builtin_convertvector(n, WideInts) + 126) << 23;
  Wide half;  // 2^(n-1)
  __builtin_memcpy(&half, &bits, sizeof half);
  return (p + p) * half;
#endif
}

// Interleaves the first halves of a and b, or their second halves.
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (WideInts){__VA_ARGS__})
#endif

INLINE Wide interleave_low(Wide a, Wide b) {
#if defined(__AVX512F__)
  return SHUFFLED(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX2__)
  return SHUFFLED(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return SHUFFLED(a, b, 0, 4, 1, 5);
#endif
}

INLINE Wide interleave_high(Wide a, Wide b) {
#if defined(__AVX512F__)
  return SHUFFLED(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
  return SHUFFLED(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return SHUFFLED(a, b, 2, 6, 3, 7);
#endif
}

#undef SHUFFLED

// Transposes WIDE x WIDE in registers by log2(WIDE) rounds of perfect shuffles.
INLINE void transpose(Wide (&rows)[WIDE]) {
  Wide dealt[WIDE];
  for (int done = 1; done < WIDE; done *= 4) {
    for (int i = 0; i < WIDE / 2; ++i) {
      dealt[2 * i] = interleave_low(rows[i], rows[i + WIDE / 2]);
      dealt[2 * i + 1] = interleave_high(rows[i], rows[i + WIDE / 2]);
    }
    if (2 * done == WIDE) {
      for (int i = 0; i < WIDE; ++i) rows[i] = dealt[i];
      return;
    }
    for (int i = 0; i < WIDE / 2; ++i) {
      rows[2 * i] = interleave_low(dealt[i], dealt[i + WIDE / 2]);
      rows[2 * i + 1] = interleave_high(dealt[i], dealt[i + WIDE / 2]);
    }
  }
}

}  // namespace SUFFICE_ISA
