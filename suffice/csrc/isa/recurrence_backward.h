// Backward pass of linear recurrences. A task is a head: it recomputes the states before its chunks
// (checkpoints), then goes through the chunks from the last to the first. With per-feature decays a
// chunk's states are recomputed and its positions go one by one. Otherwise, with the names of
// recurrence.h, d for gradients, and P = L o Q K^T, Z = L o K K^T:
//
//   dX = P^T dO + leaving o (K dS),   (I + Z^T diag(beta)) H = dX,   dY = diag(beta) H,
//   dV = dY,   dbeta = rows of H times rows of W,   dP = dO X^T,   dZ = -dY X^T.
//
// The gradient of a log decay sums over everything that crosses its position: pairs on its two
// sides, state that enters later positions, contributions that leave earlier ones. It is never
// formed as a difference of two sums, which would cancel.

#pragma once

#include <stdlib.h>

#include "recurrence.h"

namespace SUFFICE_ISA {

struct RecurrenceBackward {
  const RecurrenceCall call;
  const RecurrenceGradients &s;
};

struct RecurrenceBackwardScratch {
  RecurrenceScratch scratch;
  float *grads;              // [C, E] dO
  float *grad_deltas;               // [C, E] dY
  float *lanes;               // [E, C] X
  float *transposed_state, *transposed_grad;  // [E, D in whole vectors] S, dS
  float *grad_state;            // [D, E] dS
  float *grad_pairs, *grad_dots;   // [C, C] L o dP, L o dZ
  float *grad_q, *grad_k;         // [C, D in whole vectors]
  float *some;                // [C, D or E in whole vectors]
  double entering[CHUNK], leaving[CHUNK], crossing[CHUNK];  // gradients of log decays
};

static void place_back(const Recurrence &r, Places &next, RecurrenceBackwardScratch &b) {
  const int64_t columns = whole_vectors(r.value_width), padded = whole_vectors(r.width);
  place_scratch(r, columns, next, b.scratch);
  b.grads = next(CHUNK * columns), b.grad_deltas = next(CHUNK * columns);
  b.lanes = next(columns * CHUNK);
  b.transposed_state = next(columns * padded), b.transposed_grad = next(columns * padded);
  b.grad_state = next(r.width * columns);
  b.grad_pairs = next(CHUNK * CHUNK), b.grad_dots = next(CHUNK * CHUNK);
  b.grad_q = next(CHUNK * padded), b.grad_k = next(CHUNK * padded);
  b.some = next(CHUNK * (padded > columns ? padded : columns));
}

// Transposes [rows, width]; rows are padded to whole vectors.
static void transpose_rows(const float *from, int64_t from_row, int64_t rows, int64_t width,
                           float *to, int64_t to_row) {
  for (int64_t first = 0; first < rows; first += WIDE)
    for (int64_t e = 0; e < width; e += WIDE) {
      Wide square[WIDE];
      for (int i = 0; i < WIDE; ++i)
        square[i] = first + i < rows ? read<Wide>(from + (first + i) * from_row + e) : Wide{};
      transpose(square);
      for (int i = 0; i < WIDE && e + i < width; ++i)
        write(to + (e + i) * to_row + first, square[i]);
    }
}

INLINE float dot(const float *a, const float *b, int64_t columns) {
  Wide total = {};
  for (int64_t e = 0; e < columns; e += WIDE) total += read<Wide>(a + e) * read<Wide>(b + e);
  return sum_of(total);
}

// to = rows, row i scaled by factor[i].
static void scaled(const float *factor, const float *rows, int64_t count, int64_t columns,
                   float *to) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t e = 0; e < columns; e += WIDE)
      write(to + i * columns + e, read<Wide>(rows + i * columns + e) * factor[i]);
}

// Adds rows to `to`, and their dot products with the rows of `factor` to `products` [count].
static void add_rows(const float *rows, const float *factor, int64_t count, int64_t columns,
                     float *to, double *products) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * columns;
    products[i] += dot(rows + at, factor + at, columns);
    for (int64_t e = at; e < at + columns; e += WIDE)
      write(to + e, read<Wide>(to + e) + read<Wide>(rows + e));
  }
}

