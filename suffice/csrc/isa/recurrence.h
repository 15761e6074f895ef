// Linear recurrences with decay (RetNet, Mamba-2, GLA) and the delta rule (DeltaNet). A task is a
// head, or a slice of its value columns; its state stays in cache.
//
// Short sequences, and per-feature decays, go position by position. Everything else is chunkwise:
// with L the decays between two positions of a chunk and e those from its beginning,
//
//   Z = L o K K^T below the diagonal,   (I + Z diag(beta)) W = V - e o (K S),   X = diag(beta) W,
//   out = e o (Q S) + (L o Q K^T) X.
//
// Without the delta rule X = V. L is exp of differences of cumulative log decays, at most 0.
//
// Letters: D width of keys, E of values, rounded up to whole vectors, C = CHUNK positions, S state.

#pragma once

#include "linear.h"

namespace SUFFICE_ISA {

constexpr int64_t CHUNK = 32, MIN_CHUNKED = 8, SOLVE_ROWS = 8;
constexpr int CHUNK_VECTORS = CHUNK / WIDE;

struct RecurrenceCall {
  const Recurrence &r;
  const float *q, *k, *v, *decay, *beta, *start;
  float *out, *end;
  int64_t slices, slice;  // slices of value columns, and columns of each
};

// Decay factors within a chunk; past the last position they are 0.
struct ChunkDecays {
  float *between;  // L [C, C], row = later position; 0 above the diagonal
  float entering[CHUNK], leaving[CHUNK],
      passing;  // e: from the chunk's start; to its end; across all of it
};

// Inputs and outputs of a task.
struct RecurrenceHead {
  Rows q, k, v, decay, beta;  // decay and beta: null if absent
  float *out;                 // null: only states are wanted
  int64_t out_row;
  const int64_t *documents;
  const float *start;         // [D, value_width], all columns, or null
  float *end;
  int64_t width, columns;     // of this slice
  float *borders, *uncorrected;  // checkpoints [chunks, D, E] of states and [T, E] of W, or null
};

struct RecurrenceScratch {
  float *keys, *queries;  // [C, D in whole vectors]
  float *transposed;          // [D, C] keys
  float *values, *deltas;  // [C, E] W, X
  float *outs;            // [C, E]
  float *dots, *pairs;     // [C, C] -Z, L o Q K^T
  float *state;           // [D, E]
  float beta[CHUNK];
  ChunkDecays chunk_decays;
};

INLINE Rows rows_or_none(const float *data, const Strides &strides, int64_t batch, int64_t head) {
  return data ? rows_of(data, strides, batch, head) : Rows{nullptr, 0};
}

static RecurrenceHead recurrence_head(const RecurrenceCall &call, int64_t row, int64_t slice) {
  const Recurrence &r = call.r;
  const int64_t batch = row / r.heads, head = row % r.heads, from = slice * call.slice;
  RecurrenceHead h;
  h.width = r.value_width - from < call.slice ? r.value_width - from : call.slice;
  h.columns = whole_vectors(h.width);
  h.q = rows_of(call.q, r.q, batch, head), h.k = rows_of(call.k, r.k, batch, head);
  h.v = rows_of(call.v, r.v, batch, head);
  h.v.data += from;
  h.decay = rows_or_none(call.decay, r.decay, batch, head);
  h.beta = rows_or_none(call.beta, r.beta, batch, head);
  h.out = call.out ? call.out + batch * r.out.batch + head * r.out.head + from : nullptr;
  h.out_row = r.out.row;
  h.documents = r.documents ? r.documents + batch * r.length : nullptr;
  const int64_t state = r.width * r.value_width;
  h.start = call.start ? call.start + row * state + from : nullptr;
  h.end = call.end ? call.end + row * state + from : nullptr;
  h.borders = h.uncorrected = nullptr;
  return h;
}

// Copies rows [count, width] and pads them with zeros to `wide` columns.
static void copy_and_pad_rows(const float *from, int64_t from_row, int64_t count, int64_t width,
                              float *to, int64_t to_row, int64_t wide) {
  for (int64_t i = 0; i < count; ++i) {
    __builtin_memcpy(to + i * to_row, from + i * from_row, width * sizeof(float));
    for (int64_t e = width; e < wide; ++e) to[i * to_row + e] = 0.0f;
  }
}

static void clear_rows(float *rows, int64_t row, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t e = 0; e < width; ++e) rows[i * row + e] = 0.0f;
}

