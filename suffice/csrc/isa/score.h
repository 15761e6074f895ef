// A query against a block of keys: scores, weights, weighted values.
//
// All sums are kept in registers: a tile holds SUMS of them, of R queries and SUMS / R keys or
// vectors of values.

#pragma once

#include "lanes.h"
#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t BLOCK = 64;  // keys whose scores are kept at once
#if defined(__AVX512F__)
constexpr int SUMS = 16;
#else
constexpr int SUMS = 8;
#endif

// What a query has seen so far: the largest score, the sum of weights, weighted values.
struct Seen {
  float most, total;
  float *values;
};

// The first n < WIDE elements, zeros behind them.
template <class E>
INLINE Wide some_at(const typename E::Element *p, int64_t n) {
  typename E::Element few[WIDE] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = p[i];
  return E::part(few);
}

// Products of R queries with K keys of any width; SUMS or R of them.
template <class E, int R, int K>
INLINE void score_tile(const float *q, int64_t width, const typename E::Element *keys, int64_t step,
                       float (*scores)[BLOCK], int64_t j) {
  Wide sums[R * K] = {};
  const int64_t whole = width / WIDE * WIDE;
  for (int64_t at = 0; at < whole; at += WIDE) {
    Wide query[R];
    UNROLL for (int r = 0; r < R; ++r) query[r] = read<Wide>(q + r * width + at);
    UNROLL for (int k = 0; k < K; ++k) {
      const Wide key = E::part(keys + k * step + at);
      UNROLL for (int r = 0; r < R; ++r) sums[r * K + k] += query[r] * key;
    }
  }
  if (whole < width)
    UNROLL for (int k = 0; k < K; ++k) {
      const Wide key = some_at<E>(keys + k * step + whole, width - whole);
      UNROLL for (int r = 0; r < R; ++r)
        sums[r * K + k] += some_at<Full>(q + r * width + whole, width - whole) * key;
    }
  if constexpr (K == 1) {
    for (int r = 0; r < R; ++r) scores[r][j] = sum_of(sums[r]);
  } else if constexpr (K >= WIDE) {
    UNROLL for (int i = 0; i < R * K; i += WIDE) write(scores[i / K] + j + i % K, sums_of(sums + i));
  } else {
    UNROLL for (int i = 0; i < R * K; i += WIDE) {
      const Wide part = sums_of(sums + i);
      UNROLL for (int k = 0; k < WIDE; k += K)
        __builtin_memcpy(scores[(i + k) / K] + j, (const char *)&part + 4 * k, 4 * K);
    }
  }
}

template <class E, int R>
APART void score_rows(const float *q, int64_t width, const typename E::Element *keys, int64_t step,
                      int64_t count, float (*scores)[BLOCK]) {
  constexpr int K = SUMS / R;
  int64_t j = 0;
  for (; j + K <= count; j += K) score_tile<E, R, K>(q, width, keys + j * step, step, scores, j);
  for (; j < count; ++j) score_tile<E, R, 1>(q, width, keys + j * step, step, scores, j);
}

// Products of some queries with a block of keys.
template <class E>
INLINE void score(const float *q, int64_t queries, int64_t width, const typename E::Element *keys,
                  int64_t step, int64_t count, float (*scores)[BLOCK]) {
  int64_t r = 0;
  for (; r + 4 <= queries; r += 4)
    score_rows<E, 4>(q + r * width, width, keys, step, count, scores + r);
  for (; r + 2 <= queries; r += 2)
    score_rows<E, 2>(q + r * width, width, keys, step, count, scores + r);
  if (r < queries) score_rows<E, 1>(q + r * width, width, keys, step, count, scores + r);
}