// Back substitution for H (in place of dX) and dY = diag(beta) H, in row blocks from the last.
static void solve_back(int64_t count, int64_t columns, const float *dots, const float *beta,
                       float *values, float *grad_deltas) {
  for (int64_t row = (count - 1) / SOLVE_ROWS * SOLVE_ROWS; row >= 0; row -= SOLVE_ROWS) {
    const int64_t some = count - row < SOLVE_ROWS ? count - row : SOLVE_ROWS, later = row + some;
    if (later < count)
      add_product<ACROSS>(dots + later * CHUNK + row, CHUNK, some, grad_deltas + later * columns,
                          columns, columns / WIDE, count - later, values + row * columns, columns,
                          false);
    const float *near = dots + row * CHUNK + row;
    for (int64_t e = 0; e < columns; e += WIDE) {
      Wide done[SOLVE_ROWS];
      float *value = values + row * columns + e, *grad_delta = grad_deltas + row * columns + e;
      for (int64_t i = some - 1; i >= 0; --i) {
        Wide h = read<Wide>(value + i * columns);
        for (int64_t j = some - 1; j > i; --j) h += near[j * CHUNK + i] * done[j];
        done[i] = beta[row + i] * h;
        write(value + i * columns, h);
        write(grad_delta + i * columns, done[i]);
      }
    }
  }
}

// Gradients of the products within a chunk, times their decays: L o dP and, with the delta rule,
// L o dZ; and the part of each log decay's gradient that comes from pairs across its position.
static void pair_gradients(const Recurrence &r, int64_t count, int64_t columns, bool corrects,
                            RecurrenceBackwardScratch &b) {
  const RecurrenceScratch &scratch = b.scratch;
  for (int64_t row = 0; row < count; row += TRIANGLE_ROWS) {
    const int64_t some = count - row < TRIANGLE_ROWS ? count - row : TRIANGLE_ROWS;
    const int64_t vectors = whole_vectors(row + some) / WIDE;
    add_product<ALONG>(b.grads + row * columns, columns, some, b.lanes, CHUNK, vectors,
                       r.value_width, b.grad_pairs + row * CHUNK, CHUNK, true);
    if (corrects)
      add_product<ALONG>(b.grad_deltas + row * columns, columns, some, b.lanes, CHUNK, vectors,
                         r.value_width, b.grad_dots + row * CHUNK, CHUNK, true);
  }
  float behind[CHUNK] = {};  // per key: summed over queries from here on
  int32_t lanes[WIDE];
  for (int i = 0; i < WIDE; ++i) lanes[i] = i;
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t row = i / TRIANGLE_ROWS * TRIANGLE_ROWS;
    const int64_t end = whole_vectors(row + TRIANGLE_ROWS < count ? row + TRIANGLE_ROWS : count);
    const int64_t own = whole_vectors(i + 1);
    Wide before = {};
    for (int64_t j = 0; j < end; j += WIDE) {
      const int64_t at = i * CHUNK + j;
      if (j >= own) {
        write(b.grad_pairs + at, Wide{});
        if (corrects) write(b.grad_dots + at, Wide{});
        continue;
      }
      const WideInts earlier = read<WideInts>(lanes) + (int32_t)j < (int32_t)i;
      const Wide factor = read<Wide>(scratch.chunk_decays.between + at),
                 out_grad = read<Wide>(b.grad_pairs + at);
      Wide moved = read<Wide>(scratch.pairs + at) * out_grad;
      write(b.grad_pairs + at, out_grad * factor);
      if (corrects) {
        const Wide other = read<Wide>(b.grad_dots + at);
        moved += read<Wide>(scratch.dots + at) * other;
        write(b.grad_dots + at, earlier ? other * -factor : Wide{});
      }
      const Wide total = read<Wide>(behind + j) + (earlier ? moved : Wide{});
      write(behind + j, total);
      before += earlier ? total : Wide{};
    }
    b.crossing[i] = sum_of(before);
  }
}

// Products with a lower triangle, and with its transpose: dQ = dP K, dK = dP^T Q.
static void multiply_lower(const float *triangle, const float *rows, int64_t count, int64_t padded,
                           float *to, bool fresh) {
  for (int64_t row = 0; row < count; row += TRIANGLE_ROWS) {
    const int64_t some = count - row < TRIANGLE_ROWS ? count - row : TRIANGLE_ROWS;
    add_product<ALONG>(triangle + row * CHUNK, CHUNK, some, rows, padded, padded / WIDE, row + some,
                       to + row * padded, padded, fresh);
  }
}

