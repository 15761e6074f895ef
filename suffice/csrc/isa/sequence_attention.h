// Softmax attention of whole sequences (flash attention on a CPU). A task is a chunk of
// neighbouring query blocks of a head; all of them go through a cache-sized range of keys before
// the next range. Online softmax: partial sums are rescaled when the running maximum of a query
// grows.

#pragma once

#include <math.h>

#include <initializer_list>
#include <type_traits>

#include "../threads.h"
#include "tile.h"

namespace SUFFICE_ISA {

constexpr float NO_SCORE = -3e38f;  // running maximum before any key; finite, as -inf - -inf is NaN
constexpr int64_t MAX_BLOCKS = 256 / MAX_LANES;  // query blocks per chunk, at most
constexpr int64_t CACHED_NUMBERS = 1 << 16;  // floats of keys and values that stay in L2
constexpr int64_t KEPT_NUMBERS = 1 << 18;  // of a head, that stay there from chunk to chunk
constexpr int64_t FAR = 512;  // floats between rows, from which a tile's share two sets of L1

struct SequenceCall {
  const SequenceAttention &attention;
  const void *q, *k, *v;
  void *out;
  float *logs;
  int64_t blocks, blocks_per_chunk,
      chunks;  // query blocks of a head and of a chunk; chunks of a head
  int nonfinite;
};

// Working memory of a thread.
struct SequenceScratch {
  QueryBlock blocks[MAX_BLOCKS];
  Tile tile;
  float *scores;  // [TILE, N]
  float *packed;    // packed keys and values of a range, or null: read in place
};

// Scores of a tile, -inf for masked keys, and the running maximum of each lane. With a soft cap
// only dot products; `soft_cap_tile` does the rest.
template <int C, bool CAPPED>
NOINLINE void score_tile(const Tile &tile, int64_t width, const float *columns, float *scores,
                      float *largest, Wide &any_nonfinite) {
  Wide row_max[C], nonfinite[C] = {};
  UNROLL
  for (int c = 0; c < C; ++c) row_max[c] = read<Wide>(largest + c * WIDE);
  for (int64_t j = 0; j < tile.count; j += ROWS) {
    Wide sums[ROWS][C];
    multiply_rows<ROWS, C>(tile.keys + j, width, columns, sums);
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) nonfinite[c] += sums[r][c] * 0.0f;
    if (!CAPPED && !all_see(tile.seen + j)) mask_scores<C>(tile.seen + j, sums, -__builtin_inff());
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      UNROLL
      for (int c = 0; c < C; ++c) {
        if (!CAPPED) row_max[c] = maximum(row_max[c], sums[r][c]);
        write(scores + ((j + r) * C + c) * WIDE, sums[r][c]);
      }
  }
  UNROLL
  for (int c = 0; c < C; ++c) {
    write(largest + c * WIDE, row_max[c]);
    any_nonfinite += nonfinite[c];
  }
}

// Turns dot products into soft-capped scores, -inf for masked keys, and updates the running
// maximum.
template <int C>
NOINLINE void soft_cap_tile(const Tile &tile, float cap, float *scores, float *largest) {
  Wide row_max[C];
  UNROLL
  for (int c = 0; c < C; ++c) row_max[c] = read<Wide>(largest + c * WIDE);
  for (int64_t j = 0; j < tile.count; ++j)
    UNROLL
    for (int c = 0; c < C; ++c) {
      float *at = scores + (j * C + c) * WIDE;
      Wide score = tanh(read<Wide>(at)) * wide(cap * LOG2E);
      if (tile.seen[j] != ALL_LANES)
        score = sees(tile.seen[j], c) ? score : wide(-__builtin_inff());
      row_max[c] = maximum(row_max[c], score);
      write(at, score);
    }
  UNROLL
  for (int c = 0; c < C; ++c) write(largest + c * WIDE, row_max[c]);
}

// Online-softmax step: scores become weights relative to the running maximum; returns in `rescale`
// the factors of everything summed before.
template <int C>
NOINLINE void online_softmax_tile(int64_t count, const float *before, QueryBlock &block,
                                  float *scores, Wide (&rescale)[C]) {
  Wide row_max[C], total[C];
  UNROLL
  for (int c = 0; c < C; ++c) {
    row_max[c] = read<Wide>(block.row_max + c * WIDE);
    rescale[c] = exp2_negative(read<Wide>(before + c * WIDE) - row_max[c]);
    total[c] = read<Wide>(block.total + c * WIDE) * rescale[c];
  }
  for (int64_t j = 0; j < count; ++j)
    UNROLL
    for (int c = 0; c < C; ++c) {
      float *at = scores + (j * C + c) * WIDE;
      Wide weight = exp2_negative(read<Wide>(at) - row_max[c]);
      total[c] += weight;
      write(at, weight);
    }
  UNROLL
  for (int c = 0; c < C; ++c) write(block.total + c * WIDE, total[c]);
}

