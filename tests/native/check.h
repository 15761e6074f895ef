// Random inputs between guard pages, and comparisons that count.

#pragma once

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

#include "guard.h"
#include "interface.h"

namespace check {

using guard::Buffer;

constexpr double PI = 3.14159265358979323846;

// The same numbers on every platform, which distributions of the library do not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : engine(seed) {}
  int64_t up_to(int64_t most) { return between(0, most); }
  int64_t between(int64_t least, int64_t most) {
    return least + (int64_t)(engine() % (uint64_t)(most - least + 1));
  }
  bool chance(int64_t one_in) { return up_to(one_in - 1) == 0; }
  double unit() { return (double)(engine() >> 11) * 0x1p-53; }
  double uniform(double least, double most) { return least + (most - least) * unit(); }
  double normal() { return sqrt(-2.0 * log(1.0 - unit())) * cos(2.0 * PI * unit()); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[up_to((int64_t)values.size() - 1)];
  }

 private:
  std::mt19937_64 engine;
};

// One random case: its shape in words, its buffers, and what it counts.
struct Case {
  Random &random;
  int64_t threads;
  int64_t rounds_left = 0;
  std::string words = {};
  int64_t checks = 0, failures = 0;

  // Adds to the words that a failure is reported with.
  __attribute__((format(printf, 2, 3))) void say(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    words += text;
  }

  template <class T>
  Buffer<T> buffer(int64_t count) {
    return Buffer<T>(count, random.chance(4) ? false : true);
  }

  Buffer<float> normals(int64_t count, double size = 1.0) {
    Buffer<float> made = buffer<float>(count);
    for (float &x : made) x = (float)(size * random.normal());
    return made;
  }

  // For outputs: a value that is not written is no number.
  Buffer<float> unwritten(int64_t count) {
    Buffer<float> made = buffer<float>(count);
    for (float &x : made) x = NAN;
    return made;
  }

  void expect(bool holds, const char *what) {
    ++checks;
    if (!holds) fail("%s", what);
  }

  // Compares numbers, each with its own bound.
  void close(const char *what, const float *got, const double *expected, const double *bounds,
             int64_t count) {
    ++checks;
    int64_t wrong = 0, first = 0;
    for (int64_t i = 0; i < count; ++i)
      if (!(fabs(got[i] - expected[i]) <= bounds[i]) && !wrong++) first = i;
    if (wrong)
      fail("%s: %lld of %lld are wrong; number %lld is %.9g, not %.9g (+- %.3g)", what,
           (long long)wrong, (long long)count, (long long)first, got[first], expected[first],
           bounds[first]);
  }

  void close(const char *what, const float *got, const std::vector<double> &expected, double bound) {
    std::vector<double> bounds(expected.size(), bound);
    close(what, got, expected.data(), bounds.data(), (int64_t)expected.size());
  }

  template <class T>
  void intact(const Buffer<T> &buffer) {
    ++checks;
    if (buffer.size() && !buffer.intact()) fail("wrote beside an output");
  }

  __attribute__((format(printf, 2, 3))) void fail(const char *format, ...) {
    if (++failures > 3) return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("  FAILED %s\n    %s\n", words.c_str(), text);
  }
};

double largest(const std::vector<double> &numbers);

// Numbers of 16 bits, rounded to even.
uint16_t half_of(double x);
double of_half(uint16_t bits);
uint16_t brain_of(double x);
double of_brain(uint16_t bits);

// Elements of kind F32, F16 or BF16, rounded as they are stored.
struct Numbers {
  int64_t kind = F32;
  Buffer<float> full;
  Buffer<uint16_t> halves;

  Numbers() = default;
  Numbers(Case &c, int64_t kind, int64_t count, double size = 1.0);
  void *data() const { return kind == F32 ? (void *)full.data() : (void *)halves.data(); }
  int64_t size() const { return kind == F32 ? full.size() : halves.size(); }
  double get(int64_t i) const;
  void set(int64_t i, double x);
  void freeze() { kind == F32 ? full.freeze() : halves.freeze(); }
  bool intact() const { return kind == F32 ? full.intact() : halves.intact(); }
};

// A random matrix and what its weights are.
struct Weights {
  Matrix matrix = {};
  Numbers numbers;
  Buffer<uint8_t> codes;
  Buffer<uint16_t> scales;
  Buffer<float> bias;
  std::vector<double> values;  // [rows, columns]

  Weights() = default;
  Weights(Case &c, int64_t kind, int64_t rows, int64_t columns, int64_t group, bool biased);
  // x W^T + b, with x as codes where the matrix holds codes; `bounds` if any: sums of sizes.
  std::vector<double> times(const std::vector<double> &x, int64_t rows,
                            std::vector<double> *bounds = nullptr) const;
};

const char *name_of(int64_t kind);

// What each function of the interface is tested with: one random case.
void multiply_case(Case &c);
void decode_attention_case(Case &c);
void step_case(Case &c);
void attend_case(Case &c);
void linear_case(Case &c);
void recur_case(Case &c);

}  // namespace check
