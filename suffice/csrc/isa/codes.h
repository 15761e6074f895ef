// Integer dot products of 8-bit and 4-bit weights with 8-bit activations.
//
// Weights lie in pieces of 64 bytes: 4 columns of 16 rows (8 bits), or 8 columns, the first 4 in
// the low nibbles (4 bits). `C::add<M, P>` adds to [M, P] accumulators of sixteen rows the products
// of P panels, `apart` bytes from one to the next, with M rows of activations, `row` bytes apart.
// Accumulators begin at `C::start`: some instructions read codes as signed, which subtracts 128
// each.

#pragma once

#include "simd.h"

namespace SUFFICE_ISA {

constexpr int PIECE = 64;  // bytes

// Broadcasts the activations of the four columns of a piece.
INLINE int32_t word_of(const int8_t *four) {
  int32_t word;
  __builtin_memcpy(&word, four, 4);
  return word;
}

#if defined(__AVX512VNNI__)

// accumulators that stay in registers; panels at once for one token and for many
constexpr int MAX_TILE_PANELS = 16, TOKEN_PANELS = 4, BATCH_PANELS = 2;

// Inline assembly: compilers copy the accumulators about.
INLINE void add_four(__m512i &to, __m512i codes, const int8_t *four) {
  __m512i sum = to;  // a local copy, else the accumulators stay in memory
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const int32_t *)four));
  to = sum;
}

// The same with the four activations in every lane.
INLINE __m512i four_of(const int8_t *four) { return _mm512_set1_epi32(word_of(four)); }

INLINE void add_four(__m512i &to, __m512i codes, __m512i value_sums) {
  __m512i sum = to;
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(value_sums));
  to = sum;
}

INLINE void add_products(Ints &sums, __m512i codes, __m512i value_sums) {
  sums.parts[0] = (WideInts)_mm512_dpbusd_epi32((__m512i)sums.parts[0], codes, value_sums);
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS) {
      __m512i piece[P];
      UNROLL for (int p = 0; p < P; ++p) piece[p] = _mm512_loadu_si512(codes + p * apart);
      UNROLL for (int m = 0; m < M; ++m) {
        const __m512i four = four_of(x + m * row);
        UNROLL for (int p = 0; p < P; ++p) add_products(sums[m][p], piece[p], four);
      }
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

constexpr int MAX_TILE_PANELS = 4, TOKEN_PANELS = 4, BATCH_PANELS = 2;

INLINE void add_products(WideInts &sum, __m256i codes, __m256i value_sums) {
  sum = (WideInts)_mm256_dpbusd_avx_epi32((__m256i)sum, codes, value_sums);
}

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t) { return 0; }
  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t i = 0; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int m = 0; m < M; ++m) {
        const __m256i value_sums = _mm256_set1_epi32(word_of(x + m * row));
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int half = 0; half < 2; ++half)
            add_products(sums[m][p].parts[half],
                         _mm256_loadu_si256((const __m256i *)(codes + p * apart) + half),
                         value_sums);
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

constexpr int MAX_TILE_PANELS = 4, TOKEN_PANELS = 4, BATCH_PANELS = 1;

// vpmaddubsw saturates sums of two products at 16 bits: 8-bit codes are read as signed, and their
// magnitude (at most 128) is multiplied with an activation (at most 127) that carries the sign.
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
            const __m256i value_sums = _mm256_set1_epi32(word_of(x + m * row));
            const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(value_sums, piece));
            sums[m][p].parts[half] += (WideInts)_mm256_madd_epi16(pairs, ones);
          }
        }
  }
};

// Eight sums of two 4-bit products fit into 16 bits: 8 * 2 * 15 * 127. Panels go one after the
// other, as accumulators for all would not fit into registers.
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
              const __m256i second =
                  _mm256_maddubs_epi16(high, _mm256_set1_epi32(word_of(from + 4)));
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

#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)

constexpr int MAX_TILE_PANELS = 4, TOKEN_PANELS = 2, BATCH_PANELS = 1;

