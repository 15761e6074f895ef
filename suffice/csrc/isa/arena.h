// Scratch memory of a decode step: shared by threads, and per thread.

#pragma once

#include "cache_attention.h"

namespace SUFFICE_ISA {

// Bump allocator over one buffer; with a null buffer it only counts bytes.
struct Arena {
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
  int64_t rows, widest, queries, keys, splits, heads, value_dim;
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
  s.splits = max_splits(longest);
  return s;
}

// Buffers that all threads share.
struct SharedScratch {
  float *x, *q, *k, *v, *hidden, *branch, *values;
  SoftmaxState *states;  // [rows, heads, pieces]
};

// Buffers of one thread.
struct ThreadScratch {
  float *normed, *padded, *rotated;
  QuantisedRows coded;
};

static SharedScratch shared_scratch_of(Arena &arena, const Sizes &s) {
  SharedScratch shared;
  shared.x = arena.take<float>(s.rows * s.widest);
  shared.q = arena.take<float>(s.rows * s.queries);
  shared.k = arena.take<float>(s.rows * s.keys);
  shared.v = arena.take<float>(s.rows * s.keys);
  shared.hidden = arena.take<float>(s.rows * s.widest);
  shared.branch = arena.take<float>(s.rows * s.widest);
  shared.values = arena.take<float>(s.rows * s.heads * s.splits * s.value_dim);
  shared.states = arena.take<SoftmaxState>(s.rows * s.heads * s.splits);
  return shared;
}

static ThreadScratch thread_scratch_of(Arena &arena, const Sizes &s) {
  ThreadScratch own;
  own.normed = arena.take<float>(s.rows * s.widest);
  own.padded = arena.take<float>(s.rows * s.widest);
  own.rotated = arena.take<float>(QUERY_TILE * s.queries);
  own.coded.codes = arena.take<int8_t>(s.rows * s.widest);
  own.coded.steps = arena.take<float>(s.rows * s.widest);
  own.coded.sums = arena.take<int32_t>(s.rows * s.widest);
  return own;
}

static int64_t step_room(const Model &model, int64_t rows, int64_t longest, int64_t threads) {
  Sizes sizes = sizes_of(model, rows, longest);
  Arena arena{nullptr, 64};
  shared_scratch_of(arena, sizes);
  int64_t before = arena.used;
  thread_scratch_of(arena, sizes);
  return before + (arena.used - before) * threads;
}

}  // namespace SUFFICE_ISA
