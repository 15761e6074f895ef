// Decode attention on its own (no model around it): the latest positions of each row attend to the
// KV cache. The cache is cut into splits, as in flash-decoding; threads steal splits, and whoever
// finishes the last split of a row merges the partial softmaxes.

#pragma once

#include <new>

#include "cache_attention.h"

namespace SUFFICE_ISA {

constexpr int64_t UNBOUNDED = int64_t(1) << 40;  // window without a limit
constexpr int64_t MAX_SERIAL_NUMBERS =
    1 << 15;  // floats of keys: fewer are read before a second thread wakes up

struct DecodeCall {
  const DecodeAttention &attention;
  const KVCache &cache;
  int64_t rows, splits;
  SoftmaxState *states;     // [rows, heads, queries, pieces]
  float *values;  // [rows, heads, queries, pieces, value_dim]
  std::atomic<int64_t> *remaining;  // [rows, kv_heads] unfinished splits
  std::atomic<int64_t> *claimed;  // [threads] splits already claimed from each thread's share
  std::atomic<int> nonfinite{0};

  // Work stealing: a thread claims splits of its own share first (cache locality), then of the
  // others'.
  bool take(int threads, int thread, int64_t &split) {
    const int64_t total = rows * attention.kv_heads * splits;
    for (int i = 0; i < threads; ++i, thread = thread + 1 < threads ? thread + 1 : 0) {
      const int64_t begin = total * thread / threads, end = total * (thread + 1) / threads;
      split = begin + claimed[thread].fetch_add(1, std::memory_order_relaxed);
      if (split < end) return true;
    }
    return false;
  }
};

// Attends the queries that share one KV head of a row to one split of the cache.
static void decode_split(DecodeCall &work, int64_t row, int64_t group, int64_t split,
                         int &nonfinite) {
  const DecodeAttention &attention = work.attention;
  const int64_t width = attention.head_dim, value_width = attention.value_dim;
  const int64_t shared = attention.heads / attention.kv_heads;
  const int64_t count = shared * attention.queries,
                first = (row * attention.kv_heads + group) * count;
  float q[MAX_SHARED_QUERIES * MAX_HEAD_DIM];
  SoftmaxState local[MAX_SHARED_QUERIES];
  for (int64_t r = 0; r < count; ++r) {
    local[r] = {-__builtin_inff(), 0.0f,
                work.values + ((first + r) * work.splits + split) * value_width};
    for (int64_t c = 0; c < width; ++c)
      q[r * width + c] = attention.q[(first + r) * width + c] * attention.scale;
    for (int64_t c = 0; c < value_width; ++c) local[r].values[c] = 0.0f;
  }
  const Span &near = work.cache.near;
  const int64_t padding = attention.padding ? attention.padding[row] : 0;
  const int64_t place = near.end + near.shift - padding - attention.queries;
  Queries queries{q,           count,   width,
                  value_width, nullptr, attention.places ? attention.places[row] : place};
  if (attention.slopes) queries.slopes = attention.slopes + group * shared;
  queries.num_positions = attention.queries;
  queries.cap = attention.cap;
  queries.nonfinite = &nonfinite;
  const bool narrow = attention.before < UNBOUNDED || attention.after < UNBOUNDED;
  if (attention.queries > 1 || attention.allowed || attention.k_at || narrow)
    queries.attention = &attention;
  attend_split(queries, work.cache, row, group, padding, split, local);
  for (int64_t r = 0; r < count; ++r) work.states[(first + r) * work.splits + split] = local[r];
}

// Merges the splits of one KV head of a row and writes the outputs of its queries.
static void merge_splits(const DecodeCall &work, int64_t row, int64_t group, int &nonfinite) {
  const DecodeAttention &attention = work.attention;
  const int64_t width = attention.value_dim, shared = attention.heads / attention.kv_heads;
  Floats nan_sum = all(0.0f);
  for (int64_t r = 0; r < shared * attention.queries; ++r) {
    const int64_t head = group * shared + r / attention.queries, query = r % attention.queries;
    const int64_t output_index = (row * attention.heads + head) * attention.queries + query;
    float *out =
        attention.out + ((row * attention.queries + query) * attention.heads + head) * width;
    combine_splits(work.states + output_index * work.splits, work.splits, width, out,
                   attention.logits ? attention.logits + head : nullptr);
    stretches(width, [&](int64_t at, int64_t n) {
      Floats v = get(out + at, n);
      nan_sum += v - v;
    });
  }
  if (sum(nan_sum) != 0.0f) nonfinite = 1;
}

// No barrier: the thread that finishes the last split writes the output, so a thread that has not
// woken up yet delays nobody. The decrement is acq_rel, so that it sees the states of all splits.
static void decode_worker(suffice::Team &team, int thread, void *context) {
  DecodeCall &work = *(DecodeCall *)context;
  int nonfinite = 0;
  for (int64_t split; work.take(team.threads, thread, split);) {
    const int64_t row_group = split / work.splits, groups = work.attention.kv_heads;
    decode_split(work, row_group / groups, row_group % groups, split % work.splits, nonfinite);
    if (work.remaining[row_group].fetch_sub(1, std::memory_order_acq_rel) == 1)
      merge_splits(work, row_group / groups, row_group % groups, nonfinite);
  }
  if (nonfinite) work.nonfinite.store(1, std::memory_order_relaxed);
}

static int run_decode_attention(const DecodeAttention &attention, const KVCache &cache,
                                int64_t rows, int64_t threads) {
  typedef std::atomic<int64_t> Count;
  int64_t cache_numbers = 0;
  for (const Span *span = &cache.sinks; span <= &cache.near; ++span)
    cache_numbers += rows * attention.kv_heads * attention.head_dim * (span->end - span->first);
  if (cache_numbers < MAX_SERIAL_NUMBERS) threads = 1;
  const int64_t splits = num_splits(cache),
                num_states = rows * attention.heads * attention.queries * splits;
  const int64_t groups = rows * attention.kv_heads;
  if (!splits) {
    __builtin_memset(
        attention.out, 0,
        rows * attention.heads * attention.queries * attention.value_dim * sizeof(float));
    return 0;
  }
  SoftmaxState *states = (SoftmaxState *)suffice::thread_scratch(
      num_states * (int64_t)(sizeof(SoftmaxState) + attention.value_dim * sizeof(float)) +
      (groups + threads) * (int64_t)sizeof(Count) + 128);
  Count *remaining = (Count *)(states + num_states);
  for (int64_t i = 0; i < groups; ++i) new (remaining + i) Count(splits);
  for (int64_t i = groups; i < groups + threads; ++i) new (remaining + i) Count(0);
  DecodeCall work{attention, cache,
                  rows,      splits,
                  states,    (float *)(remaining + groups + threads),
                  remaining, remaining + groups};
  suffice::run_team((int)threads, decode_worker, &work);
  return work.nonfinite.load(std::memory_order_relaxed);
}

}  // namespace SUFFICE_ISA