static void multiply_lower_transposed(const float *triangle, const float *rows, int64_t count,
                                      int64_t padded, float *to, bool fresh) {
  for (int64_t row = 0; row < count; row += TRIANGLE_ROWS) {
    const int64_t some = count - row < TRIANGLE_ROWS ? count - row : TRIANGLE_ROWS;
    add_product<ACROSS>(triangle + row * CHUNK + row, CHUNK, some, rows + row * padded, padded,
                        padded / WIDE, count - row, to + row * padded, padded, fresh);
  }
}

// Reads X (rows and lanes) and dO of a segment, and computes dX, H and dY.
static void value_gradients(const Recurrence &r, const RecurrenceHead &h, const Rows &out_grad,
                            int64_t begin, int64_t count, RecurrenceBackwardScratch &b) {
  const int64_t columns = h.columns, vectors = columns / WIDE, padded = whole_vectors(r.width);
  RecurrenceScratch &scratch = b.scratch;
  copy_rows<Full>({out_grad.data + begin * out_grad.row, out_grad.row}, count, h.width, 1.0f, count,
                  b.grads);
  if (h.beta.data) {
    __builtin_memcpy(scratch.values, h.uncorrected + begin * columns,
                     count * columns * sizeof(float));
    scaled(scratch.beta, scratch.values, count, columns, scratch.deltas);
  } else {
    copy_rows<Full>({h.v.data + begin * h.v.row, h.v.row}, count, h.width, 1.0f, count,
                    scratch.deltas);
  }
  rows_to_lanes<CHUNK_VECTORS>(scratch.deltas, columns, count, r.value_width, 1.0f, b.lanes);
  multiply_lower_transposed(scratch.pairs, b.grads, count, columns, scratch.outs, true);
  scaled(scratch.chunk_decays.leaving, scratch.keys, count, padded, b.some);
  add_product<ALONG>(b.some, padded, count, b.grad_state, columns, vectors, r.width, scratch.outs,
                     columns, false);
  if (h.beta.data)
    solve_back(count, columns, scratch.dots, scratch.beta, scratch.outs, b.grad_deltas);
}

// Gradients of q and k of a segment, through pairs and through the states before and after; updates
// dS.
static void pair_and_state_gradients(const Recurrence &r, int64_t columns, int64_t count,
                                     const float *state, bool corrects,
                                     RecurrenceBackwardScratch &b) {
  const int64_t padded = whole_vectors(r.width), wide = padded / WIDE, vectors = columns / WIDE;
  RecurrenceScratch &scratch = b.scratch;
  const ChunkDecays &f = scratch.chunk_decays;
  pair_gradients(r, count, columns, corrects, b);
  multiply_lower(b.grad_pairs, scratch.keys, count, padded, b.grad_q, true);
  multiply_lower_transposed(b.grad_pairs, scratch.queries, count, padded, b.grad_k, true);
  if (corrects) {
    multiply_lower(b.grad_dots, scratch.keys, count, padded, b.grad_k, false);
    multiply_lower_transposed(b.grad_dots, scratch.keys, count, padded, b.grad_k, false);
  }
  for (int64_t i = 0; i < count; ++i) b.entering[i] = b.leaving[i] = 0.0;
  transpose_rows(b.grad_state, columns, r.width, r.value_width, b.transposed_grad, padded);
  scale_rows(f.leaving, 1.0f, count, columns, scratch.deltas);
  add_product<ALONG>(scratch.deltas, columns, count, b.transposed_grad, padded, wide, r.value_width,
                     b.some, padded, true);
  add_rows(b.some, scratch.keys, count, padded, b.grad_k, b.leaving);
  if (!state) {
    clear_rows(b.grad_state, columns, r.width, columns);
    return;
  }
  transpose_rows(state, columns, r.width, r.value_width, b.transposed_state, padded);
  scale_rows(f.entering, 1.0f, count, columns, b.grads);
  add_product<ALONG>(b.grads, columns, count, b.transposed_state, padded, wide, r.value_width,
                     b.some, padded, true);
  add_rows(b.some, scratch.queries, count, padded, b.grad_q, b.entering);
  double passed = 0.0;
  for (int64_t d = 0; d < r.width; ++d)
    passed += dot(b.grad_state + d * columns, state + d * columns, columns);
  for (int64_t i = 0; i < count; ++i) b.crossing[i] += f.passing * passed;
  for (int64_t i = 0; i < r.width * columns; i += WIDE)
    write(b.grad_state + i, read<Wide>(b.grad_state + i) * f.passing);
  add_product<ACROSS>(scratch.queries, padded, r.width, b.grads, columns, vectors, count,
                      b.grad_state, columns, false);
  if (!corrects) return;
  scale_rows(f.entering, -1.0f, count, columns, b.grad_deltas);
  add_product<ALONG>(b.grad_deltas, columns, count, b.transposed_state, padded, wide, r.value_width,
                     b.some, padded, true);
  add_rows(b.some, scratch.keys, count, padded, b.grad_k, b.entering);
  add_product<ACROSS>(scratch.keys, padded, r.width, b.grad_deltas, columns, vectors, count,
                      b.grad_state, columns, false);
}