template <int C>
static void attend_tile(const SequenceAttention &attention, const Tile &tile, QueryBlock &block,
                        float *scores, Wide &nonfinite) {
  float before[MAX_LANES];
  Wide rescale[C];
  __builtin_memcpy(before, block.row_max, sizeof before);
  if (attention.cap == 0.0f) {
    score_tile<C, false>(tile, attention.width, block.columns, scores, block.row_max, nonfinite);
  } else {
    score_tile<C, true>(tile, attention.width, block.columns, scores, block.row_max, nonfinite);
    soft_cap_tile<C>(tile, attention.cap, scores, block.row_max);
  }
  online_softmax_tile<C>(tile.count, before, block, scores, rescale);
  add_all_columns<C>(tile.values, tile.count, attention.value_width, scores, rescale, block.fresh,
                     block.sums);
  block.fresh = false;
}

template <int C, class E>
INLINE void load_queries(E, const SequenceAttention &attention, const typename E::Element *q,
                         const QueryBlock &block) {
  rows_to_lanes<C, E>(q, attention.q.row, block.lanes, attention.width, factor_of(attention),
                      block.columns);
}

template <int C, class E>
NOINLINE void begin_block(const SequenceAttention &attention, const typename E::Element *q,
                          QueryBlock &block) {
  load_queries<C>(E{}, attention, q, block);
  block.fresh = true;
  for (int i = 0; i < C * WIDE; ++i) block.row_max[i] = NO_SCORE, block.total[i] = 0.0f;
}

template <int C, class E>
NOINLINE void finish_block(const SequenceAttention &attention, const QueryBlock &block,
                        typename E::Element *out, float *logs, Wide &nonfinite) {
  Wide factor[C];
  if (block.fresh)
    for (int64_t i = 0; i < attention.value_width * C * WIDE; ++i) block.sums[i] = 0.0f;
  for (int c = 0; c < C; ++c) {
    factor[c] = 1.0f / read<Wide>(block.total + c * WIDE);
    factor[c] = read<Wide>(block.row_max + c * WIDE) == NO_SCORE ? Wide{} : factor[c];
  }
  for (int64_t i = 0; logs && i < block.lanes; ++i)
    logs[i] = block.row_max[i] == NO_SCORE ? -__builtin_inff()
                                       : LN2 * block.row_max[i] + logf(block.total[i]);
  nonfinite += lanes_to_rows<C, E>(block.sums, factor, block.lanes, attention.value_width, out,
                                   attention.out.row);
}

// Pointer to the first row of a head.
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

