// Tests of the kernels without Python: every function of the interface in every set of instructions
// that the processor offers, beside references in double, between guard pages.

#include <signal.h>

#include <chrono>

#include "check.h"

namespace {

struct Function {
  const char *name;
  void (*run)(check::Case &);
  int64_t share;  // of the rounds, in percent
};

const Function FUNCTIONS[] = {
    {"multiply", check::multiply_case, 100}, {"decode", check::decode_attention_case, 100},
    {"step", check::step_case, 25},          {"attend", check::attend_case, 50},
    {"linear", check::linear_case, 50},     {"recur", check::recur_case, 50},
};

const check::Case *running = nullptr;
const char *running_set = "", *running_function = "";

// Not what a handler of signals may do in earnest, but the program is at its end.
void stop(int number) {
  const char *name = number == SIGILL ? "an instruction that this processor lacks"
                                      : "a read or write beyond a buffer";
  printf("  FAILED %s %s: %s\n    %s\n", running_set, running_function,
         running ? running->words.c_str() : "", name);
  fflush(stdout);
  _Exit(1);
}

int usage(const char *wrong) {
  fprintf(stderr, "%s\noptions: --set NAME, --function NAME, --seed N, --rounds N, --seconds N\n",
          wrong);
  return 2;
}

}  // namespace

int main(int count, char **arguments) {
  uint64_t seed = (uint64_t)std::chrono::system_clock::now().time_since_epoch().count() % 1000000007u;
  int64_t rounds = 60, seconds = 0;  // with seconds: further seeds until they are over
  std::string only_set, only_function;
  for (int i = 1; i < count; i += 2) {
    const std::string option = arguments[i];
    if (i + 1 == count) return usage((option + " has no value").c_str());
    const char *value = arguments[i + 1];
    if (option == "--set") only_set = value;
    else if (option == "--function") only_function = value;
    else if (option == "--seed") seed = strtoull(value, nullptr, 10);
    else if (option == "--rounds") rounds = atoll(value);
    else if (option == "--seconds") seconds = atoll(value);
    else return usage(("unknown option " + option).c_str());
  }
  signal(SIGSEGV, stop);
  signal(SIGILL, stop);
#if defined(SIGBUS)
  signal(SIGBUS, stop);
#endif

  std::vector<std::string> sets(1);
  for (const char *at = suffice_isas(); *at; ++at)
    if (*at == ' ') sets.emplace_back();
    else sets.back() += *at;
  printf("sets: %s; seed %llu, %lld rounds\n", suffice_isas(), (unsigned long long)seed,
         (long long)rounds);
  int64_t cases = 0, checks = 0, failures = 0;
  const auto start = std::chrono::steady_clock::now();
  if (sets[0] != suffice_isa()) return usage("the best set is not the one in use at the start");
  if (suffice_use_isa("no such set") == 0) return usage("a set that does not exist was chosen");
  do {
    for (const std::string &set : sets) {
      if (!only_set.empty() && set != only_set) continue;
      if (suffice_use_isa(set.c_str()) || set != suffice_isa()) return usage("a set cannot be chosen");
      for (const Function &function : FUNCTIONS) {
        if (!only_function.empty() && only_function != function.name) continue;
        int64_t these = 0, failed = 0;
        running_set = set.c_str(), running_function = function.name;
        for (int64_t round = 0; round < (rounds * function.share + 99) / 100; ++round) {
          check::Random random(seed * 1000003u + (uint64_t)round);  // the same in every set
          check::Case one{random, round % 2 ? 3 : 1};
          one.say("round %lld: ", (long long)round);
          running = &one;
          function.run(one);
          running = nullptr;
          these += one.checks, failed += one.failures, ++cases;
        }
        if (!seconds || failed)
          printf("%-8s %-8s %6lld checks%s\n", set.c_str(), function.name, (long long)these,
                 failed ? ", FAILED" : "");
        fflush(stdout);
        checks += these, failures += failed;
      }
    }
    if (seconds && !failures) ++seed;
  } while (!failures && std::chrono::steady_clock::now() - start < std::chrono::seconds(seconds));
  if (!checks) return usage("nothing was checked: no such set or function");
  if (failures) printf("%lld of %lld checks FAILED, seed %llu\n", (long long)failures,
                       (long long)checks, (unsigned long long)seed);
  else printf("%lld cases, %lld checks passed\n", (long long)cases, (long long)checks);
  return failures ? 1 : 0;
}
