// The gradients of recurrences. A task is a head: it sums the states before its chunks once more, then
// goes through the chunks from the last to the first. Where features decay by themselves, a chunk's
// states are summed again and its positions go one by one. Otherwise, with the names of recur.h, d for the gradients of what follows, and P = L o Q K^T, Z = L o K K^T:
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

// The gradients of the state after the last position, and of that before the first.
static void begin_slopes(const RecurBack &back, int64_t row, int64_t columns, SlopeDesk &b) {
  const Recurrence &r = back.call.r;
  const float *of_end = back.s.end ? back.s.end + row * r.width * r.value_width : nullptr;
  if (of_end) move_rows(of_end, r.value_width, r.width, r.value_width, b.of_state, columns, columns);
  else clear_rows(b.of_state, columns, r.width, columns);
}

static void end_slopes(const RecurBack &back, int64_t row, int64_t columns, SlopeDesk &b) {
  const Recurrence &r = back.call.r;
  if (back.s.start)
    move_rows(b.of_state, columns, r.width, r.value_width, back.s.start + row * r.width * r.value_width,
              r.value_width, r.value_width);
}

static void back_head(const RecurBack &back, int64_t row, float *kept, SlopeDesk &b) {
  const Recurrence &r = back.call.r;
  HeadOfSums h = head_of_sums(back.call, row, 0);
  const int64_t chunks = (r.length + CHUNK - 1) / CHUNK, state = r.width * h.columns;
  h.borders = kept, h.uncorrected = kept + chunks * state;
  sum_chunks(r, h, b.desk);
  begin_slopes(back, row, h.columns, b);
  for (int64_t end = r.length, begin; end > 0; end = begin) {
    begin = (end - 1) / CHUNK * CHUNK;
    for (int64_t t = end - 1; t > begin; --t)
      if (begins_document(h, t)) begin = t;
    const bool fresh = begin ? begins_document(h, begin) : !h.start;
    const float *before = fresh ? nullptr : h.borders + begin / CHUNK * state;
    back_piece(back, h, row / r.heads, row % r.heads, begin, end - begin, before, b);
  }
  end_slopes(back, row, h.columns, b);
}

// The state after a position, and, where it is wanted, as it is before the key is added.
static void pass_position(int64_t width, int64_t columns, const float *k, const float *decays,
                          const float *value, float *state, float *faded) {
  for (int64_t d = 0; d < width; ++d) {
    const Wide kept = wide(decays[d]), key = wide(k[d]);
    for (int64_t e = 0; e < columns; e += WIDE) {
      const int64_t at = d * columns + e;
      const Wide x = kept * read<Wide>(state + at);
      if (faded) write(faded + at, x);
      write(state + at, x + key * read<Wide>(value + e));
    }
  }
}

// A position backwards.
struct BackStep {
  int64_t width, columns;
  const float *q, *k, *decays;         // [D]
  const float *faded, *slope, *value;  // [D, E] the state before its key, [E], [E]
  float *of_state, *of_value;          // [D, E], [E]
  float *of_q, *of_k, *of_decay;       // [D in whole vectors], added to
};

template <int C>
APART void back_columns(const BackStep &s, int64_t first) {
  Wide slope[C], value[C], of_value[C] = {};
  for (int c = 0; c < C; ++c) {
    slope[c] = read<Wide>(s.slope + first + c * WIDE);
    value[c] = read<Wide>(s.value + first + c * WIDE);
  }
  for (int64_t d = 0; d < s.width; d += WIDE) {
    Wide asked[WIDE] = {}, taken[WIDE] = {}, passed[WIDE] = {};
    const int64_t some = s.width - d < WIDE ? s.width - d : WIDE;
    for (int64_t i = 0; i < some; ++i) {
      const float *before = s.faded + (d + i) * s.columns + first;
      float *row = s.of_state + (d + i) * s.columns + first;
      const Wide by_q = wide(s.q[d + i]), by_k = wide(s.k[d + i]), kept = wide(s.decays[d + i]);
      Wide to_q = {}, to_k = {}, to_decay = {};
      for (int c = 0; c < C; ++c) {
        const Wide x = read<Wide>(before + c * WIDE);
        const Wide after = read<Wide>(row + c * WIDE) + by_q * slope[c];
        to_q += x * slope[c];
        to_k += after * value[c];
        to_decay += after * x;
        of_value[c] += by_k * after;
        write(row + c * WIDE, kept * after);
      }
      asked[i] = to_q, taken[i] = to_k, passed[i] = to_decay;
    }
    write(s.of_q + d, read<Wide>(s.of_q + d) + sums_of(asked));
    write(s.of_k + d, read<Wide>(s.of_k + d) + sums_of(taken));
    write(s.of_decay + d, read<Wide>(s.of_decay + d) + sums_of(passed));
  }
  for (int c = 0; c < C; ++c) write(s.of_value + first + c * WIDE, of_value[c]);
}

