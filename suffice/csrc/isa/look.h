// Attention of the latest positions of each row to the cache, alone.

#pragma once

#include <new>

#include "attend.h"

namespace SUFFICE_ISA {

constexpr int64_t EVERYTHING = int64_t(1) << 40;  // positions before or after one
constexpr int64_t ALONE = 1 << 15;  // numbers that are read before another thread would wake up

struct Looking {
  const DecodeAttention &look;
  const KVCache &cache;
  int64_t rows, pieces;
  Seen *seen;     // [rows, heads, queries, pieces]
  float *values;  // [rows, heads, queries, pieces, value_dim]
  std::atomic<int64_t> *left;  // [rows, kv_heads] pieces that nobody is through with
  std::atomic<int64_t> *next;  // [threads] pieces that were taken of each thread's share
  std::atomic<int> odd{0};

  // Takes a piece: of the own share, so that a core meets again what its cache holds, then of others'.
  bool take(int threads, int thread, int64_t &piece) {
    const int64_t total = rows * look.kv_heads * pieces;
    for (int i = 0; i < threads; ++i, thread = thread + 1 < threads ? thread + 1 : 0) {
      const int64_t begin = total * thread / threads, end = total * (thread + 1) / threads;
      piece = begin + next[thread].fetch_add(1, std::memory_order_relaxed);
      if (piece < end) return true;
    }
    return false;
  }
};

// Shows one piece of the cache to the queries of a row that share keys.
static void look_at(Looking &work, int64_t row, int64_t group, int64_t piece, int &odd) {
  const DecodeAttention &look = work.look;
  const int64_t width = look.head_dim, value_width = look.value_dim;
  const int64_t shared = look.heads / look.kv_heads;
  const int64_t count = shared * look.queries, first = (row * look.kv_heads + group) * count;
  float q[MOST_QUERIES * WIDEST];
  Seen local[MOST_QUERIES];
  for (int64_t r = 0; r < count; ++r) {
    local[r] = {-__builtin_inff(), 0.0f, work.values + ((first + r) * work.pieces + piece) * value_width};
    for (int64_t c = 0; c < width; ++c) q[r * width + c] = look.q[(first + r) * width + c] * look.scale;
    for (int64_t c = 0; c < value_width; ++c) local[r].values[c] = 0.0f;
  }
  const Span &near = work.cache.near;
  const int64_t padding = look.padding ? look.padding[row] : 0;
  const int64_t place = near.end + near.shift - padding - look.queries;
  Queries queries{q, count, width, value_width, nullptr, look.places ? look.places[row] : place};
  if (look.slopes) queries.slopes = look.slopes + group * shared;
  queries.at_once = look.queries;
  queries.cap = look.cap;
  queries.odd = &odd;
  const bool narrow = look.before < EVERYTHING || look.after < EVERYTHING;
  if (look.queries > 1 || look.allowed || look.k_at || narrow) queries.look = &look;
  see_piece(queries, work.cache, row, group, padding, piece, local);
  for (int64_t r = 0; r < count; ++r) work.seen[(first + r) * work.pieces + piece] = local[r];
}

// Writes the outputs of the queries of a row that share keys, of all its pieces.
static void finish(const Looking &work, int64_t row, int64_t group, int &odd) {
  const DecodeAttention &look = work.look;
  const int64_t width = look.value_dim, shared = look.heads / look.kv_heads;
  Floats wrong = all(0.0f);
  for (int64_t r = 0; r < shared * look.queries; ++r) {
    const int64_t head = group * shared + r / look.queries, query = r % look.queries;
    const int64_t number = (row * look.heads + head) * look.queries + query;
    float *out = look.out + ((row * look.queries + query) * look.heads + head) * width;
    merge(work.seen + number * work.pieces, work.pieces, width, out, look.logits ? look.logits + head : nullptr);
    stretches(width, [&](int64_t at, int64_t n) {
      Floats v = get(out + at, n);
      wrong += v - v;
    });
  }
  if (sum(wrong) != 0.0f) odd = 1;
}

// Nobody waits for a thread that has not woken up: who is through with the last piece writes.
static void look_worker(suffice::Team &team, int thread, void *context) {
  Looking &work = *(Looking *)context;
  int odd = 0;
  for (int64_t piece; work.take(team.threads, thread, piece);) {
    const int64_t of = piece / work.pieces, groups = work.look.kv_heads;
    look_at(work, of / groups, of % groups, piece % work.pieces, odd);
    if (work.left[of].fetch_sub(1, std::memory_order_acq_rel) == 1)
      finish(work, of / groups, of % groups, odd);
  }
  if (odd) work.odd.store(1, std::memory_order_relaxed);
}

static int run_look(const DecodeAttention &look, const KVCache &cache, int64_t rows, int64_t threads) {
  typedef std::atomic<int64_t> Count;
  int64_t numbers = 0;
  for (const Span *span = &cache.sinks; span <= &cache.near; ++span)
    numbers += rows * look.kv_heads * look.head_dim * (span->end - span->first);
  if (numbers < ALONE) threads = 1;
  const int64_t pieces = pieces_of(cache), all_of_them = rows * look.heads * look.queries * pieces;
  const int64_t groups = rows * look.kv_heads;
  if (!pieces) {
    __builtin_memset(look.out, 0, rows * look.heads * look.queries * look.value_dim * sizeof(float));
    return 0;
  }
  Seen *seen = (Seen *)suffice::room_of_thread(
      all_of_them * (int64_t)(sizeof(Seen) + look.value_dim * sizeof(float)) +
      (groups + threads) * (int64_t)sizeof(Count) + 128);
  Count *left = (Count *)(seen + all_of_them);
  for (int64_t i = 0; i < groups; ++i) new (left + i) Count(pieces);
  for (int64_t i = groups; i < groups + threads; ++i) new (left + i) Count(0);
  Looking work{look, cache, rows, pieces, seen, (float *)(left + groups + threads), left, left + groups};
  suffice::together((int)threads, look_worker, &work);
  return work.odd.load(std::memory_order_relaxed);
}

}  // namespace SUFFICE_ISA
