// Products of a tile for gradients: weights again, the slopes of scores, and what both add to the
// rows of the keys. Rows are whole vectors here, padded with zeros.
//
// Letters: N lanes of a group = C vectors, D width of queries and keys, E of values.

#pragma once

#include "tile.h"

namespace SUFFICE_ISA {

INLINE int64_t whole_vectors(int64_t width) { return (width + WIDE - 1) / WIDE * WIDE; }

// Rows [lanes, width] as rows of whole vectors, times a factor; zeros behind the last.
template <class E>
static void copy_rows(const Stored<E> &rows, int64_t lanes, int64_t width, float by, int64_t all,
                      float *to) {
  int64_t padded = whole_vectors(width);
  for (int64_t i = 0; i < all; ++i, to += padded)
    for (int64_t d = 0; d < padded; d += WIDE) {
      Wide v = {};
      const typename E::Element *row = rows.data + i * rows.row + d;
      if (i < lanes) v = d + WIDE <= width ? E::part(row) : part_of<E>(row, width - d);
      write(to + d, v * by);
    }
}

// Weights of a tile, or the gradients of its products. Where scores are capped: products alone, or
// the gradients, times the slopes of the caps that lie in their place.
template <int C, bool OF_SCORES, bool CAPPED>
APART void back_tile(const Tile &tile, const float *const *rows, int64_t width,
                     const float *columns, const float *of_lanes, const float *weights,
                     float *into) {
  Wide less[C];
  UNROLL
  for (int c = 0; c < C; ++c) less[c] = read<Wide>(of_lanes + c * WIDE);
  for (int64_t j = 0; j < tile.count; j += ROWS) {
    Wide sums[ROWS][C];
    multiply_rows<ROWS, C>(rows + j, width, columns, sums);
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) {
        const int64_t at = ((j + r) * C + c) * WIDE;
        if (CAPPED && !OF_SCORES) continue;
        Wide v = sums[r][c] - less[c];
        if constexpr (OF_SCORES) sums[r][c] = v * read<Wide>(weights + at);
        else sums[r][c] = power(v);
        if (CAPPED) sums[r][c] *= read<Wide>(into + at);
      }
    if ((OF_SCORES || !CAPPED) && !all_see(tile.seen + j)) hide<C>(tile.seen + j, sums, 0.0f);
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) write(into + ((j + r) * C + c) * WIDE, sums[r][c]);
  }
}

// Products of a tile become weights, and slopes of the caps beside them.
template <int C>
APART void cap_back_tile(const Tile &tile, float cap, const float *logs, float *weights, float *slopes) {
  Wide less[C];
  UNROLL
  for (int c = 0; c < C; ++c) less[c] = read<Wide>(logs + c * WIDE);
  for (int64_t j = 0; j < (tile.count + ROWS - 1) / ROWS * ROWS; ++j)
    UNROLL
    for (int c = 0; c < C; ++c) {
      const int64_t at = (j * C + c) * WIDE;
      const Wide bounded = tanh(read<Wide>(weights + at));
      Wide weight = power(bounded * wide(cap * LOG2E) - less[c]);
      if (tile.seen[j] != ALL_SEE) weight = sees(tile.seen[j], c) ? weight : Wide{};
      write(weights + at, weight);
      write(slopes + at, wide(1.0f) - bounded * bounded);
    }
}

// into[r] [V vectors] += the sum over lanes of weights[r, N] times rows [N, stride].
template <int V>
APART void add_rows(const float *weights, int64_t lanes, const float *rows, int64_t stride,
                    float *const *into, int64_t at) {
  Wide sums[ROWS][V];
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int v = 0; v < V; ++v) sums[r][v] = read<Wide>(into[r] + at + v * WIDE);
  rows += at;
  for (int64_t i = 0; i < lanes; ++i, rows += stride) {
    const float *weight = weights + i;
    Wide row[V];
    UNROLL
    for (int v = 0; v < V; ++v) row[v] = read<Wide>(rows + v * WIDE);
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int v = 0; v < V; ++v) sums[r][v] += wide(weight[r * lanes]) * row[v];
  }
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int v = 0; v < V; ++v) write(into[r] + at + v * WIDE, sums[r][v]);
}

// Adds to the rows of a tile's keys, in a stretch that begins with key `begin`.
static void add_to_keys(const Tile &tile, const float *weights, int64_t lanes, const float *rows,
                        int64_t padded, int64_t begin, float *stretch, float *unused) {
  for (int64_t j = 0; j < tile.count; j += ROWS) {
    float *into[ROWS];
    for (int r = 0; r < ROWS; ++r)
      into[r] = j + r < tile.count ? stretch + (tile.numbers[j + r] - begin) * padded : unused;
    int64_t at = 0;
    for (; at + 2 * WIDE <= padded; at += 2 * WIDE)
      add_rows<2>(weights + j * lanes, lanes, rows, padded, into, at);
    if (at < padded) add_rows<1>(weights + j * lanes, lanes, rows, padded, into, at);
  }
}

}  // namespace SUFFICE_ISA
