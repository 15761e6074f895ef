// Recurrences: sums of keys and values that decay from position to position, or are corrected by the
// delta rule. A task is a head, or some columns of its values, whose state stays in the cache.
//
// Few positions, and decays of each feature, go one by one: a pass reads what the state gives for
// the key and for the query, the next one changes it. Other positions go in chunks: with L the
// decays between two positions of a chunk, e those from before it,
//
//   Z = L o K K^T below the diagonal,   (I + Z diag(beta)) W = V - e o (K S),   X = diag(beta) W,
//   out = e o (Q S) + (L o Q K^T) X.
//
// Without a correction X = V. L comes from differences of summed logarithms, at most 0.
//
// Letters: D width of keys, E of values, rounded up to whole vectors, C = CHUNK positions, S state.

#pragma once

#include "linear.h"

namespace SUFFICE_ISA {

constexpr int64_t CHUNK = 32, FEW_POSITIONS = 8, SOLVED_ROWS = 8;
constexpr int CHUNK_VECTORS = CHUNK / WIDE;

struct RecurCall {
  const Recurrence &r;
  const float *q, *k, *v, *decay, *beta, *start;
  float *out, *end;
  int64_t slices, slice;  // of values, and columns of each
};

// Factors of the positions of a chunk; those behind the last are 0.
struct Fading {
  float *between;  // [C, C], of a key at a later position; 0 above the diagonal
  float entering[CHUNK], leaving[CHUNK], passing;  // into, out of and past the chunk
};

// What a task reads and writes.
struct HeadOfSums {
  Rows q, k, v, decay, beta;  // null where there is none
  float *out;                 // null = the states alone are wanted
  int64_t out_row;
  const int64_t *documents;
  const float *start;         // [D, value_width] of all columns, or null
  float *end;
  int64_t width, columns;     // of this slice
  float *borders, *uncorrected;  // [chunks, D, E] states before chunks and [T, E] W, or null
};

struct RecurDesk {
  float *keys, *queries;  // [C, D in whole vectors]
  float *turned;          // [D, C] keys
  float *values, *taken;  // [C, E] W, X
  float *outs;            // [C, E]
  float *met, *pairs;     // [C, C] -Z, L o Q K^T
  float *state;           // [D, E]
  float beta[CHUNK];
  Fading fading;
};

INLINE Rows rows_or_none(const float *data, const Strides &strides, int64_t batch, int64_t head) {
  return data ? rows_of(data, strides, batch, head) : Rows{nullptr, 0};
}

static HeadOfSums head_of_sums(const RecurCall &call, int64_t row, int64_t slice) {
  const Recurrence &r = call.r;
  const int64_t batch = row / r.heads, head = row % r.heads, from = slice * call.slice;
  HeadOfSums h;
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

// Rows [count, width] from one place to another; zeros behind them where rows are wider there.
static void move_rows(const float *from, int64_t from_row, int64_t count, int64_t width, float *to,
                      int64_t to_row, int64_t wide) {
  for (int64_t i = 0; i < count; ++i) {
    __builtin_memcpy(to + i * to_row, from + i * from_row, width * sizeof(float));
    for (int64_t e = width; e < wide; ++e) to[i * to_row + e] = 0.0f;
  }
}

static void clear_rows(float *rows, int64_t row, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t e = 0; e < width; ++e) rows[i * row + e] = 0.0f;
}

INLINE bool begins_document(const HeadOfSums &h, int64_t t) {
  return h.documents && t && h.documents[t] != h.documents[t - 1];
}

// One position, for the columns of a state.
struct OneStep {
  int64_t width;
  const float *k, *decays, *faded_k, *faded_q;  // [D], the latter times the decays
  float beta, met;                              // met: q k
};

template <int C, bool CORRECTS>
APART void step_columns(const OneStep &s, const float *from, int64_t from_row, const float *v,
                        int64_t count, float *to, int64_t to_row, float *out) {
  const float *k = s.k, *decays = s.decays, *faded_k = s.faded_k, *faded_q = s.faded_q;
  const int64_t width = s.width;
  Wide known[C] = {}, asked[C] = {}, taken[C];
  const float *row = from;
  for (int64_t d = 0; d < width; ++d, row += from_row) {
    const Wide by_k = wide(faded_k[d]), by_q = wide(faded_q[d]);
    for (int c = 0; c < C; ++c) {
      const Wide x = read<Wide>(row + c * WIDE);
      if (CORRECTS) known[c] += by_k * x;
      asked[c] += by_q * x;
    }
  }
  for (int c = 0; c < C; ++c) {
    const int64_t some = count - c * WIDE;
    taken[c] = some >= WIDE ? read<Wide>(v + c * WIDE) : read_some(v + c * WIDE, some);
    if (CORRECTS) taken[c] = s.beta * (taken[c] - known[c]);
    const Wide found = asked[c] + s.met * taken[c];
    if (some >= WIDE) write(out + c * WIDE, found);
    else write_some(out + c * WIDE, found, some);
  }
  for (int64_t d = 0; d < width; ++d, from += from_row, to += to_row) {
    const Wide kept = wide(decays[d]), key = wide(k[d]);
    for (int c = 0; c < C; ++c)
      write(to + c * WIDE, kept * read<Wide>(from + c * WIDE) + key * taken[c]);
  }
}

template <bool CORRECTS>
static void step_once(const OneStep &s, const float *from, int64_t from_row, const float *v,
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

// The key and the query of a position times the decays of their features, and their product.
static void fade_position(const float *q, const float *k, const float *decays, int64_t width,
                          OneStep &s, float *faded_k, float *faded_q) {
  Wide met = {};
  for (int64_t d = 0; d < width; d += WIDE) {
    const Wide of_q = first_of(q + d, width - d), of_k = first_of(k + d, width - d);
    const Wide by = read<Wide>(decays + d);
    met += of_q * of_k;
    write(faded_k + d, by * of_k);
    write(faded_q + d, by * of_q);
  }
  s.met = sum_of(met);
}

// The factors of a position, from its logarithm or those of its features.
static void decays_at(const Recurrence &r, const Rows &decay, int64_t t, float *to) {
  const float *logs = decay.data + t * decay.row;
  if (r.decays == 1) {
    const float all = exp_one(*logs);
    for (int64_t d = 0; d < r.width; d += WIDE) write(to + d, wide(all));
    return;
  }
  for (int64_t d = 0; d < r.width; d += WIDE) write(to + d, exp(first_of(logs + d, r.width - d)));
}

// Positions one by one. The state lies where the end is wanted, if its columns fill vectors.
static void sum_steps(const Recurrence &r, const HeadOfSums &h, RecurDesk &desk) {
  const bool there = h.width == h.columns;
  float *to = there ? h.end : desk.state, *decays = desk.turned;
  const int64_t to_row = there ? r.value_width : h.columns;
  const float *from = to;
  int64_t from_row = to_row;
  if (h.start && there) from = h.start, from_row = r.value_width;
  else if (h.start) move_rows(h.start, r.value_width, r.width, h.width, to, to_row, h.columns);
  else clear_rows(to, to_row, r.width, h.columns);
  const int64_t padded = whole_vectors(r.width);
  float *faded_k = decays + padded, *faded_q = faded_k + padded;
  for (int64_t d = 0; d < padded; ++d) decays[d] = 1.0f;
  for (int64_t t = 0; t < r.length; ++t, from = to, from_row = to_row) {
    if (begins_document(h, t)) clear_rows(to, to_row, r.width, h.columns);
    const float *q = h.q.data + t * h.q.row, *k = h.k.data + t * h.k.row;
    if (h.decay.data) decays_at(r, h.decay, t, decays);
    OneStep s{r.width, k, decays, faded_k, faded_q, 1.0f, 0.0f};
    fade_position(q, k, decays, r.width, s, faded_k, faded_q);
    const float *v = h.v.data + t * h.v.row;
    float *out = h.out + t * h.out_row;
    if (h.beta.data) {
      s.beta = h.beta.data[t * h.beta.row];
      step_once<true>(s, from, from_row, v, h.width, to, to_row, out);
    } else {
      step_once<false>(s, from, from_row, v, h.width, to, to_row, out);
    }
  }
  if (!there) move_rows(to, to_row, r.width, h.width, h.end, r.value_width, h.width);
}

INLINE Wide no_more_than_0(Wide x) { return x < Wide{} ? x : Wide{}; }

// The factors of positions begin to begin + count - 1. Sums are split into what a float holds and
// the rest, so that a small decay after a large one keeps its digits.
static void fade_chunk(const Rows &decay, int64_t begin, int64_t count, Fading &f) {
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
    const Wide by = read<Wide>(high + j), more = read<Wide>(low + j);
    const WideInts at = read<WideInts>(lanes) + (int32_t)j;
    write(f.entering + j, at < (int32_t)count ? exp(by) : Wide{});
    const Wide after = no_more_than_0((last - by) + (rest - more));
    write(f.leaving + j, at < (int32_t)count ? exp(after) : Wide{});
    for (int64_t i = j; i < count; ++i) {
      const Wide passed = no_more_than_0((high[i] - by) + (low[i] - more));
      write(f.between + i * CHUNK + j, at <= (int32_t)i ? exp(passed) : Wide{});
    }
  }
  f.passing = f.entering[count - 1];
}

// Decayed products of queries and keys: pairs, and the negative ones of keys with earlier keys.
static void pair_chunk(const Recurrence &r, int64_t count, bool corrects, RecurDesk &desk) {
  const int64_t padded = whole_vectors(r.width);
  for (int64_t row = 0; row < count; row += FEW_ROWS) {
    const int64_t some = count - row < FEW_ROWS ? count - row : FEW_ROWS;
    const int64_t vectors = whole_vectors(row + some) / WIDE;
    float *pairs = desk.pairs + row * CHUNK, *met = desk.met + row * CHUNK;
    add_product<ALONG>(desk.queries + row * padded, padded, some, desk.turned, CHUNK, vectors,
                       r.width, pairs, CHUNK, true);
    if (corrects)
      add_product<ALONG>(desk.keys + row * padded, padded, some, desk.turned, CHUNK, vectors,
                         r.width, met, CHUNK, true);
    for (int64_t i = 0; i < some; ++i) {
      // columns after the first vector of a row's own have no factors where rows begin later
      const int64_t own = whole_vectors(row + i + 1);
      for (int64_t j = i * CHUNK; j < i * CHUNK + vectors * WIDE; j += WIDE) {
        const bool seen = j - i * CHUNK < own;
        const Wide by = seen ? read<Wide>(desk.fading.between + row * CHUNK + j) : Wide{};
        write(pairs + j, seen ? read<Wide>(pairs + j) * by : Wide{});
        if (corrects) write(met + j, seen ? read<Wide>(met + j) * -by : Wide{});
      }
      if (corrects) met[i * CHUNK + row + i] = 0.0f;
    }
  }
}

// W in place of what is asked, and X = diag(beta) W: row by row, later rows meet those before.
static void solve_chunk(int64_t count, int64_t columns, const float *met, const float *beta,
                        float *values, float *taken) {
  for (int64_t row = 0; row < count; row += SOLVED_ROWS) {
    const int64_t some = count - row < SOLVED_ROWS ? count - row : SOLVED_ROWS;
    if (row)
      add_product<ALONG>(met + row * CHUNK, CHUNK, some, taken, columns, columns / WIDE, row,
                         values + row * columns, columns, false);
    const float *near = met + row * CHUNK + row;
    for (int64_t e = 0; e < columns; e += WIDE) {
      Wide done[SOLVED_ROWS];
      float *value = values + row * columns + e, *take = taken + row * columns + e;
      for (int64_t i = 0; i < some; ++i) {
        Wide w = read<Wide>(value + i * columns);
        for (int64_t j = 0; j < i; ++j) w += near[i * CHUNK + j] * done[j];
        done[i] = beta[row + i] * w;
        write(value + i * columns, w);
        write(take + i * columns, done[i]);
      }
    }
  }
}

// Multiplies rows [count, columns] by a number each.
static void scale_rows(const float *by, float sign, int64_t count, int64_t columns, float *rows) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t e = 0; e < columns; e += WIDE) {
      float *at = rows + i * columns + e;
      write(at, read<Wide>(at) * (sign * by[i]));
    }
}

