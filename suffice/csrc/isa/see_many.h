// Many queries on one key, as all heads of latent attention: a query is a lane. Each key is read once
// for all of them, by a small product of matrices, and no softmax needs a sum across lanes.

#pragma once

#include "queries.h"
#include "rows.h"
#include "score.h"
#include "tile.h"

namespace SUFFICE_ISA {

constexpr int64_t MANY = 12;       // queries from which on lanes are full enough
constexpr int64_t MANY_KEYS = 48;  // keys whose scores are kept at once, whole products of ROWS
static_assert(MANY_KEYS % ROWS == 0, "whole products");

// Asks for rows of a cache that are read soon. The second cache is meant: the nearest is too small for
// a block of keys and one of values.
static void ask_for(const void *rows, int64_t step, int64_t count, int64_t bytes) {
  const char *row = (const char *)rows;
  for (int64_t j = 0; j < count; ++j, row += step)
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 0, 2);
}

// Whether nothing tells queries apart but their numbers, so that they can be lanes.
INLINE bool are_many(const Queries &queries, const Span &span) {
  const bool codes = span.kind == INT8 || span.kind == INT4;
  return queries.count >= MANY && !codes && !queries.slopes && !queries.look;
}

// Rows where they lie, or as float32 in `room`; the last one again up to whole products.
template <class E>
INLINE void list_rows(const typename E::Element *from, int64_t step, int64_t count, int64_t width,
                      float *room, const float **rows) {
  for (int64_t j = 0; j < count; ++j, from += step) {
    if constexpr (sizeof(typename E::Element) == sizeof(float)) {
      rows[j] = (const float *)from;
      continue;
    }
    float *to = room + j * width;
    int64_t at = 0;
    for (; at + WIDE <= width; at += WIDE) write(to + at, E::part(from + at));
    for (; at < width; ++at) to[at] = E::one(from + at);
    rows[j] = to;
  }
  for (int64_t j = count; j % ROWS; ++j) rows[j] = rows[count - 1];
}

template <class E, int C>
APART void see_lanes(const Queries &queries, const typename E::Element *keys, int64_t key_step,
                     const typename E::Element *values, int64_t value_step, Range range, Seen *seen) {
  constexpr int64_t N = C * WIDE, SIZE = sizeof(typename E::Element);
  constexpr int64_t COPIED = SIZE == sizeof(float) ? 1 : MANY_KEYS * WIDEST;
  const int64_t width = queries.width, value_width = queries.value_width;
  const bool tied = keys == values && key_step == value_step && value_width <= width;
  alignas(64) float columns[WIDEST * N], sums[WIDEST * N], scores[MANY_KEYS * N];
  float copied_keys[COPIED], copied_values[COPIED];
  const float *key_rows[MANY_KEYS], *value_rows[MANY_KEYS];
  turn_rows<C>(queries.q, width, queries.count, width, 1.0f, columns);
  Wide most[C], total[C], by[C];
  UNROLL for (int c = 0; c < C; ++c) most[c] = wide(-3e38f), total[c] = by[c] = Wide{};
  constexpr float BITS = LOG2E;
  for (int64_t begin = range.begin; begin < range.end; begin += MANY_KEYS) {
    const int64_t left = range.end - begin, count = left < MANY_KEYS ? left : MANY_KEYS;
    const int64_t next = left - count < MANY_KEYS ? left - count : MANY_KEYS;
    list_rows<E>(keys + begin * key_step, key_step, count, width, copied_keys, key_rows);
    if (!tied) ask_for(values + begin * value_step, value_step * SIZE, count, value_width * SIZE);
    for (int64_t j = 0; j < count; j += ROWS) {
      Wide products[ROWS][C];
      multiply_rows<ROWS, C>(key_rows + j, width, columns, products);
      UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int c = 0; c < C; ++c) write(scores + (j + r) * N + c * WIDE, products[r][c]);
    }
    if (queries.cap != 0.0f) bound(queries, count * N, scores);
    ask_for(keys + (begin + count) * key_step, key_step * SIZE, next, width * SIZE);
    UNROLL for (int c = 0; c < C; ++c) {
      Wide top = most[c];
      for (int64_t j = 0; j < count; ++j) top = above(read<Wide>(scores + j * N + c * WIDE), top);
      by[c] = power((most[c] - top) * wide(BITS));
      most[c] = top;
      Wide more = {};
      for (int64_t j = 0; j < count; ++j) {
        float *at = scores + j * N + c * WIDE;
        const Wide weight = power((read<Wide>(at) - top) * wide(BITS));
        write(at, weight);
        more += weight;
      }
      total[c] = total[c] * by[c] + more;
    }
    if (!tied)
      list_rows<E>(values + begin * value_step, value_step, count, value_width, copied_values, value_rows);
    add_all_columns<C>(tied ? key_rows : value_rows, count, value_width, scores, by,
                       begin == range.begin, sums);
  }
  Wide ones[C];
  UNROLL for (int c = 0; c < C; ++c) ones[c] = wide(1.0f);
  const int64_t stride = queries.count > 1 ? seen[1].values - seen[0].values : 0;
  turn_columns<C>(sums, ones, queries.count, value_width, seen[0].values, stride);
  float last_most[N], last_total[N];
  UNROLL for (int c = 0; c < C; ++c) write(last_most + c * WIDE, most[c]), write(last_total + c * WIDE, total[c]);
  for (int64_t r = 0; r < queries.count; ++r) seen[r].most = last_most[r], seen[r].total = last_total[r];
}

template <class E>
static void see_many_of(const Queries &queries, const Span &span, int64_t row, int64_t head, Range range,
                        Seen *seen) {
  typedef typename E::Element Element;
  const Element *keys = (const Element *)span.keys + row * span.key_row + head * span.key_head;
  const Element *values =
      (const Element *)span.values + row * span.value_row + head / queries.maps * span.value_head;
  for (int64_t r = 0; r < queries.count; r += MOST_LANES) {
    Queries few = queries;
    few.q += r * few.width;
    few.count = few.count - r < MOST_LANES ? few.count - r : MOST_LANES;
    if (few.count > WIDE)
      see_lanes<E, COLUMNS>(few, keys, span.key_step, values, span.value_step, range, seen + r);
    else
      see_lanes<E, 1>(few, keys, span.key_step, values, span.value_step, range, seen + r);
  }
}

// Lets queries that have seen nothing yet see a range of a span without codes; their values lie a
// constant stride apart.
static void see_many(const Queries &queries, const Span &span, int64_t row, int64_t head, Range range,
                     Seen *seen) {
  switch (span.kind) {
    case F32: return see_many_of<Full>(queries, span, row, head, range, seen);
    case F16: return see_many_of<Half>(queries, span, row, head, range, seen);
    default: return see_many_of<Brain>(queries, span, row, head, range, seen);
  }
}

}  // namespace SUFFICE_ISA