// Adds weighted values of a block, C vectors of features at a time.
template <class E, int R, int C>
APART void value_tile(const float (*weights)[BLOCK], const typename E::Element *values,
                      int64_t step, int64_t count, Seen *seen, int64_t at) {
  Wide sums[R][C];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c) sums[r][c] = read<Wide>(seen[r].values + at + c * WIDE);
  values += at;
  for (int64_t j = 0; j < count; ++j, values += step) {
    if constexpr (R == 1) {  // conversions and products of one vector, then the next
      const Wide weight = wide(weights[0][j]);
      UNROLL for (int c = 0; c < C; ++c) sums[0][c] += weight * E::part(values + c * WIDE);
      continue;
    }
    Wide value[C];
    UNROLL for (int c = 0; c < C; ++c) value[c] = E::part(values + c * WIDE);
    UNROLL for (int r = 0; r < R; ++r) {
      const Wide weight = wide(weights[r][j]);
      UNROLL for (int c = 0; c < C; ++c) sums[r][c] += weight * value[c];
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c) write(seen[r].values + at + c * WIDE, sums[r][c]);
}

// As many tiles of C vectors as there are, then narrower ones; returns where it stopped.
template <class E, int R, int C>
INLINE int64_t value_tiles(const float (*weights)[BLOCK], const typename E::Element *values,
                           int64_t step, int64_t width, int64_t count, Seen *seen, int64_t at) {
  for (; at + C * WIDE <= width; at += C * WIDE)
    value_tile<E, R, C>(weights, values, step, count, seen, at);
  if constexpr (C > 1) return value_tiles<E, R, C / 2>(weights, values, step, width, count, seen, at);
  return at;
}

template <class E, int R>
INLINE void add_all_values(const float (*weights)[BLOCK], const typename E::Element *values,
                           int64_t step, int64_t width, int64_t count, Seen *seen) {
  constexpr int C = SUMS / R < 8 ? SUMS / R : 8;
  int64_t at = value_tiles<E, R, C>(weights, values, step, width, count, seen, 0);
  for (; at < width; ++at)
    for (int64_t j = 0; j < count; ++j)
      for (int r = 0; r < R; ++r)
        seen[r].values[at] += weights[r][j] * E::one(values + j * step + at);
}

// Adds values of a block, weighted, to what some queries have seen.
template <class E>
INLINE void add_to(Seen *seen, int64_t queries, const float (*weights)[BLOCK],
                   const typename E::Element *values, int64_t step, int64_t width,
                   int64_t count) {
  int64_t r = 0;
  for (; r + 4 <= queries; r += 4)
    add_all_values<E, 4>(weights + r, values, step, width, count, seen + r);
  for (; r + 2 <= queries; r += 2)
    add_all_values<E, 2>(weights + r, values, step, width, count, seen + r);
  if (r < queries) add_all_values<E, 1>(weights + r, values, step, width, count, seen + r);
}

// The weights of keys none of which is seen; what is no number stays that.
static void weigh_nothing(float *scores, int64_t count, Seen &seen) {
  for (int64_t j = 0; j < count || j % LANE; ++j) {
    scores[j] = scores[j] == scores[j] ? 0.0f : scores[j];
    seen.total += scores[j];
  }
}

// Turns scores into weights relative to the largest score seen, and what was seen with them;
// behind the last weight stand zeros up to a multiple of LANE.
static void weigh(float *scores, int64_t count, int64_t width, Seen &seen) {
  constexpr float BITS = 1.44269504f;  // of log2(e)
  const int64_t filled = (count + LANE - 1) / LANE * LANE;
  for (int64_t j = count; j < filled; ++j) scores[j] = -__builtin_inff();
  Wide most = wide(seen.most);
  for (int64_t j = 0; j < filled; j += WIDE) most = above(read<Wide>(scores + j), most);
  const float top = largest_of(most);
  if (top == -__builtin_inff()) return weigh_nothing(scores, count, seen);
  Wide total = wide(0.0f);
  for (int64_t j = 0; j < filled; j += WIDE) {
    const Wide weight = power((read<Wide>(scores + j) - wide(top)) * wide(BITS));
    write(scores + j, weight);
    total += weight;
  }
  const float fade = top == seen.most ? 1.0f : power(wide((seen.most - top) * BITS))[0];
  seen.total = seen.total * fade + sum_of(total);
  seen.most = top;
  if (fade == 1.0f) return;
  for (int64_t c = 0; c < width; ++c) seen.values[c] *= fade;
}

}  // namespace SUFFICE_ISA
