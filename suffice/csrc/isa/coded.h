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

// Columns whose codes are put into pieces by shuffles of whole registers; 0 = none are.
#if defined(__AVX512F__)
constexpr int64_t SHUFFLED_COLUMNS = 64;
#elif defined(__AVX2__)
constexpr int64_t SHUFFLED_COLUMNS = 32;
#else
constexpr int64_t SHUFFLED_COLUMNS = 0;
#endif

INLINE bool shuffles(int64_t columns) {
  return SHUFFLED_COLUMNS && columns % (SHUFFLED_COLUMNS ? SHUFFLED_COLUMNS : 1) == 0;
}

// Puts the codes of sixteen rows into pieces of four columns, as those of a matrix lie; rows
// beyond `count` are the last one.
static void into_pieces(const uint8_t *rows, int64_t count, int64_t width, uint8_t *pieces) {
#if defined(__AVX512F__)
  if (shuffles(width)) {
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
#elif defined(__AVX2__)
  if (shuffles(width)) {
    for (int64_t at = 0; at < width; at += 32, pieces += 8 * PIECE)
      for (int64_t first = 0; first < LANES; first += 8) {
        __m256i a[8], b[8];
        UNROLL for (int j = 0; j < 8; ++j)
          a[j] = _mm256_loadu_si256(
              (const __m256i *)(rows + (first + j < count ? first + j : count - 1) * width + at));
        UNROLL for (int i = 0; i < 8; i += 2) {
          b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
          b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
        }
        UNROLL for (int i = 0; i < 8; i += 4)
          UNROLL for (int k = 0; k < 2; ++k) {
            a[i + 2 * k] = _mm256_unpacklo_epi64(b[i + k], b[i + 2 + k]);
            a[i + 2 * k + 1] = _mm256_unpackhi_epi64(b[i + k], b[i + 2 + k]);
          }
        UNROLL for (int k = 0; k < 4; ++k) {  // columns k and k + 4 of rows 0-3, 4-7
          uint8_t *to = pieces + k * PIECE + 4 * first;
          _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(a[k], a[k + 4], 0x20));
          _mm256_storeu_si256((__m256i *)(to + 4 * PIECE),
                              _mm256_permute2x128_si256(a[k], a[k + 4], 0x31));
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

// Numbers of 16 bits are multiplied and added in pairs.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define SUFFICE_PAIRS
#endif

#if defined(SUFFICE_PAIRS)

// A query in 16 bits. Of each four columns the first and third are beside each other, then the
// second and fourth: as even and odd bytes of a piece are.
struct Fine {
  int16_t *codes;  // [width]
  float step;
};

typedef int16_t FineCode;
constexpr int64_t FINE_CODES = 1;  // for each number

INLINE __m256i whole_numbers(const float *q, float by) {
  const __m256i v = _mm256_cvtps_epi32((__m256)(read<Wide>(q) * wide(by)));
  return _mm256_shuffle_epi32(v, 0xd8);
}

// `width` is a multiple of 4.
static void encode_finely(const float *q, int64_t width, Fine &fine) {
  Wide sizes = wide(0.0f);
  int64_t at = 0;
  for (; at + WIDE <= width; at += WIDE) {
    const Wide v = read<Wide>(q + at);
    sizes = above(sizes, above(v, -v));
  }
  float most = largest_of(sizes);
  for (; at < width; ++at) most = __builtin_fabsf(q[at]) > most ? __builtin_fabsf(q[at]) : most;
  const float highest = width > 256 ? 16256.0f : 32512.0f;  // sums of 255 times it fit into 32 bits
  const bool coded = most >= LEAST_CODED && most - most == 0.0f;
  const float by = coded ? highest / most : 0.0f;
  fine.step = coded ? most / highest : 0.0f;
  if (!coded) return __builtin_memset(fine.codes, 0, 2 * width), void();
  int64_t c = 0;
  for (; c + 16 <= width; c += 16) {
    const __m256i both = _mm256_packs_epi32(whole_numbers(q + c, by), whole_numbers(q + c + 8, by));
    _mm256_storeu_si256((__m256i *)(fine.codes + c), _mm256_permute4x64_epi64(both, 0xd8));
  }
  for (; c < width; ++c) {
    const int32_t whole = (int32_t)(q[c] * by + (q[c] < 0.0f ? -0.5f : 0.5f));
    fine.codes[c / 4 * 4 + (c % 4 / 2 + 2 * (c % 2))] = (int16_t)whole;
  }
}

INLINE __m256i pair_of(const int16_t *pair) {
  int32_t word;
  __builtin_memcpy(&word, pair, 4);
  return _mm256_set1_epi32(word);
}

// Adds products of two numbers in each lane.
INLINE void add_pairs(__m256i &sum, __m256i codes, __m256i pairs) {
#if defined(__AVXVNNI__)
  sum = _mm256_dpwssd_avx_epi32(sum, codes, pairs);
#else
  const __m256i products = _mm256_madd_epi16(codes, pairs);
  // written out: GCC would add products to each other first, and keep sums in memory for them
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
#endif
}

INLINE __m256i even_codes(__m256i four) { return _mm256_and_si256(four, _mm256_set1_epi16(255)); }

INLINE __m256i odd_codes(__m256i four) { return _mm256_srli_epi16(four, 8); }

#else

// A query in 16 bits: two codes of 8 bits for each number, the high ones first.
struct Fine {
  int8_t *codes;  // [2, width]
  float step;
  int32_t totals[2];  // of the codes
};

typedef int8_t FineCode;
constexpr int64_t FINE_CODES = 2;  // for each number

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

#endif

}  // namespace SUFFICE_ISA
