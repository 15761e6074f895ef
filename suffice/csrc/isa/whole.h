// Softmax attention of whole sequences. A piece of work is some neighbouring groups of queries of a
// head; they go through a stretch of keys while it is near, each tile by tile, and what a group has
// summed fades when it meets a larger score.

#pragma once

#include <math.h>

#include <type_traits>

#include "../threads.h"
#include "tile.h"

namespace SUFFICE_ISA {

constexpr float NOTHING = -3e38f;     // the largest score before any was seen
constexpr int64_t GROUPS = 8;         // of a piece, at most
constexpr int64_t STRETCH = 1 << 16;  // numbers of keys and values that stay near

struct Attention {
  const SequenceAttention &whole;
  const void *q, *k, *v;
  void *out;
  float *logs;
  int64_t groups, at_once, pieces;  // groups of a head, of a piece; pieces of a head
  int odd;
};

// What a thread works in.
struct Desk {
  Group groups[GROUPS];
  Tile tile;
  float *scores;  // [TILE, N]
  float *near;    // keys and values of a stretch, or null: they are read where they lie
};

// Scores of a tile, -inf where a key is hidden, and the largest of each lane; where they are
// to be capped products alone.
template <int C, bool CAPPED>
APART void score_tile(const Tile &tile, int64_t width, const float *columns, float *scores,
                      float *largest, Wide &found) {
  Wide most[C], odd[C] = {};
  UNROLL
  for (int c = 0; c < C; ++c) most[c] = read<Wide>(largest + c * WIDE);
  for (int64_t j = 0; j < tile.count; j += ROWS) {
    Wide sums[ROWS][C];
    multiply_rows<ROWS, C>(tile.keys + j, width, columns, sums);
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) odd[c] += sums[r][c] * 0.0f;
    if (!CAPPED && !all_see(tile.seen + j)) hide<C>(tile.seen + j, sums, -__builtin_inff());
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) {
        if (!CAPPED) most[c] = above(most[c], sums[r][c]);
        write(scores + ((j + r) * C + c) * WIDE, sums[r][c]);
      }
  }
  UNROLL
  for (int c = 0; c < C; ++c) {
    write(largest + c * WIDE, most[c]);
    found += odd[c];
  }
}

// Products become capped scores, -inf where a key is hidden, and the largest of each lane.
template <int C>
APART void cap_tile(const Tile &tile, float cap, float *scores, float *largest) {
  Wide most[C];
  UNROLL
  for (int c = 0; c < C; ++c) most[c] = read<Wide>(largest + c * WIDE);
  for (int64_t j = 0; j < tile.count; ++j)
    UNROLL
    for (int c = 0; c < C; ++c) {
      float *at = scores + (j * C + c) * WIDE;
      Wide score = tanh(read<Wide>(at)) * wide(cap * LOG2E);
      if (tile.seen[j] != ALL_SEE) score = sees(tile.seen[j], c) ? score : wide(-__builtin_inff());
      most[c] = above(most[c], score);
      write(at, score);
    }
  UNROLL
  for (int c = 0; c < C; ++c) write(largest + c * WIDE, most[c]);
}

// Scores become weights relative to the largest; what was summed before fades.
template <int C>
APART void weigh_tile(int64_t count, const float *before, Group &group, float *scores,
                      Wide (&fade)[C]) {
  Wide most[C], total[C];
  UNROLL
  for (int c = 0; c < C; ++c) {
    most[c] = read<Wide>(group.most + c * WIDE);
    fade[c] = power(read<Wide>(before + c * WIDE) - most[c]);
    total[c] = read<Wide>(group.total + c * WIDE) * fade[c];
  }
  for (int64_t j = 0; j < count; ++j)
    UNROLL
    for (int c = 0; c < C; ++c) {
      float *at = scores + (j * C + c) * WIDE;
      Wide weight = power(read<Wide>(at) - most[c]);
      total[c] += weight;
      write(at, weight);
    }
  UNROLL
  for (int c = 0; c < C; ++c) write(group.total + c * WIDE, total[c]);
}

template <int C>
static void see_tile(const SequenceAttention &whole, const Tile &tile, Group &group, float *scores, Wide &odd) {
  float before[MOST_LANES];
  Wide fade[C];
  __builtin_memcpy(before, group.most, sizeof before);
  if (whole.cap == 0.0f) {
    score_tile<C, false>(tile, whole.width, group.columns, scores, group.most, odd);
  } else {
    score_tile<C, true>(tile, whole.width, group.columns, scores, group.most, odd);
    cap_tile<C>(tile, whole.cap, scores, group.most);
  }
  weigh_tile<C>(tile.count, before, group, scores, fade);
  add_all_columns<C>(tile.values, tile.count, whole.value_width, scores, fade, group.fresh,
                     group.sums);
  group.fresh = false;
}

