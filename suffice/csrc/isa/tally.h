// What is summed of a strip: pairs of its queries and keys, and keys into the tally of all before.
//
// Letters: F features, N = STRIP lanes, E width of values, rounded up to whole vectors.

#pragma once

#include "features.h"

namespace SUFFICE_ISA {

constexpr int64_t FEW_ROWS = 16;  // queries of a triangle that are done together

// The keys so far: sums over them of features times values, and of features.
struct Tally {
  float *sums, *totals;  // [F, E], [F]
  float level;
  bool empty;
};

INLINE int64_t padded_to(int64_t width, int64_t to) { return (width + to - 1) / to * to; }

INLINE int64_t group_of(const Linear &l) { return l.heads / l.kv_heads; }

// Adds to [count] the sums of rows [count, stride] over lanes begin to end - 1, times weights of
// these, if any.
APART void add_lane_sums(const float *rows, int64_t stride, int64_t count, int64_t begin,
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

static void fade(Tally &tally, int64_t features, int64_t columns, const Piece &piece) {
  if (tally.empty) return;
  tally.empty = piece.kept == 0.0f;
  if (tally.empty || piece.kept == 1.0f) return;
  for (int64_t i = 0; i < features * columns; ++i) tally.sums[i] *= piece.kept;
  for (int64_t f = 0; f < features; ++f) tally.totals[f] *= piece.kept;
}

// Adds features [F, N] times rows [N, E] of lanes begin to end - 1.
static void add_to_tally(Tally &tally, int64_t features, const float *lanes, const float *rows,
                         int64_t columns, int64_t begin, int64_t end) {
  if (tally.empty)
    for (int64_t f = 0; f < features; ++f) tally.totals[f] = 0.0f;
  add_product<ALONG>(lanes + begin, STRIP, features, rows + begin * columns, columns,
                     columns / WIDE, end - begin, tally.sums, columns, tally.empty);
  add_lane_sums(lanes, STRIP, features, begin, end, nullptr, tally.totals);
  tally.empty = false;
}

// Zeros all of rows [count] but what a query of a piece sees: lanes from `begin` to its own.
static void hide_later(float *pairs, int64_t row, int64_t count, int64_t begin, int64_t first,
                       int64_t end) {
  for (int64_t i = 0; i < count; ++i) {
    float *at = pairs + i * STRIP;
    for (int64_t lane = first; lane < begin; ++lane) at[lane] = 0.0f;
    for (int64_t lane = row + i + 1; lane < end; ++lane) at[lane] = 0.0f;
  }
}

// Products of queries and keys of a piece, later keys left out; what lies in other vectors is left.
static void pair_up(const Linear &l, const float *queries, const float *keys, const Piece &piece,
                    int64_t row, int64_t count, float *pairs) {
  int64_t first = piece.begin / WIDE * WIDE, end = padded_to(row + count, WIDE);
  float *rows = pairs + row * STRIP;
  add_product<ACROSS>(queries + row, STRIP, count, keys + first, STRIP, (end - first) / WIDE,
                      l.features, rows + first, STRIP, true);
  hide_later(rows, row, count, piece.begin, first, end);
}

}  // namespace SUFFICE_ISA
