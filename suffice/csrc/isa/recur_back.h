// The gradients of recurrences whose heads decay as one. A task is a head: it sums the states before
// its chunks once more, then goes through the chunks from the last to the first. With the names of
// recur.h, d for the gradients of what follows, and P = L o Q K^T, Z = L o K K^T:
//
//   dX = P^T dO + leaving o (K dS),   (I + Z^T diag(beta)) H = dX,   dY = diag(beta) H,
//   dV = dY,   dbeta = rows of H times rows of W,   dP = dO X^T,   dZ = -dY X^T.
//
// A logarithm of a decay counts wherever its position is passed: by pairs on its two sides, by what
// enters before later positions, by what earlier ones leave. These are summed as they are; no sum is
// the difference of two.

#pragma once

#include <stdlib.h>

#include "recur.h"

namespace SUFFICE_ISA {

struct RecurBack {
  const RecurCall call;
  const RecurrenceSlopes &s;
};

struct SlopeDesk {
  RecurDesk desk;
  float *slopes;              // [C, E] of the outputs
  float *asked;               // [C, E] dY
  float *lanes;               // [E, C] X
  float *turned_state, *turned_slope;  // [E, D in whole vectors] S, dS
  float *of_state;            // [D, E] dS
  float *of_pairs, *of_met;   // [C, C] L o dP, L o dZ
  float *of_q, *of_k;         // [C, D in whole vectors]
  float *some;                // [C, D or E in whole vectors]
  double entering[CHUNK], leaving[CHUNK], crossing[CHUNK];  // gradients of logarithms
};

static void place_back(const Recurrence &r, Places &next, SlopeDesk &b) {
  const int64_t columns = whole_vectors(r.value_width), padded = whole_vectors(r.width);
  place_desk(r, columns, next, b.desk);
  b.slopes = next(CHUNK * columns), b.asked = next(CHUNK * columns);
  b.lanes = next(columns * CHUNK);
  b.turned_state = next(columns * padded), b.turned_slope = next(columns * padded);
  b.of_state = next(r.width * columns);
  b.of_pairs = next(CHUNK * CHUNK), b.of_met = next(CHUNK * CHUNK);
  b.of_q = next(CHUNK * padded), b.of_k = next(CHUNK * padded);
  b.some = next(CHUNK * (padded > columns ? padded : columns));
}

// [rows, width] as [width, rows]; all rows have room for whole vectors.
static void turn_matrix(const float *from, int64_t from_row, int64_t rows, int64_t width, float *to,
                        int64_t to_row) {
  for (int64_t first = 0; first < rows; first += WIDE)
    for (int64_t e = 0; e < width; e += WIDE) {
      Wide square[WIDE];
      for (int i = 0; i < WIDE; ++i)
        square[i] = first + i < rows ? read<Wide>(from + (first + i) * from_row + e) : Wide{};
      turn_over(square);
      for (int i = 0; i < WIDE && e + i < width; ++i) write(to + (e + i) * to_row + first, square[i]);
    }
}

INLINE float dot(const float *a, const float *b, int64_t columns) {
  Wide total = {};
  for (int64_t e = 0; e < columns; e += WIDE) total += read<Wide>(a + e) * read<Wide>(b + e);
  return sum_of(total);
}

// to = factor of each row times rows.
static void scaled(const float *by, const float *rows, int64_t count, int64_t columns, float *to) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t e = 0; e < columns; e += WIDE)
      write(to + i * columns + e, read<Wide>(rows + i * columns + e) * by[i]);
}

// Adds rows to others; to [count] what they are times the rows of `by`.
static void add_rows(const float *rows, const float *by, int64_t count, int64_t columns, float *to,
                     double *products) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * columns;
    products[i] += dot(rows + at, by + at, columns);
    for (int64_t e = at; e < at + columns; e += WIDE)
      write(to + e, read<Wide>(to + e) + read<Wide>(rows + e));
  }
}