// Reads queries, keys, factors and shares of a piece of a chunk.
static void read_chunk(const Recurrence &r, const HeadOfSums &h, int64_t begin, int64_t count,
                       RecurDesk &desk) {
  copy_rows<Full>({h.q.data + begin * h.q.row, h.q.row}, count, r.width, 1.0f, count, desk.queries);
  copy_rows<Full>({h.k.data + begin * h.k.row, h.k.row}, count, r.width, 1.0f, count, desk.keys);
  turn_rows<CHUNK_VECTORS>(desk.keys, whole_vectors(r.width), count, r.width, 1.0f, desk.turned);
  for (int64_t i = 0; i < count && h.beta.data; ++i)
    desk.beta[i] = h.beta.data[(begin + i) * h.beta.row];
  fade_chunk(h.decay, begin, count, desk.fading);
  pair_chunk(r, count, h.beta.data, desk);
}

// Outputs of a piece of a chunk from what its keys take.
static void answer_chunk(const Recurrence &r, const HeadOfSums &h, int64_t begin, int64_t count,
                         bool fresh, const float *taken, RecurDesk &desk) {
  const int64_t padded = whole_vectors(r.width), columns = h.columns, vectors = columns / WIDE;
  for (int64_t row = 0; row < count; row += FEW_ROWS) {
    const int64_t some = count - row < FEW_ROWS ? count - row : FEW_ROWS;
    add_product<ALONG>(desk.pairs + row * CHUNK, CHUNK, some, taken, columns, vectors, row + some,
                       desk.outs + row * columns, columns, true);
  }
  if (!fresh) {
    scale_rows(desk.fading.entering, 1.0f, count, padded, desk.queries);
    add_product<ALONG>(desk.queries, padded, count, desk.state, columns, vectors, r.width,
                       desk.outs, columns, false);
  }
  move_rows(desk.outs, columns, count, h.width, h.out + begin * h.out_row, h.out_row, h.width);
}

