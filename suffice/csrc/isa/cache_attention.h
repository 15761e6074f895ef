// Attention to a KV cache split by split: online softmax over blocks of keys within a split, and
// the merge of the splits.

#pragma once

#include "quantised_attention.h"
#include "query_lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t SPLIT_KEYS =
    512;  // keys of a split; quantised caches round it up to whole blocks

template <class E>
static void attend_floats(const Queries &queries, const Span &span, int64_t row, int64_t head,
                        Range range, SoftmaxState *states) {
  typedef typename E::Element Element;
  constexpr int64_t SIZE = sizeof(Element);
  const int64_t width = queries.width, value_width = queries.value_width;
  const int64_t key_step = span.key_step, value_step = span.value_step;
  const bool tied = span.keys == span.values;
  const Element *keys = (const Element *)span.keys + row * span.key_row + head * span.key_head;
  const Element *values =
      (const Element *)span.values + row * span.value_row + head / queries.maps * span.value_head;
  float scores[QUERY_TILE][BLOCK];
  for (int64_t begin = range.begin; begin < range.end; begin += BLOCK) {
    const int64_t remaining = range.end - begin, count = remaining < BLOCK ? remaining : BLOCK;
    const int64_t next = remaining - count < BLOCK ? remaining - count : BLOCK;
    if (!tied)
      prefetch_rows(values + begin * value_step, value_step * SIZE, count, value_width * SIZE);
    score<E>(queries.q, queries.count, width, keys + begin * key_step, key_step, count, scores);
    for (int64_t r = 0; r < queries.count; ++r) {
      apply_score_mods(queries, r, begin, count, scores[r]);
      online_softmax(scores[r], count, value_width, states[r]);
    }
    prefetch_rows(keys + (begin + BLOCK) * key_step, key_step * SIZE, next, width * SIZE);
    add_weighted_values<E>(states, queries.count, scores, values + begin * value_step, value_step,
                           value_width, count);
  }
}

// Attends queries to a range of a span. Distances for biases count from `queries.place`, a position
// of the span.
static void attend_span(const Queries &queries, const Span &span, const KVCache &cache, int64_t row,
                int64_t head, Range range, SoftmaxState *states) {
  switch (span.kind) {
    case F32: return attend_floats<Full>(queries, span, row, head, range, states);
    case F16: return attend_floats<Half>(queries, span, row, head, range, states);
    case BF16: return attend_floats<Brain>(queries, span, row, head, range, states);
    case INT8:
      return span.value_kind == INT8
                 ? attend_codes<Byte, Byte>(queries, span, cache, row, head, range, states)
                 : attend_codes<Byte, Nibble>(queries, span, cache, row, head, range, states);
    default:
      return span.value_kind == INT8
                 ? attend_codes<Nibble, Byte>(queries, span, cache, row, head, range, states)
                 : attend_codes<Nibble, Nibble>(queries, span, cache, row, head, range, states);
  }
}

// Keys of a split; a quantised block is never cut.
INLINE int64_t split_size(const KVCache &cache, const Span &span) {
  if (span.kind != INT8 && span.kind != INT4) return SPLIT_KEYS;
  return (SPLIT_KEYS + cache.block - 1) / cache.block * cache.block;
}

INLINE int64_t num_splits(const KVCache &cache, const Span &span) {
  if (span.end <= span.first) return 0;
  int64_t split = split_size(cache, span);
  return (span.end - 1) / split - span.first / split + 1;
}

static int64_t num_splits(const KVCache &cache) {
  return num_splits(cache, cache.sinks) + num_splits(cache, cache.coded) +
         num_splits(cache, cache.near);
}

// Upper bound of the number of splits, with at most `longest` positions in each span.
static int64_t max_splits(int64_t longest) { return 3 * (longest / SPLIT_KEYS + 2); }

// Attends the queries of one row and KV head to split `split_index` of the cache.
static void attend_split(Queries queries, const KVCache &cache, int64_t row, int64_t head,
                         int64_t padding, int64_t split_index, SoftmaxState *states) {
  for (const Span *span = &cache.sinks; span <= &cache.near; ++span) {
    int64_t splits = num_splits(cache, *span);
    if (split_index >= splits) {
      split_index -= splits;
      continue;
    }
    int64_t split = split_size(cache, *span), start = (span->first / split + split_index) * split;
    const int64_t seen = queries.oldest > padding ? queries.oldest : padding;
    const int64_t first = span->first > seen - span->shift ? span->first : seen - span->shift;
    const int64_t last = queries.end - span->shift, end = span->end < last ? span->end : last;
    Range range = {start > first ? start : first, start + split < end ? start + split : end};
    queries.place -= span->shift - padding;
    queries.row = row;
    queries.head = head;
    queries.shift = span->shift;
    if (range.begin >= range.end) return;
    if (fits_query_lanes(queries, *span))
      return attend_query_lanes(queries, *span, row, head, range, states);
    for (int64_t r = 0; r < queries.count; r += QUERY_TILE) {
      Queries tile = queries;
      tile.q += r * tile.width;
      tile.count = tile.count - r < QUERY_TILE ? tile.count - r : QUERY_TILE;
      tile.first_index = r;
      attend_span(tile, *span, cache, row, head, range, states + r);
    }
    return;
  }
}

// Merges the partial softmaxes of the splits into one output [width]. `logit` is an attention sink:
// one more term of the denominator that has no value.
static void combine_splits(const SoftmaxState *splits, int64_t count, int64_t width, float *out,
                  const float *logit = nullptr) {
  float row_max = logit ? *logit : -__builtin_inff(), total = 0.0f;
  for (int64_t p = 0; p < count; ++p)
    row_max = splits[p].row_max > row_max ? splits[p].row_max : row_max;
  for (int64_t c = 0; c < width; ++c) out[c] = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    if (splits[p].total == 0.0f) continue;
    float factor = exp_one(splits[p].row_max - row_max);
    total += splits[p].total * factor;
    for (int64_t c = 0; c < width; ++c) out[c] += splits[p].values[c] * factor;
  }
  if (total == 0.0f) return;
  if (logit) total += exp_one(*logit - row_max);
  for (int64_t c = 0; c < width; ++c) out[c] /= total;
}

}  // namespace SUFFICE_ISA
