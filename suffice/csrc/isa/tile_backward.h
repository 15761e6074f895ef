// Backward products of a tile: recomputed weights, gradients of scores, and their contributions to
// the gradients of keys and values. Rows are padded with zeros to whole vectors.
//
// Letters: N lanes of a query block = C vectors, D width of queries and keys, E of values.

#pragma once

#include "tile.h"

namespace SUFFICE_ISA {

INLINE int64_t whole_vectors(int64_t width) { return (width + WIDE - 1) / WIDE * WIDE; }

// Copies rows [lanes, width] to rows of whole vectors, times a factor; the tail is 0.
template <class E>
static void copy_rows(const Stored<E> &rows, int64_t lanes, int64_t width, float factor,
                      int64_t all, float *to) {
  int64_t padded = whole_vectors(width);
  for (int64_t i = 0; i < all; ++i, to += padded)
    for (int64_t d = 0; d < padded; d += WIDE) {
      Wide v = {};
      const typename E::Element *row = rows.data + i * rows.row + d;
      if (i < lanes) v = d + WIDE <= width ? E::part(row) : part_of<E>(row, width - d);
      write(to + d, v * factor);
    }
}

// Recomputes the weights of a tile, or (OF_SCORES) the gradients of its scores: weight * (dO v -
// mean). With a soft cap: the plain dot products, or the gradients times the derivative of the cap,
// which lies in `into`.
template <int C, bool OF_SCORES, bool CAPPED>
NOINLINE void recompute_tile(const Tile &tile, const float *const *rows, int64_t width,
                     const float *columns, const float *subtrahends, const float *weights,
                     float *into) {
  Wide less[C];
  UNROLL
  for (int c = 0; c < C; ++c) less[c] = read<Wide>(subtrahends + c * WIDE);
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
        else sums[r][c] = exp2_negative(v);
        if (CAPPED) sums[r][c] *= read<Wide>(into + at);
      }
    if ((OF_SCORES || !CAPPED) && !all_see(tile.seen + j))
      mask_scores<C>(tile.seen + j, sums, 0.0f);
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) write(into + ((j + r) * C + c) * WIDE, sums[r][c]);
  }
}

// Turns dot products of a tile into weights under a soft cap, and stores the cap's derivatives.
template <int C>
NOINLINE void recompute_capped_tile(const Tile &tile, float cap, const float *logs, float *weights,
                                    float *grads) {
  Wide less[C];
  UNROLL
  for (int c = 0; c < C; ++c) less[c] = read<Wide>(logs + c * WIDE);
  for (int64_t j = 0; j < (tile.count + ROWS - 1) / ROWS * ROWS; ++j)
    UNROLL
    for (int c = 0; c < C; ++c) {
      const int64_t at = (j * C + c) * WIDE;
      const Wide bounded = tanh(read<Wide>(weights + at));
      Wide weight = exp2_negative(bounded * wide(cap * LOG2E) - less[c]);
      if (tile.seen[j] != ALL_LANES) weight = sees(tile.seen[j], c) ? weight : Wide{};
      write(weights + at, weight);
      write(grads + at, wide(1.0f) - bounded * bounded);
    }
}

// into[r] [V vectors] += sum over lanes of weights[r, N] times rows [N, stride].
template <int V>
NOINLINE void add_rows(const float *weights, int64_t lanes, const float *rows, int64_t stride,
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

// Adds gradients to those of a tile's keys; key j has its at sums + j * sums_row.
static void add_to_key_grads(const Tile &tile, const float *weights, int64_t lanes,
                             const float *rows, int64_t padded, float *sums, int64_t sums_row,
                             float *unused) {
  for (int64_t j = 0; j < tile.count; j += ROWS) {
    float *into[ROWS];
    for (int r = 0; r < ROWS; ++r)
      into[r] = j + r < tile.count ? sums + tile.numbers[j + r] * sums_row : unused;
    int64_t at = 0;
    for (; at + 2 * WIDE <= padded; at += 2 * WIDE)
      add_rows<2>(weights + j * lanes, lanes, rows, padded, into, at);
    if (at < padded) add_rows<1>(weights + j * lanes, lanes, rows, padded, into, at);
  }
}

}  // namespace SUFFICE_ISA