// H in place of dX, and dY = diag(beta) H: from the last row, earlier rows meet those behind.
static void solve_back(int64_t count, int64_t columns, const float *met, const float *beta,
                       float *values, float *asked) {
  for (int64_t row = (count - 1) / SOLVED_ROWS * SOLVED_ROWS; row >= 0; row -= SOLVED_ROWS) {
    const int64_t some = count - row < SOLVED_ROWS ? count - row : SOLVED_ROWS, later = row + some;
    if (later < count)
      add_product<ACROSS>(met + later * CHUNK + row, CHUNK, some, asked + later * columns, columns,
                          columns / WIDE, count - later, values + row * columns, columns, false);
    const float *near = met + row * CHUNK + row;
    for (int64_t e = 0; e < columns; e += WIDE) {
      Wide done[SOLVED_ROWS];
      float *value = values + row * columns + e, *ask = asked + row * columns + e;
      for (int64_t i = some - 1; i >= 0; --i) {
        Wide h = read<Wide>(value + i * columns);
        for (int64_t j = some - 1; j > i; --j) h += near[j * CHUNK + i] * done[j];
        done[i] = beta[row + i] * h;
        write(value + i * columns, h);
        write(ask + i * columns, done[i]);
      }
    }
  }
}

// The gradients of products within the chunk, decayed as these are: of pairs, and where values are
// corrected of keys with earlier keys; and what pairs on both sides of a position make of its decay.
static void slopes_of_pairs(const Recurrence &r, int64_t count, int64_t columns, bool corrects,
                            SlopeDesk &b) {
  const RecurDesk &desk = b.desk;
  for (int64_t row = 0; row < count; row += FEW_ROWS) {
    const int64_t some = count - row < FEW_ROWS ? count - row : FEW_ROWS;
    const int64_t vectors = whole_vectors(row + some) / WIDE;
    add_product<ALONG>(b.slopes + row * columns, columns, some, b.lanes, CHUNK, vectors,
                       r.value_width, b.of_pairs + row * CHUNK, CHUNK, true);
    if (corrects)
      add_product<ALONG>(b.asked + row * columns, columns, some, b.lanes, CHUNK, vectors,
                         r.value_width, b.of_met + row * CHUNK, CHUNK, true);
  }
  float behind[CHUNK] = {};  // of pairs of a key with queries from here on
  int32_t lanes[WIDE];
  for (int i = 0; i < WIDE; ++i) lanes[i] = i;
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t row = i / FEW_ROWS * FEW_ROWS;
    const int64_t end = whole_vectors(row + FEW_ROWS < count ? row + FEW_ROWS : count);
    const int64_t own = whole_vectors(i + 1);
    Wide before = {};
    for (int64_t j = 0; j < end; j += WIDE) {
      const int64_t at = i * CHUNK + j;
      if (j >= own) {
        write(b.of_pairs + at, Wide{});
        if (corrects) write(b.of_met + at, Wide{});
        continue;
      }
      const WideInts earlier = read<WideInts>(lanes) + (int32_t)j < (int32_t)i;
      const Wide by = read<Wide>(desk.fading.between + at), slope = read<Wide>(b.of_pairs + at);
      Wide moved = read<Wide>(desk.pairs + at) * slope;
      write(b.of_pairs + at, slope * by);
      if (corrects) {
        const Wide other = read<Wide>(b.of_met + at);
        moved += read<Wide>(desk.met + at) * other;
        write(b.of_met + at, earlier ? other * -by : Wide{});
      }
      const Wide total = read<Wide>(behind + j) + (earlier ? moved : Wide{});
      write(behind + j, total);
      before += earlier ? total : Wide{};
    }
    b.crossing[i] = sum_of(before);
  }
}

// The gradients of q, or of k, from those of pairs: rows of the other one times lower triangles.
static void below(const float *triangle, const float *rows, int64_t count, int64_t padded, float *to,
                  bool fresh) {
  for (int64_t row = 0; row < count; row += FEW_ROWS) {
    const int64_t some = count - row < FEW_ROWS ? count - row : FEW_ROWS;
    add_product<ALONG>(triangle + row * CHUNK, CHUNK, some, rows, padded, padded / WIDE, row + some,
                       to + row * padded, padded, fresh);
  }
}

static void above_turned(const float *triangle, const float *rows, int64_t count, int64_t padded,
                         float *to, bool fresh) {
  for (int64_t row = 0; row < count; row += FEW_ROWS) {
    const int64_t some = count - row < FEW_ROWS ? count - row : FEW_ROWS;
    add_product<ACROSS>(triangle + row * CHUNK + row, CHUNK, some, rows + row * padded, padded,
                        padded / WIDE, count - row, to + row * padded, padded, fresh);
  }
}

