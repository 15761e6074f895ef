// y = W x + b for one row or a few: weights are read once.

#pragma once

#include "codes.h"
#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t AHEAD = 2048, LINE = 64;  // bytes asked for before they are read; of a cache line
constexpr int PLACES = 4;           // places of a matrix that are read at once
constexpr int64_t PANEL = 16;   // rows of a panel of codes; work is cut at multiples of it
constexpr int AT_ONCE = 6;         // inputs whose sums with two panels fit in registers

// Rows of a batch as a matrix wants them: as they are, or coded.
struct Inputs {
  const float *x;
  int64_t rows, columns;
  Coded coded;       // of all rows; for matrices of codes
  int64_t group = 0; // of the codes that are there; 0 = none
};

INLINE bool holds_codes(const Matrix &m) { return m.kind == INT8 || m.kind == INT4; }

// Codes some of the inputs for a matrix.
static void fit(const Inputs &in, const Matrix &m, Range rows) {
  int64_t groups = m.columns / m.group;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    encode(in.x + r * in.columns, m.columns, m.group,
           {in.coded.codes + r * m.columns, in.coded.steps + r * groups,
            in.coded.sums + r * groups});
}

// Makes the inputs fit for a matrix; codes that fit already are kept.
static void fit(Inputs &in, const Matrix &m) {
  if (!holds_codes(m) || in.group == m.group) return;
  fit(in, m, {0, in.rows});
  in.group = m.group;
}

// R weight rows against M inputs; their products lie `stride` and `outputs` apart.
template <class E, int R, int M>
INLINE void rows_at(const typename E::Element *const *rows, int64_t columns, const float *x,
                    float *y, int64_t stride, int64_t outputs) {
  constexpr int N = R * M >= 8 ? 1 : R == 1 ? 4 / M : 2;  // sums of a product: as many as chains need
  Floats sums[R][M][N];
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) sums[r][m][n] = all(0.0f);
  int64_t at = 0;
  for (; at + N * LANE <= columns; at += N * LANE)
    for (int r = 0; r < R; ++r) {
      const typename E::Element *w = rows[r] + at;
      for (int64_t i = 0; i < N * LANE * (int64_t)sizeof(*w); i += LINE)
        __builtin_prefetch((const char *)w + AHEAD + i);
      for (int n = 0; n < N; ++n) {
        Floats weights = E::get(w + n * LANE);
        for (int m = 0; m < M; ++m)
          sums[r][m][n] += weights * read<Floats>(x + m * columns + at + n * LANE);
      }
    }
  for (; at < columns; at += LANE) {
    int64_t have = columns - at < LANE ? columns - at : LANE;
    for (int r = 0; r < R; ++r) {
      Floats weights = get_some<E>(rows[r] + at, have);
      for (int m = 0; m < M; ++m)
        sums[r][m][0] += weights * get_some<Full>(x + m * columns + at, have);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      Floats total = sums[r][m][0];
      for (int n = 1; n < N; ++n) total += sums[r][m][n];
      y[m * outputs + r * stride] = sum(total);
    }
}

// Weight rows are read at several places at once, far from one another: memory gives more that way
// than along one line, as no page of it is waited for alone.
template <class E, int M>
static void product_of_numbers(const Matrix &matrix, const Inputs &in, int64_t row, Range span,
                               float *y) {
  typedef typename E::Element Element;
  const Element *w = (const Element *)matrix.data;
  const float *x = in.x + row * in.columns;
  const int64_t each = (span.end - span.begin) / PLACES, rest = span.begin + PLACES * each;
  y += row * matrix.rows;
  for (int64_t r = span.begin; r < span.begin + each; ++r) {
    const Element *rows[PLACES];
    for (int i = 0; i < PLACES; ++i) rows[i] = w + (r + i * each) * matrix.columns;
    rows_at<E, PLACES, M>(rows, matrix.columns, x, y + r, each, matrix.rows);
  }
  for (int64_t r = rest; r < span.end; ++r) {
    const Element *alone = w + r * matrix.columns;
    rows_at<E, 1, M>(&alone, matrix.columns, x, y + r, 1, matrix.rows);
  }
  if (!matrix.bias) return;
  for (int m = 0; m < M; ++m)
    for (int64_t r = span.begin; r < span.end; ++r) y[m * matrix.rows + r] += matrix.bias[r];
}

