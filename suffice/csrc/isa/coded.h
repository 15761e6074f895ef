// Rows of codes of 8 or 4 bits as numbers, in products with queries and sums with weights.

#pragma once

#include "rows.h"

namespace SUFFICE_ISA {

typedef uint8_t FewBytes __attribute__((vector_size(8)));

struct Byte {
  INLINE int64_t bytes(int64_t width) { return width; }
  INLINE Floats get(const uint8_t *p) {
    return __builtin_convertvector(__builtin_convertvector(read<Bytes>(p), Ints), Floats);
  }
  INLINE float one(const uint8_t *row, int64_t c) { return (float)row[c]; }
};

struct Nibble {
  INLINE int64_t bytes(int64_t width) { return width / 2; }
  INLINE Floats get(const uint8_t *p) {
    FewBytes both = read<FewBytes>(p), low = both & 15, high = both >> 4;
    Bytes codes = __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14,
                                          7, 15);
    return __builtin_convertvector(__builtin_convertvector(codes, Ints), Floats);
  }
  INLINE float one(const uint8_t *row, int64_t c) {
    return (float)(c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15);
  }
};

template <class C>
static float product_with(const float *q, const uint8_t *row, int64_t width) {
  Floats sums = all(0.0f);
  int64_t at = 0;
  for (; at + LANE <= width; at += LANE) sums += read<Floats>(q + at) * C::get(row + C::bytes(at));
  float total = sum(sums);
  for (; at < width; ++at) total += q[at] * C::one(row, at);
  return total;
}

template <class C, int N>
INLINE void add_wide(float *sums, const float *by, const uint8_t *rows, int64_t stride,
                     int64_t count, int64_t at) {
  Floats wide[N];
  for (int n = 0; n < N; ++n) wide[n] = read<Floats>(sums + at + n * LANE);
  for (int64_t j = 0; j < count; ++j)
    for (int n = 0; n < N; ++n)
      wide[n] += all(by[j]) * C::get(rows + j * stride + C::bytes(at + n * LANE));
  for (int n = 0; n < N; ++n) write(sums + at + n * LANE, wide[n]);
}

template <class C>
static void add_with(float *sums, const float *by, const uint8_t *rows, int64_t stride,
                     int64_t count, int64_t width) {
  int64_t at = 0;
  for (; at + 4 * LANE <= width; at += 4 * LANE) add_wide<C, 4>(sums, by, rows, stride, count, at);
  for (; at + LANE <= width; at += LANE) add_wide<C, 1>(sums, by, rows, stride, count, at);
  for (; at < width; ++at)
    for (int64_t j = 0; j < count; ++j) sums[at] += by[j] * C::one(rows + j * stride, at);
}

}  // namespace SUFFICE_ISA