template <int C, class E>
APART void begin_group(const SequenceAttention &whole, const typename E::Element *q, Group &group) {
  turn_rows<C, E>(q, whole.q.row, group.lanes, whole.width, factor_of(whole), group.columns);
  group.fresh = true;
  for (int i = 0; i < C * WIDE; ++i) group.most[i] = NOTHING, group.total[i] = 0.0f;
}

template <int C, class E>
APART void finish_group(const SequenceAttention &whole, const Group &group,
                        typename E::Element *out, float *logs, Wide &odd) {
  Wide by[C];
  if (group.fresh)
    for (int64_t i = 0; i < whole.value_width * C * WIDE; ++i) group.sums[i] = 0.0f;
  for (int c = 0; c < C; ++c) {
    by[c] = 1.0f / read<Wide>(group.total + c * WIDE);
    by[c] = read<Wide>(group.most + c * WIDE) == NOTHING ? Wide{} : by[c];
  }
  for (int64_t i = 0; logs && i < group.lanes; ++i)
    logs[i] = group.most[i] == NOTHING ? -__builtin_inff()
                                       : LN2 * group.most[i] + logf(group.total[i]);
  odd += turn_columns<C, E>(group.sums, by, group.lanes, whole.value_width, out, whole.out.row);
}

// The first row of a head.
template <class E, class T>
INLINE auto *head_of(T *data, const Strides &strides, int64_t batch, int64_t head) {
  typedef typename E::Element Element;
  int64_t at = batch * strides.batch + head * strides.head;
  if constexpr (std::is_const<T>::value) return (const Element *)data + at;
  else return (Element *)data + at;
}

template <class E = Full>
INLINE Stored<E> rows_of(const void *data, const Strides &strides, int64_t batch, int64_t head) {
  return {head_of<E>(data, strides, batch, head), strides.row};
}

// Copies rows begin to end - 1 as numbers to where they follow each other.
template <class E>
APART Rows bring(const Stored<E> &rows, int64_t begin, int64_t end, int64_t width, float *to) {
  for (int64_t j = begin; j < end; ++j) {
    const typename E::Element *row = rows.data + j * rows.row;
    float *copy = to + (j - begin) * width;
    if constexpr (std::is_same<E, Full>::value) {
      __builtin_memcpy(copy, row, width * sizeof(float));
    } else {
      int64_t d = 0;
      for (; d + WIDE <= width; d += WIDE) write(copy + d, E::part(row + d));
      for (; d < width; ++d) copy[d] = E::one(row + d);
    }
  }
  return {to - begin * width, width};
}

INLINE int64_t stretch_of(const SequenceAttention &whole) {
  int64_t keys = STRETCH / (whole.width + whole.value_width) / TILE * TILE;
  return keys < TILE ? TILE : keys;
}

// Lets groups see all their keys, those of a stretch before any behind it.
template <class E>
APART void see_keys(const SequenceAttention &whole, const Stored<E> &far_keys,
                    const Stored<E> &far_values, int64_t count, Desk &desk, Wide &odd) {
  Rows keys, values;
  if constexpr (std::is_same<E, Full>::value) keys = far_keys, values = far_values;
  for (;;) {
    int64_t begin = whole.keys, until = 0;
    for (int64_t g = 0; g < count; ++g) {
      int64_t next = next_key(whole, desk.groups[g]);
      if (next < begin) begin = next;
      int64_t end = whole.starts ? whole.keys : desk.groups[g].end;
      if (end > until) until = end;
    }
    if (begin == whole.keys) return;
    if (desk.near) {
      if (begin + stretch_of(whole) < until) until = begin + stretch_of(whole);
      keys = bring(far_keys, begin, until, whole.width, desk.near);
      values = bring(far_values, begin, until, whole.value_width,
                     desk.near + (until - begin) * whole.width);
    }
    for (int64_t g = 0; g < count; ++g) {
      Group &group = desk.groups[g];
      while (fill(whole, keys, values, until, TILE, group, desk.tile)) {
        if (group.lanes <= WIDE) see_tile<1>(whole, desk.tile, group, desk.scores, odd);
        else see_tile<COLUMNS>(whole, desk.tile, group, desk.scores, odd);
      }
    }
  }
}