// Panels of codes against M coded inputs; numbers of one group are added as integers.
template <class C, int M>
static void product_of_codes(const Matrix &matrix, const Inputs &in, int64_t row, Range span,
                             float *y) {
  const int64_t columns = matrix.columns, group = matrix.group, groups = columns / group;
  const int64_t pieces = group / C::COLUMNS, zero = matrix.kind == INT8 ? 128 : 8;
  const int8_t *x = in.coded.codes + row * columns;
  const float *steps = in.coded.steps + row * groups;
  const int32_t *totals = in.coded.sums + row * groups;
  for (int64_t begin = span.begin; begin < span.end; begin += PANEL) {
    int64_t panel = begin / PANEL;
    const uint8_t *codes = (const uint8_t *)matrix.data + panel * groups * pieces * PIECE;
    const uint16_t *scales = matrix.scales + panel * groups * PANEL;
    Floats out[M];
    for (int m = 0; m < M; ++m) out[m] = all(0.0f);
    for (int64_t g = 0; g < groups; ++g, codes += pieces * PIECE) {
      Sums sums[M][2];
      const int8_t *from = x + g * group;
      int64_t p = 0;
      for (; p + 2 <= pieces; p += 2, from += 2 * C::COLUMNS) {
        C::add(&sums[0][0], 2, M, codes + p * PIECE, from, columns);
        C::add(&sums[0][1], 2, M, codes + (p + 1) * PIECE, from + C::COLUMNS, columns);
      }
      if (p < pieces) C::add(&sums[0][0], 2, M, codes + p * PIECE, from, columns);
      Floats scale = floats_of(read<Halves>(scales + g * PANEL));
      for (int m = 0; m < M; ++m) {
        Ints products = total(sums[m][0], sums[m][1]) - all((int32_t)zero * totals[m * groups + g]);
        out[m] += __builtin_convertvector(products, Floats) * (scale * all(steps[m * groups + g]));
      }
    }
    int64_t have = matrix.rows - begin < PANEL ? matrix.rows - begin : PANEL;
    for (int m = 0; m < M; ++m) {
      if (matrix.bias) out[m] += get(matrix.bias + begin, have);
      put(y + (row + m) * matrix.rows + begin, out[m], have);
    }
  }
}

// ROWS inputs against PANELS panels from `begin` on, `apart` from one to the next, which are all
// there: a tile of sums stays in registers, and what is read of codes and inputs is used for all of it.
template <class C, int ROWS, int PANELS>
static void tile_of_codes(const Matrix &matrix, const Inputs &in, int64_t row, int64_t begin,
                          int64_t apart, float *y) {
  const int64_t columns = matrix.columns, group = matrix.group, groups = columns / group;
  const int64_t pieces = group / C::COLUMNS, whole = groups * pieces * PIECE;
  const int32_t zero = matrix.kind == INT8 ? 128 : 8;
  const int64_t panel = begin / PANEL;
  const uint8_t *codes = (const uint8_t *)matrix.data + panel * whole;
  const uint16_t *scales = matrix.scales + panel * groups * PANEL;
  const int8_t *x = in.coded.codes + row * columns;
  const float *steps = in.coded.steps + row * groups;
  const int32_t *totals = in.coded.sums + row * groups;
  Floats out[ROWS][PANELS];
  for (int m = 0; m < ROWS; ++m)
    for (int p = 0; p < PANELS; ++p) out[m][p] = all(0.0f);
  for (int64_t g = 0; g < groups; ++g) {
    Sums sums[ROWS][PANELS];
    for (int m = 0; m < ROWS; ++m)
      for (int p = 0; p < PANELS; ++p) sums[m][p] = Sums::at(-zero * totals[m * groups + g]);
    for (int64_t piece = 0; piece < pieces; ++piece, codes += PIECE, x += C::COLUMNS)
      for (int p = 0; p < PANELS; ++p) 
        C::add(&sums[0][p], PANELS, ROWS, codes + p * apart * whole, x, columns);
    for (int p = 0; p < PANELS; ++p) {
      Floats scale = floats_of(read<Halves>(scales + (p * apart * groups + g) * PANEL));
      for (int m = 0; m < ROWS; ++m)
        out[m][p] += __builtin_convertvector(total(sums[m][p]), Floats) *
                     (scale * all(steps[m * groups + g]));
    }
  }
  for (int p = 0; p < PANELS; ++p) {
    int64_t at = begin + p * apart * PANEL, have = matrix.rows - at < PANEL ? matrix.rows - at : PANEL;
    for (int m = 0; m < ROWS; ++m) {
      if (matrix.bias) out[m][p] += get(matrix.bias + at, have);
      put(y + (row + m) * matrix.rows + at, out[m][p], have);
    }
  }
}

