// Sixteen numbers at a time, in the vector extensions of GCC and Clang: the compiler splits them
// into what the processor has. Only what it does badly is written by hand.

#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

namespace SUFFICE_ISA {

constexpr int LANES = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

template <class V, class T>
INLINE V read(const T *from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class V, class T>
INLINE void write(T *to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

INLINE Floats all(float x) { return Floats{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE Ints all(int32_t x) { return Ints{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

INLINE float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total = 0.0f;
  for (int step = LANES / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) v[i] += v[i + step];
  total = v[0];
  return total;
#endif
}

// The sums of sixteen vectors, in their order.
INLINE Floats sums(const Floats *v) {
  Floats eights[8], fours[4], twos[2];
  for (int i = 0; i < 8; ++i) {
    Floats a = v[2 * i], b = v[2 * i + 1];
    eights[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29,
                                        30, 31);
  }
  for (int i = 0; i < 4; ++i) {
    Floats a = eights[2 * i], b = eights[2 * i + 1];
    fours[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30,
                                       31);
  }
  for (int i = 0; i < 2; ++i) {
    Floats a = fours[2 * i], b = fours[2 * i + 1];
    twos[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
              __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30,
                                      31);
  }
  return __builtin_shufflevector(twos[0], twos[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
                                 28, 30) +
         __builtin_shufflevector(twos[0], twos[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27,
                                 29, 31);
}

INLINE float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float most = v[0];
  for (int i = 1; i < LANES; ++i) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

INLINE Floats floats_of(Bytes b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)b));
#else
  return __builtin_convertvector(__builtin_convertvector(b, Ints), Floats);
#endif
}

INLINE Floats floats_of(Halves h) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  __m256i whole = (__m256i)h;
  __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(whole));
  __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(whole, 1));
  Floats v;
  __builtin_memcpy(&v, &low, 32);
  __builtin_memcpy((char *)&v + 32, &high, 32);
  return v;
#else
  Words bits = __builtin_convertvector(h, Words);
  Words sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  Words moved = rest << 13;  // exponents keep their bias until the product with 2^112
  Floats v;
  __builtin_memcpy(&v, &moved, sizeof v);
  v = v * 0x1p112f;
  Words found;
  __builtin_memcpy(&found, &v, sizeof v);
  found = rest >= 0x7c00u ? (moved | 0x7f800000u) : found;
  found |= sign;
  __builtin_memcpy(&v, &found, sizeof v);
  return v;
#endif
}

// Elements as they are stored, and as numbers.
struct Full {
  typedef float Element;
  INLINE Floats get(const float *p) { return read<Floats>(p); }
  INLINE float one(const float *p) { return *p; }
  INLINE void put(float *p, float x) { *p = x; }
};

struct Half {
  typedef uint16_t Element;
  INLINE Floats get(const uint16_t *p) { return floats_of(read<Halves>(p)); }
  INLINE float one(const uint16_t *p) { return floats_of(Halves{*p})[0]; }
  INLINE void put(uint16_t *p, float x) {
    _Float16 half = (_Float16)x;
    __builtin_memcpy(p, &half, 2);
  }
};

struct Brain {
  typedef uint16_t Element;
  INLINE Floats get(const uint16_t *p) {
    Words bits = __builtin_convertvector(read<Halves>(p), Words) << 16;
    Floats v;
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
  }
  INLINE float one(const uint16_t *p) {
    uint32_t bits = (uint32_t)*p << 16;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
  }
  INLINE void put(uint16_t *p, float x) {  // to nearest, ties to even
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    *p = x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u;
  }
};

// The first n < 16 elements, zeros behind them.
template <class E>
INLINE Floats get_some(const typename E::Element *p, int64_t n) {
  typename E::Element few[LANES] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = p[i];
  return E::get(few);
}

INLINE Floats exp_polynomial(Floats r) {  // of |r| <= log(2) / 2
  Floats p = all(1.9875691500e-4f);
  p = p * r + all(1.3981999507e-3f);
  p = p * r + all(8.3334519073e-3f);
  p = p * r + all(4.1665795894e-2f);
  p = p * r + all(1.6666665459e-1f);
  p = p * r + all(5.0000001201e-1f);
  return p * (r * r) + r + all(1.0f);
}

// e^x to 2 units in the last place; below the least normal number 0, or what there is.
INLINE Floats exp(Floats x) {
#if defined(__AVX512F__)
  const Floats low = all(-104.0f), high = all(89.0f);
  // the second operand is given back where one is no number
  Floats held = (Floats)_mm512_max_ps((__m512)low, (__m512)x);
  held = (Floats)_mm512_min_ps((__m512)high, (__m512)held);
  Floats n = (Floats)_mm512_roundscale_ps((__m512)(held * all(1.442695041f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Floats r = held - n * all(0.693359375f) + n * all(2.12194440e-4f);
  return (Floats)_mm512_scalef_ps((__m512)exp_polynomial(r), (__m512)n);
#else
  const Floats least = all(-87.33654f), most = all(88.72283f);
  Ints alive = x > least;
  Floats held = x > least ? x : least;
  held = held < most ? held : all(89.0f);
  const Floats shift = all(0x1.8p23f);
  Floats n = (held * all(1.442695041f) + shift) - shift;
  Floats p = exp_polynomial(held - n * all(0.693359375f) + n * all(2.12194440e-4f));
  Ints half = __builtin_convertvector(n, Ints) >> 1;  // two factors: 2^128 is no number
  Ints rest = __builtin_convertvector(n, Ints) - half;
  half = (half + 127) << 23;
  rest = (rest + 127) << 23;
  Floats by, then;
  __builtin_memcpy(&by, &half, sizeof by);
  __builtin_memcpy(&then, &rest, sizeof then);
  p = p * by * then;
  Ints bits;
  __builtin_memcpy(&bits, &p, sizeof bits);
  bits &= alive;
  __builtin_memcpy(&p, &bits, sizeof p);
  return x == x ? p : x;
#endif
}

}  // namespace SUFFICE_ISA
