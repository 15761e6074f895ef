// A query against a block of keys: scores, weights, weighted values.

#pragma once

#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t BLOCK = 64;  // keys whose scores are kept at once

// What a query has seen so far: the largest score, the sum of weights, weighted values.
struct Seen {
  float most, total;
  float *values;
};

// Products of a query with sixteen keys; N stretches of 16 features.
template <class E, int N>
INLINE Floats score_sixteen(const float *q, const typename E::Element *keys, int64_t step) {
  Floats part[LANES], query[N];
  for (int n = 0; n < N; ++n) query[n] = read<Floats>(q + n * LANE);
  for (int j = 0; j < LANES; ++j) {
    part[j] = query[0] * E::get(keys + j * step);
    for (int n = 1; n < N; ++n) part[j] += query[n] * E::get(keys + j * step + n * LANE);
  }
  Floats scores;
  UNROLL for (int p = 0; p < PARTS; ++p) {
    Wide some[WIDE];
    UNROLL for (int j = 0; j < WIDE; ++j) some[j] = folded(part[p * WIDE + j]);
    scores.parts[p] = sums_of(some);
  }
  return scores;
}

// The same with one key, of any width.
template <class E>
INLINE float score_one(const float *q, const typename E::Element *key, int64_t width) {
  Floats part = all(0.0f);
  int64_t at = 0;
  for (; at + LANE <= width; at += LANE) part += E::get(key + at) * read<Floats>(q + at);
  if (at < width) part += get_some<E>(key + at, width - at) * get_some<Full>(q + at, width - at);
  return sum(part);
}

// The same with as many sixteens as there are; returns how many keys those are.
template <class E, int N>
INLINE int64_t score_sixteens(const float *q, const typename E::Element *keys, int64_t step,
                              int64_t count, float *scores) {
  int64_t j = 0;
  if (step == N * LANE)  // known while compiling, rows need no addresses of their own
    for (; j + LANE <= count; j += LANE)
      write(scores + j, score_sixteen<E, N>(q, keys + j * N * LANE, N * LANE));
  else
    for (; j + LANE <= count; j += LANE)
      write(scores + j, score_sixteen<E, N>(q, keys + j * step, step));
  return j;
}

// Products of a query with a block of keys.
template <class E>
INLINE void score(const float *q, int64_t width, const typename E::Element *keys, int64_t step,
                  int64_t count, float *scores) {
  int64_t j = 0;
  if (width == 2 * LANE) j = score_sixteens<E, 2>(q, keys, step, count, scores);
  else if (width == 3 * LANE) j = score_sixteens<E, 3>(q, keys, step, count, scores);
  else if (width == 4 * LANE) j = score_sixteens<E, 4>(q, keys, step, count, scores);
  else if (width == 8 * LANE) j = score_sixteens<E, 8>(q, keys, step, count, scores);
  for (; j < count; ++j) scores[j] = score_one<E>(q, keys + j * step, width);
}

// Adds weighted values of a block, C stretches of 16 features at a time.
template <class E, int R, int C>
INLINE void add_values(const float (*weights)[BLOCK], const typename E::Element *values,
                       int64_t step, int64_t count, Seen *seen, int64_t at) {
  Floats sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = read<Floats>(seen[r].values + at + c * LANE);
  values += at;
  for (int64_t j = 0; j < count; ++j, values += step)
    for (int c = 0; c < C; ++c) {
      Floats value = E::get(values + c * LANE);
      for (int r = 0; r < R; ++r) sums[r][c] += all(weights[r][j]) * value;
    }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) write(seen[r].values + at + c * LANE, sums[r][c]);
}

template <class E, int R>
INLINE void add_all_values(const float (*weights)[BLOCK], const typename E::Element *values,
                           int64_t step, int64_t width, int64_t count, Seen *seen) {
  int64_t at = 0;
  for (; at + 4 * LANE <= width; at += 4 * LANE)
    add_values<E, R, 4>(weights, values, step, count, seen, at);
  for (; at + LANE <= width; at += LANE)
    add_values<E, R, 1>(weights, values, step, count, seen, at);
  for (; at < width; ++at)
    for (int64_t j = 0; j < count; ++j)
      for (int r = 0; r < R; ++r)
        seen[r].values[at] += weights[r][j] * E::one(values + j * step + at);
}

// The weights of keys none of which is seen; what is no number stays that.
static void weigh_nothing(float *scores, int64_t count, Seen &seen) {
  for (int64_t j = 0; j < count || j % LANE; ++j) {
    scores[j] = scores[j] == scores[j] ? 0.0f : scores[j];
    seen.total += scores[j];
  }
}

// Turns scores into weights relative to the largest score seen, and what was seen with them.
INLINE void weigh(float *scores, int64_t count, int64_t width, Seen &seen) {
  Floats most = all(seen.most);
  for (int64_t j = count; j % LANE; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = 0; j < count; j += LANE) most = larger(most, read<Floats>(scores + j));
  float top = largest(most);
  if (top == -__builtin_inff()) return weigh_nothing(scores, count, seen);
  Floats total = all(0.0f);
  for (int64_t j = 0; j < count; j += LANE) {
    Floats weight = exp(read<Floats>(scores + j) - all(top));
    write(scores + j, weight);
    total += weight;
  }
  float fade = top == seen.most ? 1.0f : exp_one(seen.most - top);
  seen.total = seen.total * fade + sum(total);
  seen.most = top;
  if (fade == 1.0f) return;
  for (int64_t c = 0; c < width; ++c) seen.values[c] *= fade;
}

}  // namespace SUFFICE_ISA
