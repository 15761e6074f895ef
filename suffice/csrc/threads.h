// The thread team of one kernel call: work queue and barrier.

#pragma once

#include <atomic>
#include <cstdint>

namespace suffice {

constexpr int MAX_THREADS = 256;

// A half-open range of work items.
struct Range {
  int64_t begin, end;
};

// The threads of one call. Within a phase threads take ranges of work dynamically; a barrier ends
// it.
class Team {
 public:
  Team(int threads) : threads(threads) {}

  // Takes the next range of `total`; false when this phase has no work left.
  __attribute__((always_inline)) bool take(int64_t total, int64_t grain, Range &range) {
    int64_t begin = next[phase & 1].fetch_add(grain, std::memory_order_relaxed);
    if (begin >= total) return false;
    range = {begin, begin + grain < total ? begin + grain : total};
    return true;
  }

  // Barrier with full memory ordering.
  void barrier();

  const int threads;

 private:
  std::atomic<int64_t> next[2] = {{0}, {0}};
  std::atomic<int> arrived{0};
  std::atomic<int64_t> phase{0};
};

using Job = void (*)(Team &team, int thread, void *context);

// Runs a job on `threads` threads including the caller, and returns when all have finished.
void run_team(int threads, Job job, void *context);

// Thread-local scratch of at least `bytes`, 64-byte aligned, valid until the next call. It is
// cached, so that no call pays for page faults.
void *thread_scratch(int64_t bytes);

}  // namespace suffice