INLINE bool begins_document(const RecurrenceHead &h, int64_t t) {
  return h.documents && t && h.documents[t] != h.documents[t - 1];
}

// One recurrent step.
struct PositionStep {
  int64_t width;
  const float *k, *decays, *decayed_k,
      *decayed_q;  // [D]; decayed_k, decayed_q: k and q times the decays
  float beta, dots;                              // dots: q k
};

template <int C, bool CORRECTS>
NOINLINE void step_columns(const PositionStep &s, const float *from, int64_t from_row,
                           const float *v, int64_t count, float *to, int64_t to_row, float *out) {
  const float *k = s.k, *decays = s.decays, *decayed_k = s.decayed_k, *decayed_q = s.decayed_q;
  const int64_t width = s.width;
  Wide key_out[C] = {}, query_out[C] = {}, deltas[C];
  const float *row = from;
  for (int64_t d = 0; d < width; ++d, row += from_row) {
    const Wide by_k = wide(decayed_k[d]), by_q = wide(decayed_q[d]);
    for (int c = 0; c < C; ++c) {
      const Wide x = read<Wide>(row + c * WIDE);
      if (CORRECTS) key_out[c] += by_k * x;
      query_out[c] += by_q * x;
    }
  }
  for (int c = 0; c < C; ++c) {
    const int64_t some = count - c * WIDE;
    deltas[c] = some >= WIDE ? read<Wide>(v + c * WIDE) : read_some(v + c * WIDE, some);
    if (CORRECTS) deltas[c] = s.beta * (deltas[c] - key_out[c]);
    const Wide out_columns = query_out[c] + s.dots * deltas[c];
    if (some >= WIDE) write(out + c * WIDE, out_columns);
    else write_some(out + c * WIDE, out_columns, some);
  }
  for (int64_t d = 0; d < width; ++d, from += from_row, to += to_row) {
    const Wide kept = wide(decays[d]), key = wide(k[d]);
    for (int c = 0; c < C; ++c)
      write(to + c * WIDE, kept * read<Wide>(from + c * WIDE) + key * deltas[c]);
  }
}

template <bool CORRECTS>
static void step_once(const PositionStep &s, const float *from, int64_t from_row, const float *v,
                      int64_t width, float *to, int64_t to_row, float *out) {
  int64_t e = 0;
  for (; e + 4 * WIDE <= whole_vectors(width); e += 4 * WIDE)
    step_columns<4, CORRECTS>(s, from + e, from_row, v + e, width - e, to + e, to_row, out + e);
  for (; e < width; e += WIDE)
    step_columns<1, CORRECTS>(s, from + e, from_row, v + e, width - e, to + e, to_row, out + e);
}

INLINE Wide first_of(const float *from, int64_t n) {
  return n >= WIDE ? read<Wide>(from) : read_some(from, n);
}

// Multiplies key and query of a position with the decays, and computes q k.
static void decay_position(const float *q, const float *k, const float *decays, int64_t width,
                          PositionStep &s, float *decayed_k, float *decayed_q) {
  Wide dots = {};
  for (int64_t d = 0; d < width; d += WIDE) {
    const Wide grad_q = first_of(q + d, width - d), grad_k = first_of(k + d, width - d);
    const Wide factor = read<Wide>(decays + d);
    dots += grad_q * grad_k;
    write(decayed_k + d, factor * grad_k);
    write(decayed_q + d, factor * grad_q);
  }
  s.dots = sum_of(dots);
}

