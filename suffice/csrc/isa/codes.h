// Products of codes of 8 and 4 bits with numbers of 8 bits, in whole numbers.
//
// Codes lie in pieces of 64 bytes: 4 columns of 16 rows (8 bits), or 8 columns, the first 4 in the
// low halves (4 bits). `C::add<M, P>` adds to [M, P] sums of sixteen rows the products of P rows of
// pieces, `apart` bytes from one to the next, with M rows of numbers, `row` bytes apart. Such sums
// begin at `C::start`: an instruction may read codes with a sign, which takes 128 from each.

#pragma once

#include "simd.h"

namespace SUFFICE_ISA {

constexpr int PIECE = 64;  // bytes

// The four numbers for the four columns of a piece.
INLINE int32_t word_of(const int8_t *four) {
  int32_t word;
  __builtin_memcpy(&word, four, 4);
  return word;
}

#if defined(__AVX512VNNI__)

constexpr int MOST_TILES = 16;  // sums of sixteen rows that stay in registers

// Written out, for compilers copy the sums about.
INLINE void add_four(__m512i &to, __m512i codes, const int8_t *four) {
  __m512i sum = to;  // of its own, or the sums would be kept in memory
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const int32_t *)four));
  to = sum;
}

// The same with four numbers in every lane.
INLINE __m512i four_of(const int8_t *four) { return _mm512_set1_epi32(word_of(four)); }

INLINE void add_four(__m512i &to, __m512i codes, __m512i fours) {
  __m512i sum = to;
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(fours));
  to = sum;
}

INLINE void add_products(Ints &sums, __m512i codes, __m512i fours) {
  sums.parts[0] = (WideInts)_mm512_dpbusd_epi32((__m512i)sums.parts[0], codes, fours);
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p) {
        const __m512i piece = _mm512_loadu_si512(codes + p * apart);
        UNROLL for (int m = 0; m < M; ++m) add_products(sums[m][p], piece, four_of(x + m * row));
      }
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    const __m512i low_half = _mm512_set1_epi8(15);
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p) {
        const __m512i both = _mm512_loadu_si512(codes + p * apart);
        const __m512i low = _mm512_and_si512(both, low_half);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
        UNROLL for (int m = 0; m < M; ++m) {
          add_products(sums[m][p], low, four_of(x + m * row));
          add_products(sums[m][p], high, four_of(x + m * row + 4));
        }
      }
  }
};

#elif defined(__AVXVNNI__)

constexpr int MOST_TILES = 4;

INLINE void add_products(WideInts &sum, __m256i codes, __m256i fours) {
  sum = (WideInts)_mm256_dpbusd_avx_epi32((__m256i)sum, codes, fours);
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int m = 0; m < M; ++m) {
        const __m256i fours = _mm256_set1_epi32(word_of(x + m * row));
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int half = 0; half < 2; ++half)
            add_products(sums[m][p].parts[half],
                         _mm256_loadu_si256((const __m256i *)(codes + p * apart) + half), fours);
      }
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    const __m256i low_half = _mm256_set1_epi8(15);
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int half = 0; half < 2; ++half) {
          const __m256i both = _mm256_loadu_si256((const __m256i *)(codes + p * apart) + half);
          const __m256i low = _mm256_and_si256(both, low_half);
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
          UNROLL for (int m = 0; m < M; ++m) {
            WideInts &sum = sums[m][p].parts[half];
            add_products(sum, low, _mm256_set1_epi32(word_of(x + m * row)));
            add_products(sum, high, _mm256_set1_epi32(word_of(x + m * row + 4)));
          }
        }
  }
};

#elif defined(__AVX2__)

constexpr int MOST_TILES = 4;

// Sums of two products are whole numbers of 16 bits, and must fit there: codes of 8 bits are read
// with a sign, whose size (128 at most) meets a number (127) that has taken over the sign.
struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t total) { return 128 * total; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    const __m256i sign = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int half = 0; half < 2; ++half) {
          const __m256i piece = _mm256_xor_si256(
              _mm256_loadu_si256((const __m256i *)(codes + p * apart) + half), sign);
          const __m256i size = _mm256_abs_epi8(piece);
          UNROLL for (int m = 0; m < M; ++m) {
            const __m256i fours = _mm256_set1_epi32(word_of(x + m * row));
            const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(fours, piece));
            sums[m][p].parts[half] += (WideInts)_mm256_madd_epi16(pairs, ones);
          }
        }
  }
};