// The outputs of positions begin to begin + count - 1, and the state after them; `fresh` = it is 0.
static void sum_piece(const Recurrence &r, const HeadOfSums &h, int64_t begin, int64_t count,
                      bool fresh, RecurDesk &desk) {
  const int64_t padded = whole_vectors(r.width), columns = h.columns, vectors = columns / WIDE;
  const Fading &f = desk.fading;
  read_chunk(r, h, begin, count, desk);
  copy_rows<Full>({h.v.data + begin * h.v.row, h.v.row}, count, h.width, 1.0f, count, desk.values);
  float *taken = desk.values;
  if (h.beta.data) {
    if (!fresh) {
      scale_rows(f.entering, -1.0f, count, padded, desk.keys);
      add_product<ALONG>(desk.keys, padded, count, desk.state, columns, vectors, r.width,
                         desk.values, columns, false);
    }
    taken = desk.taken;
    solve_chunk(count, columns, desk.met, desk.beta, desk.values, taken);
    if (h.uncorrected)
      __builtin_memcpy(h.uncorrected + begin * columns, desk.values, count * columns * sizeof(float));
  }
  if (h.out) answer_chunk(r, h, begin, count, fresh, taken, desk);
  scale_rows(f.leaving, 1.0f, count, columns, taken);
  if (!fresh && f.passing != 1.0f)
    for (int64_t i = 0; i < r.width * columns; i += WIDE)
      write(desk.state + i, read<Wide>(desk.state + i) * f.passing);
  add_product<ALONG>(desk.turned, CHUNK, r.width, taken, columns, vectors, count, desk.state,
                     columns, fresh);
}

