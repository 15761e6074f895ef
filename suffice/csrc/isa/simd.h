// SIMD types: Wide is one register of floats; Floats is sixteen floats in as many registers as
// needed, since compilers keep wider vector types in memory. Intrinsics only where compilers do
// badly.

#pragma once

#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define MEMBER inline __attribute__((always_inline))
// not inlined: the function has all registers for its accumulators
#define NOINLINE static __attribute__((noinline))
// fully unrolls loops over register arrays, which must not be indexed at run time
#define UNROLL _Pragma("GCC unroll 16")

namespace SUFFICE_ISA {

#if defined(__AVX512F__)
constexpr int WIDE = 16;
#elif defined(__AVX2__)
constexpr int WIDE = 8;
#else
constexpr int WIDE = 4;
#endif
constexpr int LANES = 16, PARTS = LANES / WIDE;

typedef float Wide __attribute__((vector_size(4 * WIDE)));
typedef int32_t WideInts __attribute__((vector_size(4 * WIDE)));
typedef uint32_t WideWords __attribute__((vector_size(4 * WIDE)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDE)));

INLINE Wide wide(float x) { return x - Wide{}; }

INLINE WideInts wide_ints(int32_t x) { return x - WideInts{}; }

// Sixteen floats.
template <class Part>
struct Lanes {
  Part parts[PARTS];

  MEMBER auto operator[](int i) const { return parts[i / WIDE][i % WIDE]; }

#define SUFFICE_OPERATOR(OP)                                             \
  MEMBER Lanes operator OP(const Lanes &other) const {                   \
    Lanes result;                                                        \
    UNROLL for (int i = 0; i < PARTS; ++i) result.parts[i] = parts[i] OP other.parts[i]; \
    return result;                                                       \
  }                                                                      \
  MEMBER Lanes &operator OP##=(const Lanes & other) {                    \
    UNROLL for (int i = 0; i < PARTS; ++i) parts[i] = parts[i] OP other.parts[i]; \
    return *this;                                                        \
  }
  SUFFICE_OPERATOR(+)
  SUFFICE_OPERATOR(-)
  SUFFICE_OPERATOR(*)
  SUFFICE_OPERATOR(/)
#undef SUFFICE_OPERATOR

  MEMBER Lanes operator-() const {
    Lanes result;
    UNROLL for (int i = 0; i < PARTS; ++i) result.parts[i] = -parts[i];
    return result;
  }
};

typedef Lanes<Wide> Floats;
typedef Lanes<WideInts> Ints;

template <class V>
struct Memory {
  template <class T>
  INLINE V read(const T *from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
  }
  template <class T>
  INLINE void write(T *to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
  }
};

template <class Part>
struct Memory<Lanes<Part>> {
  template <class T>
  INLINE Lanes<Part> read(const T *from) {
    Lanes<Part> v;
    UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = Memory<Part>::read(from + i * WIDE);
    return v;
  }
  template <class T>
  INLINE void write(T *to, const Lanes<Part> &v) {
    UNROLL for (int i = 0; i < PARTS; ++i) Memory<Part>::write(to + i * WIDE, v.parts[i]);
  }
};

template <class V, class T>
INLINE V read(const T *from) {
  return Memory<V>::read(from);
}

template <class V, class T>
INLINE void write(T *to, V v) {
  Memory<V>::write(to, v);
}

INLINE Floats all(float x) {
  Floats v;
  UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = wide(x);
  return v;
}

INLINE Ints all(int32_t x) {
  Ints v;
  UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = wide_ints(x);
  return v;
}

INLINE Floats floats_of(const Ints &v) {
  Floats result;
  UNROLL for (int i = 0; i < PARTS; ++i)
    result.parts[i] = __builtin_convertvector(v.parts[i], Wide);
  return result;
}

// Elementwise maximum; b where either is NaN.
INLINE Wide maximum(Wide a, Wide b) {
#if defined(__AVX512F__)
  return (Wide)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Wide)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

