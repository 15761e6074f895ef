// Rows of 8-bit or 4-bit codes: dequantising, and packing for integer dot products.

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
#if defined(__AVX512F__)
  INLINE __m512i load(const uint8_t *p) { return _mm512_loadu_si512(p); }
#elif defined(__AVX2__)
  INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
#endif
};

struct Nibble {
  INLINE int64_t bytes(int64_t width) { return width / 2; }
  INLINE Floats get(const uint8_t *p) {
    FewBytes both = read<FewBytes>(p), low = both & 15, high = both >> 4;
    uint8_t codes[LANES];
    write(codes,
          __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    return floats_of(codes);
  }
  INLINE float one(const uint8_t *row, int64_t c) {
    return (float)(c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15);
  }
  INLINE const uint8_t *as_bytes(const uint8_t *rows, int64_t count, int64_t width, uint8_t *to) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 32 <= count * width / 2; i += 32) _mm512_storeu_si512(to + 2 * i, load(rows + i));
#elif defined(__AVX2__)
    for (; i + 16 <= count * width / 2; i += 16)
      _mm256_storeu_si256((__m256i *)(to + 2 * i), load(rows + i));
#endif
    for (; i < count * width / 2; ++i) {
      to[2 * i] = rows[i] & 15;
      to[2 * i + 1] = rows[i] >> 4;
    }
    return to;
  }
  // The next 64 or 32 codes, a byte each.
#if defined(__AVX512F__)
  INLINE __m512i load(const uint8_t *p) {
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
    both = _mm512_or_si512(both, _mm512_slli_epi16(both, 4));
    return _mm512_and_si512(both, _mm512_set1_epi8(15));
  }
#elif defined(__AVX2__)
  INLINE __m256i load(const uint8_t *p) {
    __m256i both = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    both = _mm256_or_si256(both, _mm256_slli_epi16(both, 4));
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
  }
#endif
};

// Converts rows of codes to floats [count, width].
template <class C>
static void decode(const uint8_t *rows, int64_t stride, int64_t count, int64_t width, float *to) {
  for (int64_t j = 0; j < count; ++j, rows += stride, to += width) {
    int64_t at = 0;
    for (; at + LANE <= width; at += LANE) write(to + at, C::get(rows + C::bytes(at)));
    for (; at < width; ++at) to[at] = C::one(rows, at);
  }
}

// Columns that one round of register shuffles packs; 0 where there are no such shuffles.
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

// Packs sixteen rows into a panel of 4-column pieces, the layout of packed weights. Rows past
// `count` repeat the last one (tail).
static void pack_panel(const uint8_t *rows, int64_t count, int64_t width, uint8_t *pieces) {
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
      __builtin_memcpy(pieces + at / 4 * PIECE + 4 * j,
                       rows + (j < count ? j : count - 1) * width + at, 4);
}

// AVX2 multiplies 16-bit numbers and adds products in pairs (vpmaddwd).
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define SUFFICE_PAIRS
#endif

#if defined(SUFFICE_PAIRS)

// A vector quantised to 16 bits. Of each four columns 0 and 2 are adjacent, then 1 and 3: the order
// in which the even and odd bytes of a piece are extracted.
struct Quantised16 {
  int16_t *codes;  // [width]
  float step;
};

typedef int16_t Code16;
constexpr int64_t CODES_PER_NUMBER = 1;  // codes per element

INLINE __m256i whole_numbers(const float *q, float factor) {
  const __m256i v = _mm256_cvtps_epi32((__m256)(read<Wide>(q) * wide(factor)));
  return _mm256_shuffle_epi32(v, 0xd8);
}

// `width` is a multiple of 4.
static void quantise16(const float *q, int64_t width, Quantised16 &quantised) {
  Wide sizes = wide(0.0f);
  int64_t at = 0;
  for (; at + WIDE <= width; at += WIDE) {
    const Wide v = read<Wide>(q + at);
    sizes = maximum(sizes, maximum(v, -v));
  }
  float absmax = largest_of(sizes);
  for (; at < width; ++at)
    absmax = __builtin_fabsf(q[at]) > absmax ? __builtin_fabsf(q[at]) : absmax;
  const float highest =
      width > 256 ? 16256.0f : 32512.0f;  // so that width * 255 * code fits into 32 bits
  const bool coded = absmax >= MIN_ABSMAX && absmax - absmax == 0.0f;
  const float factor = coded ? highest / absmax : 0.0f;
  quantised.step = coded ? absmax / highest : 0.0f;
  if (!coded) return __builtin_memset(quantised.codes, 0, 2 * width), void();
  int64_t c = 0;
  for (; c + 16 <= width; c += 16) {
    const __m256i both =
        _mm256_packs_epi32(whole_numbers(q + c, factor), whole_numbers(q + c + 8, factor));
    _mm256_storeu_si256((__m256i *)(quantised.codes + c), _mm256_permute4x64_epi64(both, 0xd8));
  }
  for (; c < width; ++c) {
    const int32_t whole = (int32_t)(q[c] * factor + (q[c] < 0.0f ? -0.5f : 0.5f));
    quantised.codes[c / 4 * 4 + (c % 4 / 2 + 2 * (c % 2))] = (int16_t)whole;
  }
}