// Eight sums of two products of codes of 4 bits fit into 16 bits: 8 * 2 * 15 * 127. Panels follow
// each other, for sums of all would need more registers than there are.
struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    for (int64_t begin = 0; begin < pieces; begin += 4) {
      const int64_t end = begin + 4 < pieces ? begin + 4 : pieces;
      UNROLL for (int p = 0; p < P; ++p) {
        __m256i pairs[M][2];
        UNROLL for (int m = 0; m < M; ++m) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
        for (int64_t i = begin; i < end; ++i)
          UNROLL for (int half = 0; half < 2; ++half) {
            const __m256i both =
                _mm256_loadu_si256((const __m256i *)(codes + p * apart + i * PIECE) + half);
            const __m256i low = _mm256_and_si256(both, low_half);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
            UNROLL for (int m = 0; m < M; ++m) {
              const int8_t *from = x + m * row + i * COLUMNS;
              const __m256i first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(word_of(from)));
              const __m256i second = _mm256_maddubs_epi16(high, _mm256_set1_epi32(word_of(from + 4)));
              pairs[m][half] = _mm256_add_epi16(pairs[m][half], _mm256_add_epi16(first, second));
            }
          }
        UNROLL for (int m = 0; m < M; ++m)
          UNROLL for (int half = 0; half < 2; ++half)
            sums[m][p].parts[half] += (WideInts)_mm256_madd_epi16(pairs[m][half], ones);
      }
    }
  }
};

#elif defined(__ARM_NEON)

#if defined(__ARM_FEATURE_DOTPROD)

constexpr int MOST_TILES = 6;

INLINE void add_products(WideInts &sum, int8x16_t codes, int8x16_t fours) {
  sum = (WideInts)vdotq_s32((int32x4_t)sum, codes, fours);
}

#else

constexpr int MOST_TILES = 2;

// Without dot products: sums of two, then of four.
INLINE void add_products(WideInts &sum, int8x16_t codes, int8x16_t fours) {
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(fours)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(codes, fours));
  sum = (WideInts)vaddq_s32((int32x4_t)sum, vpaddq_s32(low, high));
}

#endif

struct Codes8 {
  static constexpr int COLUMNS = 4;
#if defined(__ARM_FEATURE_MATMUL_INT8)
  INLINE int32_t start(int32_t) { return 0; }
  INLINE void add_piece(WideInts &sum, uint8x16_t codes, int8x16_t fours) {
    sum = (WideInts)vusdotq_s32((int32x4_t)sum, codes, fours);
  }
#else
  INLINE int32_t start(int32_t total) { return 128 * total; }
  INLINE void add_piece(WideInts &sum, uint8x16_t codes, int8x16_t fours) {
    add_products(sum, vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128))), fours);
  }
#endif
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const uint8x16_t piece = vld1q_u8(codes + p * apart + 16 * part);
          UNROLL for (int m = 0; m < M; ++m)
            add_piece(sums[m][p].parts[part], piece, (int8x16_t)vdupq_n_s32(word_of(x + m * row)));
        }
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const uint8x16_t both = vld1q_u8(codes + p * apart + 16 * part);
          const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
          const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
          UNROLL for (int m = 0; m < M; ++m) {
            WideInts &sum = sums[m][p].parts[part];
            add_products(sum, low, (int8x16_t)vdupq_n_s32(word_of(x + m * row)));
            add_products(sum, high, (int8x16_t)vdupq_n_s32(word_of(x + m * row + 4)));
          }
        }
  }
};

#else

constexpr int MOST_TILES = 2;

// One column after the other: four codes of four rows in the bytes of a vector's lanes.
template <int SHIFT>
INLINE WideInts column_of(WideInts rows, int bits) {
  return (rows >> SHIFT) & wide_ints((1 << bits) - 1);
}

template <int M, int P, int BITS, int FIRST>
INLINE void add_columns(Ints (&sums)[M][P], int p, int part, WideInts rows, const int8_t *x,
                        int64_t row) {
  const WideInts columns[] = {column_of<FIRST>(rows, BITS), column_of<FIRST + 8>(rows, BITS),
                              column_of<FIRST + 16>(rows, BITS), column_of<FIRST + 24>(rows, BITS)};
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int c = 0; c < 4; ++c)
      sums[m][p].parts[part] += columns[c] * wide_ints(x[m * row + c]);
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part)
          add_columns<M, P, 8, 0>(sums, p, part,
                                  read<WideInts>(codes + p * apart + 4 * WIDE * part), x, row);
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const WideInts both = read<WideInts>(codes + p * apart + 4 * WIDE * part);
          add_columns<M, P, 4, 0>(sums, p, part, both, x, row);
          add_columns<M, P, 4, 4>(sums, p, part, both, x + 4, row);
        }
  }
};

#endif

}  // namespace SUFFICE_ISA
