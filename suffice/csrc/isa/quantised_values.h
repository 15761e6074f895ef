// The product of attention weights and quantised values in integer arithmetic, four positions per
// multiply-add instruction.

#pragma once

#include "quantised_keys.h"

namespace SUFFICE_ISA {

// channels that are interleaved together: four positions of a channel become adjacent bytes
#if defined(__AVX512VNNI__)
constexpr int64_t CHANNELS = 64;
#elif defined(SUFFICE_PAIRS)
constexpr int64_t CHANNELS = 32;
#else
constexpr int64_t CHANNELS = 0;  // no such instruction
#endif

#if defined(SUFFICE_PAIRS)

// Register i of four positions holds channel groups i, i + 4, ... of four channels: the order in
// which AVX2 unpacks within 128-bit halves. `stride`: bytes of a position.
template <class C>
INLINE void interleave_positions(const uint8_t *rows, int64_t stride, int64_t count,
                                 uint8_t *pieces) {
  for (int64_t j = 0; j < count; j += 4, pieces += 4 * CHANNELS) {
    __m256i row[4];
    UNROLL for (int64_t i = 0; i < 4;
                ++i)  // tail: rows past the end repeat the last one, their weights are 0
      row[i] = C::load(rows + (j + i < count ? j + i : count - 1) * stride);
    const __m256i a = _mm256_unpacklo_epi8(row[0], row[1]),
                  b = _mm256_unpackhi_epi8(row[0], row[1]);
    const __m256i c = _mm256_unpacklo_epi8(row[2], row[3]),
                  d = _mm256_unpackhi_epi8(row[2], row[3]);
    __m256i *to = (__m256i *)pieces;
    _mm256_storeu_si256(to, _mm256_unpacklo_epi16(a, c));
    _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi16(a, c));
    _mm256_storeu_si256(to + 2, _mm256_unpacklo_epi16(b, d));
    _mm256_storeu_si256(to + 3, _mm256_unpackhi_epi16(b, d));
  }
}

// Weighted sums of R queries over N registers of 8 channels each.
template <int R, int N>
NOINLINE void sum_interleaved(const Quantised16 *weights, const uint8_t *pieces, int64_t count,
                     float (*to)[CHANNELS]) {
  constexpr int ACCUMULATORS =
      R > 1 ? 1 : 2;  // a single query needs two chains of additions to hide latency
  __m256i sums[R][N][ACCUMULATORS];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int i = 0; i < N; ++i)
      UNROLL for (int s = 0; s < ACCUMULATORS; ++s) sums[r][i][s] = _mm256_setzero_si256();
  for (int64_t j = 0; j < count; j += 4, pieces += 4 * CHANNELS) {
    const __m256i *from = (const __m256i *)pieces;
    __m256i pairs[R];
    UNROLL for (int r = 0; r < R; ++r) pairs[r] = pair_of(weights[r].codes + j);
    UNROLL for (int i = 0; i < N; ++i) {
      const __m256i even = even_codes(_mm256_loadu_si256(from + i));
      UNROLL for (int r = 0; r < R; ++r) add_pairs(sums[r][i][0], even, pairs[r]);
    }
    UNROLL for (int r = 0; r < R; ++r) pairs[r] = pair_of(weights[r].codes + j + 2);
    UNROLL for (int i = 0; i < N; ++i) {
      const __m256i odd = odd_codes(_mm256_loadu_si256(from + i));
      UNROLL for (int r = 0; r < R; ++r) add_pairs(sums[r][i][ACCUMULATORS - 1], odd, pairs[r]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    const Wide step = wide(weights[r].step);
    UNROLL for (int i = 0; i < N; i += 2) {
      __m256i a = sums[r][i][0], b = sums[r][i + 1][0];
      if (ACCUMULATORS == 2) {
        a = _mm256_add_epi32(a, sums[r][i][ACCUMULATORS - 1]);
        b = _mm256_add_epi32(b, sums[r][i + 1][ACCUMULATORS - 1]);
      }
      const __m256i low = _mm256_permute2x128_si256(a, b, 0x20);
      const __m256i high = _mm256_permute2x128_si256(a, b, 0x31);
      write(to[r] + 4 * i, (Wide)_mm256_cvtepi32_ps(low) * step);
      write(to[r] + 4 * i + 16, (Wide)_mm256_cvtepi32_ps(high) * step);
    }
  }
}

// Weighted sums of up to four queries; returns how many were done.
INLINE int64_t sum_queries(const Quantised16 *weights, int64_t, const uint8_t *pieces,
                           int64_t count, int64_t queries, float (*to)[CHANNELS]) {
  if (queries >= 4) {
    sum_interleaved<4, 2>(weights, pieces, count, to);
    sum_interleaved<4, 2>(weights, pieces + CHANNELS * 2, count, (float(*)[CHANNELS])(to[0] + 8));
    return 4;
  }
  if (queries >= 2) return sum_interleaved<2, 4>(weights, pieces, count, to), 2;
  return sum_interleaved<1, 4>(weights, pieces, count, to), 1;
}

#elif defined(__AVX512VNNI__)

// Interleaves codes of 64 channels: four positions of a channel become adjacent bytes. Register i
// holds every fourth group of four channels, the order in which AVX-512 unpacks. `stride`: bytes of
// a position.
template <class C>
INLINE void interleave_positions(const uint8_t *rows, int64_t stride, int64_t count,
                                 uint8_t *pieces) {
  for (int64_t j = 0; j < count; j += 4, pieces += 4 * PIECE) {
    __m512i row[4];
    for (int64_t i = 0; i < 4;
         ++i)  // tail: rows past the end repeat the last one, their weights are 0
      row[i] = C::load(rows + (j + i < count ? j + i : count - 1) * stride);
    const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]),
                  b = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]),
                  d = _mm512_unpackhi_epi8(row[2], row[3]);
    _mm512_storeu_si512(pieces, _mm512_unpacklo_epi16(a, c));
    _mm512_storeu_si512(pieces + PIECE, _mm512_unpackhi_epi16(a, c));
    _mm512_storeu_si512(pieces + 2 * PIECE, _mm512_unpacklo_epi16(b, d));
    _mm512_storeu_si512(pieces + 3 * PIECE, _mm512_unpackhi_epi16(b, d));
  }
}