// The end of the piece that begins at a position: of its chunk, or of its document.
INLINE int64_t piece_end(const HeadOfSums &h, int64_t begin, int64_t length) {
  int64_t end = begin / CHUNK * CHUNK + CHUNK, t = begin + 1;
  if (end > length) end = length;
  while (t < end && !begins_document(h, t)) ++t;
  return t < end ? t : end;
}

static void sum_chunks(const Recurrence &r, const HeadOfSums &h, RecurDesk &desk) {
  if (h.start) move_rows(h.start, r.value_width, r.width, h.width, desk.state, h.columns, h.columns);
  for (int64_t begin = 0, end; begin < r.length; begin = end) {
    end = piece_end(h, begin, r.length);
    const bool fresh = begin ? begins_document(h, begin) : !h.start;
    if (h.borders && !fresh && begin % CHUNK == 0)
      __builtin_memcpy(h.borders + begin / CHUNK * r.width * h.columns, desk.state,
                       r.width * h.columns * sizeof(float));
    sum_piece(r, h, begin, end - begin, fresh, desk);
  }
  if (h.end) move_rows(desk.state, h.columns, r.width, h.width, h.end, r.value_width, h.width);
}

// Places of tables in memory, and how much of it they take.
struct Places {
  float *next;
  int64_t taken;

