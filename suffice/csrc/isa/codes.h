// Products of 8-bit and 4-bit codes: four columns of sixteen rows at a time.

#pragma once

#include "simd.h"

namespace SUFFICE_ISA {

constexpr int PIECE = 64;  // bytes: 4 columns of 16 rows

#if defined(__AVX512VNNI__)

struct Sums {
  __m512i lanes = _mm512_setzero_si512();
  INLINE Sums at(int32_t value) { return {_mm512_set1_epi32(value)}; }
};

// The same with the four numbers where they lie. Written out, for compilers copy the sums about.
INLINE void add_four(__m512i &to, __m512i codes, const int8_t *four) {
  __m512i sum = to;  // of its own, or the sums would be kept in memory
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const int32_t *)four));
  to = sum;
}

// The same with four numbers in every lane.
INLINE __m512i four_of(const int8_t *four) {
  int32_t word;
  __builtin_memcpy(&word, four, 4);
  return _mm512_set1_epi32(word);
}

INLINE void add_four(__m512i &to, __m512i codes, __m512i fours) {
  __m512i sum = to;
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(fours));
  to = sum;
}

// Adds to each row's sum its four codes times four numbers; `four` points at them.
INLINE void add_products(Sums &sums, __m512i codes, const int8_t *four) {
  int32_t word;
  __builtin_memcpy(&word, four, 4);
  sums.lanes = _mm512_dpbusd_epi32(sums.lanes, codes, _mm512_set1_epi32(word));
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE void add(Sums *sums, int stride, int count, const uint8_t *piece, const int8_t *x,
                  int64_t row) {
    __m512i codes = _mm512_loadu_si512(piece);
    for (int m = 0; m < count; ++m) add_products(sums[m * stride], codes, x + m * row);
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE void add(Sums *sums, int stride, int count, const uint8_t *piece, const int8_t *x,
                  int64_t row) {
    const __m512i low_half = _mm512_set1_epi8(15);
    __m512i both = _mm512_loadu_si512(piece);
    __m512i low = _mm512_and_si512(both, low_half);
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
    for (int m = 0; m < count; ++m) {
      add_products(sums[m * stride], low, x + m * row);
      add_products(sums[m * stride], high, x + m * row + 4);
    }
  }
};

INLINE Ints total(const Sums &sums) { return (Ints)sums.lanes; }

INLINE Ints total(const Sums &a, const Sums &b) {
  return (Ints)_mm512_add_epi32(a.lanes, b.lanes);
}

#elif defined(__AVX2__)

// Each 32-bit lane holds the sum of two of a row's four products.
struct Sums {
  __m256i lanes[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
  INLINE Sums at(int32_t value) {
    __m256i first = _mm256_set1_epi64x((uint32_t)value);
    return {{first, first, first, first}};
  }
};

INLINE void add_products(Sums &sums, const __m256i *wide, const int8_t *four) {
  int32_t word;
  __builtin_memcpy(&word, four, 4);
  __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(word));
  for (int i = 0; i < 4; ++i)
    sums.lanes[i] = _mm256_add_epi32(sums.lanes[i], _mm256_madd_epi16(wide[i], x));
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE void add(Sums *sums, int stride, int count, const uint8_t *piece, const int8_t *x,
                  int64_t row) {
    __m256i wide[4];
    for (int i = 0; i < 4; ++i)
      wide[i] = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(piece + 16 * i)));
    for (int m = 0; m < count; ++m) add_products(sums[m * stride], wide, x + m * row);
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE void add(Sums *sums, int stride, int count, const uint8_t *piece, const int8_t *x,
                  int64_t row) {
    const __m128i low_half = _mm_set1_epi8(15);
    __m256i low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      __m128i both = _mm_loadu_si128((const __m128i *)(piece + 16 * i));
      low[i] = _mm256_cvtepu8_epi16(_mm_and_si128(both, low_half));
      high[i] = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), low_half));
    }
    for (int m = 0; m < count; ++m) {
      add_products(sums[m * stride], low, x + m * row);
      add_products(sums[m * stride], high, x + m * row + 4);
    }
  }
};

INLINE Ints total(const Sums &sums) {
  Ints all_rows;
  for (int i = 0; i < 4; ++i) {
    int32_t pairs[8];
    __builtin_memcpy(pairs, &sums.lanes[i], 32);
    for (int r = 0; r < 4; ++r) all_rows[4 * i + r] = pairs[2 * r] + pairs[2 * r + 1];
  }
  return all_rows;
}

INLINE Ints total(const Sums &a, const Sums &b) { return total(a) + total(b); }

#else

struct Sums {
  int32_t lanes[LANES] = {};
  INLINE Sums at(int32_t value) {
    Sums sums;
    for (int r = 0; r < LANES; ++r) sums.lanes[r] = value;
    return sums;
  }
};

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE void add(Sums *sums, int stride, int count, const uint8_t *piece, const int8_t *x,
                  int64_t row) {
    for (int m = 0; m < count; ++m)
      for (int r = 0; r < LANES; ++r)
        for (int c = 0; c < 4; ++c)
          sums[m * stride].lanes[r] += (int32_t)piece[4 * r + c] * x[m * row + c];
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE void add(Sums *sums, int stride, int count, const uint8_t *piece, const int8_t *x,
                  int64_t row) {
    for (int m = 0; m < count; ++m)
      for (int r = 0; r < LANES; ++r)
        for (int c = 0; c < 4; ++c) {
          int32_t low = piece[4 * r + c] & 15, high = piece[4 * r + c] >> 4;
          sums[m * stride].lanes[r] += low * x[m * row + c] + high * x[m * row + 4 + c];
        }
  }
};

INLINE Ints total(const Sums &sums) { return read<Ints>(sums.lanes); }

INLINE Ints total(const Sums &a, const Sums &b) { return total(a) + total(b); }

#endif

}  // namespace SUFFICE_ISA
