// Backward pass of attention over whole sequences. A task owns the keys of a KV head and goes
// through its queries block by block: no atomics, and the order of additions is deterministic. With
// fewer heads than threads, tasks share the keys of a head, accumulate separately and are reduced
// in order.
//
// Letters: N lanes of a query block, D width of queries and keys, E of values.

#pragma once

#include <stdlib.h>

#include "tile_backward.h"
#include "sequence_attention.h"

namespace SUFFICE_ISA {

constexpr int64_t MAX_BACKWARD_BLOCKS = 128 / MAX_LANES;  // query blocks per chunk

struct AttentionBackward {
  const SequenceAttention &attention;
  const void *q, *k, *v, *out;
  const float *logs;
  const void *out_grad;
  void *grad_q, *grad_k, *grad_v;
  int64_t blocks, chunks, shares;  // query blocks and chunks of a head; tasks that share its keys
  float *apart;  // [B, G, separate sums, S, D + E] of the shares (float32: all but the first)
};

// A query block with what its gradients need.
struct BlockGradient {
  QueryBlock block;             // its `columns` and `sums` are queries and their gradients
  float *grads;           // output gradients as columns [E, N]
  float *queries, *out_grad_rows;  // scaled queries [N, D] and output gradients [N, E] as rows
  float logs[MAX_LANES];  // log-sum-exp, base 2; inf where a query attends to nothing
  float means[MAX_LANES]; // dot products of output gradients with outputs (delta)
};

struct BackwardScratch {
  BlockGradient gradients[MAX_BACKWARD_BLOCKS];
  Tile tile;
  float *weights, *grads;           // [TILE, N]
  float *keys, *values, *grad_keys, *grad_values;  // packed range of keys and its gradients
  float *unused;                     // sink for the rows of masked keys
};

template <int C, class E>
static void begin_gradient(const AttentionBackward &b, int64_t batch, int64_t head, float *buffer,
                           BlockGradient &gradient) {
  const SequenceAttention &w = b.attention;
  QueryBlock &block = gradient.block;
  Stored<E> q = rows_of<E>(b.q, w.q, batch, head), out = rows_of<E>(b.out, w.out, batch, head);
  Stored<E> out_grad = rows_of<E>(b.out_grad, w.out_grad, batch, head);
  q.data += block.first * q.row;
  out.data += block.first * out.row;
  out_grad.data += block.first * out_grad.row;
  const float *logs = b.logs + (batch * w.heads + head) * w.queries + block.first;
  rows_to_lanes<C, E>(q.data, q.row, block.lanes, w.width, factor_of(w), block.columns);
  rows_to_lanes<C, E>(out_grad.data, out_grad.row, block.lanes, w.value_width, 1.0f,
                      gradient.grads);
  copy_rows<E>(q, block.lanes, w.width, w.scale, C * WIDE, gradient.queries);
  copy_rows<E>(out_grad, block.lanes, w.value_width, 1.0f, C * WIDE, gradient.out_grad_rows);
  for (int64_t i = 0; i < C * WIDE; ++i) {
    bool sees = i < block.lanes && logs[i] != -__builtin_inff();
    gradient.logs[i] = sees ? logs[i] * LOG2E : __builtin_inff();
  }
  // same order of additions as in `recompute_tile`: with a single key its score's gradient is
  // exactly 0
  Wide means[C] = {};
  for (int64_t e = 0; e < w.value_width; e += TILE) {
    int64_t some = w.value_width - e < TILE ? w.value_width - e : TILE;
    rows_to_lanes<C, E>(out.data + e, out.row, block.lanes, some, 1.0f, buffer);
    for (int64_t i = 0; i < some; ++i)
      for (int c = 0; c < C; ++c)
        means[c] += read<Wide>(buffer + (i * C + c) * WIDE) *
                    read<Wide>(gradient.grads + ((e + i) * C + c) * WIDE);
  }
  for (int c = 0; c < C; ++c) write(gradient.means + c * WIDE, means[c]);
  block.fresh = true;
}

// Where a task, or a range of its keys, accumulates the gradients of keys and values.
struct Shares {
  float *keys, *values;
  int64_t key_row, value_row;
};

template <int C>
static void gradient_tile(const AttentionBackward &b, BlockGradient &gradient, const Shares &sums,
                          BackwardScratch &scratch) {
  const SequenceAttention &w = b.attention;
  const Tile &tile = scratch.tile;
  int64_t width = whole_vectors(w.width), value_width = whole_vectors(w.value_width);
  if (w.cap == 0.0f) {
    recompute_tile<C, false, false>(tile, tile.keys, w.width, gradient.block.columns, gradient.logs,
                                    nullptr, scratch.weights);
    recompute_tile<C, true, false>(tile, tile.values, w.value_width, gradient.grads, gradient.means,
                                   scratch.weights, scratch.grads);
  } else {
    recompute_tile<C, false, true>(tile, tile.keys, w.width, gradient.block.columns, gradient.logs,
                                   nullptr, scratch.weights);
    recompute_capped_tile<C>(tile, w.cap, gradient.logs, scratch.weights, scratch.grads);
    recompute_tile<C, true, true>(tile, tile.values, w.value_width, gradient.grads, gradient.means,
                                  scratch.weights, scratch.grads);
  }
  add_to_key_grads(tile, scratch.weights, C * WIDE, gradient.out_grad_rows, value_width,
                   sums.values, sums.value_row, scratch.unused);
  add_to_key_grads(tile, scratch.grads, C * WIDE, gradient.queries, width, sums.keys, sums.key_row,
                   scratch.unused);
  Wide same[C];
  for (int c = 0; c < C; ++c) same[c] = wide(1.0f);
  add_all_columns<C>(tile.keys, tile.count, w.width, scratch.grads, same, gradient.block.fresh,
                     gradient.block.sums);
  gradient.block.fresh = false;
}

template <int C, class E>
static void finish_gradient(const AttentionBackward &b, int64_t batch, int64_t head,
                            BlockGradient &gradient) {
  const SequenceAttention &w = b.attention;
  QueryBlock &block = gradient.block;
  if (block.fresh)
    for (int64_t i = 0; i < w.width * C * WIDE; ++i) block.sums[i] = 0.0f;
  Wide factor[C];
  for (int c = 0; c < C; ++c) factor[c] = wide(w.scale);
  auto *rows = head_of<E>(b.grad_q, w.grad_q, batch, head) + block.first * w.grad_q.row;
  lanes_to_rows<C, E>(block.sums, factor, block.lanes, w.width, rows, w.grad_q.row);
}

// Adds the gradients of a packed range to the caller's tensor and drops the padding.
static void scatter_add(const float *stretch, int64_t count, int64_t width, float *to,
                      int64_t stride) {
  int64_t padded = whole_vectors(width);
  for (int64_t j = 0; j < count; ++j)
    for (int64_t d = 0; d < width; ++d) to[j * stride + d] += stretch[j * padded + d];
}

template <class E>
static void gradient_chunk(const AttentionBackward &b, int64_t batch, int64_t head, int64_t chunk,
                        const Shares &into, BackwardScratch &scratch) {
  const SequenceAttention &w = b.attention;
  int64_t shared = head / (w.heads / w.kv_heads);
  int64_t width = whole_vectors(w.width), value_width = whole_vectors(w.value_width);
  int64_t first = chunk * MAX_BACKWARD_BLOCKS;
  int64_t count = b.blocks - first < MAX_BACKWARD_BLOCKS ? b.blocks - first : MAX_BACKWARD_BLOCKS;
  const Stored<E> stored_keys = rows_of<E>(b.k, w.k, batch, shared);
  const Stored<E> stored_values = rows_of<E>(b.v, w.v, batch, shared);
  const Stored<E> q = rows_of<E>(b.q, w.q, batch, head), out = rows_of<E>(b.out, w.out, batch, head);
  const Stored<E> out_grad = rows_of<E>(b.out_grad, w.out_grad, batch, head);
  const Rows key_sums{into.keys, into.key_row}, value_sums{into.values, into.value_row};
  for (int64_t g = 0; g < count; ++g) {
    QueryBlock &block = scratch.gradients[g].block;
    block.first = (first + g) * MAX_LANES;
    block.lanes = w.queries - block.first < MAX_LANES ? w.queries - block.first : MAX_LANES;
    block.valid = w.valid ? w.valid + batch * w.keys : nullptr;
    seek_first_key(w, head, block);
    if (block.lanes <= WIDE)
      begin_gradient<1, E>(b, batch, head, scratch.weights, scratch.gradients[g]);
    else begin_gradient<COLUMNS, E>(b, batch, head, scratch.weights, scratch.gradients[g]);
  }
  const bool packs = packs_rows<E>(w, w.starts ? 0 : count);  // of a list few rows are read
  const bool whole = width == w.width && value_width == w.value_width;  // no tail to drop
  for (;;) {
    int64_t begin = w.keys, until = 0;
    for (int64_t g = 0; g < count; ++g) {
      const QueryBlock &block = scratch.gradients[g].block;
      int64_t next = next_key(w, block), end = w.starts ? w.keys : block.end;
      if (next < begin) begin = next;
      if (end > until) until = end;
    }
    if (begin == w.keys) break;
    if (begin + stretch_of(w) / 2 < until) until = begin + stretch_of(w) / 2;
    Rows keys, values;
    Shares sums = into;
    if constexpr (std::is_same<E, Full>::value) keys = stored_keys, values = stored_values;
    if (packs) {
      keys = pack_rows<E>(stored_keys, begin, until, w.width, scratch.keys);
      values = pack_rows<E>(stored_values, begin, until, w.value_width, scratch.values);
    }
    if (!whole) {
      sums = {scratch.grad_keys - begin * width, scratch.grad_values - begin * value_width, width,
              value_width};
      for (int64_t i = 0; i < (until - begin) * width; ++i) scratch.grad_keys[i] = 0.0f;
      for (int64_t i = 0; i < (until - begin) * value_width; ++i) scratch.grad_values[i] = 0.0f;
    }
    for (int64_t g = 0; g < count; ++g) {
      BlockGradient &gradient = scratch.gradients[g];
      prefetch_next<E>(w, gradient.block, count, until + g * MAX_LANES,
                       {&stored_keys, &stored_values}, {&q, &out, &out_grad});
      prefetch_next<Full>(w, gradient.block, count, until + g * MAX_LANES, {&key_sums, &value_sums},
                          {});
      while (fill_tile(w, keys, values, until, TILE, gradient.block, scratch.tile)) {
        if (gradient.block.lanes <= WIDE) gradient_tile<1>(b, gradient, sums, scratch);
        else gradient_tile<COLUMNS>(b, gradient, sums, scratch);
      }
    }
    if (whole) continue;
    scatter_add(scratch.grad_keys, until - begin, w.width, into.keys + begin * into.key_row,
              into.key_row);
    scatter_add(scratch.grad_values, until - begin, w.value_width,
                into.values + begin * into.value_row, into.value_row);
  }
  for (int64_t g = 0; g < count; ++g) {
    BlockGradient &gradient = scratch.gradients[g];
    if (gradient.block.lanes <= WIDE) finish_gradient<1, E>(b, batch, head, gradient);
    else finish_gradient<COLUMNS, E>(b, batch, head, gradient);
  }
}

// How many shares accumulate directly in the result: one in float32, none in half precision, which
// would round every addition.
template <class E>
constexpr int64_t IN_PLACE = std::is_same<E, Full>::value;

template <class E>
static Shares share_sums(const AttentionBackward &b, int64_t row, int64_t share) {
  const SequenceAttention &w = b.attention;
  if constexpr (IN_PLACE<E> > 0) {
    int64_t batch = row / w.kv_heads, head = row % w.kv_heads;
    if (share == 0)
      return {head_of<E>(b.grad_k, w.grad_k, batch, head),
              head_of<E>(b.grad_v, w.grad_v, batch, head), w.grad_k.row, w.grad_v.row};
  }
  int64_t sum_index = row * (b.shares - IN_PLACE<E>) + share - IN_PLACE<E>;
  float *own = b.apart + sum_index * w.keys * (w.width + w.value_width);
  return {own, own + w.keys * w.width, w.width, w.value_width};
}

template <class E>
static void gradient_task(const AttentionBackward &b, int64_t task, BackwardScratch &scratch) {
  const SequenceAttention &w = b.attention;
  int64_t row = task / b.shares, share = task % b.shares, shared_heads = w.heads / w.kv_heads;
  int64_t batch = row / w.kv_heads, head = row % w.kv_heads * shared_heads;
  Shares into = share_sums<E>(b, row, share);
  for (int64_t j = 0; j < w.keys; ++j) {
    for (int64_t d = 0; d < w.width; ++d) into.keys[j * into.key_row + d] = 0.0f;
    for (int64_t e = 0; e < w.value_width; ++e) into.values[j * into.value_row + e] = 0.0f;
  }
  int64_t all = shared_heads * b.chunks;
  for (int64_t i = all * share / b.shares; i < all * (share + 1) / b.shares; ++i)
    gradient_chunk<E>(b, batch, head + i / b.chunks, i % b.chunks, into, scratch);
}

// Reduces the shares of a key in a fixed order.
template <class E>
static void reduce_shares(const AttentionBackward &b, int64_t at) {
  const SequenceAttention &w = b.attention;
  int64_t row = at / w.keys, key = at % w.keys;
  Shares into = share_sums<E>(b, row, 0);
  for (int64_t share = 1; share < b.shares; ++share) {
    Shares from = share_sums<E>(b, row, share);
    for (int64_t d = 0; d < w.width; ++d)
      into.keys[key * into.key_row + d] += from.keys[key * w.width + d];
    for (int64_t e = 0; e < w.value_width; ++e)
      into.values[key * into.value_row + e] += from.values[key * w.value_width + e];
  }
  if constexpr (IN_PLACE<E> == 0) {
    int64_t batch = row / w.kv_heads, head = row % w.kv_heads;
    auto *key_to = head_of<E>(b.grad_k, w.grad_k, batch, head) + key * w.grad_k.row;
    auto *value_to = head_of<E>(b.grad_v, w.grad_v, batch, head) + key * w.grad_v.row;
    for (int64_t d = 0; d < w.width; ++d) E::put(key_to + d, into.keys[key * into.key_row + d]);
    for (int64_t e = 0; e < w.value_width; ++e)
      E::put(value_to + e, into.values[key * into.value_row + e]);
  }
}

template <class E>
static void attention_backward_worker(suffice::Team &team, int, void *context) {
  const AttentionBackward &b = *(const AttentionBackward *)context;
  const SequenceAttention &w = b.attention;
  int64_t width = whole_vectors(w.width), value_width = whole_vectors(w.value_width);
  int64_t keys = stretch_of(w) / 2;
  int64_t numbers = MAX_BACKWARD_BLOCKS * (3 * width + 2 * value_width) * MAX_LANES +
                    2 * (TILE + ROWS) * MAX_LANES + 2 * keys * (width + value_width) + width +
                    value_width;
  float *place = (float *)suffice::thread_scratch(numbers * sizeof(float));
  BackwardScratch scratch;
  auto next = [&](int64_t count) {
    float *table = place;
    place += count;
    return table;
  };
  for (BlockGradient &gradient : scratch.gradients) {
    gradient.block.columns = next(width * MAX_LANES);
    gradient.block.sums = next(width * MAX_LANES);
    gradient.grads = next(value_width * MAX_LANES);
    gradient.queries = next(width * MAX_LANES);
    gradient.out_grad_rows = next(value_width * MAX_LANES);
  }
  scratch.weights = next((TILE + ROWS) * MAX_LANES);
  scratch.grads = next((TILE + ROWS) * MAX_LANES);
  scratch.keys = next(keys * width);
  scratch.values = next(keys * value_width);
  scratch.grad_keys = next(keys * width);
  scratch.grad_values = next(keys * value_width);
  scratch.unused = next(width + value_width);
  for (int64_t i = 0; i < width + value_width; ++i) scratch.unused[i] = 0.0f;
  suffice::Range range;
  while (team.take(w.batch * w.kv_heads * b.shares, 1, range))
    gradient_task<E>(b, range.begin, scratch);
  if (b.shares == IN_PLACE<E>) return;
  team.barrier();
  while (team.take(w.batch * w.kv_heads * w.keys, 64, range))
    for (int64_t at = range.begin; at < range.end; ++at) reduce_shares<E>(b, at);
}

static void attend_backward(const SequenceAttention *attention, const void *q, const void *k,
                            const void *v, const void *out, const float *logs, const void *out_grad,
                            void *grad_q, void *grad_k, void *grad_v, int64_t threads) {
  const SequenceAttention &w = *attention;
  AttentionBackward backward{w,      q,      k,      v, out, logs, out_grad,
                             grad_q, grad_k, grad_v, 0, 0,   1,    nullptr};
  backward.blocks = (w.queries + MAX_LANES - 1) / MAX_LANES;
  backward.chunks = (backward.blocks + MAX_BACKWARD_BLOCKS - 1) / MAX_BACKWARD_BLOCKS;
  int64_t rows = w.batch * w.kv_heads;
  if (rows == 0) return;
  threads = threads_for(w, threads);
  if (rows < 2 * threads) {
    int64_t max_shares = w.heads / w.kv_heads * backward.chunks;
    backward.shares = threads == 1 ? 1 : (2 * threads + rows - 1) / rows;
    if (backward.shares > max_shares) backward.shares = max_shares;
    if (backward.shares < 1) backward.shares = 1;
  }
  int64_t sums_apart = w.kind == F32 ? backward.shares - 1 : backward.shares;
  int64_t apart = rows * sums_apart * w.keys * (w.width + w.value_width);
  if (apart > 0) backward.apart = (float *)malloc(apart * sizeof(float));
  int64_t tasks = rows * backward.shares;
  auto *worker = w.kind == F16    ? attention_backward_worker<Half>
                 : w.kind == BF16 ? attention_backward_worker<Brain>
                                  : attention_backward_worker<Full>;
  suffice::run_team((int)(tasks < threads ? tasks : threads), worker, &backward);
  free(backward.apart);
}

}  // namespace SUFFICE_ISA