// What is taken by the keys of a piece, as rows and lanes, the slopes of its outputs, and what they
// and later positions ask of the values.
static void ask_values(const Recurrence &r, const HeadOfSums &h, const Rows &slope, int64_t begin,
                       int64_t count, SlopeDesk &b) {
  const int64_t columns = h.columns, vectors = columns / WIDE, padded = whole_vectors(r.width);
  RecurDesk &desk = b.desk;
  copy_rows<Full>({slope.data + begin * slope.row, slope.row}, count, h.width, 1.0f, count, b.slopes);
  if (h.beta.data) {
    __builtin_memcpy(desk.values, h.uncorrected + begin * columns, count * columns * sizeof(float));
    scaled(desk.beta, desk.values, count, columns, desk.taken);
  } else {
    copy_rows<Full>({h.v.data + begin * h.v.row, h.v.row}, count, h.width, 1.0f, count, desk.taken);
  }
  turn_rows<CHUNK_VECTORS>(desk.taken, columns, count, r.value_width, 1.0f, b.lanes);
  above_turned(desk.pairs, b.slopes, count, columns, desk.outs, true);
  scaled(desk.fading.leaving, desk.keys, count, padded, b.some);
  add_product<ALONG>(b.some, padded, count, b.of_state, columns, vectors, r.width, desk.outs,
                     columns, false);
  if (h.beta.data) solve_back(count, columns, desk.met, desk.beta, desk.outs, b.asked);
}

// Gradients of q and k of a piece, by pairs and by the states before and after; the state's own.
static void ask_pairs(const Recurrence &r, int64_t columns, int64_t count, const float *state,
                      bool corrects, SlopeDesk &b) {
  const int64_t padded = whole_vectors(r.width), wide = padded / WIDE, vectors = columns / WIDE;
  RecurDesk &desk = b.desk;
  const Fading &f = desk.fading;
  slopes_of_pairs(r, count, columns, corrects, b);
  below(b.of_pairs, desk.keys, count, padded, b.of_q, true);
  above_turned(b.of_pairs, desk.queries, count, padded, b.of_k, true);
  if (corrects) {
    below(b.of_met, desk.keys, count, padded, b.of_k, false);
    above_turned(b.of_met, desk.keys, count, padded, b.of_k, false);
  }
  for (int64_t i = 0; i < count; ++i) b.entering[i] = b.leaving[i] = 0.0;
  turn_matrix(b.of_state, columns, r.width, r.value_width, b.turned_slope, padded);
  scale_rows(f.leaving, 1.0f, count, columns, desk.taken);
  add_product<ALONG>(desk.taken, columns, count, b.turned_slope, padded, wide, r.value_width, b.some,
                     padded, true);
  add_rows(b.some, desk.keys, count, padded, b.of_k, b.leaving);
  if (!state) {
    clear_rows(b.of_state, columns, r.width, columns);
    return;
  }
  turn_matrix(state, columns, r.width, r.value_width, b.turned_state, padded);
  scale_rows(f.entering, 1.0f, count, columns, b.slopes);
  add_product<ALONG>(b.slopes, columns, count, b.turned_state, padded, wide, r.value_width, b.some,
                     padded, true);
  add_rows(b.some, desk.queries, count, padded, b.of_q, b.entering);
  double passed = 0.0;
  for (int64_t d = 0; d < r.width; ++d) passed += dot(b.of_state + d * columns, state + d * columns, columns);
  for (int64_t i = 0; i < count; ++i) b.crossing[i] += f.passing * passed;
  for (int64_t i = 0; i < r.width * columns; i += WIDE)
    write(b.of_state + i, read<Wide>(b.of_state + i) * f.passing);
  add_product<ACROSS>(desk.queries, padded, r.width, b.slopes, columns, vectors, count, b.of_state,
                      columns, false);
  if (!corrects) return;
  scale_rows(f.entering, -1.0f, count, columns, b.asked);
  add_product<ALONG>(b.asked, columns, count, b.turned_state, padded, wide, r.value_width, b.some,
                     padded, true);
  add_rows(b.some, desk.keys, count, padded, b.of_k, b.entering);
  add_product<ACROSS>(desk.keys, padded, r.width, b.asked, columns, vectors, count, b.of_state,
                      columns, false);
}

template <class T>
INLINE T *row_at(T *data, const Strides &strides, int64_t batch, int64_t head, int64_t row) {
  return data + batch * strides.batch + head * strides.head + row * strides.row;
}

