// Layout of a quantised cache, and queries prepared for integer products with its keys.

#pragma once

#include "quantised_rows.h"
#include "queries.h"
#include "key_block.h"

namespace SUFFICE_ISA {

// Pointers and strides of the codes of one row and head.
struct CodeLayout {
  const uint8_t *keys, *values;
  const float *key_ranges, *value_ranges;
  int64_t width, block, bytes, group, groups,
      filled;  // bytes of a key; filled: bytes of a value, padded
  bool tied;

  template <class Keys, class Values>
  static CodeLayout of(const Span &span, const KVCache &cache, int64_t width, int64_t row,
                       int64_t head) {
    const bool tied = span.keys == span.values;
    const int64_t group = tied ? width : cache.group, groups = (width + group - 1) / group;
    return {(const uint8_t *)span.keys + row * span.key_row + head * span.key_head,
            (const uint8_t *)span.values + row * span.value_row + head * span.value_head,
            span.key_ranges + row * span.key_range_row + head * span.key_range_head,
            span.value_ranges + row * span.value_range_row + head * span.value_range_head,
            width, cache.block, Keys::bytes(width), group, groups, Values::bytes(groups * group), tied};
  }

  // The end of the run of positions that share a quantisation block and are processed together.
  int64_t end(int64_t begin, Range range) const {
    int64_t end = (begin / block + 1) * block;
    end = end < range.end ? end : range.end;
    return end - begin < BLOCK ? end : begin + BLOCK;
  }

  const float *least(int64_t at) const { return key_ranges + at / block * 2 * width; }

  const float *value_least(int64_t at) const {
    return value_ranges + (at / block * 2 * block + at % block) * groups;
  }
};

// Folds the ranges of a block of keys into the queries: q k = sum(q least) + (q step) code, so that
// only codes are left to multiply.
struct ScaledQueries {
  float q[QUERY_TILE * MAX_HEAD_DIM], base[QUERY_TILE];
  Code16 codes[CODES_PER_NUMBER * QUERY_TILE * MAX_HEAD_DIM];
  Quantised16 quantised[QUERY_TILE];

  void take(const Queries &queries, const float *least, bool quantise) {
    const int64_t width = queries.width;
    for (int64_t r = 0; r < queries.count; ++r) {
      const float *from = queries.q + r * width;
      float *to = q + r * width;
      Floats total = all(0.0f);
      stretches(width, [&](int64_t at, int64_t n) {
        Floats query = get(from + at, n);
        total += query * get(least + at, n);
        put(to + at, query * get(least + width + at, n), n);
      });
      base[r] = sum(total);
      quantised[r].codes = codes + CODES_PER_NUMBER * r * width;
      if (quantise) quantise16(to, width, quantised[r]);
    }
  }
};

#if defined(SUFFICE_PAIRS)

// Products of R queries with a panel of sixteen keys, in two registers.
template <int R>
NOINLINE void score_few(const Quantised16 *quantised, const float *base, const uint8_t *pieces,
                        int64_t width, float (*scores)[BLOCK], int64_t j) {
  constexpr int ACCUMULATORS =
      R > 2 ? 1 : 2;  // few queries need two chains of additions to hide latency
  __m256i sums[R][2][ACCUMULATORS];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int i = 0; i < 2; ++i)
      UNROLL for (int s = 0; s < ACCUMULATORS; ++s) sums[r][i][s] = _mm256_setzero_si256();
  for (int64_t at = 0; at < width; at += 4, pieces += PIECE) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)pieces);
    const __m256i b = _mm256_loadu_si256((const __m256i *)(pieces + 32));
    const __m256i even[2] = {even_codes(a), even_codes(b)};
    UNROLL for (int r = 0; r < R; ++r) {
      const __m256i pair = pair_of(quantised[r].codes + at);
      UNROLL for (int i = 0; i < 2; ++i) add_pairs(sums[r][i][0], even[i], pair);
    }
    const __m256i odd[2] = {odd_codes(a), odd_codes(b)};
    UNROLL for (int r = 0; r < R; ++r) {
      const __m256i pair = pair_of(quantised[r].codes + at + 2);
      UNROLL for (int i = 0; i < 2; ++i) add_pairs(sums[r][i][ACCUMULATORS - 1], odd[i], pair);
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int i = 0; i < 2; ++i) {
      __m256i sum = sums[r][i][0];
      if (ACCUMULATORS == 2) sum = _mm256_add_epi32(sum, sums[r][i][ACCUMULATORS - 1]);
      write(scores[r] + j + i * WIDE,
            (Wide)_mm256_cvtepi32_ps(sum) * wide(quantised[r].step) + wide(base[r]));
    }
}

#elif defined(__AVX512VNNI__)

// Products of four queries with a panel of sixteen keys.
INLINE void score_four_queries(const ScaledQueries &scaled_queries, int64_t first,
                               const uint8_t *pieces, int64_t width, float (*scores)[BLOCK],
                               int64_t j) {
  __m512i high[4], low[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) high[r] = low[r] = _mm512_setzero_si512();
  const int8_t *codes = scaled_queries.quantised[first].codes;
  for (int64_t at = 0; at < width; at += 4, pieces += PIECE) {
    const __m512i piece = _mm512_loadu_si512(pieces);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      add_four(high[r], piece, codes + 2 * r * width + at);
      add_four(low[r], piece, codes + (2 * r + 1) * width + at);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    Floats a = floats_of(Ints{{(WideInts)high[r]}});
    Floats b = floats_of(Ints{{(WideInts)low[r]}});
    write(scores[first + r] + j,
          (a * all(256.0f) + b) * all(scaled_queries.quantised[first + r].step) +
              all(scaled_queries.base[first + r]));
  }
}

#endif

// Scores of queries against keys of 8-bit codes.
INLINE void score_codes(const ScaledQueries &scaled_queries, const uint8_t *rows, int64_t queries,
                        int64_t count, int64_t width, float (*scores)[BLOCK]) {
  uint8_t pieces[LANES * MAX_HEAD_DIM];
  for (int64_t j = 0; j < count; j += LANES) {
    pack_panel(rows + j * width, count - j, width, pieces);
    int64_t r = 0;
#if defined(SUFFICE_PAIRS)
    const Quantised16 *quantised = scaled_queries.quantised;
    const float *base = scaled_queries.base;
    for (; r + 4 <= queries; r += 4)
      score_few<4>(quantised + r, base + r, pieces, width, scores + r, j);
    for (; r + 2 <= queries; r += 2)
      score_few<2>(quantised + r, base + r, pieces, width, scores + r, j);
    if (r < queries) score_few<1>(quantised + r, base + r, pieces, width, scores + r, j);
#else
#if defined(__AVX512VNNI__)
    for (; r + 4 <= queries; r += 4)
      score_four_queries(scaled_queries, r, pieces, width, scores, j);
#endif
    for (; r < queries; ++r)
      write(scores[r] + j,
            score_panel(scaled_queries.quantised[r], pieces, width, scaled_queries.base[r]));
#endif
  }
}

}  // namespace SUFFICE_ISA
