// Decode attention with one query per SIMD lane, for many queries that share keys (all heads of
// MLA). Each key is read once for all queries, by a small matrix product, and the softmax needs no
// horizontal reduction.

#pragma once

#include "queries.h"
#include "rows.h"
#include "key_block.h"
#include "tile.h"

namespace SUFFICE_ISA {

constexpr int64_t MIN_LANE_QUERIES = 12;       // with fewer queries too many lanes idle
constexpr int64_t LANE_KEY_BLOCK = 48;  // keys per online-softmax step, a multiple of ROWS
static_assert(LANE_KEY_BLOCK % ROWS == 0, "whole products");

// Prefetches rows of a cache into L2: L1 is too small for a block of keys and one of values.
static void prefetch_rows(const void *rows, int64_t step, int64_t count, int64_t bytes) {
  const char *row = (const char *)rows;
  for (int64_t j = 0; j < count; ++j, row += step)
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 0, 2);
}

// Whether queries differ in nothing but their features (no bias, no mask), so that they can be
// lanes.
INLINE bool fits_query_lanes(const Queries &queries, const Span &span) {
  const bool codes = span.kind == INT8 || span.kind == INT4;
  return queries.count >= MIN_LANE_QUERIES && !codes && !queries.slopes && !queries.attention;
}

// Lists pointers to float32 rows: in place, or converted into `buffer`. The last row is repeated up
// to a multiple of ROWS (tail).
template <class E>
INLINE void list_row_pointers(const typename E::Element *from, int64_t step, int64_t count,
                              int64_t width, float *buffer, const float **rows) {
  for (int64_t j = 0; j < count; ++j, from += step) {
    if constexpr (sizeof(typename E::Element) == sizeof(float)) {
      rows[j] = (const float *)from;
      continue;
    }
    float *to = buffer + j * width;
    int64_t at = 0;
    for (; at + WIDE <= width; at += WIDE) write(to + at, E::part(from + at));
    for (; at < width; ++at) to[at] = E::one(from + at);
    rows[j] = to;
  }
  for (int64_t j = count; j % ROWS; ++j) rows[j] = rows[count - 1];
}

template <class E, int C>
NOINLINE void attend_lanes(const Queries &queries, const typename E::Element *keys,
                           int64_t key_step, const typename E::Element *values, int64_t value_step,
                           Range range, SoftmaxState *states) {
  constexpr int64_t N = C * WIDE, SIZE = sizeof(typename E::Element);
  constexpr int64_t COPIED = SIZE == sizeof(float) ? 1 : LANE_KEY_BLOCK * MAX_HEAD_DIM;
  const int64_t width = queries.width, value_width = queries.value_width;
  const bool tied = keys == values && key_step == value_step && value_width <= width;
  alignas(64) float columns[MAX_HEAD_DIM * N], sums[MAX_HEAD_DIM * N], scores[LANE_KEY_BLOCK * N];
  float copied_keys[COPIED], copied_values[COPIED];
  const float *key_rows[LANE_KEY_BLOCK], *value_rows[LANE_KEY_BLOCK];
  rows_to_lanes<C>(queries.q, width, queries.count, width, 1.0f, columns);
  Wide row_max[C], total[C], factor[C];
  UNROLL for (int c = 0; c < C; ++c) row_max[c] = wide(-3e38f), total[c] = factor[c] = Wide{};
  constexpr float BITS = LOG2E;
  for (int64_t begin = range.begin; begin < range.end; begin += LANE_KEY_BLOCK) {
    const int64_t remaining = range.end - begin,
                  count = remaining < LANE_KEY_BLOCK ? remaining : LANE_KEY_BLOCK;
    const int64_t next = remaining - count < LANE_KEY_BLOCK ? remaining - count : LANE_KEY_BLOCK;
    list_row_pointers<E>(keys + begin * key_step, key_step, count, width, copied_keys, key_rows);
    if (!tied)
      prefetch_rows(values + begin * value_step, value_step * SIZE, count, value_width * SIZE);
    for (int64_t j = 0; j < count; j += ROWS) {
      Wide products[ROWS][C];
      multiply_rows<ROWS, C>(key_rows + j, width, columns, products);
      UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int c = 0; c < C; ++c) write(scores + (j + r) * N + c * WIDE, products[r][c]);
    }
    if (queries.cap != 0.0f) soft_cap(queries, count * N, scores);
    prefetch_rows(keys + (begin + count) * key_step, key_step * SIZE, next, width * SIZE);
    UNROLL for (int c = 0; c < C; ++c) {
      Wide top = row_max[c];
      for (int64_t j = 0; j < count; ++j) top = maximum(read<Wide>(scores + j * N + c * WIDE), top);
      factor[c] = exp2_negative((row_max[c] - top) * wide(BITS));
      row_max[c] = top;
      Wide more = {};
      for (int64_t j = 0; j < count; ++j) {
        float *at = scores + j * N + c * WIDE;
        const Wide weight = exp2_negative((read<Wide>(at) - top) * wide(BITS));
        write(at, weight);
        more += weight;
      }
      total[c] = total[c] * factor[c] + more;
    }
    if (!tied)
      list_row_pointers<E>(values + begin * value_step, value_step, count, value_width,
                           copied_values, value_rows);
    add_all_columns<C>(tied ? key_rows : value_rows, count, value_width, scores, factor,
                       begin == range.begin, sums);
  }
  Wide ones[C];
  UNROLL for (int c = 0; c < C; ++c) ones[c] = wide(1.0f);
  const int64_t stride = queries.count > 1 ? states[1].values - states[0].values : 0;
  lanes_to_rows<C>(sums, ones, queries.count, value_width, states[0].values, stride);
  float last_max[N], last_total[N];
  UNROLL for (int c = 0; c < C; ++c)
    write(last_max + c * WIDE, row_max[c]), write(last_total + c * WIDE, total[c]);
  for (int64_t r = 0; r < queries.count; ++r)
    states[r].row_max = last_max[r], states[r].total = last_total[r];
}

template <class E>
static void attend_query_lanes_of(const Queries &queries, const Span &span, int64_t row,
                                  int64_t head, Range range, SoftmaxState *states) {
  typedef typename E::Element Element;
  const Element *keys = (const Element *)span.keys + row * span.key_row + head * span.key_head;
  const Element *values =
      (const Element *)span.values + row * span.value_row + head / queries.maps * span.value_head;
  for (int64_t r = 0; r < queries.count; r += MAX_LANES) {
    Queries tile = queries;
    tile.q += r * tile.width;
    tile.count = tile.count - r < MAX_LANES ? tile.count - r : MAX_LANES;
    if (tile.count > WIDE)
      attend_lanes<E, COLUMNS>(tile, keys, span.key_step, values, span.value_step, range,
                               states + r);
    else
      attend_lanes<E, 1>(tile, keys, span.key_step, values, span.value_step, range, states + r);
  }
}

// Attends queries with empty states to a range of a float span. The values of the states lie a
// constant stride apart.
static void attend_query_lanes(const Queries &queries, const Span &span, int64_t row, int64_t head,
                               Range range, SoftmaxState *states) {
  switch (span.kind) {
    case F32: return attend_query_lanes_of<Full>(queries, span, row, head, range, states);
    case F16: return attend_query_lanes_of<Half>(queries, span, row, head, range, states);
    default: return attend_query_lanes_of<Brain>(queries, span, row, head, range, states);
  }
}

}  // namespace SUFFICE_ISA
