// Attention of one position to what is held: softmax over blocks of keys, merged as they come.

#pragma once

#include "coded.h"

namespace SUFFICE_ISA {

constexpr int64_t BLOCK = 64;      // keys whose scores are kept at once
constexpr int64_t SPLIT = 512;     // keys of one piece of work, about
constexpr int64_t WIDEST = 512;    // features of a head
constexpr int64_t LONGEST = 1024;  // positions coded together
constexpr int64_t MOST_AT_ONCE = 8;  // queries of one piece of work

// What a query has seen so far: the largest score, the sum of weights, weighted values.
struct Seen {
  float most, total;
  float *values;
};

// The queries of one row that share keys.
struct Queries {
  const float *q;       // [count, width], scaled
  int64_t count, width;
  const float *slopes;  // [count] or null
  int64_t place;
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

// Takes away what linear biases take from the scores of keys at `place` and after it.
INLINE void lean(float *scores, int64_t count, float slope, int64_t distance) {
  for (int64_t j = 0; j < count; ++j) scores[j] -= slope * (float)(distance - j);
}

template <class E, int R>
static void see_numbers(const Queries &queries, int64_t r, const Span &span, int64_t row,
                        int64_t head, Range range, Seen *seen) {
  typedef typename E::Element Element;
  const int64_t width = queries.width;
  const Element *keys = (const Element *)span.keys + row * span.key_row + head * span.key_head;
  const Element *values =
      (const Element *)span.values + row * span.value_row + head * span.value_head;
  for (int64_t begin = range.begin; begin < range.end; begin += BLOCK) {
    int64_t count = range.end - begin < BLOCK ? range.end - begin : BLOCK;
    float scores[R][BLOCK];
    score<E, R>(queries.q + r * width, width, keys + begin * width, count, scores);
    for (int i = 0; i < R; ++i) {
      if (queries.slopes) lean(scores[i], count, queries.slopes[r + i], queries.place - begin);
      weigh(scores[i], count, width, seen[r + i]);
    }
    add_all_values<E, R>(scores, values + begin * width, width, count, seen + r);
  }
}

// Coded positions, a block after the other. Steps and least numbers of keys go into the query,
// those of values into the weights, so that only codes are read for each position.
template <class C>
static void see_codes(const Queries &queries, int64_t r, const Span &span, const Held &held,
                      int64_t row, int64_t head, Range range, Seen &seen) {
  const int64_t width = queries.width, block = held.block, bytes = C::bytes(width);
  const bool tied = span.keys == span.values;
  const int64_t group = tied ? width : held.group, groups = (width + group - 1) / group;
  const int64_t filled = C::bytes(groups * group);  // of a value
  const float *q = queries.q + r * width;
  float stepped[WIDEST + LANES], scores[LONGEST + LANES], by[LONGEST + LANES];
  for (int64_t unit = range.begin / block; unit * block < range.end; ++unit) {
    const uint8_t *keys = (const uint8_t *)span.keys + row * span.key_row +
                          head * span.key_head + unit * block * bytes;
    const float *least = span.key_ranges + row * span.key_range_row +
                         head * span.key_range_head + unit * 2 * width;
    const float *steps = least + width;
    float base = 0.0f;
    for (int64_t c = 0; c < width; ++c) {
      base += q[c] * least[c];
      stepped[c] = q[c] * steps[c];
    }
    int64_t from = unit * block < range.begin ? range.begin - unit * block : 0;
    int64_t to = (unit + 1) * block > range.end ? range.end - unit * block : block;
    for (int64_t j = from; j < to; ++j)
      scores[j - from] = base + product_with<C>(stepped, keys + j * bytes, width);
    const int64_t count = to - from;
    if (queries.slopes)
      lean(scores, count, queries.slopes[r], queries.place - (unit * block + from));
    weigh(scores, count, width, seen);
    if (tied) {
      float total = 0.0f, sums[WIDEST + LANES] = {};
      for (int64_t j = 0; j < count; ++j) total += scores[j];
      add_with<C>(sums, scores, keys + from * bytes, bytes, count, width);
      for (int64_t c = 0; c < width; ++c)
        seen.values[c] += total * least[c] + steps[c] * sums[c];
      continue;
    }
    const uint8_t *values = (const uint8_t *)span.values + row * span.value_row +
                            head * span.value_head + (unit * block + from) * filled;
    const float *lows = span.value_ranges + row * span.value_range_row +
                        head * span.value_range_head + unit * 2 * block * groups;
    const float *highs = lows + block * groups;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t at = g * group, wide = width - at < group ? width - at : group;
      float total = 0.0f;
      for (int64_t j = 0; j < count; ++j) {
        total += scores[j] * lows[(from + j) * groups + g];
        by[j] = scores[j] * highs[(from + j) * groups + g];
      }
      add_with<C>(seen.values + at, by, values + C::bytes(at), filled, count, wide);
      for (int64_t c = 0; c < wide; ++c) seen.values[at + c] += total;
    }
  }
}

template <class E>
static void see_numbers_of(const Queries &queries, const Span &span, int64_t row, int64_t head,
                           Range range, Seen *seen) {
  int64_t r = 0;
  for (; r + 4 <= queries.count; r += 4)
    see_numbers<E, 4>(queries, r, span, row, head, range, seen);
  for (; r + 2 <= queries.count; r += 2)
    see_numbers<E, 2>(queries, r, span, row, head, range, seen);
  for (; r < queries.count; ++r) see_numbers<E, 1>(queries, r, span, row, head, range, seen);
}

// Lets queries see a range of a span; biases count from `queries.place`, in places of the span.
static void see(const Queries &queries, const Span &span, const Held &held, int64_t row,
                int64_t head, Range range, Seen *seen) {
  switch (span.kind) {
    case F32: return see_numbers_of<Full>(queries, span, row, head, range, seen);
    case F16: return see_numbers_of<Half>(queries, span, row, head, range, seen);
    case BF16: return see_numbers_of<Brain>(queries, span, row, head, range, seen);
    case INT8:
      for (int64_t r = 0; r < queries.count; ++r)
        see_codes<Byte>(queries, r, span, held, row, head, range, seen[r]);
      return;
    default:
      for (int64_t r = 0; r < queries.count; ++r)
        see_codes<Nibble>(queries, r, span, held, row, head, range, seen[r]);
  }
}

// Pieces of work in a span; blocks of codes are not cut.
INLINE int64_t piece_of(const Held &held, const Span &span) {
  if (span.kind != INT8 && span.kind != INT4) return SPLIT;
  return (SPLIT + held.block - 1) / held.block * held.block;
}

INLINE int64_t pieces_of(const Held &held, const Span &span) {
  if (span.end <= span.first) return 0;
  int64_t piece = piece_of(held, span);
  return (span.end - 1) / piece - span.first / piece + 1;
}

static int64_t pieces_of(const Held &held) {
  return pieces_of(held, held.sinks) + pieces_of(held, held.coded) + pieces_of(held, held.near);
}

// The most there can be, with at most `longest` positions in each span.
static int64_t most_pieces(int64_t longest) { return 3 * (longest / SPLIT + 2); }

// Lets the queries of one row and head see one piece of what is held.
static void see_piece(Queries queries, const Held &held, int64_t row, int64_t head, int64_t padding,
                      int64_t number, Seen *seen) {
  for (const Span *span = &held.sinks; span <= &held.near; ++span) {
    int64_t pieces = pieces_of(held, *span);
    if (number >= pieces) {
      number -= pieces;
      continue;
    }
    int64_t piece = piece_of(held, *span), start = (span->first / piece + number) * piece;
    int64_t first = span->first > padding - span->shift ? span->first : padding - span->shift;
    Range range = {start > first ? start : first,
                   start + piece < span->end ? start + piece : span->end};
    queries.place -= span->shift - padding;
    if (range.begin < range.end) see(queries, *span, held, row, head, range, seen);
    return;
  }
}

// Writes the weighted mean of what was seen in several pieces, [width].
static void merge(const Seen *pieces, int64_t count, int64_t width, float *out) {
  float most = -__builtin_inff(), total = 0.0f;
  for (int64_t p = 0; p < count; ++p) most = pieces[p].most > most ? pieces[p].most : most;
  for (int64_t c = 0; c < width; ++c) out[c] = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    if (pieces[p].total == 0.0f) continue;
    float by = exp(all(pieces[p].most - most))[0];
    total += pieces[p].total * by;
    for (int64_t c = 0; c < width; ++c) out[c] += pieces[p].values[c] * by;
  }
  if (total == 0.0f) return;
  for (int64_t c = 0; c < width; ++c) out[c] /= total;
}

}  // namespace SUFFICE_ISA
