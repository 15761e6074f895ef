// y = W x + b for one input row or a few (GEMV): bandwidth-bound, each weight is read once.

#pragma once

#include "codes.h"
#include "rows.h"

namespace SUFFICE_ISA {

constexpr int64_t PREFETCH_BYTES = 2048;  // prefetch distance
constexpr int ROW_STREAMS = 4;           // weight rows streamed at once, far apart
constexpr int64_t PANEL = 16;   // rows of a packed panel; work is split at multiples of it
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int MAX_ACCUMULATORS = 16;  // vector accumulators
#elif defined(__AVX2__)
constexpr int MAX_ACCUMULATORS = 12;
#else
constexpr int MAX_ACCUMULATORS = 8;
#endif
#if defined(__ARM_NEON)
constexpr int MIN_ACCUMULATORS = 16;  // hides the latency of additions; one cache line of a row
#else
constexpr int MIN_ACCUMULATORS = 8;
#endif

// Input rows, as floats and, for quantised weights, as 8-bit codes.
struct Inputs {
  const float *x;
  int64_t rows, columns;
  QuantisedRows coded;       // of all rows, for quantised weights
  int64_t group = 0; // group size of `coded`; 0: not quantised yet
};

INLINE bool holds_codes(const Matrix &m) { return m.kind == INT8 || m.kind == INT4; }

// Quantises some input rows for a matrix.
static void quantise_inputs(const Inputs &in, const Matrix &m, Range rows) {
  int64_t groups = m.columns / m.group;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    encode(in.x + r * in.columns, m.columns, m.group,
           {in.coded.codes + r * m.columns, in.coded.steps + r * groups,
            in.coded.sums + r * groups});
}

// Quantises the inputs for a matrix, unless they already have its group size.
static void quantise_inputs(Inputs &in, const Matrix &m) {
  if (!holds_codes(m) || in.group == m.group) return;
  quantise_inputs(in, m, {0, in.rows});
  in.group = m.group;
}

// Dot products of R weight rows with M inputs; results lie `stride` and `outputs` apart. Of several
// inputs the FIRST call prefetches the next weight rows, which come when all inputs are through.
template <class E, int R, int M, bool FIRST = false>
INLINE void rows_at(const typename E::Element *const *rows, int64_t columns, const float *x,
                    float *y, int64_t stride, int64_t outputs) {
  const int64_t ahead = M == 1 ? PREFETCH_BYTES : columns * (int64_t)sizeof(*rows[0]);
  // unroll factor along a row, to have enough independent accumulators
  constexpr int N = R * M >= MIN_ACCUMULATORS ? 1 : MIN_ACCUMULATORS / (R * M), STEP = N * WIDE;
  Wide sums[R][M][N];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int m = 0; m < M; ++m)
      UNROLL for (int n = 0; n < N; ++n) sums[r][m][n] = Wide{};
  int64_t at = 0;
  for (; at + STEP <= columns; at += STEP)
    UNROLL for (int r = 0; r < R; ++r) {
      const typename E::Element *w = rows[r] + at;
      if (M == 1 || FIRST) UNROLL for (int i = 0; i < STEP * (int)sizeof(*w); i += LINE)
          __builtin_prefetch((const char *)w + ahead + i, 0, 2);  // into L2: L1 is left to x
      UNROLL for (int n = 0; n < N; ++n) {
        const Wide weights = E::part(w + n * WIDE);
        UNROLL for (int m = 0; m < M; ++m)
          sums[r][m][n] += weights * read<Wide>(x + m * columns + at + n * WIDE);
      }
    }
  // separate array: indexing it in the tail loop would force the accumulators above into memory
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
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int r = 0; r < R; ++r)
      UNROLL for (int n = 1; n < N; ++n) totals[r][m] += sums[r][m][n];
    if constexpr (R == 4) {
      float four[4];
      sums_of({totals[0][m], totals[1][m], totals[2][m], totals[3][m]}, four);
      UNROLL for (int r = 0; r < R; ++r) y[m * outputs + r * stride] = four[r];
    } else {
      UNROLL for (int r = 0; r < R; ++r) y[m * outputs + r * stride] = sum_of(totals[r][m]);
    }
  }
}

