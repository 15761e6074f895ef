// Tiles of keys against a block of queries. Each query is a SIMD lane: the softmax needs no
// horizontal reduction, and keys and values may be gathered in any order.
//
// Letters: N lanes of a query block = C vectors, R keys or features per register tile.

#pragma once

#include "../interface.h"
#include "lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t TILE = 128;  // keys per tile
constexpr float LOG2E = 1.442695041f, LN2 = 0.6931471806f;
constexpr uint32_t ALL_LANES = 0xffffffffu;

// Keys and values of a tile, and for each key a bit mask of the queries that may attend to it.
struct Tile {
  const float *keys[TILE + ROWS], *values[TILE + ROWS];
  uint32_t seen[TILE + ROWS];
  int32_t numbers[TILE + ROWS];
  int64_t count;
};

// View of the rows of one head in storage type E; row j begins at data + j * row.
template <class E>
struct Stored {
  const typename E::Element *data;
  int64_t row;
};

typedef Stored<Full> Rows;

// Tail load: the first n < WIDE elements, then zeros.
template <class E>
INLINE Wide part_of(const typename E::Element *from, int64_t n) {
  float few[WIDE] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = E::one(from + i);
  return read<Wide>(few);
}

INLINE void store(Full, float *to, Wide v) { write(to, v); }

INLINE void store(Half, uint16_t *to, Wide v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < WIDE; ++i) Half::put(to + i, v[i]);
#endif
}

INLINE void store(Brain, uint16_t *to, Wide v) {  // round to nearest, ties to even
  WideWords bits = (WideWords)v;
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  bits = v == v ? bits : bits * 0u + 0x7fc0u;
  write(to, __builtin_convertvector(bits, Halves));
}

template <class E>
INLINE void store_some(typename E::Element *to, Wide v, int64_t n) {
  float few[WIDE];
  write(few, v);
  for (int64_t i = 0; i < n; ++i) E::put(to + i, few[i]);
}

// A block of neighbouring queries with its online-softmax state and its position among the keys.
struct QueryBlock {
  int64_t first, lanes;   // lanes in use; the others are 0
  int64_t next, end;      // range of keys still to visit, or of entries in the lists
  float *columns, *sums;  // queries [D, N] and unnormalised outputs [E, N]
  const uint8_t *valid;   // [S], 0 masks a key for all; null masks none
  bool fresh;             // no key visited yet: sums are uninitialised
  float row_max[MAX_LANES], total[MAX_LANES];  // running maximum (base 2) and denominator
};

// Dot products of R rows with columns [width, N].
template <int R, int C>
INLINE void multiply_rows(const float *const *rows, int64_t width, const float *columns,
                          Wide (&sums)[R][C]) {
  const float *row[R];
  UNROLL
  for (int r = 0; r < R; ++r) row[r] = rows[r];
  UNROLL
  for (int r = 0; r < R; ++r)
    UNROLL
    for (int c = 0; c < C; ++c) sums[r][c] = Wide{};
  for (int64_t d = 0; d < width; ++d, columns += C * WIDE) {
    Wide column[C];
    UNROLL
    for (int c = 0; c < C; ++c) column[c] = read<Wide>(columns + c * WIDE);
    UNROLL
    for (int r = 0; r < R; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) sums[r][c] += wide(row[r][d]) * column[c];
  }
}

// into [width, N] = into * factor + sum over keys j of rows[j] [width] times weights [j, N]. With
// `fresh` the old content of `into` is not read.
template <int R, int C>
NOINLINE void add_columns(const float *const *rows, int64_t count, int64_t at, const float *weights,
                       const Wide (&factor)[C], bool fresh, float *into) {
  Wide sums[R][C];
  into += at * C * WIDE;
  UNROLL
  for (int r = 0; r < R; ++r)
    UNROLL
    for (int c = 0; c < C; ++c)
      sums[r][c] = fresh ? Wide{} : read<Wide>(into + (r * C + c) * WIDE) * factor[c];
  for (int64_t j = 0; j < count; ++j, weights += C * WIDE) {
    const float *row = rows[j] + at;
    asm("" : "+r"(row));  // keeps one address register instead of one per element
    Wide weight[C];
    UNROLL
    for (int c = 0; c < C; ++c) weight[c] = read<Wide>(weights + c * WIDE);
    UNROLL
    for (int r = 0; r < R; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) sums[r][c] += wide(row[r]) * weight[c];
  }
  UNROLL
  for (int r = 0; r < R; ++r)
    UNROLL
    for (int c = 0; c < C; ++c) write(into + (r * C + c) * WIDE, sums[r][c]);
}