// Decay factors of a position, from one logarithm or one per feature.
static void decays_at(const Recurrence &r, const Rows &decay, int64_t t, float *to) {
  const float *logs = decay.data + t * decay.row;
  if (r.decays == 1) {
    const float all = exp_one(*logs);
    for (int64_t d = 0; d < r.width; d += WIDE) write(to + d, wide(all));
    return;
  }
  for (int64_t d = 0; d < r.width; d += WIDE) write(to + d, exp(first_of(logs + d, r.width - d)));
}

// Recurrent form, position by position. The state lives in the caller's `end` where its columns are
// whole vectors, else in scratch.
static void sum_steps(const Recurrence &r, const RecurrenceHead &h, RecurrenceScratch &scratch) {
  const bool there = h.width == h.columns;
  float *to = there ? h.end : scratch.state, *decays = scratch.transposed;
  const int64_t to_row = there ? r.value_width : h.columns;
  const float *from = to;
  int64_t from_row = to_row;
  if (h.start && there) from = h.start, from_row = r.value_width;
  else if (h.start)
    copy_and_pad_rows(h.start, r.value_width, r.width, h.width, to, to_row, h.columns);
  else clear_rows(to, to_row, r.width, h.columns);
  const int64_t padded = whole_vectors(r.width);
  float *decayed_k = decays + padded, *decayed_q = decayed_k + padded;
  for (int64_t d = 0; d < padded; ++d) decays[d] = 1.0f;
  for (int64_t t = 0; t < r.length; ++t, from = to, from_row = to_row) {
    if (begins_document(h, t)) clear_rows(to, to_row, r.width, h.columns);
    const float *q = h.q.data + t * h.q.row, *k = h.k.data + t * h.k.row;
    if (h.decay.data) decays_at(r, h.decay, t, decays);
    PositionStep s{r.width, k, decays, decayed_k, decayed_q, 1.0f, 0.0f};
    decay_position(q, k, decays, r.width, s, decayed_k, decayed_q);
    const float *v = h.v.data + t * h.v.row;
    float *out = h.out + t * h.out_row;
    if (h.beta.data) {
      s.beta = h.beta.data[t * h.beta.row];
      step_once<true>(s, from, from_row, v, h.width, to, to_row, out);
    } else {
      step_once<false>(s, from, from_row, v, h.width, to, to_row, out);
    }
  }
  if (!there) copy_and_pad_rows(to, to_row, r.width, h.width, h.end, r.value_width, h.width);
}

INLINE Wide no_more_than_0(Wide x) { return x < Wide{} ? x : Wide{}; }

// Decay factors of positions begin to begin + count - 1. Cumulative logarithms are double-float
// (high and low part), so that a small decay after a large one keeps its digits.
static void decay_chunk(const Rows &decay, int64_t begin, int64_t count, ChunkDecays &f) {
  float high[CHUNK] = {}, low[CHUNK] = {};
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    if (decay.data) total += decay.data[(begin + i) * decay.row];
    high[i] = (float)total, low[i] = (float)(total - high[i]);
  }
  int32_t lanes[WIDE];
  for (int i = 0; i < WIDE; ++i) lanes[i] = i;
  const float last = high[count - 1], rest = low[count - 1];
  for (int64_t j = 0; j < CHUNK; j += WIDE) {
    const Wide factor = read<Wide>(high + j), more = read<Wide>(low + j);
    const WideInts at = read<WideInts>(lanes) + (int32_t)j;
    write(f.entering + j, at < (int32_t)count ? exp(factor) : Wide{});
    const Wide after = no_more_than_0((last - factor) + (rest - more));
    write(f.leaving + j, at < (int32_t)count ? exp(after) : Wide{});
    for (int64_t i = j; i < count; ++i) {
      const Wide passed = no_more_than_0((high[i] - factor) + (low[i] - more));
      write(f.between + i * CHUNK + j, at <= (int32_t)i ? exp(passed) : Wide{});
    }
  }
  f.passing = f.entering[count - 1];
}

