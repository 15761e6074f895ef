// The gradients of sums of features. A task owns a key/value head. Causal: it goes through
// stretches of the sequence from the last to the first; in each it makes the features once and works out the
// gradients of the queries forwards, with what was tallied before them, then those of keys and
// values backwards, with what the later queries ask for.
//
// Letters: F features, N = STRIP lanes, E width of values, rounded up to whole vectors.

#pragma once

#include <stdlib.h>

#include "linear.h"

namespace SUFFICE_ISA {

constexpr int64_t STRETCH_NUMBERS = 1 << 18;  // features of a stretch: 1 MiB

struct LinearBack {
  const Linear &l;
  const float *q, *k, *v, *out, *totals, *slope;
  float *of_q, *of_k, *of_v;
  int64_t strips;  // of a stretch, at most
};

// Gradients of the sums of a strip's queries: of the weighted values, and of the weights.
struct SlopeStrip {
  float *rows;   // [N, E]
  float *lanes;  // [E, N]
  float weights[STRIP];
};

struct BackTable {
  LinearDesk desk;       // its queries and keys are those of one strip of a stretch
  Tally asked;           // by later queries: features times slopes
  SlopeStrip slopes;
  float *some;           // [E, N], lanes of one piece
  float *value_lanes;    // [E, N]
  float *to_features;    // [heads of a group, F, N]
  float *to_values;      // [N, E]
  float *to_rows;        // [D, N]
  float *features;       // [strips, 1 + heads of a group, F, N]
  Strip *strips;
};

static void read_slopes(const LinearBack &b, int64_t batch, int64_t head, int64_t first,
                        int64_t count, int64_t columns, SlopeStrip &to) {
  const Linear &l = b.l;
  Rows slope = rows_of(b.slope, l.slope, batch, head), out = rows_of(b.out, l.out, batch, head);
  const float *totals = b.totals + (batch * l.heads + head) * l.queries + first;
  for (int64_t i = 0; i < STRIP; ++i) to.weights[i] = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float *given = slope.data + (first + i) * slope.row;
    const float *found = out.data + (first + i) * out.row;
    float over = divisor(totals[i]), by = 1.0f / over;
    float *row = to.rows + i * columns;
    Wide moved = {};
    for (int64_t e = 0; e < columns; e += WIDE) {
      bool whole = e + WIDE <= l.value_width;
      Wide g = whole ? read<Wide>(given + e) : read_some(given + e, l.value_width - e);
      Wide o = whole ? read<Wide>(found + e) : read_some(found + e, l.value_width - e);
      moved += g * o;
      write(row + e, g * by);
    }
    if (over == totals[i]) to.weights[i] = -by * sum_of(moved);
  }
  turn_rows<LANE_VECTORS>(to.rows, columns, count, columns, 1.0f, to.lanes);
}

// Lanes of a piece, zeros beside them; what is given where the piece is all of it.
static const float *lanes_of(const float *lanes, int64_t rows, const Piece &piece, int64_t count,
                             float *room) {
  if (piece.begin == 0 && piece.end == count) return lanes;
  for (int64_t e = 0; e < rows; ++e)
    for (int64_t i = 0; i < STRIP; ++i)
      room[e * STRIP + i] = i >= piece.begin && i < piece.end ? lanes[e * STRIP + i] : 0.0f;
  return room;
}

// to [F, N] += tally times lanes [E, N] and weights [N], zero outside a piece.
static void ask_tally(const Linear &l, const Tally &tally, int64_t columns, const float *lanes,
                      const float *weights, const Piece &piece, float *to) {
  if (tally.empty) return;
  add_product<ALONG>(tally.sums, columns, l.features, lanes, STRIP, LANE_VECTORS, columns, to,
                     STRIP, false);
  float kept[STRIP];
  for (int64_t i = 0; i < STRIP; ++i)
    kept[i] = i < piece.begin || i >= piece.end ? 0.0f : weights ? weights[i] : 1.0f;
  add_product<ACROSS>(tally.totals, 0, l.features, kept, STRIP, LANE_VECTORS, 1, to, STRIP, false);
}

// Gradients of features [F, N], in place, become gradients of rows [D], written where they belong.
// `turned` holds the rows of keys as lanes, null for queries.
static void put_rows(const Linear &l, const float *features, const float *turned, float *slopes,
                     float *lanes, int64_t count, float *to, int64_t stride) {
  Wide by[LANE_VECTORS];
  float root = l.omega ? sqrtf(l.scale) : 1.0f;
  for (Wide &one : by) one = wide(root);
  if (!l.omega) {
    for (int64_t i = 0; i < l.width * STRIP; i += WIDE) {
      Wide phi = read<Wide>(features + i);
      write(slopes + i, read<Wide>(slopes + i) * (phi < 1.0f ? phi : wide(1.0f)));
    }
    turn_columns<LANE_VECTORS>(slopes, by, count, l.width, to, stride);
    return;
  }
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide total = {};
    for (int64_t f = 0; f < l.features; ++f) {
      float *at = slopes + f * STRIP + lane;
      Wide u = read<Wide>(at) * read<Wide>(features + f * STRIP + lane);
      total += u;
      write(at, u);
    }
    // the rows lie there times sqrt(scale) log2(e)
    for (int64_t d = 0; d < l.width; ++d) {
      float *at = lanes + d * STRIP + lane;
      write(at, turned ? total * read<Wide>(turned + d * STRIP + lane) * -LN2 : Wide{});
    }
  }
  add_product<ACROSS>(l.omega, l.width, l.width, slopes, STRIP, LANE_VECTORS, l.features, lanes,
                      STRIP, false);
  turn_columns<LANE_VECTORS>(lanes, by, count, l.width, to, stride);
}