template <int C>
INLINE void add_all_columns(const float *const *rows, int64_t count, int64_t width,
                            const float *weights, const Wide (&factor)[C], bool fresh,
                            float *into) {
  int64_t at = 0;
  for (; at + FEATURES <= width; at += FEATURES)
    add_columns<FEATURES, C>(rows, count, at, weights, factor, fresh, into);
  for (; at + 4 <= width; at += 4) add_columns<4, C>(rows, count, at, weights, factor, fresh, into);
  for (; at + 2 <= width; at += 2) add_columns<2, C>(rows, count, at, weights, factor, fresh, into);
  if (at < width) add_columns<1, C>(rows, count, at, weights, factor, fresh, into);
}

// The lanes of vector c whose queries may attend to a key, as a vector mask.
INLINE WideInts sees(uint32_t seen, int c) {
  int32_t ones[WIDE];
  for (int i = 0; i < WIDE; ++i) ones[i] = 1 << i;
  return (wide_ints((int32_t)(seen >> (c * WIDE))) & read<WideInts>(ones)) != 0;
}

// Transposes rows [lanes, width] to columns [width, N], times a factor; unused lanes are 0.
template <int C, class E = Full>
NOINLINE void rows_to_lanes(const typename E::Element *rows, int64_t stride, int64_t lanes,
                            int64_t width, float factor, float *columns) {
  for (int c = 0; c < C; ++c)
    for (int64_t d = 0; d < width; d += WIDE) {
      Wide square[WIDE];
      int64_t some = width - d < WIDE ? width - d : WIDE;
      const typename E::Element *row = rows + c * WIDE * stride + d;
      if (some == WIDE && (c + 1) * WIDE <= lanes) {
        for (int i = 0; i < WIDE; ++i) square[i] = E::part(row + i * stride) * factor;
      } else {
        for (int i = 0; i < WIDE; ++i)
          square[i] = c * WIDE + i < lanes ? part_of<E>(row + i * stride, some) * factor : Wide{};
      }
      transpose(square);
      for (int64_t i = 0; i < some; ++i) write(columns + ((d + i) * C + c) * WIDE, square[i]);
    }
}

// Transposes columns [width, N] to rows [lanes, width], times a factor per lane. Returns a vector
// that is 0 if all numbers are finite, else NaN.
template <int C, class E = Full>
NOINLINE Wide lanes_to_rows(const float *columns, const Wide (&factor)[C], int64_t lanes,
                            int64_t width, typename E::Element *rows, int64_t stride) {
  Wide nonfinite = {};
  for (int c = 0; c < C; ++c)
    for (int64_t d = 0; d < width; d += WIDE) {
      Wide square[WIDE];
      int64_t some = width - d < WIDE ? width - d : WIDE;
      for (int64_t i = 0; i < WIDE; ++i)
        square[i] = i < some ? read<Wide>(columns + ((d + i) * C + c) * WIDE) * factor[c] : Wide{};
      transpose(square);
      typename E::Element *row = rows + c * WIDE * stride + d;
      if (some == WIDE && (c + 1) * WIDE <= lanes) {
        for (int i = 0; i < WIDE; ++i) {
          nonfinite += square[i] * 0.0f;
          store(E{}, row + i * stride, square[i]);
        }
        continue;
      }
      for (int64_t i = 0; i < WIDE && c * WIDE + i < lanes; ++i) {
        nonfinite += square[i] * 0.0f;
        store_some<E>(row + i * stride, square[i], some);
      }
    }
  return nonfinite;
}

