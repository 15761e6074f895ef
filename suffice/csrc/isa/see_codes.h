// Queries see positions in codes.

#pragma once

#include "fours.h"

namespace SUFFICE_ISA {

// What codes of a block are worth.
struct Ranges {
  const float *least, *step;
};

INLINE float sum_of(const float *weights, int64_t count) {  // zeros follow up to a whole vector
  Floats total = all(0.0f);
  for (int64_t j = 0; j < count; j += LANE) total += read<Floats>(weights + j);
  return sum(total);
}

// Values that are keys: of sums of codes, with the ranges of channels.
INLINE void add_tied(Seen *seen, int64_t queries, const float (*weights)[BLOCK],
                     const float *numbers, int64_t width, int64_t count, Ranges ranges) {
  for (int64_t r = 0; r < queries; ++r) {
    float total = sum_of(weights[r], count), codes[WIDEST] = {};
    Seen sum{0.0f, 0.0f, codes};
    add_all_values<Full, 1>(weights + r, numbers, width, width, count, &sum);
    for (int64_t c = 0; c < width; ++c)
      seen[r].values[c] += total * ranges.least[c] + ranges.step[c] * codes[c];
  }
}

// Coded positions, some at a time. Steps and least numbers of keys go into the queries, those of
// values into the weights, so that codes are only made numbers, once for all queries.
template <class C>
static void see_codes(const Queries &queries, const Span &span, const KVCache &cache, int64_t row,
                      int64_t head, Range range, Seen *seen) {
  const CodesAt at_codes = CodesAt::of<C>(span, cache, queries.width, row, head);
  const auto &[keys, values, key_ranges, value_ranges, width, block, bytes, group, groups, filled,
               tied] = at_codes;
  // products of whole numbers, where codes are made fit for them once for several queries
  const bool in_pieces = width % 4 == 0 && (queries.count >= FEW_QUERIES || shuffles(width));
  Stepped stepped;
  float scores[MOST_AT_ONCE][BLOCK], by[MOST_AT_ONCE][BLOCK], numbers[BLOCK * WIDEST];
  uint8_t expanded[BLOCK * WIDEST];
  Fours fours;
  const bool in_fours = Fours::serves(group) && width % group == 0;
  int64_t unit = -1;
  for (int64_t begin = range.begin, end; begin < range.end; begin = end) {
    end = at_codes.end(begin, range);
    const int64_t count = end - begin;
    const float *least = at_codes.least(begin), *step = least + width;
    if (begin / block != unit) stepped.take(queries, least, in_pieces);
    unit = begin / block;
    const uint8_t *rows = nullptr;
    if (in_pieces) {
      rows = C::as_bytes(keys + begin * bytes, count, width, expanded);
      score_codes(stepped, rows, queries.count, count, width, scores);
    }
    if (!in_pieces || (tied && !in_fours)) decode<C>(keys + begin * bytes, bytes, count, width, numbers);
    if (!in_pieces) score<Full>(stepped.q, queries.count, width, numbers, width, count, scores);
    for (int64_t r = 0; r < queries.count; ++r) {
      if (!in_pieces)
        for (int64_t j = 0; j < count; ++j) scores[r][j] += stepped.base[r];
      bend(queries, r, begin, count, scores[r]);
      weigh(scores[r], count, width, seen[r]);
    }
    if (tied && in_fours) {
      for (int64_t r = 0; r < queries.count; ++r) by[r][0] = sum_of(scores[r], count);
      Fours::each(fours, rows, width, count, width, queries.count, scores,
                  [&](int64_t r, int64_t c, Wide sums) {
                    float *to = seen[r].values + c;
                    write(to, read<Wide>(to) + wide(by[r][0]) * read<Wide>(least + c) +
                                  read<Wide>(step + c) * sums);
                  });
      continue;
    }
    if (tied) {
      add_tied(seen, queries.count, scores, numbers, width, count, {least, step});
      continue;
    }
    const float *low = at_codes.value_least(begin);
    const float *high = low + block * groups;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t at = g * group, wide = width - at < group ? width - at : group;
      const float *low_of = low, *step_of = high;
      float lows[BLOCK], steps[BLOCK];
      if (groups > 1 || count < BLOCK) {  // beside each other, zeros behind them
        for (int64_t j = 0; j < BLOCK; ++j) {
          lows[j] = j < count ? low[j * groups + g] : 0.0f;
          steps[j] = j < count ? high[j * groups + g] : 0.0f;
        }
        low_of = lows;
        step_of = steps;
      }
      Seen these[MOST_AT_ONCE];
      for (int64_t r = 0; r < queries.count; ++r) {
        Floats total = all(0.0f);
        for (int64_t j = 0; j < count; j += LANE) {
          Floats weights = read<Floats>(scores[r] + j);
          total += weights * read<Floats>(low_of + j);
          write(by[r] + j, weights * read<Floats>(step_of + j));
        }
        float base_of_values = sum(total);
        these[r] = {0.0f, 0.0f, seen[r].values + at};
        for (int64_t c = 0; c < wide; ++c) these[r].values[c] += base_of_values;
      }
      if (in_fours) {
        if (!g) rows = C::as_bytes(values + begin * filled, count, width, expanded);
        Fours::each(fours, rows + at, width, count, wide, queries.count, by,
                    [&](int64_t r, int64_t c, Wide sums) {
                      float *to = these[r].values + c;
                      write(to, read<Wide>(to) + sums);
                    });
        continue;
      }
      decode<C>(values + begin * filled + C::bytes(at), filled, count, wide, numbers);
      add_to<Full>(these, queries.count, by, numbers, wide, wide, count);
    }
  }
}

}  // namespace SUFFICE_ISA