// Returns whether all that was computed is finite.
template <class E>
APART bool attend_piece(const Attention &a, int64_t piece, Desk &desk) {
  const SequenceAttention &w = a.whole;
  int64_t row = piece / a.pieces, batch = row / w.heads, head = row % w.heads;
  int64_t shared = head / (w.heads / w.kv_heads);
  int64_t number = piece % a.pieces;
  if (w.high - w.low > w.keys) number = a.pieces - 1 - number;  // those that may see most first
  int64_t first = number * a.at_once;
  int64_t count = a.groups - first < a.at_once ? a.groups - first : a.at_once;
  const Stored<E> q = rows_of<E>(a.q, w.q, batch, head);
  Wide odd = {};
  for (int64_t g = 0; g < count; ++g) {
    Group &group = desk.groups[g];
    group.first = (first + g) * MOST_LANES;
    group.lanes = w.queries - group.first < MOST_LANES ? w.queries - group.first : MOST_LANES;
    group.valid = w.valid ? w.valid + batch * w.keys : nullptr;
    look(w, head, group);
    const typename E::Element *these = q.data + group.first * q.row;
    if (group.lanes <= WIDE) begin_group<1, E>(w, these, group);
    else begin_group<COLUMNS, E>(w, these, group);
  }
  see_keys<E>(w, rows_of<E>(a.k, w.k, batch, shared), rows_of<E>(a.v, w.v, batch, shared), count,
              desk, odd);
  for (int64_t g = 0; g < count; ++g) {
    const Group &group = desk.groups[g];
    typename E::Element *out = head_of<E>(a.out, w.out, batch, head) + group.first * w.out.row;
    float *logs = a.logs ? a.logs + row * w.queries + group.first : nullptr;
    if (group.lanes <= WIDE) finish_group<1, E>(w, group, out, logs, odd);
    else finish_group<COLUMNS, E>(w, group, out, logs, odd);
  }
  return sum_of(odd) == 0.0f;
}

template <class E>
static void attend_worker(suffice::Team &team, int, void *context) {
  Attention &a = *(Attention *)context;
  const SequenceAttention &w = a.whole;
  int64_t width = w.width + w.value_width, pieces = w.batch * w.heads * a.pieces;
  bool apart = w.k.row != w.width || w.v.row != w.value_width;
  bool brings = !std::is_same<E, Full>::value || (a.at_once > 4 && apart);
  int64_t near = brings ? stretch_of(w) * width : 0;
  int64_t numbers = (a.at_once * width + TILE + ROWS) * MOST_LANES + near;
  float *place = (float *)suffice::room_of_thread(numbers * sizeof(float));
  Desk desk;
  for (int64_t g = 0; g < a.at_once; ++g) {
    desk.groups[g].columns = place;
    desk.groups[g].sums = place + w.width * MOST_LANES;
    place += width * MOST_LANES;
  }
  desk.scores = place;
  desk.near = brings ? place + (TILE + ROWS) * MOST_LANES : nullptr;
  suffice::Range range;
  // neighbours share keys, where no query sees most of them
  int64_t grain = w.high - w.low > w.keys ? 1 : pieces / (8 * team.threads) + 1;
  while (team.take(pieces, grain, range))
    for (int64_t piece = range.begin; piece < range.end; ++piece)
      if (!attend_piece<E>(a, piece, desk)) __atomic_store_n(&a.odd, 1, __ATOMIC_RELAXED);
}

// Fewer groups make a piece where there would be too few pieces for all threads.
static void cut_pieces(Attention &a, int64_t threads) {
  const SequenceAttention &w = a.whole;
  a.groups = (w.queries + MOST_LANES - 1) / MOST_LANES;
  a.at_once = a.groups < GROUPS ? a.groups : GROUPS;
  while (a.at_once > 1 &&
         w.batch * w.heads * ((a.groups + a.at_once - 1) / a.at_once) < 4 * threads)
    a.at_once /= 2;
  a.pieces = (a.groups + a.at_once - 1) / a.at_once;
}

// A second thread is worth waking for so many products of numbers.
constexpr int64_t WORTH = 1 << 20;

INLINE int64_t threads_for(const SequenceAttention &whole, int64_t threads) {
  int64_t reach = whole.high - whole.low + MOST_LANES;
  int64_t keys = whole.starts || reach > whole.keys ? whole.keys : reach;
  int64_t width = whole.width + whole.value_width;
  int64_t worth = whole.batch * whole.heads * whole.queries * keys * width / WORTH;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

static int attend_whole(const SequenceAttention *whole, const void *q, const void *k, const void *v,
                        void *out, float *logs, int64_t threads) {
  Attention attention{*whole, q, k, v, out, logs, 0, 0, 0, 0};
  if (whole->batch * whole->heads * whole->queries == 0) return 0;
  threads = threads_for(*whole, threads);
  cut_pieces(attention, threads);
  int64_t pieces = whole->batch * whole->heads * attention.pieces;
  auto *worker = whole->kind == F16    ? attend_worker<Half>
                 : whole->kind == BF16 ? attend_worker<Brain>
                                       : attend_worker<Full>;
  suffice::together((int)(pieces < threads ? pieces : threads), worker, &attention);
  return attention.odd;
}

}  // namespace SUFFICE_ISA