// Packs rows begin to end - 1 contiguously, as float32.
template <class E>
NOINLINE Rows pack_rows(const Stored<E> &rows, int64_t begin, int64_t end, int64_t width,
                        float *to) {
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

// Prefetches rows begin to end - 1 into L2: they lie too far apart for the processor to.
template <class E>
INLINE void prefetch_rows(const Stored<E> &rows, int64_t begin, int64_t end, int64_t width) {
  constexpr int64_t STEP = 64 / sizeof(typename E::Element);
  for (; begin < end; ++begin)
    for (int64_t d = 0; d < width; d += STEP)
      __builtin_prefetch(rows.data + begin * rows.row + d, 0, 2);
}

// Where few keys are seen, prefetches what the next chunk of `count` blocks needs in the place of a
// block: its share of the keys from `key` on, and its queries.
template <class E>
INLINE void prefetch_next(const SequenceAttention &attention, const QueryBlock &block,
                          int64_t count, int64_t key, std::initializer_list<const Stored<E> *> keys,
                          std::initializer_list<const Stored<E> *> queries) {
  if (attention.high - attention.low > attention.keys) return;
  const int64_t query = block.first + count * MAX_LANES;
  const auto until = [](int64_t begin, int64_t end) {
    return begin + MAX_LANES < end ? begin + MAX_LANES : end;
  };
  if (!attention.starts)
    for (const Stored<E> *rows : keys)
      prefetch_rows(*rows, key, until(key, attention.keys), attention.width);
  for (const Stored<E> *rows : queries)
    prefetch_rows(*rows, query, until(query, attention.queries), attention.width);
}

INLINE int64_t stretch_of(const SequenceAttention &attention) {
  int64_t keys = CACHED_NUMBERS / (attention.width + attention.value_width) / TILE * TILE;
  return keys < TILE ? TILE : keys;
}

// The keys that query blocks have still to visit; false if there are none.
INLINE bool range_of(const SequenceAttention &attention, const QueryBlock *blocks, int64_t count,
                     int64_t &begin, int64_t &until) {
  begin = attention.keys, until = 0;
  for (int64_t g = 0; g < count; ++g) {
    int64_t next = next_key(attention, blocks[g]);
    if (next < begin) begin = next;
    int64_t end = attention.starts ? attention.keys : blocks[g].end;
    if (end > until) until = end;
  }
  return begin < attention.keys;
}

// Whether a copy of each range of keys and values pays for a chunk of `blocks` query blocks: half
// types are converted, far rows evict each other, and rows that left L2 are fetched in order.
template <class E>
INLINE bool packs_rows(const SequenceAttention &w, int64_t blocks) {
  const bool far = w.k.row >= FAR || w.v.row >= FAR;
  const bool leave = w.keys * (w.k.row + w.v.row) >= KEPT_NUMBERS;  // gaps cost sets of L2, too
  return !std::is_same<E, Full>::value || (blocks > 2 && (far || leave));
}

// Attends query blocks to all their keys, one cache-sized range of keys at a time.
template <class E>
NOINLINE void attend_keys(const SequenceAttention &attention, const Stored<E> &q,
                          const Stored<E> &out, const Stored<E> &stored_keys,
                          const Stored<E> &stored_values, int64_t count, SequenceScratch &scratch,
                          Wide &nonfinite) {
  Rows keys, values;
  if constexpr (std::is_same<E, Full>::value) keys = stored_keys, values = stored_values;
  int64_t begin, until;
  while (range_of(attention, scratch.blocks, count, begin, until)) {
    if (scratch.packed) {
      if (begin + stretch_of(attention) < until) until = begin + stretch_of(attention);
      keys = pack_rows(stored_keys, begin, until, attention.width, scratch.packed);
      values = pack_rows(stored_values, begin, until, attention.value_width,
                     scratch.packed + (until - begin) * attention.width);
    }
    for (int64_t g = 0; g < count; ++g) {
      QueryBlock &block = scratch.blocks[g];
      prefetch_next<E>(attention, block, count, until + g * MAX_LANES,
                       {&stored_keys, &stored_values}, {&q, &out});
      while (fill_tile(attention, keys, values, until, TILE, block, scratch.tile)) {
        if (block.lanes <= WIDE)
          attend_tile<1>(attention, scratch.tile, block, scratch.scores, nonfinite);
        else attend_tile<COLUMNS>(attention, scratch.tile, block, scratch.scores, nonfinite);
      }
    }
  }
}

// Returns whether all scores and outputs are finite.
template <class E, class Scratch>
NOINLINE bool attend_chunk(const SequenceCall &a, int64_t chunk, Scratch &scratch) {
  const SequenceAttention &w = a.attention;
  int64_t row = chunk / a.chunks, batch = row / w.heads, head = row % w.heads;
  int64_t shared = head / (w.heads / w.kv_heads);
  int64_t chunk_index = chunk % a.chunks;
  if (w.high - w.low > w.keys)
    chunk_index = a.chunks - 1 - chunk_index;  // causal: the longest rows first, for balance
  int64_t first = chunk_index * a.blocks_per_chunk;
  int64_t count = a.blocks - first < a.blocks_per_chunk ? a.blocks - first : a.blocks_per_chunk;
  const Stored<E> q = rows_of<E>(a.q, w.q, batch, head);
  Wide nonfinite = {};
  for (int64_t g = 0; g < count; ++g) {
    QueryBlock &block = scratch.blocks[g];
    block.first = (first + g) * MAX_LANES;
    block.lanes = w.queries - block.first < MAX_LANES ? w.queries - block.first : MAX_LANES;
    block.valid = w.valid ? w.valid + batch * w.keys : nullptr;
    seek_first_key(w, head, block);
    const typename E::Element *these = q.data + block.first * q.row;
    if (block.lanes <= WIDE) begin_block<1, E>(w, these, block);
    else begin_block<COLUMNS, E>(w, these, block);
  }
  attend_keys(w, q, rows_of<E>(a.out, w.out, batch, head), rows_of<E>(a.k, w.k, batch, shared),
              rows_of<E>(a.v, w.v, batch, shared), count, scratch, nonfinite);
  for (int64_t g = 0; g < count; ++g) {
    const QueryBlock &block = scratch.blocks[g];
    typename E::Element *out = head_of<E>(a.out, w.out, batch, head) + block.first * w.out.row;
    float *logs = a.logs ? a.logs + row * w.queries + block.first : nullptr;
    if (block.lanes <= WIDE) finish_block<1, E>(w, block, out, logs, nonfinite);
    else finish_block<COLUMNS, E>(w, block, out, logs, nonfinite);
  }
  return sum_of(nonfinite) == 0.0f;
}

template <class E, class Scratch>
static void attend_chunks(suffice::Team &team, SequenceCall &a, Scratch &scratch) {
  const SequenceAttention &w = a.attention;
  const int64_t chunks = w.batch * w.heads * a.chunks;
  suffice::Range range;
  // local windows: neighbouring chunks share keys, so a thread takes a run of them
  int64_t grain = w.high - w.low > w.keys ? 1 : chunks / (8 * team.threads) + 1;
  while (team.take(chunks, grain, range))
    for (int64_t chunk = range.begin; chunk < range.end; ++chunk)
      if (!attend_chunk<E>(a, chunk, scratch)) __atomic_store_n(&a.nonfinite, 1, __ATOMIC_RELAXED);
}

template <class E>
static void attend_worker(suffice::Team &team, int, void *context) {
  SequenceCall &a = *(SequenceCall *)context;
  const SequenceAttention &w = a.attention;
  int64_t width = w.width + w.value_width;
  bool packs = packs_rows<E>(w, a.blocks_per_chunk);
  int64_t packed = packs ? stretch_of(w) * width : 0;
  int64_t numbers = (a.blocks_per_chunk * width + TILE + ROWS) * MAX_LANES + packed;
  float *place = (float *)suffice::thread_scratch(numbers * sizeof(float));
  SequenceScratch scratch;
  for (int64_t g = 0; g < a.blocks_per_chunk; ++g) {
    scratch.blocks[g].columns = place;
    scratch.blocks[g].sums = place + w.width * MAX_LANES;
    place += width * MAX_LANES;
  }
  scratch.scores = place;
  scratch.packed = packs ? place + (TILE + ROWS) * MAX_LANES : nullptr;
  attend_chunks<E>(team, a, scratch);
}

// Sizes chunks: fewer query blocks each where there would be too few chunks for all threads.
static void size_chunks(SequenceCall &a, int64_t threads) {
  const SequenceAttention &w = a.attention;
  a.blocks = (w.queries + MAX_LANES - 1) / MAX_LANES;
  a.blocks_per_chunk = a.blocks < MAX_BLOCKS ? a.blocks : MAX_BLOCKS;
  while (a.blocks_per_chunk > 1 &&
         w.batch * w.heads * ((a.blocks + a.blocks_per_chunk - 1) / a.blocks_per_chunk) <
             4 * threads)
    a.blocks_per_chunk /= 2;
  a.chunks = (a.blocks + a.blocks_per_chunk - 1) / a.blocks_per_chunk;
}

// Multiply-adds from which on waking one more thread pays.
constexpr int64_t MACS_PER_THREAD = 1 << 20;

INLINE int64_t threads_for(const SequenceAttention &attention, int64_t threads) {
  int64_t reach = attention.high - attention.low + MAX_LANES;
  int64_t keys = attention.starts || reach > attention.keys ? attention.keys : reach;
  int64_t width = attention.width + attention.value_width;
  int64_t worth =
      attention.batch * attention.heads * attention.queries * keys * width / MACS_PER_THREAD;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

static int run_attention(SequenceCall call, suffice::Job worker, int64_t threads) {
  const SequenceAttention &w = call.attention;
  if (w.batch * w.heads * w.queries == 0) return 0;
  threads = threads_for(w, threads);
  size_chunks(call, threads);
  int64_t chunks = w.batch * w.heads * call.chunks;
  suffice::run_team((int)(chunks < threads ? chunks : threads), worker, &call);
  return call.nonfinite;
}

static int attend_sequence(const SequenceAttention *attention, const void *q, const void *k,
                           const void *v, void *out, float *logs, int64_t threads) {
  auto *worker = attention->kind == F16    ? attend_worker<Half>
                 : attention->kind == BF16 ? attend_worker<Brain>
                                       : attend_worker<Full>;
  return run_attention({*attention, q, k, v, out, logs, 0, 0, 0, 0}, worker, threads);
}

}  // namespace SUFFICE_ISA
