// y = W x + b for one row or a few: weights are read once.

#pragma once

#include "codes.h"
#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t AHEAD = 2048;  // bytes asked for before they are read
constexpr int PLACES = 4;           // places of a matrix that are read at once
constexpr int64_t PANEL = 16;   // rows of a panel of codes; work is cut at multiples of it
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int MOST_SUMS = 16;  // vectors that are summed at once
#else
constexpr int MOST_SUMS = 8;
#endif
#if defined(__ARM_NEON)
constexpr int SUMS_IN_TURN = 16;  // as many as the latency of additions asks for; a line of a row
#else
constexpr int SUMS_IN_TURN = 8;
#endif

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
  // vectors of a row that are read in turn
  constexpr int N = R * M >= SUMS_IN_TURN ? 1 : SUMS_IN_TURN / (R * M), STEP = N * WIDE;
  Wide sums[R][M][N];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int m = 0; m < M; ++m)
      UNROLL for (int n = 0; n < N; ++n) sums[r][m][n] = Wide{};
  int64_t at = 0;
  for (; at + STEP <= columns; at += STEP)
    UNROLL for (int r = 0; r < R; ++r) {
      const typename E::Element *w = rows[r] + at;
      if (M == 1) UNROLL for (int i = 0; i < STEP * (int)sizeof(*w); i += LINE)
          __builtin_prefetch((const char *)w + AHEAD + i, 0, 2);  // the nearest cache is left to x
      UNROLL for (int n = 0; n < N; ++n) {
        const Wide weights = E::part(w + n * WIDE);
        UNROLL for (int m = 0; m < M; ++m)
          sums[r][m][n] += weights * read<Wide>(x + m * columns + at + n * WIDE);
      }
    }
  // apart from the others: what a loop indexes lies in memory, and would do so above, too
  Wide totals[R][M];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int m = 0; m < M; ++m) totals[r][m] = sums[r][m][0];
  for (; at < columns; at += LANE) {
    int64_t have = columns - at < LANE ? columns - at : LANE;
    for (int r = 0; r < R; ++r) {
      const Floats weights = get_some<E>(rows[r] + at, have);
      for (int m = 0; m < M; ++m)
        totals[r][m] += folded(weights * get_some<Full>(x + m * columns + at, have));
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int m = 0; m < M; ++m) {
      Wide total = totals[r][m];
      UNROLL for (int n = 1; n < N; ++n) total += sums[r][m][n];
      y[m * outputs + r * stride] = sum_of(total);
    }
}

// R weight rows, `apart` from one to the next, against all inputs.
template <class E, int R>
APART void rows_of_numbers(const Matrix &matrix, const Inputs &in, int64_t first, int64_t apart,
                            float *y) {
  const typename E::Element *rows[R];
  for (int r = 0; r < R; ++r)
    rows[r] = (const typename E::Element *)matrix.data + (first + r * apart) * matrix.columns;
  const float *x = in.x;
  float *to = y + first;
  int64_t m = 0;
  const auto next = [&](int64_t count) {
    m += count;
    x += count * matrix.columns;
    to += count * matrix.rows;
  };
  if constexpr (R * 4 <= MOST_SUMS)
    for (; m + 4 <= in.rows; next(4))
      rows_at<E, R, 4>(rows, matrix.columns, x, to, apart, matrix.rows);
  for (; m + 2 <= in.rows; next(2))
    rows_at<E, R, 2>(rows, matrix.columns, x, to, apart, matrix.rows);
  if (m < in.rows) rows_at<E, R, 1>(rows, matrix.columns, x, to, apart, matrix.rows);
}

// Weight rows are read at several places at once, far from one another: memory gives more that way
// than along one line, as no page of it is waited for alone.
template <class E>
static void product_of_numbers(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  const int64_t each = (span.end - span.begin) / PLACES;
  for (int64_t r = span.begin; r < span.begin + each; ++r)
    rows_of_numbers<E, PLACES>(matrix, in, r, each, y);
  for (int64_t r = span.begin + PLACES * each; r < span.end; ++r)
    rows_of_numbers<E, 1>(matrix, in, r, 1, y);
  if (!matrix.bias) return;
  for (int64_t m = 0; m < in.rows; ++m)
    for (int64_t r = span.begin; r < span.end; ++r) y[m * matrix.rows + r] += matrix.bias[r];
}

