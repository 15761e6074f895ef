// Attention of one new position to what is held: softmax over blocks of keys, merged as they come.

#pragma once

#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t BLOCK = 64;     // keys whose scores are kept at once
constexpr int64_t SPLIT = 512;    // keys of one piece of work
constexpr int64_t WIDEST = 512;   // features of a head

// What some queries have seen so far: the largest score, the sum of weights, weighted values.
struct Seen {
  float most, total;
  float *values;
};

// A stretch of positions of one head that follow each other.
struct Stretch {
  const void *keys, *values;
  int64_t count, place;  // place: of the first one, in the text
};

// Scores of R queries against a block of keys.
template <class E, int R>
INLINE void score(const float *q, int64_t width, const typename E::Element *keys, int64_t count,
                  float (*scores)[BLOCK]) {
  for (int64_t j = 0; j < count; ++j, keys += width) {
    Floats sums[R];
    for (int r = 0; r < R; ++r) sums[r] = all(0.0f);
    int64_t at = 0;
    for (; at + LANE <= width; at += LANE) {
      Floats key = E::get(keys + at);
      for (int r = 0; r < R; ++r) sums[r] += key * read<Floats>(q + r * width + at);
    }
    if (at < width) {
      Floats key = get_some<E>(keys + at, width - at);
      for (int r = 0; r < R; ++r) sums[r] += key * get_some<Full>(q + r * width + at, width - at);
    }
    for (int r = 0; r < R; ++r) scores[r][j] = sum(sums[r]);
  }
}

// Adds weighted values of a block, C stretches of 16 features at a time.
template <class E, int R, int C>
INLINE void add_values(const float (*weights)[BLOCK], const typename E::Element *values,
                       int64_t width, int64_t count, Seen *seen, int64_t at) {
  Floats sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = read<Floats>(seen[r].values + at + c * LANE);
  values += at;
  for (int64_t j = 0; j < count; ++j, values += width)
    for (int c = 0; c < C; ++c) {
      Floats value = E::get(values + c * LANE);
      for (int r = 0; r < R; ++r) sums[r][c] += all(weights[r][j]) * value;
    }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) write(seen[r].values + at + c * LANE, sums[r][c]);
}

template <class E, int R>
INLINE void add_all_values(const float (*weights)[BLOCK], const typename E::Element *values,
                           int64_t width, int64_t count, Seen *seen) {
  int64_t at = 0;
  for (; at + 4 * LANE <= width; at += 4 * LANE)
    add_values<E, R, 4>(weights, values, width, count, seen, at);
  for (; at + LANE <= width; at += LANE)
    add_values<E, R, 1>(weights, values, width, count, seen, at);
  for (; at < width; ++at)
    for (int64_t j = 0; j < count; ++j)
      for (int r = 0; r < R; ++r)
        seen[r].values[at] += weights[r][j] * E::one(values + j * width + at);
}

// Turns scores into weights relative to the largest score seen, and what was seen with them.
INLINE void weigh(float *scores, int64_t count, int64_t width, Seen &seen) {
  Floats most = all(seen.most);
  for (int64_t j = count; j % LANE; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = 0; j < count; j += LANE) most = larger(most, read<Floats>(scores + j));
  float top = largest(most);
  Floats total = all(0.0f);
  for (int64_t j = 0; j < count; j += LANE) {
    Floats weight = exp(read<Floats>(scores + j) - all(top));
    write(scores + j, weight);
    total += weight;
  }
  float fade = top == seen.most ? 1.0f : exp(all(seen.most - top))[0];
  seen.total = seen.total * fade + sum(total);
  seen.most = top;
  if (fade == 1.0f) return;
  for (int64_t c = 0; c < width; ++c) seen.values[c] *= fade;
}

template <class E, int R>
static void attend_stretch(const float *q, const float *slopes, int64_t now, int64_t width,
                           const Stretch &stretch, Seen *seen) {
  typedef typename E::Element Element;
  const Element *keys = (const Element *)stretch.keys, *values = (const Element *)stretch.values;
  for (int64_t begin = 0; begin < stretch.count; begin += BLOCK) {
    int64_t count = stretch.count - begin < BLOCK ? stretch.count - begin : BLOCK;
    float scores[R][BLOCK];
    score<E, R>(q, width, keys + begin * width, count, scores);
    for (int r = 0; r < R; ++r) {
      if (slopes)
        for (int64_t j = 0; j < count; ++j)
          scores[r][j] -= slopes[r] * (float)(now - (stretch.place + begin + j));
      weigh(scores[r], count, width, seen[r]);
    }
    add_all_values<E, R>(scores, values + begin * width, width, count, seen);
  }
}

template <class E>
static void attend_with(int64_t queries, const float *q, const float *slopes, int64_t now,
                        int64_t width, const Stretch &stretch, Seen *seen) {
  for (int64_t r = 0; r < queries;) {
    const float *these = q + r * width, *slope = slopes ? slopes + r : nullptr;
    if (queries - r >= 4) {
      attend_stretch<E, 4>(these, slope, now, width, stretch, seen + r);
      r += 4;
    } else if (queries - r >= 2) {
      attend_stretch<E, 2>(these, slope, now, width, stretch, seen + r);
      r += 2;
    } else {
      attend_stretch<E, 1>(these, slope, now, width, stretch, seen + r);
      r += 1;
    }
  }
}

// Lets queries [queries, width], scaled, of a position `now` see a stretch of one head.
static void attend(int64_t kind, int64_t queries, const float *q, const float *slopes, int64_t now,
                   int64_t width, const Stretch &stretch, Seen *seen) {
  if (kind == F32) attend_with<Full>(queries, q, slopes, now, width, stretch, seen);
  else if (kind == F16) attend_with<Half>(queries, q, slopes, now, width, stretch, seen);
  else attend_with<Brain>(queries, q, slopes, now, width, stretch, seen);
}

// Writes weighted means of what was seen in several pieces, [width].
static void merge(const Seen *pieces, int64_t count, int64_t stride, int64_t width, float *out) {
  float most = -__builtin_inff(), total = 0.0f;
  for (int64_t p = 0; p < count; ++p)
    most = pieces[p * stride].most > most ? pieces[p * stride].most : most;
  for (int64_t c = 0; c < width; ++c) out[c] = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    const Seen &piece = pieces[p * stride];
    float by = exp(all(piece.most - most))[0];
    total += piece.total * by;
    for (int64_t c = 0; c < width; ++c) out[c] += piece.values[c] * by;
  }
  for (int64_t c = 0; c < width; ++c) out[c] /= total;
}

}  // namespace SUFFICE_ISA
