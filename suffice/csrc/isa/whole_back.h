// The gradients of attention over whole sequences. A task owns the keys of a head: its queries go
// through them group by group, so sums never meet and do not depend on who came first. Where there
// are fewer heads than threads want, some tasks share the keys and sum up apart.
//
// Letters: N lanes of a group, D width of queries and keys, E of values.

#pragma once

#include <stdlib.h>

#include "tile_back.h"
#include "whole.h"

namespace SUFFICE_ISA {

constexpr int64_t BACK_GROUPS = 4;  // of a piece

struct Back {
  const SequenceAttention &whole;
  const void *q, *k, *v, *out;
  const float *logs;
  const void *slope;
  void *of_q, *of_k, *of_v;
  int64_t groups, pieces, shares;  // groups of a head, its pieces; tasks that share keys
  float *apart;  // [B, G, sums apart, S, D + E]: those of all shares, of float32 but the first
};

// What a group of queries needs beside its keys.
struct Learner {
  Group group;             // `columns` and `sums` are those of queries and their gradients
  float *slopes;           // columns [E, N]
  float *queries, *given;  // rows [N, D], scaled, and [N, E]: queries and slopes, as vectors
  float logs[MOST_LANES];  // of the total weights, base 2; inf where a query sees nothing
  float means[MOST_LANES]; // of the slopes' products with the outputs
};

struct BackDesk {
  Learner learners[BACK_GROUPS];
  Tile tile;
  float *weights, *slopes;           // [TILE, N]
  float *keys, *values, *of_keys, *of_values;  // a stretch, brought near
  float *unused;                     // rows of hidden keys add here
};

template <int C, class E>
static void begin_learner(const Back &b, int64_t batch, int64_t head, float *room, Learner &one) {
  const SequenceAttention &w = b.whole;
  Group &group = one.group;
  Stored<E> q = rows_of<E>(b.q, w.q, batch, head), out = rows_of<E>(b.out, w.out, batch, head);
  Stored<E> slope = rows_of<E>(b.slope, w.slope, batch, head);
  q.data += group.first * q.row;
  out.data += group.first * out.row;
  slope.data += group.first * slope.row;
  const float *logs = b.logs + (batch * w.heads + head) * w.queries + group.first;
  turn_rows<C, E>(q.data, q.row, group.lanes, w.width, factor_of(w), group.columns);
  turn_rows<C, E>(slope.data, slope.row, group.lanes, w.value_width, 1.0f, one.slopes);
  copy_rows<E>(q, group.lanes, w.width, w.scale, C * WIDE, one.queries);
  copy_rows<E>(slope, group.lanes, w.value_width, 1.0f, C * WIDE, one.given);
  for (int64_t i = 0; i < C * WIDE; ++i) {
    bool sees = i < group.lanes && logs[i] != -__builtin_inff();
    one.logs[i] = sees ? logs[i] * LOG2E : __builtin_inff();
  }
  // in the order in which `back_tile` adds: beside a single key the slope of its score is exactly 0
  Wide means[C] = {};
  for (int64_t e = 0; e < w.value_width; e += TILE) {
    int64_t some = w.value_width - e < TILE ? w.value_width - e : TILE;
    turn_rows<C, E>(out.data + e, out.row, group.lanes, some, 1.0f, room);
    for (int64_t i = 0; i < some; ++i)
      for (int c = 0; c < C; ++c)
        means[c] += read<Wide>(room + (i * C + c) * WIDE) *
                    read<Wide>(one.slopes + ((e + i) * C + c) * WIDE);
  }
  for (int c = 0; c < C; ++c) write(one.means + c * WIDE, means[c]);
  group.fresh = true;
}

template <int C>
static void learn_tile(const Back &b, Learner &one, int64_t begin, BackDesk &desk) {
  const SequenceAttention &w = b.whole;
  const Tile &tile = desk.tile;
  int64_t width = whole_vectors(w.width), value_width = whole_vectors(w.value_width);
  if (w.cap == 0.0f) {
    back_tile<C, false, false>(tile, tile.keys, w.width, one.group.columns, one.logs, nullptr,
                               desk.weights);
    back_tile<C, true, false>(tile, tile.values, w.value_width, one.slopes, one.means, desk.weights,
                              desk.slopes);
  } else {
    back_tile<C, false, true>(tile, tile.keys, w.width, one.group.columns, one.logs, nullptr,
                              desk.weights);
    cap_back_tile<C>(tile, w.cap, one.logs, desk.weights, desk.slopes);
    back_tile<C, true, true>(tile, tile.values, w.value_width, one.slopes, one.means, desk.weights,
                             desk.slopes);
  }
  add_to_keys(tile, desk.weights, C * WIDE, one.given, value_width, begin, desk.of_values,
              desk.unused);
  add_to_keys(tile, desk.slopes, C * WIDE, one.queries, width, begin, desk.of_keys, desk.unused);
  Wide same[C];
  for (int c = 0; c < C; ++c) same[c] = wide(1.0f);
  add_all_columns<C>(tile.keys, tile.count, w.width, desk.slopes, same, one.group.fresh,
                     one.group.sums);
  one.group.fresh = false;
}

template <int C, class E>
static void finish_learner(const Back &b, int64_t batch, int64_t head, Learner &one) {
  const SequenceAttention &w = b.whole;
  Group &group = one.group;
  if (group.fresh)
    for (int64_t i = 0; i < w.width * C * WIDE; ++i) group.sums[i] = 0.0f;
  Wide by[C];
  for (int c = 0; c < C; ++c) by[c] = wide(w.scale);
  auto *rows = head_of<E>(b.of_q, w.of_q, batch, head) + group.first * w.of_q.row;
  turn_columns<C, E>(group.sums, by, group.lanes, w.width, rows, w.of_q.row);
}

// Adds rows of a stretch to where they belong; their padding is left behind.
static void take_back(const float *stretch, int64_t count, int64_t width, float *to,
                      int64_t stride) {
  int64_t padded = whole_vectors(width);
  for (int64_t j = 0; j < count; ++j)
    for (int64_t d = 0; d < width; ++d) to[j * stride + d] += stretch[j * padded + d];
}

// Where a task adds what belongs to its keys.
struct Shares {
  float *keys, *values;
  int64_t key_row, value_row;
};

template <class E>
static void learn_piece(const Back &b, int64_t batch, int64_t head, int64_t piece,
                        const Shares &into, BackDesk &desk) {
  const SequenceAttention &w = b.whole;
  int64_t shared = head / (w.heads / w.kv_heads);
  int64_t width = whole_vectors(w.width), value_width = whole_vectors(w.value_width);
  int64_t first = piece * BACK_GROUPS;
  int64_t count = b.groups - first < BACK_GROUPS ? b.groups - first : BACK_GROUPS;
  const Stored<E> far_keys = rows_of<E>(b.k, w.k, batch, shared);
  const Stored<E> far_values = rows_of<E>(b.v, w.v, batch, shared);
  for (int64_t g = 0; g < count; ++g) {
    Group &group = desk.learners[g].group;
    group.first = (first + g) * MOST_LANES;
    group.lanes = w.queries - group.first < MOST_LANES ? w.queries - group.first : MOST_LANES;
    group.valid = w.valid ? w.valid + batch * w.keys : nullptr;
    look(w, head, group);
    if (group.lanes <= WIDE) begin_learner<1, E>(b, batch, head, desk.weights, desk.learners[g]);
    else begin_learner<COLUMNS, E>(b, batch, head, desk.weights, desk.learners[g]);
  }
  for (;;) {
    int64_t begin = w.keys;
    for (int64_t g = 0; g < count; ++g) {
      int64_t next = next_key(w, desk.learners[g].group);
      if (next < begin) begin = next;
    }
    if (begin == w.keys) break;
    int64_t until = w.keys - begin < stretch_of(w) / 2 ? w.keys : begin + stretch_of(w) / 2;
    Rows keys = bring<E>(far_keys, begin, until, w.width, desk.keys);
    Rows values = bring<E>(far_values, begin, until, w.value_width, desk.values);
    for (int64_t i = 0; i < (until - begin) * width; ++i) desk.of_keys[i] = 0.0f;
    for (int64_t i = 0; i < (until - begin) * value_width; ++i) desk.of_values[i] = 0.0f;
    for (int64_t g = 0; g < count; ++g) {
      Learner &one = desk.learners[g];
      while (fill(w, keys, values, until, TILE, one.group, desk.tile)) {
        if (one.group.lanes <= WIDE) learn_tile<1>(b, one, begin, desk);
        else learn_tile<COLUMNS>(b, one, begin, desk);
      }
    }
    take_back(desk.of_keys, until - begin, w.width, into.keys + begin * into.key_row,
              into.key_row);
    take_back(desk.of_values, until - begin, w.value_width, into.values + begin * into.value_row,
              into.value_row);
  }
  for (int64_t g = 0; g < count; ++g) {
    Learner &one = desk.learners[g];
    if (one.group.lanes <= WIDE) finish_learner<1, E>(b, batch, head, one);
    else finish_learner<COLUMNS, E>(b, batch, head, one);
  }
}

// How many of the shares sum up where the gradients are: what is rounded there is summed apart.
template <class E>
constexpr int64_t IN_PLACE = std::is_same<E, Full>::value;

template <class E>
static Shares share_of(const Back &b, int64_t row, int64_t share) {
  const SequenceAttention &w = b.whole;
  if constexpr (IN_PLACE<E> > 0) {
    int64_t batch = row / w.kv_heads, head = row % w.kv_heads;
    if (share == 0)
      return {head_of<E>(b.of_k, w.of_k, batch, head), head_of<E>(b.of_v, w.of_v, batch, head),
              w.of_k.row, w.of_v.row};
  }
  int64_t number = row * (b.shares - IN_PLACE<E>) + share - IN_PLACE<E>;
  float *own = b.apart + number * w.keys * (w.width + w.value_width);
  return {own, own + w.keys * w.width, w.width, w.value_width};
}

template <class E>
static void learn_task(const Back &b, int64_t task, BackDesk &desk) {
  const SequenceAttention &w = b.whole;
  int64_t row = task / b.shares, share = task % b.shares, together = w.heads / w.kv_heads;
  int64_t batch = row / w.kv_heads, head = row % w.kv_heads * together;
  Shares into = share_of<E>(b, row, share);
  for (int64_t j = 0; j < w.keys; ++j) {
    for (int64_t d = 0; d < w.width; ++d) into.keys[j * into.key_row + d] = 0.0f;
    for (int64_t e = 0; e < w.value_width; ++e) into.values[j * into.value_row + e] = 0.0f;
  }
  int64_t all = together * b.pieces;
  for (int64_t i = all * share / b.shares; i < all * (share + 1) / b.shares; ++i)
    learn_piece<E>(b, batch, head + i / b.pieces, i % b.pieces, into, desk);
}

// Adds the sums of the other shares to those of the first, always in the same order.
template <class E>
static void gather_shares(const Back &b, int64_t at) {
  const SequenceAttention &w = b.whole;
  int64_t row = at / w.keys, key = at % w.keys;
  Shares into = share_of<E>(b, row, 0);
  for (int64_t share = 1; share < b.shares; ++share) {
    Shares from = share_of<E>(b, row, share);
    for (int64_t d = 0; d < w.width; ++d)
      into.keys[key * into.key_row + d] += from.keys[key * w.width + d];
    for (int64_t e = 0; e < w.value_width; ++e)
      into.values[key * into.value_row + e] += from.values[key * w.value_width + e];
  }
  if constexpr (IN_PLACE<E> == 0) {
    int64_t batch = row / w.kv_heads, head = row % w.kv_heads;
    auto *key_to = head_of<E>(b.of_k, w.of_k, batch, head) + key * w.of_k.row;
    auto *value_to = head_of<E>(b.of_v, w.of_v, batch, head) + key * w.of_v.row;
    for (int64_t d = 0; d < w.width; ++d) E::put(key_to + d, into.keys[key * into.key_row + d]);
    for (int64_t e = 0; e < w.value_width; ++e)
      E::put(value_to + e, into.values[key * into.value_row + e]);
  }
}

template <class E>
static void back_worker(suffice::Team &team, int, void *context) {
  const Back &b = *(const Back *)context;
  const SequenceAttention &w = b.whole;
  int64_t width = whole_vectors(w.width), value_width = whole_vectors(w.value_width);
  int64_t keys = stretch_of(w) / 2;
  int64_t numbers = BACK_GROUPS * (3 * width + 2 * value_width) * MOST_LANES +
                    2 * (TILE + ROWS) * MOST_LANES + 2 * keys * (width + value_width) + width +
                    value_width;
  float *place = (float *)suffice::room_of_thread(numbers * sizeof(float));
  BackDesk desk;
  auto next = [&](int64_t count) {
    float *found = place;
    place += count;
    return found;
  };
  for (Learner &one : desk.learners) {
    one.group.columns = next(width * MOST_LANES);
    one.group.sums = next(width * MOST_LANES);
    one.slopes = next(value_width * MOST_LANES);
    one.queries = next(width * MOST_LANES);
    one.given = next(value_width * MOST_LANES);
  }
  desk.weights = next((TILE + ROWS) * MOST_LANES);
  desk.slopes = next((TILE + ROWS) * MOST_LANES);
  desk.keys = next(keys * width);
  desk.values = next(keys * value_width);
  desk.of_keys = next(keys * width);
  desk.of_values = next(keys * value_width);
  desk.unused = next(width + value_width);
  for (int64_t i = 0; i < width + value_width; ++i) desk.unused[i] = 0.0f;
  suffice::Range range;
  while (team.take(w.batch * w.kv_heads * b.shares, 1, range)) learn_task<E>(b, range.begin, desk);
  if (b.shares == IN_PLACE<E>) return;
  team.meet();
  while (team.take(w.batch * w.kv_heads * w.keys, 64, range))
    for (int64_t at = range.begin; at < range.end; ++at) gather_shares<E>(b, at);
}

static void attend_back(const SequenceAttention *whole, const void *q, const void *k, const void *v,
                        const void *out, const float *logs, const void *slope, void *of_q,
                        void *of_k, void *of_v, int64_t threads) {
  const SequenceAttention &w = *whole;
  Back back{w, q, k, v, out, logs, slope, of_q, of_k, of_v, 0, 0, 1, nullptr};
  back.groups = (w.queries + MOST_LANES - 1) / MOST_LANES;
  back.pieces = (back.groups + BACK_GROUPS - 1) / BACK_GROUPS;
  int64_t rows = w.batch * w.kv_heads;
  if (rows == 0) return;
  threads = threads_for(w, threads);
  if (rows < 2 * threads) {
    int64_t most = w.heads / w.kv_heads * back.pieces;
    back.shares = threads == 1 ? 1 : (2 * threads + rows - 1) / rows;
    if (back.shares > most) back.shares = most;
    if (back.shares < 1) back.shares = 1;
  }
  int64_t sums_apart = w.kind == F32 ? back.shares - 1 : back.shares;
  int64_t apart = rows * sums_apart * w.keys * (w.width + w.value_width);
  if (apart > 0) back.apart = (float *)malloc(apart * sizeof(float));
  int64_t tasks = rows * back.shares;
  auto *worker = w.kind == F16    ? back_worker<Half>
                 : w.kind == BF16 ? back_worker<Brain>
                                  : back_worker<Full>;
  suffice::together((int)(tasks < threads ? tasks : threads), worker, &back);
  free(back.apart);
}

}  // namespace SUFFICE_ISA