template <class T>
INLINE T *row_at(T *data, const Strides &strides, int64_t batch, int64_t head, int64_t row) {
  return data + batch * strides.batch + head * strides.head + row * strides.row;
}

static void backward_segment(const RecurrenceBackward &back, const RecurrenceHead &h, int64_t batch,
                             int64_t head, int64_t begin, int64_t count, const float *state,
                             RecurrenceBackwardScratch &b) {
  const Recurrence &r = back.call.r;
  const RecurrenceGradients &s = back.s;
  const int64_t columns = h.columns, padded = whole_vectors(r.width);
  RecurrenceScratch &scratch = b.scratch;
  read_chunk(r, h, begin, count, scratch);
  value_gradients(r, h, rows_of(s.out, r.out_grad, batch, head), begin, count, b);
  const float *grad_values = h.beta.data ? b.grad_deltas : scratch.outs;
  copy_and_pad_rows(grad_values, columns, count, h.width, row_at(s.v, r.grad_v, batch, head, begin),
                    r.grad_v.row, h.width);
  for (int64_t i = 0; i < count && s.beta; ++i)
    *row_at(s.beta, r.grad_beta, batch, head, begin + i) =
        dot(scratch.outs + i * columns, scratch.values + i * columns, columns);
  pair_and_state_gradients(r, columns, count, state, h.beta.data, b);
  copy_and_pad_rows(b.grad_q, padded, count, r.width, row_at(s.q, r.grad_q, batch, head, begin),
                    r.grad_q.row, r.width);
  copy_and_pad_rows(b.grad_k, padded, count, r.width, row_at(s.k, r.grad_k, batch, head, begin),
                    r.grad_k.row, r.width);
  if (!s.decay) return;
  double entered = 0.0, leaving_sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    b.crossing[i] += leaving_sum;
    leaving_sum += b.leaving[i];
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    entered += b.entering[i];
    *row_at(s.decay, r.grad_decay, batch, head, begin + i) = (float)(b.crossing[i] + entered);
  }
}

// Loads the gradient of the final state; stores that of the initial state.
static void begin_state_grad(const RecurrenceBackward &back, int64_t row, int64_t columns,
                             RecurrenceBackwardScratch &b) {
  const Recurrence &r = back.call.r;
  const float *grad_end = back.s.end ? back.s.end + row * r.width * r.value_width : nullptr;
  if (grad_end)
    copy_and_pad_rows(grad_end, r.value_width, r.width, r.value_width, b.grad_state, columns,
                      columns);
  else clear_rows(b.grad_state, columns, r.width, columns);
}

static void end_state_grad(const RecurrenceBackward &back, int64_t row, int64_t columns,
                           RecurrenceBackwardScratch &b) {
  const Recurrence &r = back.call.r;
  if (back.s.start)
    copy_and_pad_rows(b.grad_state, columns, r.width, r.value_width,
                      back.s.start + row * r.width * r.value_width, r.value_width, r.value_width);
}

static void backward_head(const RecurrenceBackward &back, int64_t row, float *kept,
                          RecurrenceBackwardScratch &b) {
  const Recurrence &r = back.call.r;
  RecurrenceHead h = recurrence_head(back.call, row, 0);
  const int64_t chunks = (r.length + CHUNK - 1) / CHUNK, state = r.width * h.columns;
  h.borders = kept, h.uncorrected = kept + chunks * state;
  sum_chunks(r, h, b.scratch);
  begin_state_grad(back, row, h.columns, b);
  for (int64_t end = r.length, begin; end > 0; end = begin) {
    begin = (end - 1) / CHUNK * CHUNK;
    for (int64_t t = end - 1; t > begin; --t)
      if (begins_document(h, t)) begin = t;
    const bool fresh = begin ? begins_document(h, begin) : !h.start;
    const float *before = fresh ? nullptr : h.borders + begin / CHUNK * state;
    backward_segment(back, h, row / r.heads, row % r.heads, begin, end - begin, before, b);
  }
  end_state_grad(back, row, h.columns, b);
}