// Decayed products within a chunk: L o Q K^T, and -L o K K^T below the diagonal.
static void pair_chunk(const Recurrence &r, int64_t count, bool corrects,
                       RecurrenceScratch &scratch) {
  const int64_t padded = whole_vectors(r.width);
  for (int64_t row = 0; row < count; row += TRIANGLE_ROWS) {
    const int64_t some = count - row < TRIANGLE_ROWS ? count - row : TRIANGLE_ROWS;
    const int64_t vectors = whole_vectors(row + some) / WIDE;
    float *pairs = scratch.pairs + row * CHUNK, *dots = scratch.dots + row * CHUNK;
    add_product<ALONG>(scratch.queries + row * padded, padded, some, scratch.transposed, CHUNK,
                       vectors, r.width, pairs, CHUNK, true);
    if (corrects)
      add_product<ALONG>(scratch.keys + row * padded, padded, some, scratch.transposed, CHUNK,
                         vectors, r.width, dots, CHUNK, true);
    for (int64_t i = 0; i < some; ++i) {
      // L has no entries past the vector that holds the diagonal
      const int64_t own = whole_vectors(row + i + 1);
      for (int64_t j = i * CHUNK; j < i * CHUNK + vectors * WIDE; j += WIDE) {
        const bool seen = j - i * CHUNK < own;
        const Wide factor =
            seen ? read<Wide>(scratch.chunk_decays.between + row * CHUNK + j) : Wide{};
        write(pairs + j, seen ? read<Wide>(pairs + j) * factor : Wide{});
        if (corrects) write(dots + j, seen ? read<Wide>(dots + j) * -factor : Wide{});
      }
      if (corrects) dots[i * CHUNK + row + i] = 0.0f;
    }
  }
}

// Forward substitution for W (in place) and X = diag(beta) W, in row blocks.
static void solve_chunk(int64_t count, int64_t columns, const float *dots, const float *beta,
                        float *values, float *deltas) {
  for (int64_t row = 0; row < count; row += SOLVE_ROWS) {
    const int64_t some = count - row < SOLVE_ROWS ? count - row : SOLVE_ROWS;
    if (row)
      add_product<ALONG>(dots + row * CHUNK, CHUNK, some, deltas, columns, columns / WIDE, row,
                         values + row * columns, columns, false);
    const float *near = dots + row * CHUNK + row;
    for (int64_t e = 0; e < columns; e += WIDE) {
      Wide done[SOLVE_ROWS];
      float *value = values + row * columns + e, *delta = deltas + row * columns + e;
      for (int64_t i = 0; i < some; ++i) {
        Wide w = read<Wide>(value + i * columns);
        for (int64_t j = 0; j < i; ++j) w += near[i * CHUNK + j] * done[j];
        done[i] = beta[row + i] * w;
        write(value + i * columns, w);
        write(delta + i * columns, done[i]);
      }
    }
  }
}

// Scales row i of [count, columns] by factor[i].
static void scale_rows(const float *factor, float sign, int64_t count, int64_t columns,
                       float *rows) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t e = 0; e < columns; e += WIDE) {
      float *at = rows + i * columns + e;
      write(at, read<Wide>(at) * (sign * factor[i]));
    }
}

// Reads queries, keys, decays and betas of a segment of a chunk, and forms its products.
static void read_chunk(const Recurrence &r, const RecurrenceHead &h, int64_t begin, int64_t count,
                       RecurrenceScratch &scratch) {
  copy_rows<Full>({h.q.data + begin * h.q.row, h.q.row}, count, r.width, 1.0f, count,
                  scratch.queries);
  copy_rows<Full>({h.k.data + begin * h.k.row, h.k.row}, count, r.width, 1.0f, count, scratch.keys);
  rows_to_lanes<CHUNK_VECTORS>(scratch.keys, whole_vectors(r.width), count, r.width, 1.0f,
                               scratch.transposed);
  for (int64_t i = 0; i < count && h.beta.data; ++i)
    scratch.beta[i] = h.beta.data[(begin + i) * h.beta.row];
  decay_chunk(h.decay, begin, count, scratch.chunk_decays);
  pair_chunk(r, count, h.beta.data, scratch);
}