INLINE __m256i pair_of(const int16_t *pair) {
  int32_t word;
  __builtin_memcpy(&word, pair, 4);
  return _mm256_set1_epi32(word);
}

// Adds the products of two adjacent 16-bit numbers in each 32-bit lane.
INLINE void add_pairs(__m256i &sum, __m256i codes, __m256i pairs) {
#if defined(__AVXVNNI__)
  sum = _mm256_dpwssd_avx_epi32(sum, codes, pairs);
#else
  const __m256i products = _mm256_madd_epi16(codes, pairs);
  // inline assembly: GCC would add the products to each other first and spill the accumulators
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
#endif
}

INLINE __m256i even_codes(__m256i four) { return _mm256_and_si256(four, _mm256_set1_epi16(255)); }

INLINE __m256i odd_codes(__m256i four) { return _mm256_srli_epi16(four, 8); }

#else

// A vector quantised to 16 bits, as two 8-bit codes per element: all high bytes, then all low
// bytes.
struct Quantised16 {
  int8_t *codes;  // [2, width]
  float step;
  int32_t totals[2];  // sums of the codes
};

typedef int8_t Code16;
constexpr int64_t CODES_PER_NUMBER = 2;  // codes per element

static void quantise16(const float *q, int64_t width, Quantised16 &quantised) {
  Floats sizes = all(0.0f);
  stretches(width, [&](int64_t at, int64_t n) {
    Floats v = get(q + at, n);
    sizes = max_of(sizes, max_of(v, -v));
  });
  const float absmax = largest(sizes);
  const bool coded = absmax >= MIN_ABSMAX && absmax - absmax == 0.0f;
  const float factor = coded ? 32512.0f / absmax : 0.0f;
  quantised.step = coded ? absmax / 32512.0f : 0.0f;  // 127 * 256
  quantised.totals[0] = quantised.totals[1] = 0;
  if (!coded) return __builtin_memset(quantised.codes, 0, 2 * width), void();
#if defined(__AVX512F__)
  if (width % LANE == 0) {
    for (int64_t c = 0; c < width; c += LANE) {
      __m512i whole = _mm512_cvtps_epi32((__m512)(read<Wide>(q + c) * wide(factor)));
      __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
      __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 8));
      _mm_storeu_si128((__m128i *)(quantised.codes + c), _mm512_cvtepi32_epi8(high));
      _mm_storeu_si128((__m128i *)(quantised.codes + width + c), _mm512_cvtepi32_epi8(low));
    }
    return;
  }
#endif
  for (int64_t c = 0; c < width; ++c) {
    int32_t whole = (int32_t)(q[c] * factor + (q[c] < 0.0f ? -0.5f : 0.5f));
    int32_t high = (whole + 128) >> 8, low = whole - 256 * high;
    if (low < -127) low = -127;  // symmetric range: -128 has no positive counterpart
    quantised.codes[c] = (int8_t)high;
    quantised.codes[width + c] = (int8_t)low;
    quantised.totals[0] += high;
    quantised.totals[1] += low;
  }
}

// Products of a query with a packed panel of sixteen rows.
INLINE Floats score_panel(const Quantised16 &quantised, const uint8_t *pieces, int64_t width,
                          float base) {
  Ints products[2][1];
  for (int i = 0; i < 2; ++i) products[i][0] = all(Codes8::start(quantised.totals[i]));
  Codes8::add(products, pieces, 0, width / Codes8::COLUMNS, quantised.codes, width);
  const Floats high = floats_of(products[0][0]), low = floats_of(products[1][0]);
  return (high * all(256.0f) + low) * all(quantised.step) + all(base);
}

#endif

}  // namespace SUFFICE_ISA
