// Rows of codes of 8 or 4 bits as numbers.

#pragma once

#include "codes.h"
#include "rows.h"

namespace SUFFICE_ISA {

typedef uint8_t FewBytes __attribute__((vector_size(8)));

struct Byte {
  INLINE int64_t bytes(int64_t width) { return width; }
  INLINE Floats get(const uint8_t *p) { return floats_of(p); }
  INLINE float one(const uint8_t *row, int64_t c) { return (float)row[c]; }
  INLINE const uint8_t *as_bytes(const uint8_t *rows, int64_t, int64_t, uint8_t *) { return rows; }
};

struct Nibble {
  INLINE int64_t bytes(int64_t width) { return width / 2; }
  INLINE Floats get(const uint8_t *p) {
    FewBytes both = read<FewBytes>(p), low = both & 15, high = both >> 4;
    uint8_t codes[LANES];
    write(codes, __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7,
                                         15));
    return floats_of(codes);
  }
  INLINE float one(const uint8_t *row, int64_t c) {
    return (float)(c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15);
  }
  INLINE const uint8_t *as_bytes(const uint8_t *rows, int64_t count, int64_t width, uint8_t *to) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 32 <= count * width / 2; i += 32) {
      __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(rows + i)));
      both = _mm512_or_si512(both, _mm512_slli_epi16(both, 4));
      _mm512_storeu_si512(to + 2 * i, _mm512_and_si512(both, _mm512_set1_epi8(15)));
    }
#endif
    for (; i < count * width / 2; ++i) {
      to[2 * i] = rows[i] & 15;
      to[2 * i + 1] = rows[i] >> 4;
    }
    return to;
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

// Puts the codes of sixteen rows into pieces of four columns, as those of a matrix lie; rows
// beyond `count` are the last one.
static void into_pieces(const uint8_t *rows, int64_t count, int64_t width, uint8_t *pieces) {
#if defined(__AVX512F__)
  if (width % PIECE == 0) {
    for (int64_t at = 0; at < width; at += PIECE, pieces += LANES * PIECE) {
      __m512i a[LANES], b[LANES];
      for (int64_t j = 0; j < LANES; ++j)
        a[j] = _mm512_loadu_si512(rows + (j < count ? j : count - 1) * width + at);
      for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
      }
      for (int i = 0; i < LANES; i += 4)
        for (int k = 0; k < 2; ++k) {
          a[i + 2 * k] = _mm512_unpacklo_epi64(b[i + k], b[i + 2 + k]);
          a[i + 2 * k + 1] = _mm512_unpackhi_epi64(b[i + k], b[i + 2 + k]);
        }
      for (int k = 0; k < 4; ++k) {  // columns k, k + 4, k + 8, k + 12 of rows 0-3, 4-7, ...
        __m512i low = _mm512_shuffle_i32x4(a[k], a[k + 4], 0x44);
        __m512i high = _mm512_shuffle_i32x4(a[k], a[k + 4], 0xee);
        __m512i low2 = _mm512_shuffle_i32x4(a[k + 8], a[k + 12], 0x44);
        __m512i high2 = _mm512_shuffle_i32x4(a[k + 8], a[k + 12], 0xee);
        _mm512_storeu_si512(pieces + k * PIECE, _mm512_shuffle_i32x4(low, low2, 0x88));
        _mm512_storeu_si512(pieces + (k + 4) * PIECE, _mm512_shuffle_i32x4(low, low2, 0xdd));
        _mm512_storeu_si512(pieces + (k + 8) * PIECE, _mm512_shuffle_i32x4(high, high2, 0x88));
        _mm512_storeu_si512(pieces + (k + 12) * PIECE, _mm512_shuffle_i32x4(high, high2, 0xdd));
      }
    }
    return;
  }
#endif
  for (int64_t j = 0; j < LANES; ++j)
    for (int64_t at = 0; at < width; at += 4)
      __builtin_memcpy(pieces + at / 4 * PIECE + 4 * j, rows + (j < count ? j : count - 1) * width + at,
                       4);
}

// A query in 16 bits: two codes of 8 bits for each number, the high ones first.
struct Fine {
  int8_t *codes;  // [2, width]
  float step;
  int32_t totals[2];  // of the codes
};

static void encode_finely(const float *q, int64_t width, Fine &fine) {
  Floats sizes = all(0.0f);
  stretches(width, [&](int64_t at, int64_t n) {
    Floats v = get(q + at, n);
    sizes = larger(sizes, larger(v, -v));
  });
  const float most = largest(sizes);
  const bool coded = most >= LEAST_CODED && most - most == 0.0f;
  const float by = coded ? 32512.0f / most : 0.0f;
  fine.step = coded ? most / 32512.0f : 0.0f;  // 127 * 256
  fine.totals[0] = fine.totals[1] = 0;
  if (!coded) return __builtin_memset(fine.codes, 0, 2 * width), void();
#if defined(__AVX512F__)
  if (width % LANE == 0) {
    for (int64_t c = 0; c < width; c += LANE) {
      __m512i whole = _mm512_cvtps_epi32((__m512)(read<Wide>(q + c) * wide(by)));
      __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
      __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 8));
      _mm_storeu_si128((__m128i *)(fine.codes + c), _mm512_cvtepi32_epi8(high));
      _mm_storeu_si128((__m128i *)(fine.codes + width + c), _mm512_cvtepi32_epi8(low));
    }
    return;
  }
#endif
  for (int64_t c = 0; c < width; ++c) {
    int32_t whole = (int32_t)(q[c] * by + (q[c] < 0.0f ? -0.5f : 0.5f));
    int32_t high = (whole + 128) >> 8, low = whole - 256 * high;
    if (low < -127) low = -127;  // -128 has no opposite among codes
    fine.codes[c] = (int8_t)high;
    fine.codes[width + c] = (int8_t)low;
    fine.totals[0] += high;
    fine.totals[1] += low;
  }
}

// Products of a query with sixteen coded rows in pieces.
INLINE Floats score_pieces(const Fine &fine, const uint8_t *pieces, int64_t width, float base) {
  Ints products[2][1];
  for (int i = 0; i < 2; ++i) products[i][0] = all(Codes8::start(fine.totals[i]));
  Codes8::add(products, pieces, 0, width / Codes8::COLUMNS, fine.codes, width);
  const Floats high = floats_of(products[0][0]), low = floats_of(products[1][0]);
  return (high * all(256.0f) + low) * all(fine.step) + all(base);
}

}  // namespace SUFFICE_ISA