INLINE Floats max_of(const Floats &a, const Floats &b) {
  Floats v;
  UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = maximum(a.parts[i], b.parts[i]);
  return v;
}

// Select: lane by lane, by the sign of x.
INLINE Floats where_positive(const Floats &x, const Floats &then, const Floats &otherwise) {
  Floats v;
  UNROLL for (int i = 0; i < PARTS; ++i)
    v.parts[i] = x.parts[i] > Wide{} ? then.parts[i] : otherwise.parts[i];
  return v;
}

// Reduces sixteen lanes to one register by a binary function.
template <class F>
INLINE Wide folded(const Floats &v, F f) {
  Wide total = v.parts[0];
  UNROLL for (int i = 1; i < PARTS; ++i) total = f(total, v.parts[i]);
  return total;
}

INLINE Wide folded(const Floats &v) {
  return folded(v, [](Wide a, Wide b) { return a + b; });
}

#if defined(__AVX2__)
INLINE __m128 halves_folded(Wide v, __m128 (*f)(__m128, __m128)) {
#if defined(__AVX512F__)
  const __m256 low = _mm512_castps512_ps256((__m512)v), high = _mm512_extractf32x8_ps((__m512)v, 1);
  return f(f(_mm256_castps256_ps128(low), _mm256_castps256_ps128(high)),
           f(_mm256_extractf128_ps(low, 1), _mm256_extractf128_ps(high, 1)));
#else
  return f(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#endif
}
#endif

INLINE float sum_of(Wide v) {
#if defined(__AVX2__)
  __m128 four = halves_folded(v, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

// The sums of four vectors, with half the shuffles of four times one.
INLINE void sums_of(const Wide (&v)[4], float (&sums)[4]) {
#if defined(__AVX512F__)
  const __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
  const __m512d ab = (__m512d)(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
  const __m512d cd = (__m512d)(_mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d));
  const Wide all = (Wide)_mm512_unpacklo_pd(ab, cd) + (Wide)_mm512_unpackhi_pd(ab, cd);
  _mm_storeu_ps(sums, halves_folded(all, [](__m128 x, __m128 y) { return _mm_add_ps(x, y); }));
#elif defined(__AVX2__)
  const __m256 ab = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]);
  const __m256 cd = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
  const Wide all = (Wide)_mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(sums, halves_folded(all, [](__m128 x, __m128 y) { return _mm_add_ps(x, y); }));
#else
  for (int i = 0; i < 4; ++i) sums[i] = sum_of(v[i]);
#endif
}

INLINE float sum(const Floats &v) { return sum_of(folded(v)); }

INLINE float largest_of(Wide top) {
#if defined(__AVX2__)
  __m128 four = halves_folded(top, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  const float a = top[0] > top[2] ? top[0] : top[2], b = top[1] > top[3] ? top[1] : top[3];
  return a > b ? a : b;
#endif
}

INLINE float largest(const Floats &v) { return largest_of(folded(v, maximum)); }

// Horizontal sums of WIDE vectors, as one vector (transpose-reduce).
INLINE Wide sums_of(const Wide *v) {
#if defined(__AVX512F__)
  Wide eights[8], value_sums[4], twos[2];
  UNROLL for (int i = 0; i < 8; ++i) {
    Wide a = v[2 * i], b = v[2 * i + 1];
    eights[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  UNROLL for (int i = 0; i < 4; ++i) {
    Wide a = eights[2 * i], b = eights[2 * i + 1];
    value_sums[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  UNROLL for (int i = 0; i < 2; ++i) {
    Wide a = value_sums[2 * i], b = value_sums[2 * i + 1];
    twos[i] =
        __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
        __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  }
  return __builtin_shufflevector(twos[0], twos[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
                                 26, 28, 30) +
         __builtin_shufflevector(twos[0], twos[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25,
                                 27, 29, 31);
#elif defined(__AVX2__)
  __m256 value_sums[2];
  UNROLL for (int i = 0; i < 2; ++i)
    value_sums[i] = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[4 * i], (__m256)v[4 * i + 1]),
                              _mm256_hadd_ps((__m256)v[4 * i + 2], (__m256)v[4 * i + 3]));
  return (Wide)_mm256_add_ps(_mm256_permute2f128_ps(value_sums[0], value_sums[1], 0x20),
                             _mm256_permute2f128_ps(value_sums[0], value_sums[1], 0x31));
#else
  Wide twos[2];
  UNROLL for (int i = 0; i < 2; ++i)
    twos[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 2, 4, 6) +
              __builtin_shufflevector(v[2 * i], v[2 * i + 1], 1, 3, 5, 7);
  return __builtin_shufflevector(twos[0], twos[1], 0, 2, 4, 6) +
         __builtin_shufflevector(twos[0], twos[1], 1, 3, 5, 7);
#endif
}

// WIDE bytes as floats.
INLINE Wide wide_of(const uint8_t *from) {
#if defined(__AVX512F__)
  return (Wide)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
  return (Wide)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
  typedef uint8_t Bytes __attribute__((vector_size(WIDE)));
  return __builtin_convertvector(__builtin_convertvector(read<Bytes>(from), WideInts), Wide);
#endif
}

INLINE Floats floats_of(const uint8_t *from) {
  Floats v;
  UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = wide_of(from + i * WIDE);
  return v;
}

// Half-precision numbers.
INLINE Wide wide_of(Halves h) {
#if defined(__AVX512F__)
  return (Wide)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  return (Wide)_mm256_cvtph_ps((__m128i)h);
#elif defined(__ARM_NEON)
  return (Wide)vcvt_f32_f16((float16x4_t)h);
#else
  WideWords bits = __builtin_convertvector(h, WideWords);
  WideWords sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  WideWords moved =
      rest << 13;  // the product with 2^112 corrects the exponent bias, also of denormals
  WideWords number = (WideWords)((Wide)moved * 0x1p112f);
  number = rest >= 0x7c00u ? (moved | 0x7f800000u) : number;
  return (Wide)(number | sign);
#endif
}

INLINE Wide wide_of_brain(Halves h) {
  return (Wide)(__builtin_convertvector(h, WideWords) << 16);
}

// Storage types, and their conversion to float32.
struct Full {
  typedef float Element;
  INLINE Wide part(const float *p) { return read<Wide>(p); }
  INLINE Floats get(const float *p) { return read<Floats>(p); }
  INLINE float one(const float *p) { return *p; }
  INLINE void put(float *p, float x) { *p = x; }
};

struct Half {
  typedef uint16_t Element;
  INLINE Wide part(const uint16_t *p) { return wide_of(read<Halves>(p)); }
  INLINE Floats get(const uint16_t *p) {
    Floats v;
    UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = part(p + i * WIDE);
    return v;
  }
  INLINE float one(const uint16_t *p) { return wide_of(Halves{*p})[0]; }
  INLINE void put(uint16_t *p, float x) {
    _Float16 half = (_Float16)x;
    __builtin_memcpy(p, &half, 2);
  }
};

struct Brain {
  typedef uint16_t Element;
  INLINE Wide part(const uint16_t *p) { return wide_of_brain(read<Halves>(p)); }
  INLINE Floats get(const uint16_t *p) {
    Floats v;
    UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = part(p + i * WIDE);
    return v;
  }
  INLINE float one(const uint16_t *p) {
    uint32_t bits = (uint32_t)*p << 16;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
  }
  INLINE void put(uint16_t *p, float x) {  // round to nearest, ties to even
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    *p = x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u;
  }
};

// Tail load: the first n < 16 elements, then zeros.
template <class E>
INLINE Floats get_some(const typename E::Element *p, int64_t n) {
  typename E::Element few[LANES] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = p[i];
  return E::get(few);
}

INLINE Wide exp_polynomial(Wide r) {  // expm1(r) for |r| <= log(2) / 2
  Wide p = wide(1.9875691500e-4f);
  p = p * r + wide(1.3981999507e-3f);
  p = p * r + wide(8.3334519073e-3f);
  p = p * r + wide(4.1665795894e-2f);
  p = p * r + wide(1.6666665459e-1f);
  p = p * r + wide(5.0000001201e-1f);
  return p * (r * r) + r;
}

// e^x to 2 ulp; results below the smallest normal number are 0 or denormal.
INLINE Wide exp(Wide x) {
#if defined(__AVX512F__)
  const Wide low = wide(-104.0f), high = wide(89.0f);
  // NaN propagates: the instruction returns its second operand
  Wide held = (Wide)_mm512_max_ps((__m512)low, (__m512)x);
  held = (Wide)_mm512_min_ps((__m512)high, (__m512)held);
  Wide n = (Wide)_mm512_roundscale_ps((__m512)(held * wide(1.442695041f)),
                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Wide r = held - n * wide(0.693359375f) + n * wide(2.12194440e-4f);
  return (Wide)_mm512_scalef_ps((__m512)(exp_polynomial(r) + wide(1.0f)), (__m512)n);
#else
  const Wide least = wide(-87.33654f), most = wide(88.72283f);
  WideInts alive = x > least;
  Wide held = x > least ? x : least;
  held = held < most ? held : wide(89.0f);
  const Wide shift = wide(0x1.8p23f);
  Wide n = (held * wide(1.442695041f) + shift) - shift;
  Wide p = exp_polynomial(held - n * wide(0.693359375f) + n * wide(2.12194440e-4f)) + wide(1.0f);
  WideInts half = __builtin_convertvector(n, WideInts) >> 1;  // two factors, as 2^128 overflows
  WideInts rest = __builtin_convertvector(n, WideInts) - half;
  p = p * (Wide)((half + 127) << 23) * (Wide)((rest + 127) << 23);
  p = (Wide)((WideInts)p & alive);
  return x == x ? p : x;
#endif
}

INLINE Floats exp(const Floats &x) {
  Floats v;
  UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = exp(x.parts[i]);
  return v;
}

// tanh(x) = expm1(2x) / (expm1(2x) + 2), to 3 ulp, with expm1(2x) = 2^n expm1(r) + (2^n - 1): no
// cancellation for small x.
INLINE Wide tanh(Wide x) {
  const WideInts sign = (WideInts)x & wide_ints(INT32_MIN);
  const Wide most = wide(20.0f), shift = wide(0x1.8p23f);  // tanh is 1 from there on
  Wide twice = (Wide)((WideInts)x ^ sign) * wide(2.0f);
  twice = twice > most ? most : twice;  // NaN stays NaN
  const Wide n = (twice * wide(1.442695041f) + shift) - shift;
  const Wide r = twice - n * wide(0.693359375f) + n * wide(2.12194440e-4f);
  const Wide power_of_two = (Wide)((__builtin_convertvector(n, WideInts) + 127) << 23);
  const Wide less_one = power_of_two * exp_polynomial(r) + (power_of_two - wide(1.0f));
  return (Wide)((WideInts)(less_one / (less_one + wide(2.0f))) | sign);
}

INLINE Floats tanh(const Floats &x) {
  Floats v;
  UNROLL for (int i = 0; i < PARTS; ++i) v.parts[i] = tanh(x.parts[i]);
  return v;
}

INLINE Wide square_root(Wide x) {
#if defined(__AVX512F__)
  return (Wide)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (Wide)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < WIDE; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

INLINE float exp_one(float x) { return exp(wide(x))[0]; }

}  // namespace SUFFICE_ISA