#if defined(__ARM_FEATURE_MATMUL_INT8)

typedef uint8x16_t Codes;

template <int FOUR>
INLINE void add_products(WideInts &sum, Codes codes, int8x16_t x) {
  sum = (WideInts)vusdotq_laneq_s32((int32x4_t)sum, codes, x, FOUR);
}

struct Unsigned {
  INLINE int32_t start(int32_t) { return 0; }
  INLINE Codes of(uint8x16_t codes) { return codes; }
};

// smmla: products of two weight rows with two activation rows, eight columns each.
template <int M, int P>
struct Squares {
  int32x4_t products[M / 2][P][PARTS][2];
  int8x16_t numbers[M / 2];

  MEMBER explicit Squares(const Ints (&sums)[M][P]) {
    UNROLL for (int m = 0; m < M; m += 2)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const int32x4_t a = (int32x4_t)sums[m][p].parts[part];
          const int32x4_t b = (int32x4_t)sums[m + 1][p].parts[part];
          products[m / 2][p][part][0] = vzip1q_s32(a, b);
          products[m / 2][p][part][1] = vzip2q_s32(a, b);
        }
  }

  MEMBER void take(const int8_t *x, int64_t row) {
    UNROLL for (int m = 0; m < M; m += 2)
      numbers[m / 2] = vcombine_s8(vld1_s8(x + m * row), vld1_s8(x + (m + 1) * row));
  }

  // Codes of four rows: four columns, then the next four.
  MEMBER void add(int p, int part, uint8x16_t first, uint8x16_t second) {
    const uint32x4_t a = vreinterpretq_u32_u8(first), b = vreinterpretq_u32_u8(second);
    const uint8x16_t upper = vreinterpretq_u8_u32(vzip1q_u32(a, b));
    const uint8x16_t lower = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    UNROLL for (int i = 0; i < M / 2; ++i) {
      int32x4_t *to = products[i][p][part];
      to[0] = vusmmlaq_s32(to[0], upper, numbers[i]);
      to[1] = vusmmlaq_s32(to[1], lower, numbers[i]);
    }
  }

  MEMBER void give(Ints (&sums)[M][P]) const {
    UNROLL for (int m = 0; m < M; m += 2)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const int32x4_t *from = products[m / 2][p][part];
          sums[m][p].parts[part] = (WideInts)vuzp1q_s32(from[0], from[1]);
          sums[m + 1][p].parts[part] = (WideInts)vuzp2q_s32(from[0], from[1]);
        }
  }
};

#else

typedef int8x16_t Codes;

// sdot: four rows of four columns with one group of four activations.
template <int FOUR>
INLINE void add_products(WideInts &sum, Codes codes, int8x16_t x) {
  sum = (WideInts)vdotq_laneq_s32((int32x4_t)sum, codes, x, FOUR);
}

struct Unsigned {
  INLINE int32_t start(int32_t total) { return 128 * total; }
  INLINE Codes of(uint8x16_t codes) {
    return vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128)));
  }
};

#endif

INLINE int8x16_t four_of(const int8_t *four) { return (int8x16_t)vdupq_n_s32(word_of(four)); }

struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t total) { return Unsigned::start(total); }

  template <int FOUR, int M, int P>
  INLINE void add_piece(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart,
                        const int8x16_t (&x)[M]) {
    UNROLL for (int p = 0; p < P; ++p)
      UNROLL for (int part = 0; part < PARTS; ++part) {
        const Codes piece = Unsigned::of(vld1q_u8(codes + p * apart + 16 * part));
        UNROLL for (int m = 0; m < M; ++m) add_products<FOUR>(sums[m][p].parts[part], piece, x[m]);
      }
  }

  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    int64_t i = 0;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (M % 2 == 0) {
      Squares<M, P> squares(sums);
      for (; i + 2 <= pieces; i += 2, codes += 2 * PIECE, x += 2 * COLUMNS) {
        squares.take(x, row);
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int part = 0; part < PARTS; ++part) {
            const uint8_t *at = codes + p * apart + 16 * part;
            squares.add(p, part, vld1q_u8(at), vld1q_u8(at + PIECE));
          }
      }
      squares.give(sums);
    }
