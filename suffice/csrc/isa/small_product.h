// Products of small matrices that lie in cache: scalars of the first are broadcast to rows of the
// second.

#pragma once

#include "lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t L1_ROWS = 64;  // rows of the second matrix per pass; they stay in L1

// Layout of the first matrix: row-major (ALONG) or transposed (ACROSS).
enum Way { ALONG, ACROSS };

template <Way W, int R, int C>
NOINLINE void product_tile(const float *a, int64_t stride, const float *b, int64_t b_row,
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

// to [rows, V vectors] = a b (fresh) or += a b: a [rows, count], b [count, V vectors].
template <Way W>
static void add_product(const float *a, int64_t stride, int64_t rows, const float *b,
                        int64_t b_row, int64_t vectors, int64_t count, float *to, int64_t to_row,
                        bool fresh) {
  for (int64_t k = 0; k < count; k += L1_ROWS, fresh = false) {
    int64_t some = count - k < L1_ROWS ? count - k : L1_ROWS;
    const float *a_tile = W == ALONG ? a + k : a + k * stride;
    const float *b_tile = b + k * b_row;
    int64_t c = 0;
    for (; c + 2 <= vectors; c += 2)
      product_columns<W, 2>(a_tile, stride, rows, b_tile + c * WIDE, b_row, some, to + c * WIDE,
                            to_row, fresh);
    if (c < vectors)
      product_columns<W, 1>(a_tile, stride, rows, b_tile + c * WIDE, b_row, some, to + c * WIDE,
                            to_row, fresh);
  }
}

}  // namespace SUFFICE_ISA
