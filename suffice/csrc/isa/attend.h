// Attention of one position to what is held: softmax over blocks of keys, merged as they come.

#pragma once

#include "coded.h"
#include "score.h"

namespace SUFFICE_ISA {

constexpr int64_t SPLIT = 512;     // keys of one piece of work, about
constexpr int64_t WIDEST = 512;    // features of a head
constexpr int64_t MOST_QUERIES = 128;  // heads that share keys
constexpr int64_t FEW_QUERIES = 3;
constexpr int64_t MOST_AT_ONCE = 8;  // queries of one piece of work

// The queries of one row that share keys.
struct Queries {
  const float *q;       // [count, width], scaled
  int64_t count, width;
  const float *slopes;  // [count] or null
  int64_t place;
};

// Takes away what linear biases take from the scores of keys at `place` and after it.
INLINE void lean(float *scores, int64_t count, float slope, int64_t distance) {
  for (int64_t j = 0; j < count; ++j) scores[j] -= slope * (float)(distance - j);
}

// Adds values of a block, weighted, to what some queries have seen.
template <class E>
INLINE void add_to(Seen *seen, int64_t queries, const float (*weights)[BLOCK],
                   const typename E::Element *values, int64_t width, int64_t count) {
  int64_t r = 0;
  for (; r + 4 <= queries; r += 4)
    add_all_values<E, 4>(weights + r, values, width, count, seen + r);
  for (; r + 2 <= queries; r += 2)
    add_all_values<E, 2>(weights + r, values, width, count, seen + r);
  for (; r < queries; ++r) add_all_values<E, 1>(weights + r, values, width, count, seen + r);
}

template <class E>
static void see_numbers(const Queries &queries, const Span &span, int64_t row, int64_t head,
                        Range range, Seen *seen) {
  typedef typename E::Element Element;
  const int64_t width = queries.width;
  const Element *keys = (const Element *)span.keys + row * span.key_row + head * span.key_head;
  const Element *values =
      (const Element *)span.values + row * span.value_row + head * span.value_head;
  float scores[MOST_AT_ONCE][BLOCK];
  for (int64_t begin = range.begin; begin < range.end; begin += BLOCK) {
    int64_t count = range.end - begin < BLOCK ? range.end - begin : BLOCK;
    for (int64_t r = 0; r < queries.count; ++r) {
      score<E>(queries.q + r * width, width, keys + begin * width, count, scores[r]);
      if (queries.slopes) lean(scores[r], count, queries.slopes[r], queries.place - begin);
      weigh(scores[r], count, width, seen[r]);
    }
    add_to<E>(seen, queries.count, scores, values + begin * width, width, count);
  }
}

// What codes of a block are worth.
struct Ranges {
  const float *least, *step;
};

// Values that are keys: of sums of codes, with the ranges of channels.
INLINE void add_tied(Seen *seen, int64_t queries, const float (*weights)[BLOCK],
                     const float *numbers, int64_t width, int64_t count, Ranges ranges) {
  for (int64_t r = 0; r < queries; ++r) {
    float total = 0.0f, codes[WIDEST] = {};
    for (int64_t j = 0; j < count; ++j) total += weights[r][j];
    Seen sum{0.0f, 0.0f, codes};
    add_all_values<Full, 1>(weights + r, numbers, width, count, &sum);
    for (int64_t c = 0; c < width; ++c)
      seen[r].values[c] += total * ranges.least[c] + ranges.step[c] * codes[c];
  }
}

// Coded positions, some at a time. Steps and least numbers of keys go into the queries, those of
// values into the weights, so that codes are only made numbers, once for all queries.
template <class C>
static void see_codes(const Queries &queries, const Span &span, const Held &held, int64_t row,
                      int64_t head, Range range, Seen *seen) {
  const int64_t width = queries.width, block = held.block, bytes = C::bytes(width);
  const bool tied = span.keys == span.values;
  const int64_t group = tied ? width : held.group, groups = (width + group - 1) / group;
  const int64_t filled = C::bytes(groups * group);  // of a value
  const uint8_t *keys = (const uint8_t *)span.keys + row * span.key_row + head * span.key_head;
  const uint8_t *values =
      (const uint8_t *)span.values + row * span.value_row + head * span.value_head;
  const float *key_ranges = span.key_ranges + row * span.key_range_row + head * span.key_range_head;
  const float *value_ranges =
      span.value_ranges + row * span.value_range_row + head * span.value_range_head;
  float stepped[MOST_AT_ONCE * WIDEST], base[MOST_AT_ONCE];
  float scores[MOST_AT_ONCE][BLOCK], by[MOST_AT_ONCE][BLOCK], numbers[BLOCK * WIDEST];
  // products of whole numbers, where codes are made fit for them once for several queries
  const bool in_pieces = width % 4 == 0 && queries.count >= FEW_QUERIES;
  int8_t codes[2 * MOST_AT_ONCE * WIDEST];
  uint8_t pieces[LANES * WIDEST], expanded[BLOCK * WIDEST];
  Fine fine[MOST_AT_ONCE];
  int64_t unit = -1;
  for (int64_t begin = range.begin, count; begin < range.end; begin += count) {
    int64_t end = (begin / block + 1) * block;
    end = end < range.end ? end : range.end;
    count = end - begin < BLOCK ? end - begin : BLOCK;
    const float *least = key_ranges + begin / block * 2 * width, *step = least + width;
    if (begin / block != unit) {
      unit = begin / block;
      for (int64_t r = 0; r < queries.count; ++r) {
        const float *q = queries.q + r * width;
        Floats total = all(0.0f);
        stretches(width, [&](int64_t at, int64_t n) {
          Floats query = get(q + at, n);
          total += query * get(least + at, n);
          put(stepped + r * width + at, query * get(step + at, n), n);
        });
        base[r] = sum(total);
        fine[r].codes = codes + 2 * r * width;
        if (in_pieces) encode_finely(stepped + r * width, width, fine[r]);
      }
    }
    if (in_pieces) {
      const uint8_t *rows = C::as_bytes(keys + begin * bytes, count, width, expanded);
      for (int64_t j = 0; j < count; j += LANES) {
        into_pieces(rows + j * width, count - j, width, pieces);
        for (int64_t r = 0; r < queries.count; ++r)
          write(scores[r] + j, score_pieces(fine[r], pieces, width));
      }
    }
    if (!in_pieces || tied) decode<C>(keys + begin * bytes, bytes, count, width, numbers);
    for (int64_t r = 0; r < queries.count; ++r) {
      if (!in_pieces) score<Full>(stepped + r * width, width, numbers, count, scores[r]);
      for (int64_t j = 0; j < count; ++j) scores[r][j] += base[r];
      if (queries.slopes) lean(scores[r], count, queries.slopes[r], queries.place - begin);
      weigh(scores[r], count, width, seen[r]);
    }
    if (tied) {
      add_tied(seen, queries.count, scores, numbers, width, count, {least, step});
      continue;
    }
    const int64_t in_block = begin - unit * block;
    const float *low = value_ranges + unit * 2 * block * groups + in_block * groups;
    const float *high = low + block * groups;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t at = g * group, wide = width - at < group ? width - at : group;
      float lows[BLOCK] = {}, highs[BLOCK] = {};
      for (int64_t j = 0; j < count; ++j) {
        lows[j] = low[j * groups + g];
        highs[j] = high[j * groups + g];
      }
      Seen these[MOST_AT_ONCE];
      for (int64_t r = 0; r < queries.count; ++r) {
        Floats total = all(0.0f);
        for (int64_t j = 0; j < count; j += LANE) {
          Floats weights = read<Floats>(scores[r] + j);
          total += weights * read<Floats>(lows + j);
          write(by[r] + j, weights * read<Floats>(highs + j));
        }
        float base_of_values = sum(total);
        these[r] = {0.0f, 0.0f, seen[r].values + at};
        for (int64_t c = 0; c < wide; ++c) these[r].values[c] += base_of_values;
      }
      decode<C>(values + begin * filled + C::bytes(at), filled, count, wide, numbers);
      add_to<Full>(these, queries.count, by, numbers, wide, count);
    }
  }
}

// Lets queries see a range of a span; biases count from `queries.place`, in places of the span.
static void see(const Queries &queries, const Span &span, const Held &held, int64_t row,
                int64_t head, Range range, Seen *seen) {
  switch (span.kind) {
    case F32: return see_numbers<Full>(queries, span, row, head, range, seen);
    case F16: return see_numbers<Half>(queries, span, row, head, range, seen);
    case BF16: return see_numbers<Brain>(queries, span, row, head, range, seen);
    case INT8: return see_codes<Byte>(queries, span, held, row, head, range, seen);
    default: return see_codes<Nibble>(queries, span, held, row, head, range, seen);
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
    if (range.begin >= range.end) return;
    for (int64_t r = 0; r < queries.count; r += MOST_AT_ONCE) {
      Queries few = queries;
      few.q += r * few.width;
      few.count = few.count - r < MOST_AT_ONCE ? few.count - r : MOST_AT_ONCE;
      if (few.slopes) few.slopes += r;
      see(few, *span, held, row, head, range, seen + r);
    }
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
