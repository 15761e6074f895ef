// Weighted sums of coded values as products of whole numbers, four positions at a time.

#pragma once

#include "stepped.h"

namespace SUFFICE_ISA {

constexpr int64_t CHANNELS = 64;  // channels whose codes are put in order together

#if defined(__AVX512VNNI__)

// Puts codes of 64 channels in order: four positions of a channel side by side. A piece holds every
// fourth four channels.
INLINE void into_fours(const uint8_t *rows, int64_t stride, int64_t count, uint8_t *pieces) {
  for (int64_t j = 0; j < count; j += 4, pieces += 4 * PIECE) {
    __m512i row[4];
    for (int64_t i = 0; i < 4; ++i)  // beyond the last one weights are 0
      row[i] = _mm512_loadu_si512(rows + (j + i < count ? j + i : count - 1) * stride);
    const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]), d = _mm512_unpackhi_epi8(row[2], row[3]);
    _mm512_storeu_si512(pieces, _mm512_unpacklo_epi16(a, c));
    _mm512_storeu_si512(pieces + PIECE, _mm512_unpackhi_epi16(a, c));
    _mm512_storeu_si512(pieces + 2 * PIECE, _mm512_unpacklo_epi16(b, d));
    _mm512_storeu_si512(pieces + 3 * PIECE, _mm512_unpackhi_epi16(b, d));
  }
}

// What R queries' weights of some positions, `stride` apart in high and low halves, make of them.
template <int R>
INLINE void sum_fours(const Fine *weights, int64_t stride, const uint8_t *pieces, int64_t count,
                      Floats (*sums)[4]) {
  __m512i high[R][4], low[R][4];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) high[r][i] = low[r][i] = _mm512_setzero_si512();
  for (int64_t j = 0; j < count; j += 4, pieces += 4 * PIECE) {
    __m512i piece[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) piece[i] = _mm512_loadu_si512(pieces + i * PIECE);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512i above = four_of(weights[r].codes + j);
      const __m512i below = four_of(weights[r].codes + stride + j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) add_four(high[r][i], piece[i], above);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) add_four(low[r][i], piece[i], below);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      v[i] = _mm512_add_epi32(_mm512_slli_epi32(high[r][i], 8), low[r][i]);
    const __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44), b = _mm512_shuffle_i32x4(v[2], v[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(v[0], v[1], 0xee), d = _mm512_shuffle_i32x4(v[2], v[3], 0xee);
    v[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    v[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    v[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    v[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      sums[r][i] = Floats{{(Wide)_mm512_cvtepi32_ps(v[i])}} * all(weights[r].step);
  }
}

#endif

// Sums of codes of some channels, a multiple of 64, weighted: [queries, width] a row apart.
struct Fours {
  int8_t codes[2 * MOST_AT_ONCE * BLOCK];
  Fine weights[MOST_AT_ONCE];
  uint8_t pieces[BLOCK * CHANNELS];

#if defined(__AVX512VNNI__)
  static bool serves(int64_t queries, int64_t width) {
    return queries >= FEW_QUERIES && width % CHANNELS == 0;
  }

  // `add` is told of a query and channel, and of the sums of sixteen channels.
  template <class Add>
  INLINE void each(Fours &fours, const uint8_t *rows, int64_t stride, int64_t count, int64_t width,
                   int64_t queries, const float (*by)[BLOCK], Add add) {
    const int64_t filled = (count + LANES - 1) / LANES * LANES;
    for (int64_t r = 0; r < queries; ++r) {
      fours.weights[r].codes = fours.codes + 2 * r * BLOCK;
      encode_finely(by[r], filled, fours.weights[r]);
    }
    for (int64_t at = 0; at < width; at += CHANNELS) {
      Floats sums[2][4];
      into_fours(rows + at, stride, count, fours.pieces);
      for (int64_t r = 0; r < queries; r += 2) {
        const int64_t last = r + 1 < queries ? 2 : 1;
        if (last == 2) sum_fours<2>(fours.weights + r, filled, fours.pieces, count, sums);
        else sum_fours<1>(fours.weights + r, filled, fours.pieces, count, sums);
        for (int64_t n = 0; n < last; ++n)
          for (int64_t i = 0; i < 4; ++i) add(r + n, at + i * LANES, sums[n][i]);
      }
    }
  }
#else
  static bool serves(int64_t, int64_t) { return false; }

  template <class Add>
  INLINE void each(Fours &, const uint8_t *, int64_t, int64_t, int64_t, int64_t,
                   const float (*)[BLOCK], Add) {}
#endif
};

}  // namespace SUFFICE_ISA