// Outputs of a segment of a chunk from X and the state.
static void write_chunk_outputs(const Recurrence &r, const RecurrenceHead &h, int64_t begin,
                                int64_t count, bool fresh, const float *deltas,
                                RecurrenceScratch &scratch) {
  const int64_t padded = whole_vectors(r.width), columns = h.columns, vectors = columns / WIDE;
  for (int64_t row = 0; row < count; row += TRIANGLE_ROWS) {
    const int64_t some = count - row < TRIANGLE_ROWS ? count - row : TRIANGLE_ROWS;
    add_product<ALONG>(scratch.pairs + row * CHUNK, CHUNK, some, deltas, columns, vectors,
                       row + some, scratch.outs + row * columns, columns, true);
  }
  if (!fresh) {
    scale_rows(scratch.chunk_decays.entering, 1.0f, count, padded, scratch.queries);
    add_product<ALONG>(scratch.queries, padded, count, scratch.state, columns, vectors, r.width,
                       scratch.outs, columns, false);
  }
  copy_and_pad_rows(scratch.outs, columns, count, h.width, h.out + begin * h.out_row, h.out_row,
                    h.width);
}

// Outputs of positions begin to begin + count - 1, and the state after them; `fresh`: it was 0.
static void sum_segment(const Recurrence &r, const RecurrenceHead &h, int64_t begin, int64_t count,
                      bool fresh, RecurrenceScratch &scratch) {
  const int64_t padded = whole_vectors(r.width), columns = h.columns, vectors = columns / WIDE;
  const ChunkDecays &f = scratch.chunk_decays;
  read_chunk(r, h, begin, count, scratch);
  copy_rows<Full>({h.v.data + begin * h.v.row, h.v.row}, count, h.width, 1.0f, count,
                  scratch.values);
  float *deltas = scratch.values;
  if (h.beta.data) {
    if (!fresh) {
      scale_rows(f.entering, -1.0f, count, padded, scratch.keys);
      add_product<ALONG>(scratch.keys, padded, count, scratch.state, columns, vectors, r.width,
                         scratch.values, columns, false);
    }
    deltas = scratch.deltas;
    solve_chunk(count, columns, scratch.dots, scratch.beta, scratch.values, deltas);
    if (h.uncorrected)
      __builtin_memcpy(h.uncorrected + begin * columns, scratch.values,
                       count * columns * sizeof(float));
  }
  if (h.out) write_chunk_outputs(r, h, begin, count, fresh, deltas, scratch);
  scale_rows(f.leaving, 1.0f, count, columns, deltas);
  if (!fresh && f.passing != 1.0f)
    for (int64_t i = 0; i < r.width * columns; i += WIDE)
      write(scratch.state + i, read<Wide>(scratch.state + i) * f.passing);
  add_product<ALONG>(scratch.transposed, CHUNK, r.width, deltas, columns, vectors, count,
                     scratch.state, columns, fresh);
}

// The end of the segment that begins at a position: of its chunk or of its document.
INLINE int64_t segment_end(const RecurrenceHead &h, int64_t begin, int64_t length) {
  int64_t end = begin / CHUNK * CHUNK + CHUNK, t = begin + 1;
  if (end > length) end = length;
  while (t < end && !begins_document(h, t)) ++t;
  return t < end ? t : end;
}

static void sum_chunks(const Recurrence &r, const RecurrenceHead &h, RecurrenceScratch &scratch) {
  if (h.start)
    copy_and_pad_rows(h.start, r.value_width, r.width, h.width, scratch.state, h.columns,
                      h.columns);
  for (int64_t begin = 0, end; begin < r.length; begin = end) {
    end = segment_end(h, begin, r.length);
    const bool fresh = begin ? begins_document(h, begin) : !h.start;
    if (h.borders && !fresh && begin % CHUNK == 0)
      __builtin_memcpy(h.borders + begin / CHUNK * r.width * h.columns, scratch.state,
                       r.width * h.columns * sizeof(float));
    sum_segment(r, h, begin, end - begin, fresh, scratch);
  }
  if (h.end)
    copy_and_pad_rows(scratch.state, h.columns, r.width, h.width, h.end, r.value_width, h.width);
}