// Panels of codes against one input, read at several places at once as rows of numbers are.
template <class C>
static void panels_of_one(const Matrix &matrix, const Inputs &in, int64_t row, Range span,
                          float *y) {
  const int64_t each = (span.end - span.begin) / PANEL / PLACES;
  for (int64_t p = 0; p < each; ++p)
    tile_of_codes<C, 1, PLACES>(matrix, in, row, span.begin + p * PANEL, each, y);
  product_of_codes<C, 1>(matrix, in, row, {span.begin + PLACES * each * PANEL, span.end}, y);
}

template <int M>
static void product_of_rows(const Matrix &matrix, const Inputs &in, int64_t row, Range span,
                            float *y) {
  switch (matrix.kind) {
    case F32: return product_of_numbers<Full, M>(matrix, in, row, span, y);
    case F16: return product_of_numbers<Half, M>(matrix, in, row, span, y);
    case BF16: return product_of_numbers<Brain, M>(matrix, in, row, span, y);
    case INT8:
      return M == 1 ? panels_of_one<Codes8>(matrix, in, row, span, y)
                    : product_of_codes<Codes8, M>(matrix, in, row, span, y);
    default:
      return M == 1 ? panels_of_one<Codes4>(matrix, in, row, span, y)
                    : product_of_codes<Codes4, M>(matrix, in, row, span, y);
  }
}

// Many inputs against codes: two panels, as many as stay in the nearest cache, meet all inputs
// before the next two are read. Returns how many inputs are done.
template <class C>
static int64_t tiles(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  const int64_t most = in.rows / AT_ONCE * AT_ONCE;
  for (int64_t begin = span.begin; begin < span.end; begin += 2 * PANEL)
    for (int64_t row = 0; row < most; row += AT_ONCE) {
      if (begin + PANEL < span.end) tile_of_codes<C, AT_ONCE, 2>(matrix, in, row, begin, 1, y);
      else tile_of_codes<C, AT_ONCE, 1>(matrix, in, row, begin, 1, y);
    }
  return most;
}

// Outputs [span) of every row of the inputs, which fit; y [rows, N].
static void product(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  int64_t row = 0;
  if (matrix.kind == INT8) row = tiles<Codes8>(matrix, in, span, y);
  if (matrix.kind == INT4) row = tiles<Codes4>(matrix, in, span, y);
  for (; row + 4 <= in.rows; row += 4) product_of_rows<4>(matrix, in, row, span, y);
  for (; row + 2 <= in.rows; row += 2) product_of_rows<2>(matrix, in, row, span, y);
  for (; row < in.rows; ++row) product_of_rows<1>(matrix, in, row, span, y);
}

// One row of the matrix as numbers: the features of a token.
static void row_of(const Matrix &m, int64_t row, float *y) {
  const int64_t columns = m.columns;
  if (m.kind == F32 || m.kind == F16 || m.kind == BF16) {
    const uint16_t *halves = (const uint16_t *)m.data + row * columns;
    for (int64_t c = 0; c < columns; ++c)
      y[c] = m.kind == F32   ? ((const float *)m.data)[row * columns + c]
             : m.kind == F16 ? Half::one(halves + c)
                             : Brain::one(halves + c);
    return;
  }
  const int64_t wide = m.kind == INT8 ? 4 : 8, groups = columns / m.group, r = row % PANEL;
  const uint8_t *codes = (const uint8_t *)m.data + row / PANEL * (columns / wide) * PIECE;
  const uint16_t *scales = m.scales + row / PANEL * groups * PANEL + r;
  for (int64_t c = 0; c < columns; ++c) {
    uint8_t byte = codes[c / wide * PIECE + 4 * r + c % 4];
    int code = m.kind == INT8 ? byte - 128 : (c % 8 < 4 ? byte & 15 : byte >> 4) - 8;
    y[c] = (float)code * Half::one(scales + c / m.group * PANEL);
  }
}

}  // namespace SUFFICE_ISA
