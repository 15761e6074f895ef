// One online-softmax step of a few queries over a block of keys: scores, weights, weighted values.
//
// Register blocking: SUMS accumulators, for R queries times SUMS / R keys or vectors of values.

#pragma once

#include "lanes.h"
#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t BLOCK = 64;  // keys of one online-softmax step
#if defined(__AVX512F__)
constexpr int SUMS = 16;
#else
constexpr int SUMS = 8;
#endif

// Online softmax of a query so far: running maximum, denominator and unnormalised output.
struct SoftmaxState {
  float row_max, total;
  float *values;
};

// Tail load: the first n < WIDE elements, then zeros.
template <class E>
INLINE Wide some_at(const typename E::Element *p, int64_t n) {
  typename E::Element few[WIDE] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = p[i];
  return E::part(few);
}

// Dot products of R queries with K keys of any width: a register tile of R x K, or R x 1 in the
// tail.
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
    UNROLL for (int i = 0; i < R * K; i += WIDE)
      write(scores[i / K] + j + i % K, sums_of(sums + i));
  } else {
    UNROLL for (int i = 0; i < R * K; i += WIDE) {
      const Wide part = sums_of(sums + i);
      UNROLL for (int k = 0; k < WIDE; k += K)
        __builtin_memcpy(scores[(i + k) / K] + j, (const char *)&part + 4 * k, 4 * K);
    }
  }
}

template <class E, int R>
NOINLINE void score_rows(const float *q, int64_t width, const typename E::Element *keys,
                         int64_t step, int64_t count, float (*scores)[BLOCK]) {
  constexpr int K = SUMS / R;
  int64_t j = 0;
  for (; j + K <= count; j += K) score_tile<E, R, K>(q, width, keys + j * step, step, scores, j);
  for (; j < count; ++j) score_tile<E, R, 1>(q, width, keys + j * step, step, scores, j);
}

// Scores of queries against a block of keys, in row blocks of 4, 2 and 1 queries.
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

// Adds the weighted values of a block to the outputs of R queries, C vectors of channels at a time.
template <class E, int R, int C>
NOINLINE void value_tile(const float (*weights)[BLOCK], const typename E::Element *values,
                      int64_t step, int64_t count, SoftmaxState *states, int64_t at) {
  Wide sums[R][C];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c) sums[r][c] = read<Wide>(states[r].values + at + c * WIDE);
  values += at;
  for (int64_t j = 0; j < count; ++j, values += step) {
    if constexpr (R == 1) {  // one vector after the other: few live registers
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
    UNROLL for (int c = 0; c < C; ++c) write(states[r].values + at + c * WIDE, sums[r][c]);
}

// Tiles of C vectors, then narrower ones for the tail; returns the first channel that is left.
template <class E, int R, int C>
INLINE int64_t value_tiles(const float (*weights)[BLOCK], const typename E::Element *values,
                           int64_t step, int64_t width, int64_t count, SoftmaxState *states,
                           int64_t at) {
  for (; at + C * WIDE <= width; at += C * WIDE)
    value_tile<E, R, C>(weights, values, step, count, states, at);
  if constexpr (C > 1)
    return value_tiles<E, R, C / 2>(weights, values, step, width, count, states, at);
  return at;
}

template <class E, int R>
INLINE void add_all_values(const float (*weights)[BLOCK], const typename E::Element *values,
                           int64_t step, int64_t width, int64_t count, SoftmaxState *states) {
  constexpr int C = SUMS / R < 8 ? SUMS / R : 8;
  int64_t at = value_tiles<E, R, C>(weights, values, step, width, count, states, 0);
  for (; at < width; ++at)
    for (int64_t j = 0; j < count; ++j)
      for (int r = 0; r < R; ++r)
        states[r].values[at] += weights[r][j] * E::one(values + j * step + at);
}

// Adds the weighted values of a block to the outputs of queries, in row blocks of 4, 2 and 1.
template <class E>
INLINE void add_weighted_values(SoftmaxState *states, int64_t queries,
                                const float (*weights)[BLOCK], const typename E::Element *values,
                                int64_t step, int64_t width, int64_t count) {
  int64_t r = 0;
  for (; r + 4 <= queries; r += 4)
    add_all_values<E, 4>(weights + r, values, step, width, count, states + r);
  for (; r + 2 <= queries; r += 2)
    add_all_values<E, 2>(weights + r, values, step, width, count, states + r);
  if (r < queries) add_all_values<E, 1>(weights + r, values, step, width, count, states + r);
}

// Weights of a block in which every key is masked: 0, but NaN stays NaN.
static void weigh_masked(float *scores, int64_t count, SoftmaxState &states) {
  for (int64_t j = 0; j < count || j % LANE; ++j) {
    scores[j] = scores[j] == scores[j] ? 0.0f : scores[j];
    states.total += scores[j];
  }
}

// Online-softmax step: turns scores into weights relative to the new running maximum and rescales
// the state where the maximum grows. Weights are padded with zeros to a multiple of LANE.
static void online_softmax(float *scores, int64_t count, int64_t width, SoftmaxState &states) {
  constexpr float BITS = 1.44269504f;  // of log2(e)
  const int64_t filled = (count + LANE - 1) / LANE * LANE;
  for (int64_t j = count; j < filled; ++j) scores[j] = -__builtin_inff();
  Wide row_max = wide(states.row_max);
  for (int64_t j = 0; j < filled; j += WIDE) row_max = maximum(read<Wide>(scores + j), row_max);
  const float new_max = largest_of(row_max);
  if (new_max == -__builtin_inff()) return weigh_masked(scores, count, states);
  Wide total = wide(0.0f);
  for (int64_t j = 0; j < filled; j += WIDE) {
    const Wide weight = exp2_negative((read<Wide>(scores + j) - wide(new_max)) * wide(BITS));
    write(scores + j, weight);
    total += weight;
  }
  const float rescale =
      new_max == states.row_max ? 1.0f : exp2_negative(wide((states.row_max - new_max) * BITS))[0];
  states.total = states.total * rescale + sum_of(total);
  states.row_max = new_max;
  if (rescale == 1.0f) return;
  for (int64_t c = 0; c < width; ++c) states.values[c] *= rescale;
}

}  // namespace SUFFICE_ISA
