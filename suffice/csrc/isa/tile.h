// Products of a tile: some keys beside a group of queries. A query is a lane, so a softmax needs no
// sum across lanes, and keys and values are read where they lie, in any order.
//
// Letters: N lanes of a group = C vectors, R keys or features at once.

#pragma once

#include "../interface.h"
#include "lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t TILE = 128;  // keys of a tile
constexpr float LOG2E = 1.442695041f, LN2 = 0.6931471806f;
constexpr uint32_t ALL_SEE = 0xffffffffu;

// The keys of a tile, the values beside them, and which queries of the group see each.
struct Tile {
  const float *keys[TILE + ROWS], *values[TILE + ROWS];
  uint32_t seen[TILE + ROWS];
  int32_t numbers[TILE + ROWS];
  int64_t count;
};

// Rows of one head as they are stored; row j is at `data` + j * `row`.
template <class E>
struct Stored {
  const typename E::Element *data;
  int64_t row;
};

typedef Stored<Full> Rows;

// The first n < WIDE elements, zeros behind them.
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

INLINE void store(Brain, uint16_t *to, Wide v) {  // to nearest, ties to even
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

// Neighbouring queries that go through keys together, and how far they are.
struct Group {
  int64_t first, lanes;   // lanes: that are queries; the others are 0
  int64_t next, end;      // keys still to see, or their places in the lists
  float *columns, *sums;  // queries [D, N] and what they have summed [E, N]
  const uint8_t *valid;   // [S], 0 = a key that none of them sees; null = there is no such key
  bool fresh;             // they have seen no key
  float most[MOST_LANES], total[MOST_LANES];  // largest score and sum of weights
};

// Sums of R rows times columns [width, N].
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

// into [width, N] = into * by + the sum over keys of rows[j] [width] times weights [j, N]; what
// `into` holds is not read where it is `fresh`.
template <int R, int C>
APART void add_columns(const float *const *rows, int64_t count, int64_t at, const float *weights,
                       const Wide (&by)[C], bool fresh, float *into) {
  Wide sums[R][C];
  into += at * C * WIDE;
  UNROLL
  for (int r = 0; r < R; ++r)
    UNROLL
    for (int c = 0; c < C; ++c)
      sums[r][c] = fresh ? Wide{} : read<Wide>(into + (r * C + c) * WIDE) * by[c];
  for (int64_t j = 0; j < count; ++j, weights += C * WIDE) {
    const float *row = rows[j] + at;
    asm("" : "+r"(row));  // one register, not one for each number of the row
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
                            const float *weights, const Wide (&by)[C], bool fresh, float *into) {
  int64_t at = 0;
  for (; at + FEATURES <= width; at += FEATURES)
    add_columns<FEATURES, C>(rows, count, at, weights, by, fresh, into);
  for (; at + 4 <= width; at += 4) add_columns<4, C>(rows, count, at, weights, by, fresh, into);
  for (; at + 2 <= width; at += 2) add_columns<2, C>(rows, count, at, weights, by, fresh, into);
  if (at < width) add_columns<1, C>(rows, count, at, weights, by, fresh, into);
}

// Which lanes of vector c see a key.
INLINE WideInts sees(uint32_t seen, int c) {
  int32_t ones[WIDE];
  for (int i = 0; i < WIDE; ++i) ones[i] = 1 << i;
  return (wide_ints((int32_t)(seen >> (c * WIDE))) & read<WideInts>(ones)) != 0;
}

// Rows [lanes, width] as columns [width, N], times a factor; lanes behind the last are 0.
template <int C, class E = Full>
APART void turn_rows(const typename E::Element *rows, int64_t stride, int64_t lanes, int64_t width, float by,
                      float *columns) {
  for (int c = 0; c < C; ++c)
    for (int64_t d = 0; d < width; d += WIDE) {
      Wide square[WIDE];
      int64_t some = width - d < WIDE ? width - d : WIDE;
      const typename E::Element *row = rows + c * WIDE * stride + d;
      if (some == WIDE && (c + 1) * WIDE <= lanes) {
        for (int i = 0; i < WIDE; ++i) square[i] = E::part(row + i * stride) * by;
      } else {
        for (int i = 0; i < WIDE; ++i)
          square[i] = c * WIDE + i < lanes ? part_of<E>(row + i * stride, some) * by : Wide{};
      }
      turn_over(square);
      for (int64_t i = 0; i < some; ++i) write(columns + ((d + i) * C + c) * WIDE, square[i]);
    }
}

// Columns [width, N] as rows [lanes, width], times a factor of each lane; returns a vector that is
// 0 if all of them are finite.
template <int C, class E = Full>
APART Wide turn_columns(const float *columns, const Wide (&by)[C], int64_t lanes, int64_t width,
                         typename E::Element *rows, int64_t stride) {
  Wide odd = {};
  for (int c = 0; c < C; ++c)
    for (int64_t d = 0; d < width; d += WIDE) {
      Wide square[WIDE];
      int64_t some = width - d < WIDE ? width - d : WIDE;
      for (int64_t i = 0; i < WIDE; ++i)
        square[i] = i < some ? read<Wide>(columns + ((d + i) * C + c) * WIDE) * by[c] : Wide{};
      turn_over(square);
      typename E::Element *row = rows + c * WIDE * stride + d;
      if (some == WIDE && (c + 1) * WIDE <= lanes) {
        for (int i = 0; i < WIDE; ++i) {
          odd += square[i] * 0.0f;
          store(E{}, row + i * stride, square[i]);
        }
        continue;
      }
      for (int64_t i = 0; i < WIDE && c * WIDE + i < lanes; ++i) {
        odd += square[i] * 0.0f;
        store_some<E>(row + i * stride, square[i], some);
      }
    }
  return odd;
}

// Puts a group before the first of its keys.
INLINE void look(const SequenceAttention &whole, int64_t head, Group &group) {
  if (whole.starts) {
    int64_t blocks = (whole.queries + 31) / 32;
    const int64_t *start = whole.starts + whole.list_of[head] * (blocks + 1) + group.first / 32;
    group.next = start[0];
    group.end = start[1];
    return;
  }
  int64_t last = group.first + group.lanes - 1 + whole.high;
  group.next = group.first + whole.low > 0 ? group.first + whole.low : 0;
  group.end = last < whole.keys ? last + 1 : whole.keys;
}

// The key a group sees next; behind all keys where there is none.
INLINE int64_t next_key(const SequenceAttention &whole, const Group &group) {
  if (group.next >= group.end) return whole.keys;
  return whole.starts ? whole.listed[group.next] : group.next;
}

// Which queries of a group see a key near them.
INLINE uint32_t near_by(const SequenceAttention &whole, const Group &group, int64_t key) {
  uint32_t seen = ALL_SEE;
  int64_t before = key - whole.high - group.first;  // lanes before the first that sees it
  int64_t after = group.first + group.lanes - 1 + whole.low - key;  // behind the last
  if (before > 0) seen <<= before;
  if (after > 0) seen &= (1u << (group.lanes - after)) - 1;
  return seen;
}

INLINE void put(Tile &tile, const Rows &keys, const Rows &values, int64_t key, uint32_t seen) {
  tile.keys[tile.count] = keys.data + key * keys.row;
  tile.values[tile.count] = values.data + key * values.row;
  tile.numbers[tile.count] = (int32_t)key;
  tile.seen[tile.count++] = seen;
}

INLINE bool is_key(const Group &group, int64_t key) { return !group.valid || group.valid[key]; }

// Fills a tile with the keys below `until` that a group sees next; false if there are none.
APART bool fill(const SequenceAttention &whole, const Rows &keys, const Rows &values, int64_t until,
                 int64_t most, Group &group, Tile &tile) {
  tile.count = 0;
  if (whole.starts) {
    uint32_t real = group.lanes < 32 ? (1u << group.lanes) - 1 : ALL_SEE;
    for (; tile.count < most && next_key(whole, group) < until; ++group.next) {
      uint32_t seen = (whole.seen_by[group.next] >> (group.first % 32)) & real;
      if (seen && is_key(group, whole.listed[group.next]))
        put(tile, keys, values, whole.listed[group.next], seen == real ? ALL_SEE : seen);
    }
  } else {
    int64_t end = group.end < until ? group.end : until;
    for (; tile.count < most && group.next < end; ++group.next)
      if (is_key(group, group.next))
        put(tile, keys, values, group.next, near_by(whole, group, group.next));
  }
  if (tile.count == 0) return false;
  for (int64_t j = tile.count; j % ROWS; ++j) {  // whole products: the last key again, hidden
    tile.keys[j] = tile.keys[tile.count - 1];
    tile.values[j] = tile.values[tile.count - 1];
    tile.seen[j] = 0;
  }
  return true;
}

// Hides what a product of rows has of hidden keys.
template <int C>
INLINE void hide(const uint32_t *seen, Wide (&sums)[ROWS][C], float with) {
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int c = 0; c < C; ++c) sums[r][c] = sees(seen[r], c) ? sums[r][c] : wide(with);
}

// What products of queries and keys are multiplied by: to scores of base 2, or to what tanh reads.
INLINE float factor_of(const SequenceAttention &whole) {
  return whole.cap == 0.0f ? whole.scale * LOG2E : whole.scale / whole.cap;
}

INLINE bool all_see(const uint32_t *seen) {
  uint32_t all = ALL_SEE;
  for (int r = 0; r < ROWS; ++r) all &= seen[r];
  return all == ALL_SEE;
}

}  // namespace SUFFICE_ISA
