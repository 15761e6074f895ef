// Products of small matrices that lie in the cache: numbers of the first meet rows of the second.

#pragma once

#include "lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t NEAR_ROWS = 64;  // of the second matrix, that stay in the nearest cache

// How the rows of the first matrix lie: each along memory, or across it, beside each other.
enum Way { ALONG, ACROSS };

template <Way W, int R, int C>
APART void product_tile(const float *a, int64_t stride, const float *b, int64_t b_row,
                        int64_t count, float *to, int64_t to_row, bool fresh) {
  Wide sums[R][C];
  const float *row[R];
  for (int r = 0; r < R; ++r) {
    row[r] = W == ALONG ? a + r * stride : a;
    for (int c = 0; c < C; ++c)
      sums[r][c] = fresh ? Wide{} : read<Wide>(to + r * to_row + c * WIDE);
  }
  for (int64_t k = 0; k < count; ++k, b += b_row) {
    Wide column[C];
    for (int c = 0; c < C; ++c) column[c] = read<Wide>(b + c * WIDE);
    for (int r = 0; r < R; ++r) {
      Wide number = wide(W == ALONG ? row[r][k] : a[r]);
      for (int c = 0; c < C; ++c) sums[r][c] += number * column[c];
    }
    if (W == ACROSS) a += stride;
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) write(to + r * to_row + c * WIDE, sums[r][c]);
}

template <Way W, int C>
static void product_columns(const float *a, int64_t stride, int64_t rows, const float *b,
                            int64_t b_row, int64_t count, float *to, int64_t to_row, bool fresh) {
  const int64_t step = W == ALONG ? stride : 1;
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS)
    product_tile<W, ROWS, C>(a + i * step, stride, b, b_row, count, to + i * to_row, to_row, fresh);
  for (; i + 4 <= rows; i += 4)
    product_tile<W, 4, C>(a + i * step, stride, b, b_row, count, to + i * to_row, to_row, fresh);
  for (; i + 2 <= rows; i += 2)
    product_tile<W, 2, C>(a + i * step, stride, b, b_row, count, to + i * to_row, to_row, fresh);
  if (i < rows)
    product_tile<W, 1, C>(a + i * step, stride, b, b_row, count, to + i * to_row, to_row, fresh);
}

// to [rows, V vectors] = a b, or that much more: a [rows, count], b [count, V vectors].
template <Way W>
static void add_product(const float *a, int64_t stride, int64_t rows, const float *b,
                        int64_t b_row, int64_t vectors, int64_t count, float *to, int64_t to_row,
                        bool fresh) {
  for (int64_t k = 0; k < count; k += NEAR_ROWS, fresh = false) {
    int64_t some = count - k < NEAR_ROWS ? count - k : NEAR_ROWS;
    const float *these = W == ALONG ? a + k : a + k * stride;
    const float *beside = b + k * b_row;
    int64_t c = 0;
    for (; c + 2 <= vectors; c += 2)
      product_columns<W, 2>(these, stride, rows, beside + c * WIDE, b_row, some, to + c * WIDE,
                            to_row, fresh);
    if (c < vectors)
      product_columns<W, 1>(these, stride, rows, beside + c * WIDE, b_row, some, to + c * WIDE,
                            to_row, fresh);
  }
}

}  // namespace SUFFICE_ISA