static void zero(float *numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) numbers[i] = 0.0f;
}

// Pairs [key, query] of a piece: what a key means for the sums of each query that sees it, times
// the features of the keys: gradients of the features of the queries.
static void slopes_to_queries(const Linear &l, const float *keys, const Piece &piece,
                              int64_t columns, BackTable &t, float *to) {
  float *pairs = t.desk.pairs;
  zero(pairs, STRIP * STRIP);
  for (int64_t row = piece.begin; row < piece.end; row += FEW_ROWS) {
    int64_t some = piece.end - row < FEW_ROWS ? piece.end - row : FEW_ROWS;
    int64_t first = row / WIDE * WIDE, end = padded_to(piece.end, WIDE);
    add_product<ALONG>(t.desk.values + row * columns, columns, some, t.slopes.lanes + first, STRIP,
                       (end - first) / WIDE, columns, pairs + row * STRIP + first, STRIP, true);
    for (int64_t i = row; i < row + some; ++i)
      for (int64_t lane = first; lane < end; ++lane) {
        float &at = pairs[i * STRIP + lane];
        at = lane < i || lane >= piece.end ? 0.0f : at + t.slopes.weights[lane];
      }
  }
  for (int64_t lane = piece.begin / WIDE * WIDE; lane < piece.end; lane += 2 * WIDE) {
    int64_t vectors = lane + WIDE < piece.end ? 2 : 1, end = lane + vectors * WIDE;
    if (end > piece.end) end = piece.end;
    add_product<ALONG>(keys + piece.begin, STRIP, l.features, pairs + piece.begin * STRIP + lane,
                       STRIP, vectors, end - piece.begin, to + lane, STRIP, false);
  }
}

// Pairs [query, key] of a piece: gradients of values and of the features of keys.
static void slopes_to_keys(const Linear &l, const float *queries, const float *keys,
                           const Piece &piece, int64_t columns, BackTable &t) {
  float *pairs = t.desk.pairs;
  for (int64_t row = piece.begin; row < piece.end; row += FEW_ROWS)
    pair_up(l, queries, keys, piece, row, piece.end - row < FEW_ROWS ? piece.end - row : FEW_ROWS,
            pairs);
  for (int64_t row = piece.begin; row < piece.end; row += FEW_ROWS) {
    int64_t some = piece.end - row < FEW_ROWS ? piece.end - row : FEW_ROWS;
    add_product<ACROSS>(pairs + row * STRIP + row, STRIP, some, t.slopes.rows + row * columns,
                        columns, columns / WIDE, piece.end - row, t.to_values + row * columns,
                        columns, false);
  }
  zero(pairs, STRIP * STRIP);
  for (int64_t row = piece.begin; row < piece.end; row += FEW_ROWS) {
    int64_t some = piece.end - row < FEW_ROWS ? piece.end - row : FEW_ROWS;
    int64_t first = piece.begin / WIDE * WIDE, end = padded_to(row + some, WIDE);
    float *rows = pairs + row * STRIP;
    add_product<ALONG>(t.slopes.rows + row * columns, columns, some, t.value_lanes + first, STRIP,
                       (end - first) / WIDE, columns, rows + first, STRIP, true);
    for (int64_t i = 0; i < some; ++i)
      for (int64_t lane = piece.begin; lane <= row + i; ++lane)
        rows[i * STRIP + lane] += t.slopes.weights[row + i];
    hide_later(rows, row, some, piece.begin, first, end);
  }
  for (int64_t lane = piece.begin / WIDE * WIDE; lane < piece.end; lane += 2 * WIDE) {
    int64_t vectors = lane + WIDE < piece.end ? 2 : 1;
    int64_t from = lane > piece.begin ? lane : piece.begin;
    add_product<ALONG>(queries + from, STRIP, l.features, pairs + from * STRIP + lane, STRIP,
                       vectors, piece.end - from, t.to_features + lane, STRIP, false);
  }
}

// Adds what the queries of a piece ask for.
static void add_asked(const Linear &l, const float *queries, const Piece &piece, int64_t columns,
                      const SlopeStrip &slopes, Tally &asked) {
  bool fresh = asked.empty;
  if (fresh) zero(asked.totals, l.features);
  int64_t begin = piece.begin, count = piece.end - begin;
  add_product<ALONG>(queries + begin, STRIP, l.features, slopes.rows + begin * columns, columns,
                     columns / WIDE, count, asked.sums, columns, fresh);
  add_lane_sums(queries, STRIP, l.features, begin, piece.end, slopes.weights, asked.totals);
  asked.empty = false;
}

// What later queries ask means for the keys and values of a piece.
static void ask_keys(const Linear &l, const float *keys, const Piece &piece, int64_t count,
                     int64_t columns, BackTable &t) {
  if (t.asked.empty) return;
  int64_t begin = piece.begin;
  add_product<ACROSS>(keys + begin, STRIP, piece.end - begin, t.asked.sums, columns,
                      columns / WIDE, l.features, t.to_values + begin * columns, columns, false);
  const float *lanes = lanes_of(t.value_lanes, columns, piece, count, t.some);
  ask_tally(l, t.asked, columns, lanes, nullptr, piece, t.to_features);
}

static void put_values(const LinearBack &b, const Lane &lane, const Strip &strip,
                       const float *rows) {
  const Strides &at = b.l.of_v;
  float *to = b.of_v + lane.batch * at.batch + lane.shared * at.head + strip.first * at.row;
  for (int64_t i = 0; i < strip.count; ++i)
    __builtin_memcpy(to + i * at.row, rows + i * lane.columns, lane.width * sizeof(float));
}

}  // namespace SUFFICE_ISA