static void back_piece(const RecurBack &back, const HeadOfSums &h, int64_t batch, int64_t head,
                       int64_t begin, int64_t count, const float *state, SlopeDesk &b) {
  const Recurrence &r = back.call.r;
  const RecurrenceSlopes &s = back.s;
  const int64_t columns = h.columns, padded = whole_vectors(r.width);
  RecurDesk &desk = b.desk;
  read_chunk(r, h, begin, count, desk);
  ask_values(r, h, rows_of(s.out, r.slope, batch, head), begin, count, b);
  const float *of_values = h.beta.data ? b.asked : desk.outs;
  move_rows(of_values, columns, count, h.width, row_at(s.v, r.of_v, batch, head, begin), r.of_v.row,
            h.width);
  for (int64_t i = 0; i < count && s.beta; ++i)
    *row_at(s.beta, r.of_beta, batch, head, begin + i) =
        dot(desk.outs + i * columns, desk.values + i * columns, columns);
  ask_pairs(r, columns, count, state, h.beta.data, b);
  move_rows(b.of_q, padded, count, r.width, row_at(s.q, r.of_q, batch, head, begin), r.of_q.row, r.width);
  move_rows(b.of_k, padded, count, r.width, row_at(s.k, r.of_k, batch, head, begin), r.of_k.row, r.width);
  if (!s.decay) return;
  double entered = 0.0, left = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    b.crossing[i] += left;
    left += b.leaving[i];
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    entered += b.entering[i];
    *row_at(s.decay, r.of_decay, batch, head, begin + i) = (float)(b.crossing[i] + entered);
  }
}

static void back_head(const RecurBack &back, int64_t row, float *kept, SlopeDesk &b) {
  const Recurrence &r = back.call.r;
  HeadOfSums h = head_of_sums(back.call, row, 0);
  const int64_t chunks = (r.length + CHUNK - 1) / CHUNK, state = r.width * h.columns;
  h.borders = kept, h.uncorrected = kept + chunks * state;
  sum_chunks(r, h, b.desk);
  const float *of_end = back.s.end ? back.s.end + row * r.width * r.value_width : nullptr;
  if (of_end) move_rows(of_end, r.value_width, r.width, h.width, b.of_state, h.columns, h.columns);
  else clear_rows(b.of_state, h.columns, r.width, h.columns);
  for (int64_t end = r.length, begin; end > 0; end = begin) {
    begin = (end - 1) / CHUNK * CHUNK;
    for (int64_t t = end - 1; t > begin; --t)
      if (begins_document(h, t)) begin = t;
    const bool fresh = begin ? begins_document(h, begin) : !h.start;
    const float *before = fresh ? nullptr : h.borders + begin / CHUNK * state;
    back_piece(back, h, row / r.heads, row % r.heads, begin, end - begin, before, b);
  }
  if (back.s.start)
    move_rows(b.of_state, h.columns, r.width, h.width, back.s.start + row * r.width * r.value_width,
              r.value_width, h.width);
}

static void recur_back_worker(suffice::Team &team, int, void *context) {
  const RecurBack &back = *(const RecurBack *)context;
  const Recurrence &r = back.call.r;
  SlopeDesk b;
  Places size{nullptr, 0};
  place_back(r, size, b);
  Places next{(float *)suffice::room_of_thread(size.taken * sizeof(float)), 0};
  place_back(r, next, b);
  const int64_t columns = whole_vectors(r.value_width), chunks = (r.length + CHUNK - 1) / CHUNK;
  float *kept = (float *)malloc((chunks * r.width + r.length) * columns * sizeof(float));
  suffice::Range range;
  while (team.take(r.batch * r.heads, 1, range)) back_head(back, range.begin, kept, b);
  free(kept);
}

static void recur_back(const Recurrence *recurrence, const float *q, const float *k, const float *v,
                       const float *decay, const float *beta, const float *start,
                       const RecurrenceSlopes *slopes, int64_t threads) {
  const Recurrence &r = *recurrence;
  const int64_t rows = r.batch * r.heads;
  if (rows == 0 || r.length == 0) return;
  RecurBack back{{r, q, k, v, decay, beta, start, nullptr, nullptr, 1, r.value_width}, *slopes};
  threads = threads_for(r, threads);
  suffice::together((int)(rows < threads ? rows : threads), recur_back_worker, &back);
}

}  // namespace SUFFICE_ISA
