// Attention to a quantised KV cache (keys and values of 8 or 4 bits each).

#pragma once

#include "quantised_values.h"

namespace SUFFICE_ISA {

// Dequantisation of a block: value = least + step * code.
struct Ranges {
  const float *least, *step;
};

INLINE float sum_of(const float *weights, int64_t count) {  // padded with zeros to whole vectors
  Floats total = all(0.0f);
  for (int64_t j = 0; j < count; j += LANE) total += read<Floats>(weights + j);
  return sum(total);
}

// Adds values that are the keys themselves (MLA): dequantises the weighted sum of codes per
// channel.
INLINE void add_tied(SoftmaxState *states, int64_t queries, const float (*weights)[BLOCK],
                     const float *numbers, int64_t width, int64_t count, Ranges ranges) {
  for (int64_t r = 0; r < queries; ++r) {
    float total = sum_of(weights[r], count), codes[MAX_HEAD_DIM] = {};
    SoftmaxState sum{0.0f, 0.0f, codes};
    add_all_values<Full, 1>(weights + r, numbers, width, width, count, &sum);
    for (int64_t c = 0; c < width; ++c)
      states[r].values[c] += total * ranges.least[c] + ranges.step[c] * codes[c];
  }
}

// Online softmax over a quantised span. The ranges of keys are folded into the queries and those of
// values into the weights, so that codes are converted at most once for all queries and never
// scaled.
template <class Keys, class Values>
static void attend_codes(const Queries &queries, const Span &span, const KVCache &cache,
                         int64_t row, int64_t head, Range range, SoftmaxState *states) {
  const CodeLayout layout = CodeLayout::of<Keys, Values>(span, cache, queries.width, row, head);
  const auto &[keys, values, key_ranges, value_ranges, width, block, bytes, group, groups, filled,
               tied] = layout;
  // integer products, where packing the keys is worth it for this number of queries
  const bool packed = width % 4 == 0 && (queries.count >= MIN_CODE_QUERIES || shuffles(width));
  ScaledQueries scaled_queries;
  float scores[QUERY_TILE][BLOCK], factor[QUERY_TILE][BLOCK], numbers[BLOCK * MAX_HEAD_DIM];
  uint8_t expanded[BLOCK * MAX_HEAD_DIM];
  ValueSums value_sums;
  const bool interleaved = ValueSums::serves(group) && width % group == 0;
  int64_t unit = -1;
  for (int64_t begin = range.begin, end; begin < range.end; begin = end) {
    end = layout.end(begin, range);
    const int64_t count = end - begin;
    const float *least = layout.least(begin), *step = least + width;
    if (begin / block != unit) scaled_queries.take(queries, least, packed);
    unit = begin / block;
    const uint8_t *rows = nullptr;
    if (packed) {
      rows = Keys::as_bytes(keys + begin * bytes, count, width, expanded);
      score_codes(scaled_queries, rows, queries.count, count, width, scores);
    }
    if (!packed || (tied && !interleaved))
      decode<Keys>(keys + begin * bytes, bytes, count, width, numbers);
    if (!packed) score<Full>(scaled_queries.q, queries.count, width, numbers, width, count, scores);
    for (int64_t r = 0; r < queries.count; ++r) {
      if (!packed)
        for (int64_t j = 0; j < count; ++j) scores[r][j] += scaled_queries.base[r];
      apply_score_mods(queries, r, begin, count, scores[r]);
      online_softmax(scores[r], count, width, states[r]);
    }
    if (tied && interleaved) {
      for (int64_t r = 0; r < queries.count; ++r) factor[r][0] = sum_of(scores[r], count);
      ValueSums::each<Byte>(value_sums, rows, width, count, width, queries.count, scores,
                            [&](int64_t r, int64_t c, Wide sums) {
                              float *to = states[r].values + c;
                              write(to, read<Wide>(to) + wide(factor[r][0]) * read<Wide>(least + c) +
                                            read<Wide>(step + c) * sums);
                            });
      continue;
    }
    if (tied) {
      add_tied(states, queries.count, scores, numbers, width, count, {least, step});
      continue;
    }
    const float *low = layout.value_least(begin);
    const float *high = low + block * groups;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t at = g * group, wide = width - at < group ? width - at : group;
      const float *low_of = low, *step_of = high;
      float lows[BLOCK], steps[BLOCK];
      if (groups > 1 || count < BLOCK) {  // gather a column of ranges; the tail is 0
        for (int64_t j = 0; j < BLOCK; ++j) {
          lows[j] = j < count ? low[j * groups + g] : 0.0f;
          steps[j] = j < count ? high[j * groups + g] : 0.0f;
        }
        low_of = lows;
        step_of = steps;
      }
      SoftmaxState group_states[QUERY_TILE];
      for (int64_t r = 0; r < queries.count; ++r) {
        Floats total = all(0.0f);
        for (int64_t j = 0; j < count; j += LANE) {
          Floats weights = read<Floats>(scores[r] + j);
          total += weights * read<Floats>(low_of + j);
          write(factor[r] + j, weights * read<Floats>(step_of + j));
        }
        float base_of_values = sum(total);
        group_states[r] = {0.0f, 0.0f, states[r].values + at};
        for (int64_t c = 0; c < wide; ++c) group_states[r].values[c] += base_of_values;
      }
      if (interleaved) {
        ValueSums::each<Values>(value_sums, values + begin * filled + Values::bytes(at), filled,
                                count, wide, queries.count, factor,
                                [&](int64_t r, int64_t c, Wide sums) {
                                  float *to = group_states[r].values + c;
                                  write(to, read<Wide>(to) + sums);
                                });
        continue;
      }
      decode<Values>(values + begin * filled + Values::bytes(at), filled, count, wide, numbers);
      add_weighted_values<Full>(group_states, queries.count, factor, numbers, wide, wide, count);
    }
  }
}

}  // namespace SUFFICE_ISA