#endif
    int8x16_t numbers[M];
    for (; i + 4 <= pieces; i += 4, codes += 4 * PIECE, x += 4 * COLUMNS) {
      UNROLL for (int m = 0; m < M; ++m) numbers[m] = vld1q_s8(x + m * row);
      add_piece<0>(sums, codes, apart, numbers);
      add_piece<1>(sums, codes + PIECE, apart, numbers);
      add_piece<2>(sums, codes + 2 * PIECE, apart, numbers);
      add_piece<3>(sums, codes + 3 * PIECE, apart, numbers);
    }
    for (; i < pieces; ++i, codes += PIECE, x += COLUMNS) {
      UNROLL for (int m = 0; m < M; ++m) numbers[m] = four_of(x + m * row);
      add_piece<0>(sums, codes, apart, numbers);
    }
  }
};

struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }

  template <int FOUR, int M, int P>
  INLINE void add_piece(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart,
                        const int8x16_t (&x)[M]) {
    UNROLL for (int p = 0; p < P; ++p)
      UNROLL for (int part = 0; part < PARTS; ++part) {
        const uint8x16_t both = vld1q_u8(codes + p * apart + 16 * part);
        const Codes low = (Codes)vandq_u8(both, vdupq_n_u8(15)), high = (Codes)vshrq_n_u8(both, 4);
        UNROLL for (int m = 0; m < M; ++m) {
          add_products<FOUR>(sums[m][p].parts[part], low, x[m]);
          add_products<FOUR + 1>(sums[m][p].parts[part], high, x[m]);
        }
      }
  }

  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    int64_t i = 0;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (M % 2 == 0) {
      Squares<M, P> squares(sums);
      for (; i < pieces; ++i, codes += PIECE, x += COLUMNS) {
        squares.take(x, row);
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int part = 0; part < PARTS; ++part) {
            const uint8_t *at = codes + p * apart + 16 * part;
            const uint8x16_t both = vld1q_u8(at);
            squares.add(p, part, vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8(both, 4));
          }
      }
      squares.give(sums);
    }
#endif
    int8x16_t numbers[M];
    for (; i + 2 <= pieces; i += 2, codes += 2 * PIECE, x += 2 * COLUMNS) {
      UNROLL for (int m = 0; m < M; ++m) numbers[m] = vld1q_s8(x + m * row);
      add_piece<0>(sums, codes, apart, numbers);
      add_piece<2>(sums, codes + PIECE, apart, numbers);
    }
    for (; i < pieces; ++i, codes += PIECE, x += COLUMNS) {
      UNROLL for (int m = 0; m < M; ++m)
        numbers[m] = vcombine_s8(vld1_s8(x + m * row), vdup_n_s8(0));
      add_piece<0>(sums, codes, apart, numbers);
    }
  }
};

#elif defined(__ARM_NEON)

constexpr int MAX_TILE_PANELS = 2, TOKEN_PANELS = 2, BATCH_PANELS = 1;

INLINE int8x16_t four_of(const int8_t *four) { return (int8x16_t)vdupq_n_s32(word_of(four)); }