static void back_position(const BackStep &s) {
  const float met = dot(s.value, s.slope, s.columns);  // the query meets its own key
  for (int64_t d = 0; d < s.width; d += WIDE) {
    write(s.of_q + d, met * first_of(s.k + d, s.width - d));
    write(s.of_k + d, Wide{});
    write(s.of_decay + d, Wide{});
  }
  int64_t e = 0;
  for (; e + 4 * WIDE <= s.columns; e += 4 * WIDE) back_columns<4>(s, e);
  for (; e < s.columns; e += WIDE) back_columns<1>(s, e);
}

// A head whose features decay by themselves.
static void back_steps(const RecurBack &back, int64_t row, float *kept, SlopeDesk &b) {
  const Recurrence &r = back.call.r;
  const RecurrenceSlopes &s = back.s;
  const HeadOfSums h = head_of_sums(back.call, row, 0);
  const int64_t batch = row / r.heads, head = row % r.heads, columns = h.columns;
  const int64_t chunks = (r.length + CHUNK - 1) / CHUNK, state = r.width * columns;
  float *now = b.desk.state, *decays = b.desk.turned, *faded = kept + chunks * state;
  const Rows slope = rows_of(s.out, r.slope, batch, head);
  auto pass = [&](int64_t t, const float *value, float *to) {
    if (begins_document(h, t)) clear_rows(now, columns, r.width, columns);
    decays_at(r, h.decay, t, decays);
    pass_position(r.width, columns, h.k.data + t * h.k.row, decays, value, now, to);
  };
  auto read_values = [&](int64_t begin, int64_t count) {
    copy_rows<Full>({h.v.data + begin * h.v.row, h.v.row}, count, h.width, 1.0f, count, b.desk.values);
  };
  if (h.start) move_rows(h.start, r.value_width, r.width, h.width, now, columns, columns);
  else clear_rows(now, columns, r.width, columns);
  for (int64_t t = 0; t < r.length; ++t) {
    if (t % CHUNK == 0) __builtin_memcpy(kept + t / CHUNK * state, now, state * sizeof(float));
    read_values(t, 1);
    pass(t, b.desk.values, nullptr);
  }
  begin_slopes(back, row, columns, b);
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t begin = chunk * CHUNK;
    const int64_t count = r.length - begin < CHUNK ? r.length - begin : CHUNK;
    __builtin_memcpy(now, kept + chunk * state, state * sizeof(float));
    read_values(begin, count);
    copy_rows<Full>({slope.data + begin * slope.row, slope.row}, count, h.width, 1.0f, count, b.slopes);
    for (int64_t i = 0; i < count; ++i) pass(begin + i, b.desk.values + i * columns, faded + i * state);
    for (int64_t i = count - 1; i >= 0; --i) {
      const int64_t t = begin + i;
      decays_at(r, h.decay, t, decays);
      back_position({r.width, columns, h.q.data + t * h.q.row, h.k.data + t * h.k.row, decays,
                     faded + i * state, b.slopes + i * columns, b.desk.values + i * columns, b.of_state,
                     b.desk.outs, b.of_q, b.of_k, b.some});
      __builtin_memcpy(row_at(s.v, r.of_v, batch, head, t), b.desk.outs, h.width * sizeof(float));
      __builtin_memcpy(row_at(s.q, r.of_q, batch, head, t), b.of_q, r.width * sizeof(float));
      __builtin_memcpy(row_at(s.k, r.of_k, batch, head, t), b.of_k, r.width * sizeof(float));
      if (s.decay)
        __builtin_memcpy(row_at(s.decay, r.of_decay, batch, head, t), b.some, r.width * sizeof(float));
      if (begins_document(h, t)) clear_rows(b.of_state, columns, r.width, columns);
    }
  }
  end_slopes(back, row, columns, b);
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
  const int64_t more = r.decays > 1 ? CHUNK * r.width : r.length;
  float *kept = (float *)malloc((chunks * r.width + more) * columns * sizeof(float));
  suffice::Range range;
  while (team.take(r.batch * r.heads, 1, range))
    if (r.decays > 1) back_steps(back, range.begin, kept, b);
    else back_head(back, range.begin, kept, b);
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
