// Rows of codes of 8 or 4 bits as numbers.

#pragma once

#include "rows.h"

namespace SUFFICE_ISA {

typedef uint8_t FewBytes __attribute__((vector_size(8)));

struct Byte {
  INLINE int64_t bytes(int64_t width) { return width; }
  INLINE Floats get(const uint8_t *p) { return floats_of(read<Bytes>(p)); }
  INLINE float one(const uint8_t *row, int64_t c) { return (float)row[c]; }
};

struct Nibble {
  INLINE int64_t bytes(int64_t width) { return width / 2; }
  INLINE Floats get(const uint8_t *p) {
    FewBytes both = read<FewBytes>(p), low = both & 15, high = both >> 4;
    return floats_of(__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6,
                                             14, 7, 15));
  }
  INLINE float one(const uint8_t *row, int64_t c) {
    return (float)(c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15);
  }
};

// Writes the codes of some rows as numbers, [count, width].
template <class C>
static void decode(const uint8_t *rows, int64_t stride, int64_t count, int64_t width, float *to) {
  for (int64_t j = 0; j < count; ++j, rows += stride, to += width) {
    int64_t at = 0;
    for (; at + LANE <= width; at += LANE) write(to + at, C::get(rows + C::bytes(at)));
    for (; at < width; ++at) to[at] = C::one(rows, at);
  }
}

}  // namespace SUFFICE_ISA