// Codes are read as signed: two products with activations (at most 127) fit into 16 bits.
struct Codes8 {
  static constexpr int COLUMNS = 4;
  INLINE int32_t start(int32_t total) { return 128 * total; }
  INLINE int8x16_t codes_at(const uint8_t *codes) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(codes), vdupq_n_u8(128)));
  }

  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    int32x4_t halves[M][P][PARTS][2];  // two partial sums per row, of two rows
    UNROLL for (int m = 0; m < M; ++m)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part)
          halves[m][p][part][0] = halves[m][p][part][1] = vdupq_n_s32(0);
    int64_t i = 0;
    for (; i + 2 <= pieces; i += 2, codes += 2 * PIECE, x += 2 * COLUMNS) {
      int8x16_t first[M], second[M];
      UNROLL for (int m = 0; m < M; ++m)
        first[m] = four_of(x + m * row), second[m] = four_of(x + m * row + COLUMNS);
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const uint8_t *at = codes + p * apart + 16 * part;
          const int8x16_t a = codes_at(at), b = codes_at(at + PIECE);
          UNROLL for (int m = 0; m < M; ++m) {
            int32x4_t *to = halves[m][p][part];
            int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(first[m]));
            int16x8_t high = vmull_high_s8(a, first[m]);
            low = vmlal_s8(low, vget_low_s8(b), vget_low_s8(second[m]));
            high = vmlal_high_s8(high, b, second[m]);
            to[0] = vpadalq_s16(to[0], low), to[1] = vpadalq_s16(to[1], high);
          }
        }
    }
    for (; i < pieces; ++i, codes += PIECE, x += COLUMNS)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part) {
          const int8x16_t a = codes_at(codes + p * apart + 16 * part);
          UNROLL for (int m = 0; m < M; ++m) {
            const int8x16_t four = four_of(x + m * row);
            int32x4_t *to = halves[m][p][part];
            to[0] = vpadalq_s16(to[0], vmull_s8(vget_low_s8(a), vget_low_s8(four)));
            to[1] = vpadalq_s16(to[1], vmull_high_s8(a, four));
          }
        }
    UNROLL for (int m = 0; m < M; ++m)
      UNROLL for (int p = 0; p < P; ++p)
        UNROLL for (int part = 0; part < PARTS; ++part)
          sums[m][p].parts[part] +=
              (WideInts)vpaddq_s32(halves[m][p][part][0], halves[m][p][part][1]);
  }
};

// Sixteen 4-bit products fit into 16 bits: 16 * 15 * 127.
struct Codes4 {
  static constexpr int COLUMNS = 8;
  INLINE int32_t start(int32_t) { return 0; }

  template <int M, int P>
  INLINE void add(Ints (&sums)[M][P], const uint8_t *codes, int64_t apart, int64_t pieces,
                  const int8_t *x, int64_t row) {
    for (int64_t begin = 0; begin < pieces; begin += 8) {
      const int64_t end = begin + 8 < pieces ? begin + 8 : pieces;
      int16x8_t halves[M][P][PARTS][2];  // two partial sums per row, of two rows
      UNROLL for (int m = 0; m < M; ++m)
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int part = 0; part < PARTS; ++part)
            halves[m][p][part][0] = halves[m][p][part][1] = vdupq_n_s16(0);
      for (int64_t i = begin; i < end; ++i, codes += PIECE, x += COLUMNS) {
        int8x16_t first[M], second[M];
        UNROLL for (int m = 0; m < M; ++m)
          first[m] = four_of(x + m * row), second[m] = four_of(x + m * row + 4);
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int part = 0; part < PARTS; ++part) {
            const uint8x16_t both = vld1q_u8(codes + p * apart + 16 * part);
            const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
            UNROLL for (int m = 0; m < M; ++m) {
              int16x8_t *to = halves[m][p][part];
              to[0] = vmlal_s8(to[0], vget_low_s8(low), vget_low_s8(first[m]));
              to[1] = vmlal_high_s8(to[1], low, first[m]);
              to[0] = vmlal_s8(to[0], vget_low_s8(high), vget_low_s8(second[m]));
              to[1] = vmlal_high_s8(to[1], high, second[m]);
            }
          }
      }
      UNROLL for (int m = 0; m < M; ++m)
        UNROLL for (int p = 0; p < P; ++p)
          UNROLL for (int part = 0; part < PARTS; ++part) {
            const int16x8_t *of = halves[m][p][part];
            sums[m][p].parts[part] +=
                (WideInts)vpaddq_s32(vpaddlq_s16(of[0]), vpaddlq_s16(of[1]));
          }
    }
  }
};

#else

constexpr int MAX_TILE_PANELS = 2, TOKEN_PANELS = 4, BATCH_PANELS = 2;

// Portable: column by column, shifting the four codes out of each 32-bit lane.
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
