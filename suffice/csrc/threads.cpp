#include "threads.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <malloc.h>
#else
#include <dlfcn.h>
#include <pthread.h>
#endif

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define SUFFICE_PAUSE _mm_pause()
#elif defined(__aarch64__)
#define SUFFICE_PAUSE asm volatile("yield")
#else
#define SUFFICE_PAUSE
#endif

namespace suffice {
namespace {

constexpr int SPINS = 4000;  // tens of microseconds, the gap between two products of a token
constexpr std::chrono::microseconds SPIN_TIME(
    150);  // after a call: Python usually makes the next one soon

// Spins until a condition holds, then yields between checks.
template <class Condition>
void spin_then_yield(Condition holds) {
  for (int spin = 0; !holds(); ++spin) {
    if (spin < SPINS) SUFFICE_PAUSE;
    else std::this_thread::yield();
  }
}

// Spins for a condition for at most SPIN_TIME.
template <class Condition>
void spin_briefly(Condition holds) {
  const auto end = std::chrono::steady_clock::now() + SPIN_TIME;
  for (int spin = 1; !holds(); ++spin) {
    SUFFICE_PAUSE;
    if (spin % 64 == 0 && std::chrono::steady_clock::now() > end) return;
  }
}

// Torch's OpenMP threads, where its runtime exports GNU's entry points. They keep spinning after a
// torch op, so a second pool would compete with them for cores.
class OpenMP {
 public:
  OpenMP() {
    find(parallel, "GOMP_parallel");
    find(number, "omp_get_thread_num");
    find(within, "omp_in_parallel");
    find(varies, "omp_get_dynamic");
    find(limit, "omp_get_thread_limit");
  }

  // Whether it would run a job on exactly `threads` threads.
  bool serves(int threads) const {
    return parallel && number && within && varies && limit && !within() && !varies() &&
           limit() >= threads;
  }

  void run(Team &team, Job job, void *context) {
    Call call{this, &team, job, context};
    parallel(work, &call, (unsigned)team.threads, 0);
  }

 private:
  struct Call {
    OpenMP *openmp;
    Team *team;
    Job job;
    void *context;
  };

  template <class Function>
  static void find(Function &function, const char *name) {
#if defined(_WIN32)  // torch uses Microsoft's OpenMP there, with other entry points
    (void)name;
    function = nullptr;
#else
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(&function, &symbol, sizeof function);
#endif
  }

  static void work(void *given) {
    Call &call = *(Call *)given;
    call.job(*call.team, call.openmp->number(), call.context);
  }

  void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
  int (*number)(), (*within)(), (*varies)(), (*limit)();
};

// A pool of sleeping threads. A forked process starts its own: OpenMP's threads do not survive
// fork, and its runtime does not notice.
class Pool {
 public:
  explicit Pool(OpenMP *openmp) : openmp(openmp) {}

  void run(int threads, Job job, void *context) {
    std::unique_lock<std::mutex> busy(one_call, std::try_to_lock);
    Team team(busy.owns_lock() ? threads : 1);  // a concurrent call runs single-threaded
    if (team.threads > 1 && openmp && openmp->serves(threads))
      return openmp->run(team, job, context);
    if (team.threads > 1) hand_out(team, job, context);
    job(team, 0, context);
    if (team.threads > 1) call_off(team);
    if (team.threads > 1)
      spin_then_yield([&] { return unfinished.load(std::memory_order_acquire) == 0; });
  }

 private:
  enum State { IDLE, REQUESTED, WORKING };

  struct Worker {
    std::atomic<int64_t> call{0};
    std::atomic<int> state{IDLE};
    Team *team;
    Job job;
    void *context;
  };

  void hand_out(Team &team, Job job, void *context) {
    unfinished.store(team.threads - 1, std::memory_order_relaxed);
    std::lock_guard<std::mutex> guard(lock);
    for (int number = 1; number < team.threads; ++number) {
      bool starts = workers[number] == nullptr;
      if (starts) workers[number] = new Worker;
      Worker &worker = *workers[number];
      worker.team = &team;
      worker.job = job;
      worker.context = context;
      worker.state.store(REQUESTED, std::memory_order_release);
      worker.call.fetch_add(1, std::memory_order_release);
      if (starts) std::thread([this, &worker, number] { serve(worker, number); }).detach();
    }
    woken.notify_all();
  }

  // All work is done: cancel workers that have not woken up instead of waiting for them.
  void call_off(const Team &team) {
    for (int number = 1; number < team.threads; ++number) {
      int requested = REQUESTED;
      if (workers[number]->state.compare_exchange_strong(requested, IDLE,
                                                         std::memory_order_acq_rel))
        unfinished.fetch_sub(1, std::memory_order_release);
    }
  }

  void serve(Worker &worker, int number) {
    for (int64_t seen = 0;;) {
      spin_briefly([&] { return worker.call.load(std::memory_order_acquire) != seen; });
      if (worker.call.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> guard(lock);
        woken.wait(guard, [&] { return worker.call.load(std::memory_order_acquire) != seen; });
      }
      seen = worker.call.load(std::memory_order_acquire);
      int requested = REQUESTED;
      if (!worker.state.compare_exchange_strong(requested, WORKING, std::memory_order_acq_rel))
        continue;
      worker.job(*worker.team, number, worker.context);
      worker.state.store(IDLE, std::memory_order_release);
      unfinished.fetch_sub(1, std::memory_order_release);
    }
  }

  OpenMP *openmp;
  std::mutex one_call, lock;
  std::condition_variable woken;
  std::atomic<int> unfinished{0};
  Worker *workers[MAX_THREADS] = {};
};

Pool *pool = nullptr;  // never destroyed: its threads may outlive the end of main

[[maybe_unused]] void forked() {
  pool = new Pool(nullptr);
}  // a child has none of its parent's threads

// Created when the library loads, so that no fork can happen halfway.
struct Made {
  Made() {
    pool = new Pool(new OpenMP);
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, forked);
#endif
  }
} made;

struct Room {
  void *memory = nullptr;
  int64_t bytes = 0;

  ~Room() { give_back(); }

  void take(int64_t size) {
    give_back();
    bytes = (size + 4095) / 4096 * 4096;
#if defined(_WIN32)
    memory = _aligned_malloc(bytes, 64);
#else
    if (posix_memalign(&memory, 64, bytes)) memory = nullptr;
#endif
  }

  void give_back() {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
  }
};

}  // namespace

void *thread_scratch(int64_t bytes) {
  thread_local Room room;
  if (room.bytes < bytes) room.take(bytes);
  return room.memory;
}

void Team::barrier() {
  if (threads == 1) {
    next[phase & 1].store(0, std::memory_order_relaxed);
    return;
  }
  int64_t now = phase.load(std::memory_order_relaxed);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
    next[(now + 1) & 1].store(0, std::memory_order_relaxed);
    arrived.store(0, std::memory_order_relaxed);
    phase.store(now + 1, std::memory_order_release);
  } else {
    spin_then_yield([&] { return phase.load(std::memory_order_acquire) != now; });
  }
}

void run_team(int threads, Job job, void *context) {
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  pool->run(threads < 1 ? 1 : threads, job, context);
}

}  // namespace suffice