// Advances the state by one position; stores the decayed state before the key is added if wanted.
static void advance_state(int64_t width, int64_t columns, const float *k, const float *decays,
                          const float *value, float *state, float *decayed) {
  for (int64_t d = 0; d < width; ++d) {
    const Wide kept = wide(decays[d]), key = wide(k[d]);
    for (int64_t e = 0; e < columns; e += WIDE) {
      const int64_t at = d * columns + e;
      const Wide x = kept * read<Wide>(state + at);
      if (decayed) write(decayed + at, x);
      write(state + at, x + key * read<Wide>(value + e));
    }
  }
}

// One backward step of the recurrent form.
struct PositionBackward {
  int64_t width, columns;
  const float *q, *k, *decays;         // [D]
  const float *decayed, *out_grad,
      *value;                              // [D, E] decayed state before the key is added; [E]; [E]
  float *grad_state, *grad_value;          // [D, E], [E]
  float *grad_q, *grad_k, *grad_decay;       // [D in whole vectors], accumulated
};

template <int C>
NOINLINE void backward_columns(const PositionBackward &s, int64_t first) {
  Wide out_grad[C], value[C], grad_value[C] = {};
  for (int c = 0; c < C; ++c) {
    out_grad[c] = read<Wide>(s.out_grad + first + c * WIDE);
    value[c] = read<Wide>(s.value + first + c * WIDE);
  }
  for (int64_t d = 0; d < s.width; d += WIDE) {
    Wide grad_deltas[WIDE] = {}, deltas[WIDE] = {}, passed[WIDE] = {};
    const int64_t some = s.width - d < WIDE ? s.width - d : WIDE;
    for (int64_t i = 0; i < some; ++i) {
      const float *before = s.decayed + (d + i) * s.columns + first;
      float *row = s.grad_state + (d + i) * s.columns + first;
      const Wide by_q = wide(s.q[d + i]), by_k = wide(s.k[d + i]), kept = wide(s.decays[d + i]);
      Wide to_q = {}, to_k = {}, to_decay = {};
      for (int c = 0; c < C; ++c) {
        const Wide x = read<Wide>(before + c * WIDE);
        const Wide after = read<Wide>(row + c * WIDE) + by_q * out_grad[c];
        to_q += x * out_grad[c];
        to_k += after * value[c];
        to_decay += after * x;
        grad_value[c] += by_k * after;
        write(row + c * WIDE, kept * after);
      }
      grad_deltas[i] = to_q, deltas[i] = to_k, passed[i] = to_decay;
    }
    write(s.grad_q + d, read<Wide>(s.grad_q + d) + sums_of(grad_deltas));
    write(s.grad_k + d, read<Wide>(s.grad_k + d) + sums_of(deltas));
    write(s.grad_decay + d, read<Wide>(s.grad_decay + d) + sums_of(passed));
  }
  for (int c = 0; c < C; ++c) write(s.grad_value + first + c * WIDE, grad_value[c]);
}

static void backward_position(const PositionBackward &s) {
  const float dots = dot(s.value, s.out_grad, s.columns);  // the query reads its own key
  for (int64_t d = 0; d < s.width; d += WIDE) {
    write(s.grad_q + d, dots * first_of(s.k + d, s.width - d));
    write(s.grad_k + d, Wide{});
    write(s.grad_decay + d, Wide{});
  }
  int64_t e = 0;
  for (; e + 4 * WIDE <= s.columns; e += 4 * WIDE) backward_columns<4>(s, e);
  for (; e < s.columns; e += WIDE) backward_columns<1>(s, e);
}

