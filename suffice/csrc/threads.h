// Threads that work on one call together.

#pragma once

#include <atomic>
#include <cstdint>

namespace suffice {

constexpr int MOST_THREADS = 256;

// A range of work.
struct Range {
  int64_t begin, end;
};

// The threads of one call. Work of a phase is taken in pieces, in any order; a barrier ends it.
class Team {
 public:
  Team(int threads) : threads(threads) {}

  // Takes the next piece of `total`; false when nothing is left of this phase.
  __attribute__((always_inline)) bool take(int64_t total, int64_t grain, Range &range) {
    int64_t begin = next[phase & 1].fetch_add(grain, std::memory_order_relaxed);
    if (begin >= total) return false;
    range = {begin, begin + grain < total ? begin + grain : total};
    return true;
  }

  // Waits for all; what was written before is seen by all after it.
  void meet();

  const int threads;

 private:
  std::atomic<int64_t> next[2] = {{0}, {0}};
  std::atomic<int> arrived{0};
  std::atomic<int64_t> phase{0};
};

using Job = void (*)(Team &team, int thread, void *context);

// Runs a job on so many threads, the caller's among them, and returns when all are through.
void together(int threads, Job job, void *context);

// At least so many bytes at a multiple of 64, the calling thread's own; what they hold is lost at the
// next call. They are kept, so that no call waits for fresh pages.
void *room_of_thread(int64_t bytes);

}  // namespace suffice
