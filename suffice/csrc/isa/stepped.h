// Codes where they lie, and queries made fit for products with them.

#pragma once

#include "coded.h"
#include "queries.h"
#include "score.h"

namespace SUFFICE_ISA {

// Where the codes of one row and head lie.
struct CodesAt {
  const uint8_t *keys, *values;
  const float *key_ranges, *value_ranges;
  int64_t width, block, bytes, group, groups, filled;  // bytes: of a key; filled: of a value
  bool tied;

  template <class C>
  static CodesAt of(const Span &span, const KVCache &cache, int64_t width, int64_t row, int64_t head) {
    const bool tied = span.keys == span.values;
    const int64_t group = tied ? width : cache.group, groups = (width + group - 1) / group;
    return {(const uint8_t *)span.keys + row * span.key_row + head * span.key_head,
            (const uint8_t *)span.values + row * span.value_row + head * span.value_head,
            span.key_ranges + row * span.key_range_row + head * span.key_range_head,
            span.value_ranges + row * span.value_range_row + head * span.value_range_head,
            width, cache.block, C::bytes(width), group, groups, C::bytes(groups * group), tied};
  }

  // The last position but one that lies with this one in a block, and is read at once with it.
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

// Ranges of keys go into the queries: what is left to multiply are codes.
struct Stepped {
  float q[MOST_AT_ONCE * WIDEST], base[MOST_AT_ONCE];
  FineCode codes[FINE_CODES * MOST_AT_ONCE * WIDEST];
  Fine fine[MOST_AT_ONCE];

  void take(const Queries &queries, const float *least, bool finely) {
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
      fine[r].codes = codes + FINE_CODES * r * width;
      if (finely) encode_finely(to, width, fine[r]);
    }
  }
};

#if defined(SUFFICE_PAIRS)

// Products of R queries with sixteen rows, in two registers.
template <int R>
APART void score_few(const Fine *fine, const float *base, const uint8_t *pieces, int64_t width,
                     float (*scores)[BLOCK], int64_t j) {
  constexpr int APART_SUMS = R > 2 ? 1 : 2;  // of few queries even and odd columns are summed apart
  __m256i sums[R][2][APART_SUMS];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int i = 0; i < 2; ++i)
      UNROLL for (int s = 0; s < APART_SUMS; ++s) sums[r][i][s] = _mm256_setzero_si256();
  for (int64_t at = 0; at < width; at += 4, pieces += PIECE) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)pieces);
    const __m256i b = _mm256_loadu_si256((const __m256i *)(pieces + 32));
    const __m256i even[2] = {even_codes(a), even_codes(b)};
    UNROLL for (int r = 0; r < R; ++r) {
      const __m256i pair = pair_of(fine[r].codes + at);
      UNROLL for (int i = 0; i < 2; ++i) add_pairs(sums[r][i][0], even[i], pair);
    }
    const __m256i odd[2] = {odd_codes(a), odd_codes(b)};
    UNROLL for (int r = 0; r < R; ++r) {
      const __m256i pair = pair_of(fine[r].codes + at + 2);
      UNROLL for (int i = 0; i < 2; ++i) add_pairs(sums[r][i][APART_SUMS - 1], odd[i], pair);
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int i = 0; i < 2; ++i) {
      __m256i sum = sums[r][i][0];
      if (APART_SUMS == 2) sum = _mm256_add_epi32(sum, sums[r][i][APART_SUMS - 1]);
      write(scores[r] + j + i * WIDE,
            (Wide)_mm256_cvtepi32_ps(sum) * wide(fine[r].step) + wide(base[r]));
    }
}

#elif defined(__AVX512VNNI__)

// Products of four queries with sixteen rows.
INLINE void score_four(const Stepped &stepped, int64_t first, const uint8_t *pieces, int64_t width,
                       float (*scores)[BLOCK], int64_t j) {
  __m512i high[4], low[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) high[r] = low[r] = _mm512_setzero_si512();
  const int8_t *codes = stepped.fine[first].codes;
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
          (a * all(256.0f) + b) * all(stepped.fine[first + r].step) + all(stepped.base[first + r]));
  }
}

#endif

// Products of queries with some rows of codes, a byte each.
INLINE void score_codes(const Stepped &stepped, const uint8_t *rows, int64_t queries, int64_t count,
                        int64_t width, float (*scores)[BLOCK]) {
  uint8_t pieces[LANES * WIDEST];
  for (int64_t j = 0; j < count; j += LANES) {
    into_pieces(rows + j * width, count - j, width, pieces);
    int64_t r = 0;
#if defined(SUFFICE_PAIRS)
    const Fine *fine = stepped.fine;
    const float *base = stepped.base;
    for (; r + 4 <= queries; r += 4) score_few<4>(fine + r, base + r, pieces, width, scores + r, j);
    for (; r + 2 <= queries; r += 2) score_few<2>(fine + r, base + r, pieces, width, scores + r, j);
    if (r < queries) score_few<1>(fine + r, base + r, pieces, width, scores + r, j);
#else
#if defined(__AVX512VNNI__)
    for (; r + 4 <= queries; r += 4) score_four(stepped, r, pieces, width, scores, j);
#endif
    for (; r < queries; ++r)
      write(scores[r] + j, score_pieces(stepped.fine[r], pieces, width, stepped.base[r]));
#endif
  }
}

}  // namespace SUFFICE_ISA