// A head with per-feature decays.
static void backward_steps(const RecurrenceBackward &back, int64_t row, float *kept,
                           RecurrenceBackwardScratch &b) {
  const Recurrence &r = back.call.r;
  const RecurrenceGradients &s = back.s;
  const RecurrenceHead h = recurrence_head(back.call, row, 0);
  const int64_t batch = row / r.heads, head = row % r.heads, columns = h.columns;
  const int64_t chunks = (r.length + CHUNK - 1) / CHUNK, state = r.width * columns;
  float *now = b.scratch.state, *decays = b.scratch.transposed, *decayed = kept + chunks * state;
  const Rows out_grad = rows_of(s.out, r.out_grad, batch, head);
  auto pass = [&](int64_t t, const float *value, float *to) {
    if (begins_document(h, t)) clear_rows(now, columns, r.width, columns);
    decays_at(r, h.decay, t, decays);
    advance_state(r.width, columns, h.k.data + t * h.k.row, decays, value, now, to);
  };
  auto read_values = [&](int64_t begin, int64_t count) {
    copy_rows<Full>({h.v.data + begin * h.v.row, h.v.row}, count, h.width, 1.0f, count,
                    b.scratch.values);
  };
  if (h.start) copy_and_pad_rows(h.start, r.value_width, r.width, h.width, now, columns, columns);
  else clear_rows(now, columns, r.width, columns);
  for (int64_t t = 0; t < r.length; ++t) {
    if (t % CHUNK == 0) __builtin_memcpy(kept + t / CHUNK * state, now, state * sizeof(float));
    read_values(t, 1);
    pass(t, b.scratch.values, nullptr);
  }
  begin_state_grad(back, row, columns, b);
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t begin = chunk * CHUNK;
    const int64_t count = r.length - begin < CHUNK ? r.length - begin : CHUNK;
    __builtin_memcpy(now, kept + chunk * state, state * sizeof(float));
    read_values(begin, count);
    copy_rows<Full>({out_grad.data + begin * out_grad.row, out_grad.row}, count, h.width, 1.0f,
                    count, b.grads);
    for (int64_t i = 0; i < count; ++i)
      pass(begin + i, b.scratch.values + i * columns, decayed + i * state);
    for (int64_t i = count - 1; i >= 0; --i) {
      const int64_t t = begin + i;
      decays_at(r, h.decay, t, decays);
      backward_position({r.width, columns, h.q.data + t * h.q.row, h.k.data + t * h.k.row, decays,
                         decayed + i * state, b.grads + i * columns, b.scratch.values + i * columns,
                         b.grad_state, b.scratch.outs, b.grad_q, b.grad_k, b.some});
      __builtin_memcpy(row_at(s.v, r.grad_v, batch, head, t), b.scratch.outs,
                       h.width * sizeof(float));
      __builtin_memcpy(row_at(s.q, r.grad_q, batch, head, t), b.grad_q, r.width * sizeof(float));
      __builtin_memcpy(row_at(s.k, r.grad_k, batch, head, t), b.grad_k, r.width * sizeof(float));
      if (s.decay)
        __builtin_memcpy(row_at(s.decay, r.grad_decay, batch, head, t), b.some,
                         r.width * sizeof(float));
      if (begins_document(h, t)) clear_rows(b.grad_state, columns, r.width, columns);
    }
  }
  end_state_grad(back, row, columns, b);
}

static void recur_back_worker(suffice::Team &team, int, void *context) {
  const RecurrenceBackward &back = *(const RecurrenceBackward *)context;
  const Recurrence &r = back.call.r;
  RecurrenceBackwardScratch b;
  Places size{nullptr, 0};
  place_back(r, size, b);
  Places next{(float *)suffice::thread_scratch(size.used * sizeof(float)), 0};
  place_back(r, next, b);
  const int64_t columns = whole_vectors(r.value_width), chunks = (r.length + CHUNK - 1) / CHUNK;
  const int64_t more = r.decays > 1 ? CHUNK * r.width : r.length;
  float *kept = (float *)malloc((chunks * r.width + more) * columns * sizeof(float));
  suffice::Range range;
  while (team.take(r.batch * r.heads, 1, range))
    if (r.decays > 1) backward_steps(back, range.begin, kept, b);
    else backward_head(back, range.begin, kept, b);
  free(kept);
}

static void recur_back(const Recurrence *recurrence, const float *q, const float *k, const float *v,
                       const float *decay, const float *beta, const float *start,
                       const RecurrenceGradients *grads, int64_t threads) {
  const Recurrence &r = *recurrence;
  const int64_t rows = r.batch * r.heads;
  if (rows == 0 || r.length == 0) return;
  RecurrenceBackward back{{r, q, k, v, decay, beta, start, nullptr, nullptr, 1, r.value_width},
                          *grads};
  threads = threads_for(r, threads);
  suffice::run_team((int)(rows < threads ? rows : threads), recur_back_worker, &back);
}

}  // namespace SUFFICE_ISA
