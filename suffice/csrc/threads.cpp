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

constexpr int SPINS = 4000;  // some tens of microseconds: between two products of one token
constexpr std::chrono::microseconds AWAKE(150);  // after a call: Python soon makes the next one

// Waits until a condition holds: at first awake, then leaving the core to others.
template <class Condition>
void wait_awake(Condition holds) {
  for (int spin = 0; !holds(); ++spin) {
    if (spin < SPINS) SUFFICE_PAUSE;
    else std::this_thread::yield();
  }
}

// Waits for a condition for a short time.
template <class Condition>
void stay_awake(Condition holds) {
  const auto end = std::chrono::steady_clock::now() + AWAKE;
  for (int spin = 1; !holds(); ++spin) {
    SUFFICE_PAUSE;
    if (spin % 64 == 0 && std::chrono::steady_clock::now() > end) return;
  }
}

// The threads of torch, where its OpenMP answers to the names of GNU's. After work of torch they are
// awake for some time, and threads of our own would share their cores with them all that while.
class OpenMP {
 public:
  OpenMP() {
    find(parallel, "GOMP_parallel");
    find(number, "omp_get_thread_num");
    find(within, "omp_in_parallel");
    find(varies, "omp_get_dynamic");
    find(limit, "omp_get_thread_limit");
  }

  // Whether it would run a job on exactly so many threads.
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
#if defined(_WIN32)  // torch has Microsoft's OpenMP there, which has other names
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

// Threads that sleep between calls. A process that was forked starts its own: those of OpenMP are
// not there, and it does not know.
class Pool {
 public:
  explicit Pool(OpenMP *openmp) : openmp(openmp) {}

  void run(int threads, Job job, void *context) {
    std::unique_lock<std::mutex> busy(one_call, std::try_to_lock);
    Team team(busy.owns_lock() ? threads : 1);  // a call beside another works alone
    if (team.threads > 1 && openmp && openmp->serves(threads)) return openmp->run(team, job, context);
    if (team.threads > 1) hand_out(team, job, context);
    job(team, 0, context);
    if (team.threads > 1) call_off(team);
    if (team.threads > 1) wait_awake([&] { return left.load(std::memory_order_acquire) == 0; });
  }

 private:
  enum State { IDLE, ASKED, WORKING };

  struct Worker {
    std::atomic<int64_t> call{0};
    std::atomic<int> state{IDLE};
    Team *team;
    Job job;
    void *context;
  };

  void hand_out(Team &team, Job job, void *context) {
    left.store(team.threads - 1, std::memory_order_relaxed);
    std::lock_guard<std::mutex> guard(lock);
    for (int number = 1; number < team.threads; ++number) {
      bool starts = workers[number] == nullptr;
      if (starts) workers[number] = new Worker;
      Worker &worker = *workers[number];
      worker.team = &team;
      worker.job = job;
      worker.context = context;
      worker.state.store(ASKED, std::memory_order_release);
      worker.call.fetch_add(1, std::memory_order_release);
      if (starts) std::thread([this, &worker, number] { serve(worker, number); }).detach();
    }
    woken.notify_all();
  }

  // Nothing is left to do: who has not woken up yet is not waited for.
  void call_off(const Team &team) {
    for (int number = 1; number < team.threads; ++number) {
      int asked = ASKED;
      if (workers[number]->state.compare_exchange_strong(asked, IDLE, std::memory_order_acq_rel))
        left.fetch_sub(1, std::memory_order_release);
    }
  }

  void serve(Worker &worker, int number) {
    for (int64_t seen = 0;;) {
      stay_awake([&] { return worker.call.load(std::memory_order_acquire) != seen; });
      if (worker.call.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> guard(lock);
        woken.wait(guard, [&] { return worker.call.load(std::memory_order_acquire) != seen; });
      }
      seen = worker.call.load(std::memory_order_acquire);
      int asked = ASKED;
      if (!worker.state.compare_exchange_strong(asked, WORKING, std::memory_order_acq_rel))
        continue;
      worker.job(*worker.team, number, worker.context);
      worker.state.store(IDLE, std::memory_order_release);
      left.fetch_sub(1, std::memory_order_release);
    }
  }

  OpenMP *openmp;
  std::mutex one_call, lock;
  std::condition_variable woken;
  std::atomic<int> left{0};
  Worker *workers[MOST_THREADS] = {};
};

Pool *pool = nullptr;  // never destroyed: its threads may outlive the end of main

[[maybe_unused]] void forked() { pool = new Pool(nullptr); }  // the parent's threads are not here

// Made while the library is loaded, so that no process forks in the midst of it.
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

void *room_of_thread(int64_t bytes) {
  thread_local Room room;
  if (room.bytes < bytes) room.take(bytes);
  return room.memory;
}

void Team::meet() {
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
    wait_awake([&] { return phase.load(std::memory_order_acquire) != now; });
  }
}

void together(int threads, Job job, void *context) {
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  pool->run(threads < 1 ? 1 : threads, job, context);
}

}  // namespace suffice