// Sets a query block to the first key it may attend to.
INLINE void seek_first_key(const SequenceAttention &attention, int64_t head, QueryBlock &block) {
  if (attention.starts) {
    int64_t blocks = (attention.queries + 31) / 32;
    const int64_t *start =
        attention.starts + attention.list_of[head] * (blocks + 1) + block.first / 32;
    block.next = start[0];
    block.end = start[1];
    return;
  }
  int64_t last = block.first + block.lanes - 1 + attention.high;
  block.next = block.first + attention.low > 0 ? block.first + attention.low : 0;
  block.end = last < attention.keys ? last + 1 : attention.keys;
}

// The next key of a query block; `keys` where there is none.
INLINE int64_t next_key(const SequenceAttention &attention, const QueryBlock &block) {
  if (block.next >= block.end) return attention.keys;
  return attention.starts ? attention.listed[block.next] : block.next;
}

// Bit mask of the queries of a block whose window holds a key.
INLINE uint32_t visible_lanes(const SequenceAttention &attention, const QueryBlock &block,
                              int64_t key) {
  uint32_t seen = ALL_LANES;
  int64_t before = key - attention.high - block.first;  // lanes too early to see it
  int64_t after = block.first + block.lanes - 1 + attention.low - key;  // lanes too late to see it
  if (before > 0) seen <<= before;
  if (after > 0) seen &= (1u << (block.lanes - after)) - 1;
  return seen;
}

INLINE void append_key(Tile &tile, const Rows &keys, const Rows &values, int64_t key,
                       uint32_t seen) {
  tile.keys[tile.count] = keys.data + key * keys.row;
  tile.values[tile.count] = values.data + key * values.row;
  tile.numbers[tile.count] = (int32_t)key;
  tile.seen[tile.count++] = seen;
}

INLINE bool key_is_valid(const QueryBlock &block, int64_t key) {
  return !block.valid || block.valid[key];
}

// Fills a tile with the next keys of a query block below `until`; false if there are none.
NOINLINE bool fill_tile(const SequenceAttention &attention, const Rows &keys, const Rows &values,
                        int64_t until, int64_t max_keys, QueryBlock &block, Tile &tile) {
  tile.count = 0;
  if (attention.starts) {
    uint32_t real = block.lanes < 32 ? (1u << block.lanes) - 1 : ALL_LANES;
    for (; tile.count < max_keys && next_key(attention, block) < until; ++block.next) {
      uint32_t seen = (attention.seen_by[block.next] >> (block.first % 32)) & real;
      if (seen && key_is_valid(block, attention.listed[block.next]))
        append_key(tile, keys, values, attention.listed[block.next],
                   seen == real ? ALL_LANES : seen);
    }
  } else {
    int64_t end = block.end < until ? block.end : until;
    for (; tile.count < max_keys && block.next < end; ++block.next)
      if (key_is_valid(block, block.next))
        append_key(tile, keys, values, block.next, visible_lanes(attention, block, block.next));
  }
  if (tile.count == 0) return false;
  for (int64_t j = tile.count; j % ROWS; ++j) {  // tail: repeat the last key, masked
    tile.keys[j] = tile.keys[tile.count - 1];
    tile.values[j] = tile.values[tile.count - 1];
    tile.seen[j] = 0;
  }
  return true;
}

// Overwrites the scores of masked keys.
template <int C>
INLINE void mask_scores(const uint32_t *seen, Wide (&sums)[ROWS][C], float with) {
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int c = 0; c < C; ++c) sums[r][c] = sees(seen[r], c) ? sums[r][c] : wide(with);
}

// The factor of dot products: scale * log2(e) for a base-2 softmax, or scale / cap for tanh.
INLINE float factor_of(const SequenceAttention &attention) {
  return attention.cap == 0.0f ? attention.scale * LOG2E : attention.scale / attention.cap;
}

INLINE bool all_see(const uint32_t *seen) {
  uint32_t all = ALL_LANES;
  for (int r = 0; r < ROWS; ++r) all &= seen[r];
  return all == ALL_LANES;
}

}  // namespace SUFFICE_ISA
