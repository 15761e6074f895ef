// Linear attention within a strip: causal query-key products, and prefix sums of all earlier keys.
//
// Letters: F features, N = STRIP lanes, E width of values, rounded up to whole vectors.

#pragma once

#include "features.h"

namespace SUFFICE_ISA {

constexpr int64_t TRIANGLE_ROWS = 16;  // row block of the causal triangle

// Prefix sums over keys: features times values (numerator) and features (denominator).
struct PrefixSums {
  float *sums, *totals;  // [F, E], [F]
  float level;
  bool empty;
};

INLINE int64_t padded_to(int64_t width, int64_t to) { return (width + to - 1) / to * to; }

INLINE int64_t group_of(const Linear &l) { return l.heads / l.kv_heads; }

// Adds to `to` [count] the sums of rows [count, stride] over lanes begin to end - 1, weighted by
// `weights` if given.
NOINLINE void add_lane_sums(const float *rows, int64_t stride, int64_t count, int64_t begin,
                         int64_t end, const float *weights, float *to) {
  float kept[STRIP];
  for (int64_t i = 0; i < STRIP; ++i)
    kept[i] = i < begin || i >= end ? 0.0f : weights ? weights[i] : 1.0f;
  int64_t first = begin / WIDE * WIDE;
  for (int64_t f = 0; f < count; f += WIDE) {
    int64_t some = count - f < WIDE ? count - f : WIDE;
    Wide sums[WIDE] = {};
    for (int64_t i = 0; i < some; ++i)
      for (int64_t lane = first; lane < end; lane += WIDE)
        sums[i] += read<Wide>(rows + (f + i) * stride + lane) * read<Wide>(kept + lane);
    Wide found = sums_of(sums);
    if (some == WIDE) write(to + f, read<Wide>(to + f) + found);
    else write_some(to + f, read_some(to + f, some) + found, some);
  }
}

static void rescale(PrefixSums &prefix, int64_t features, int64_t columns, const Segment &segment) {
  if (prefix.empty) return;
  prefix.empty = segment.kept == 0.0f;
  if (prefix.empty || segment.kept == 1.0f) return;
  for (int64_t i = 0; i < features * columns; ++i) prefix.sums[i] *= segment.kept;
  for (int64_t f = 0; f < features; ++f) prefix.totals[f] *= segment.kept;
}

// Adds features [F, N] times values [N, E] of lanes begin to end - 1.
static void add_to_prefix(PrefixSums &prefix, int64_t features, const float *lanes,
                          const float *rows, int64_t columns, int64_t begin, int64_t end) {
  if (prefix.empty)
    for (int64_t f = 0; f < features; ++f) prefix.totals[f] = 0.0f;
  add_product<ALONG>(lanes + begin, STRIP, features, rows + begin * columns, columns,
                     columns / WIDE, end - begin, prefix.sums, columns, prefix.empty);
  add_lane_sums(lanes, STRIP, features, begin, end, nullptr, prefix.totals);
  prefix.empty = false;
}

// Causal mask: zeros all lanes of rows [count] except `begin` up to each query's own.
static void mask_future(float *pairs, int64_t row, int64_t count, int64_t begin, int64_t first,
                       int64_t end) {
  for (int64_t i = 0; i < count; ++i) {
    float *at = pairs + i * STRIP;
    for (int64_t lane = first; lane < begin; ++lane) at[lane] = 0.0f;
    for (int64_t lane = row + i + 1; lane < end; ++lane) at[lane] = 0.0f;
  }
}

// Causal query-key products of a segment. Vectors outside the segment are left unwritten.
static void masked_pairs(const Linear &l, const float *queries, const float *keys,
                         const Segment &segment, int64_t row, int64_t count, float *pairs) {
  int64_t first = segment.begin / WIDE * WIDE, end = padded_to(row + count, WIDE);
  float *rows = pairs + row * STRIP;
  add_product<ACROSS>(queries + row, STRIP, count, keys + first, STRIP, (end - first) / WIDE,
                      l.features, rows + first, STRIP, true);
  mask_future(rows, row, count, segment.begin, first, end);
}

}  // namespace SUFFICE_ISA