// Weighted sums of R queries. Weights are 16-bit, as high and low bytes `stride` apart.
template <int R>
INLINE void sum_interleaved(const Quantised16 *weights, int64_t stride, const uint8_t *pieces,
                            int64_t count, float (*to)[CHANNELS]) {
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
      const __m512i high_codes = four_of(weights[r].codes + j);
      const __m512i below = four_of(weights[r].codes + stride + j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) add_four(high[r][i], piece[i], high_codes);
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
    const __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44),
                  b = _mm512_shuffle_i32x4(v[2], v[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(v[0], v[1], 0xee),
                  d = _mm512_shuffle_i32x4(v[2], v[3], 0xee);
    v[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    v[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    v[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    v[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      write(to[r] + i * WIDE, (Wide)_mm512_cvtepi32_ps(v[i]) * wide(weights[r].step));
  }
}

// Weighted sums of up to two queries; returns how many were done.
INLINE int64_t sum_queries(const Quantised16 *weights, int64_t stride, const uint8_t *pieces,
                           int64_t count, int64_t queries, float (*to)[CHANNELS]) {
  if (queries >= 2) return sum_interleaved<2>(weights, stride, pieces, count, to), 2;
  return sum_interleaved<1>(weights, stride, pieces, count, to), 1;
}

#endif

// Weighted sums over quantised values, for a number of channels that is a multiple of CHANNELS.
struct ValueSums {
#if defined(SUFFICE_PAIRS) || defined(__AVX512VNNI__)
  Code16 codes[CODES_PER_NUMBER * QUERY_TILE * BLOCK];
  Quantised16 weights[QUERY_TILE];
  uint8_t pieces[BLOCK * CHANNELS];

  static bool serves(int64_t width) { return width % CHANNELS == 0; }

  // Calls add(query, channel, sums) for every query and every WIDE channels of rows of codes C.
  template <class C, class Add>
  INLINE void each(ValueSums &value_sums, const uint8_t *rows, int64_t stride, int64_t count,
                   int64_t width, int64_t queries, const float (*factor)[BLOCK], Add add) {
    const int64_t filled = (count + LANES - 1) / LANES * LANES;
    for (int64_t r = 0; r < queries; ++r) {
      value_sums.weights[r].codes = value_sums.codes + CODES_PER_NUMBER * r * BLOCK;
      quantise16(factor[r], filled, value_sums.weights[r]);
    }
    for (int64_t at = 0; at < width; at += CHANNELS) {
      float sums[4][CHANNELS];
      interleave_positions<C>(rows + C::bytes(at), stride, count, value_sums.pieces);
      for (int64_t r = 0, some; r < queries; r += some) {
        some = sum_queries(value_sums.weights + r, filled, value_sums.pieces, count, queries - r,
                           sums);
        for (int64_t n = 0; n < some; ++n)
          for (int64_t i = 0; i < CHANNELS; i += WIDE) add(r + n, at + i, read<Wide>(sums[n] + i));
      }
    }
  }
#else
  static bool serves(int64_t) { return false; }

  template <class C, class Add>
  INLINE void each(ValueSums &, const uint8_t *, int64_t, int64_t, int64_t, int64_t,
                   const float (*)[BLOCK], Add) {}
#endif
};

}  // namespace SUFFICE_ISA