// Bump allocator: places tables in memory, or only counts what they need.
struct Places {
  float *next;
  int64_t used;

  float *operator()(int64_t count) {
    float *table = next;
    count = padded_to(count, LANES);
    used += count;
    if (next) next += count;
    return table;
  }
};

static void place_scratch(const Recurrence &r, int64_t columns, Places &next,
                          RecurrenceScratch &scratch) {
  const int64_t padded = whole_vectors(r.width);
  scratch.keys = next(CHUNK * padded), scratch.queries = next(CHUNK * padded);
  scratch.transposed = next(CHUNK * padded);
  scratch.values = next(CHUNK * columns), scratch.deltas = next(CHUNK * columns);
  scratch.outs = next(CHUNK * columns);
  scratch.dots = next(CHUNK * CHUNK), scratch.pairs = next(CHUNK * CHUNK);
  scratch.chunk_decays.between = next(CHUNK * CHUNK);
  scratch.state = next(r.width * columns);
}

static void recur_worker(suffice::Team &team, int, void *context) {
  const RecurrenceCall &call = *(const RecurrenceCall *)context;
  const Recurrence &r = call.r;
  const bool steps = r.decays > 1 || r.length < MIN_CHUNKED;
  RecurrenceScratch scratch;
  Places size{nullptr, 0};
  place_scratch(r, whole_vectors(call.slice), size, scratch);
  Places next{(float *)suffice::thread_scratch(size.used * sizeof(float)), 0};
  place_scratch(r, whole_vectors(call.slice), next, scratch);
  // short calls: fixed ranges of heads, so that a thread finds its states in its cache again
  const int64_t tasks = r.batch * r.heads * call.slices;
  const int64_t grain = r.length < MIN_CHUNKED ? (tasks + team.threads - 1) / team.threads : 1;
  suffice::Range range;
  while (team.take(tasks, grain, range))
    for (int64_t task = range.begin; task < range.end; ++task) {
      const RecurrenceHead h = recurrence_head(call, task / call.slices, task % call.slices);
      if (steps) sum_steps(r, h, scratch);
      else sum_chunks(r, h, scratch);
    }
}

// One thread per MACS_PER_THREAD multiply-adds.
INLINE int64_t threads_for(const Recurrence &r, int64_t threads) {
  const int64_t each = 4 * r.width * r.value_width + CHUNK * (r.width + r.value_width);
  const int64_t worth = r.batch * r.heads * r.length * each / MACS_PER_THREAD;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

static void recur_sequence(const Recurrence *recurrence, const float *q, const float *k,
                        const float *v, const float *decay, const float *beta, const float *start,
                        float *out, float *end, int64_t threads) {
  const Recurrence &r = *recurrence;
  RecurrenceCall call{r, q, k, v, decay, beta, start, out, end, 1, r.value_width};
  const int64_t rows = r.batch * r.heads;
  if (rows == 0 || r.length == 0) return;
  threads = threads_for(r, threads);
  if (rows < threads) {  // fewer heads than threads: slice the value columns
    int64_t wanted = (threads + rows - 1) / rows;
    const int64_t most = whole_vectors(r.value_width) / WIDE;
    if (wanted > most) wanted = most;
    call.slice = padded_to((r.value_width + wanted - 1) / wanted, WIDE);
    call.slices = (r.value_width + call.slice - 1) / call.slice;
  }
  const int64_t tasks = rows * call.slices;
  suffice::run_team((int)(tasks < threads ? tasks : threads), recur_worker, &call);
}

}  // namespace SUFFICE_ISA