// M inputs from `row` on against P panels from `begin` on, `apart` from one to the next: a tile of
// sums stays in registers, and what is read of codes and inputs is used for all of it.
template <class C, int M, int P>
APART void tile_of_codes(const Matrix &matrix, const Inputs &in, int64_t row, int64_t begin,
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
  Floats out[M][P];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int p = 0; p < P; ++p) out[m][p] = all(0.0f);
  for (int64_t g = 0; g < groups; ++g, codes += pieces * PIECE, x += group) {
    Ints sums[M][P];
    UNROLL for (int m = 0; m < M; ++m) {
      const int32_t total = totals[m * groups + g];
      UNROLL for (int p = 0; p < P; ++p) sums[m][p] = all(C::start(total) - zero * total);
    }
    C::add(sums, codes, apart * whole, pieces, x, columns);
    UNROLL for (int p = 0; p < P; ++p) {
      const Floats scale = Half::get(scales + (p * apart * groups + g) * PANEL);
      UNROLL for (int m = 0; m < M; ++m)
        out[m][p] += floats_of(sums[m][p]) * (scale * all(steps[m * groups + g]));
    }
  }
  UNROLL for (int p = 0; p < P; ++p) {
    int64_t at = begin + p * apart * PANEL, have = matrix.rows - at < PANEL ? matrix.rows - at : PANEL;
    UNROLL for (int m = 0; m < M; ++m) {
      if (matrix.bias) out[m][p] += get(matrix.bias + at, have);
      put(y + (row + m) * matrix.rows + at, out[m][p], have);
    }
  }
}

// P panels against all inputs.
template <class C, int P>
static void panels_of_codes(const Matrix &matrix, const Inputs &in, int64_t begin, int64_t apart,
                            float *y) {
  int64_t row = 0;
  if constexpr (6 * P <= MOST_TILES)
    for (; row + 6 <= in.rows; row += 6) tile_of_codes<C, 6, P>(matrix, in, row, begin, apart, y);
  if constexpr (4 * P <= MOST_TILES)
    for (; row + 4 <= in.rows; row += 4) tile_of_codes<C, 4, P>(matrix, in, row, begin, apart, y);
  if constexpr (2 * P <= MOST_TILES)
    for (; row + 2 <= in.rows; row += 2) tile_of_codes<C, 2, P>(matrix, in, row, begin, apart, y);
  for (; row < in.rows; ++row) tile_of_codes<C, 1, P>(matrix, in, row, begin, apart, y);
}

// Few inputs meet panels at several places at once, as rows of numbers are read. Of many, all meet
// two panels, as many as stay in the nearest cache, before the next two are read.
template <class C>
static void product_of_codes(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  int64_t begin = span.begin;
  if (in.rows * TOKEN_PANELS <= MOST_TILES) {
    const int64_t each = (span.end - begin) / PANEL / TOKEN_PANELS;
    for (int64_t p = 0; p < each; ++p)
      panels_of_codes<C, TOKEN_PANELS>(matrix, in, begin + p * PANEL, each, y);
    begin += TOKEN_PANELS * each * PANEL;
  } else {
    for (; begin + (BATCH_PANELS - 1) * PANEL < span.end; begin += BATCH_PANELS * PANEL)
      panels_of_codes<C, BATCH_PANELS>(matrix, in, begin, 1, y);
  }
  for (; begin < span.end; begin += PANEL) panels_of_codes<C, 1>(matrix, in, begin, 1, y);
}

// Outputs [span) of every row of the inputs, which fit; y [rows, N].
static void product(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  switch (matrix.kind) {
    case F32: return product_of_numbers<Full>(matrix, in, span, y);
    case F16: return product_of_numbers<Half>(matrix, in, span, y);
    case BF16: return product_of_numbers<Brain>(matrix, in, span, y);
    case INT8: return product_of_codes<Codes8>(matrix, in, span, y);
    default: return product_of_codes<Codes4>(matrix, in, span, y);
  }
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
