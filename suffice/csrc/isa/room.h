// The memory that a step works in: what threads share, and what each has for itself.

#pragma once

#include "attend.h"

namespace SUFFICE_ISA {

// Scratch memory, cut from one piece.
struct Room {
  char *next;
  int64_t used;

  template <class T>
  T *take(int64_t count) {
    T *mine = (T *)next;
    int64_t bytes = (count * (int64_t)sizeof(T) + 63) / 64 * 64;
    used += bytes;
    if (next) next += bytes;
    return mine;
  }
};

struct Sizes {
  int64_t rows, widest, queries, keys, pieces, heads, value_dim;
};

static Sizes sizes_of(const Model &model, int64_t rows, int64_t longest) {
  Sizes s{rows, model.d_model > model.width ? model.d_model : model.width, 0, 0, 0, 0, 0};
  for (int64_t i = 0; i < model.depth; ++i) {
    const Layer &layer = model.layers[i];
    int64_t width = layer.head_dim > layer.value_dim ? layer.head_dim : layer.value_dim;
    int64_t q = layer.heads * width, k = layer.kv_heads * width;
    s.queries = q > s.queries ? q : s.queries;
    s.keys = k > s.keys ? k : s.keys;
    s.heads = layer.heads > s.heads ? layer.heads : s.heads;
    s.value_dim = layer.value_dim > s.value_dim ? layer.value_dim : s.value_dim;
  }
  if (s.queries > s.widest) s.widest = s.queries;
  s.pieces = most_pieces(longest);
  return s;
}

// What all threads share.
struct Shared {
  float *x, *q, *k, *v, *hidden, *branch, *values;
  Seen *seen;  // [rows, heads, pieces]
};

// What a thread has for itself.
struct Own {
  float *normed, *padded, *turned;
  Coded coded;
};

static Shared shared_of(Room &room, const Sizes &s) {
  Shared shared;
  shared.x = room.take<float>(s.rows * s.widest);
  shared.q = room.take<float>(s.rows * s.queries);
  shared.k = room.take<float>(s.rows * s.keys);
  shared.v = room.take<float>(s.rows * s.keys);
  shared.hidden = room.take<float>(s.rows * s.widest);
  shared.branch = room.take<float>(s.rows * s.widest);
  shared.values = room.take<float>(s.rows * s.heads * s.pieces * s.value_dim);
  shared.seen = room.take<Seen>(s.rows * s.heads * s.pieces);
  return shared;
}

static Own own_of(Room &room, const Sizes &s) {
  Own own;
  own.normed = room.take<float>(s.rows * s.widest);
  own.padded = room.take<float>(s.rows * s.widest);
  own.turned = room.take<float>(s.queries);
  own.coded.codes = room.take<int8_t>(s.rows * s.widest);
  own.coded.steps = room.take<float>(s.rows * s.widest);
  own.coded.sums = room.take<int32_t>(s.rows * s.widest);
  return own;
}

static int64_t step_room(const Model &model, int64_t rows, int64_t longest, int64_t threads) {
  Sizes sizes = sizes_of(model, rows, longest);
  Room room{nullptr, 64};
  shared_of(room, sizes);
  int64_t before = room.used;
  own_of(room, sizes);
  return before + (room.used - before) * threads;
}

}  // namespace SUFFICE_ISA