  float *operator()(int64_t count) {
    float *found = next;
    count = padded_to(count, LANES);
    taken += count;
    if (next) next += count;
    return found;
  }
};

static void place_desk(const Recurrence &r, int64_t columns, Places &next, RecurDesk &desk) {
  const int64_t padded = whole_vectors(r.width);
  desk.keys = next(CHUNK * padded), desk.queries = next(CHUNK * padded);
  desk.turned = next(CHUNK * padded);
  desk.values = next(CHUNK * columns), desk.taken = next(CHUNK * columns);
  desk.outs = next(CHUNK * columns);
  desk.met = next(CHUNK * CHUNK), desk.pairs = next(CHUNK * CHUNK);
  desk.fading.between = next(CHUNK * CHUNK);
  desk.state = next(r.width * columns);
}

static void recur_worker(suffice::Team &team, int, void *context) {
  const RecurCall &call = *(const RecurCall *)context;
  const Recurrence &r = call.r;
  const bool steps = r.decays > 1 || r.length < FEW_POSITIONS;
  RecurDesk desk;
  Places size{nullptr, 0};
  place_desk(r, whole_vectors(call.slice), size, desk);
  Places next{(float *)suffice::room_of_thread(size.taken * sizeof(float)), 0};
  place_desk(r, whole_vectors(call.slice), next, desk);
  // states that a thread read last time lie near it: few positions are not taken one head at a time
  const int64_t tasks = r.batch * r.heads * call.slices;
  const int64_t grain = r.length < FEW_POSITIONS ? (tasks + team.threads - 1) / team.threads : 1;
  suffice::Range range;
  while (team.take(tasks, grain, range))
    for (int64_t task = range.begin; task < range.end; ++task) {
      const HeadOfSums h = head_of_sums(call, task / call.slices, task % call.slices);
      if (steps) sum_steps(r, h, desk);
      else sum_chunks(r, h, desk);
    }
}

// So many threads as have a million products of numbers each.
INLINE int64_t threads_for(const Recurrence &r, int64_t threads) {
  const int64_t each = 4 * r.width * r.value_width + CHUNK * (r.width + r.value_width);
  const int64_t worth = r.batch * r.heads * r.length * each / WORTH;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

static void recur_whole(const Recurrence *recurrence, const float *q, const float *k,
                        const float *v, const float *decay, const float *beta, const float *start,
                        float *out, float *end, int64_t threads) {
  const Recurrence &r = *recurrence;
  RecurCall call{r, q, k, v, decay, beta, start, out, end, 1, r.value_width};
  const int64_t rows = r.batch * r.heads;
  if (rows == 0 || r.length == 0) return;
  threads = threads_for(r, threads);
  if (rows < threads) {  // the others take columns of the values
    int64_t wanted = (threads + rows - 1) / rows;
    const int64_t most = whole_vectors(r.value_width) / WIDE;
    if (wanted > most) wanted = most;
    call.slice = padded_to((r.value_width + wanted - 1) / wanted, WIDE);
    call.slices = (r.value_width + call.slice - 1) / call.slice;
  }
  const int64_t tasks = rows * call.slices;
  suffice::together((int)(tasks < threads ? tasks : threads), recur_worker, &call);
}

}  // namespace SUFFICE_ISA