// R weight rows, `apart` from one to the next, against all inputs in row blocks of 4, 2 and 1.
template <class E, int R>
NOINLINE void rows_of_numbers(const Matrix &matrix, const Inputs &in, int64_t first, int64_t apart,
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
  if constexpr (R * 4 <= MAX_ACCUMULATORS) {
    if (in.rows >= 4) {
      rows_at<E, R, 4, true>(rows, matrix.columns, x, to, apart, matrix.rows);
      next(4);
    }
    for (; m + 4 <= in.rows; next(4))
      rows_at<E, R, 4>(rows, matrix.columns, x, to, apart, matrix.rows);
  }
  if constexpr (R * 3 <= MAX_ACCUMULATORS && R * 4 > MAX_ACCUMULATORS)
    for (; m + 3 <= in.rows; next(3))
      rows_at<E, R, 3>(rows, matrix.columns, x, to, apart, matrix.rows);
  for (; m + 2 <= in.rows; next(2))
    rows_at<E, R, 2>(rows, matrix.columns, x, to, apart, matrix.rows);
  if (m < in.rows) rows_at<E, R, 1>(rows, matrix.columns, x, to, apart, matrix.rows);
}

// Streams ROW_STREAMS distant weight rows at once: several open DRAM pages and TLB entries give
// more bandwidth than one stream.
template <class E>
static void product_of_numbers(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  const int64_t each = (span.end - span.begin) / ROW_STREAMS;
  for (int64_t r = span.begin; r < span.begin + each; ++r)
    rows_of_numbers<E, ROW_STREAMS>(matrix, in, r, each, y);
  for (int64_t r = span.begin + ROW_STREAMS * each; r < span.end; ++r)
    rows_of_numbers<E, 1>(matrix, in, r, 1, y);
  if (!matrix.bias) return;
  for (int64_t m = 0; m < in.rows; ++m)
    for (int64_t r = span.begin; r < span.end; ++r) y[m * matrix.rows + r] += matrix.bias[r];
}

// M inputs from `row` on against P panels from `begin` on, `apart` panels from one to the next: an
// M x P register tile of integer accumulators, rescaled per group.
template <class C, int M, int P>
NOINLINE void tile_of_codes(const Matrix &matrix, const Inputs &in, int64_t row, int64_t begin,
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
    int64_t at = begin + p * apart * PANEL,
            have = matrix.rows - at < PANEL ? matrix.rows - at : PANEL;
    UNROLL for (int m = 0; m < M; ++m) {
      if (matrix.bias) out[m][p] += get(matrix.bias + at, have);
      put(y + (row + m) * matrix.rows + at, out[m][p], have);
    }
  }
}

// P panels against all inputs, in row blocks of 6, 4, 2 and 1.
template <class C, int P>
static void panels_of_codes(const Matrix &matrix, const Inputs &in, int64_t begin, int64_t apart,
                            float *y) {
  int64_t row = 0;
  if constexpr (6 * P <= MAX_TILE_PANELS)
    for (; row + 6 <= in.rows; row += 6) tile_of_codes<C, 6, P>(matrix, in, row, begin, apart, y);
  if constexpr (4 * P <= MAX_TILE_PANELS)
    for (; row + 4 <= in.rows; row += 4) tile_of_codes<C, 4, P>(matrix, in, row, begin, apart, y);
  if constexpr (2 * P <= MAX_TILE_PANELS)
    for (; row + 2 <= in.rows; row += 2) tile_of_codes<C, 2, P>(matrix, in, row, begin, apart, y);
  for (; row < in.rows; ++row) tile_of_codes<C, 1, P>(matrix, in, row, begin, apart, y);
}

// With few inputs, panels are streamed from several distant places, as float rows are. With many,
// all inputs go against BATCH_PANELS panels, which stay in L1, before the next are read.
template <class C>
static void product_of_codes(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  int64_t begin = span.begin;
  if (in.rows * TOKEN_PANELS <= MAX_TILE_PANELS) {
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

// Outputs [span) of every input row, already quantised if the matrix is; y [rows, N].
static void product(const Matrix &matrix, const Inputs &in, Range span, float *y) {
  switch (matrix.kind) {
    case F32: return product_of_numbers<Full>(matrix, in, span, y);
    case F16: return product_of_numbers<Half>(matrix, in, span, y);
    case BF16: return product_of_numbers<Brain>(matrix, in, span, y);
    case INT8: return product_of_codes<Codes8>(matrix, in, span, y);
    default: return product_of_codes<Codes4>(matrix, in, span, y);
  }
}

// One row of the matrix as floats: the embedding of a token.
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
