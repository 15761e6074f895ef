// Row operations: norms, activation functions, quantisation of activations to 8 bits.

#pragma once

#include "../interface.h"
#include "../threads.h"
#include "simd.h"

namespace SUFFICE_ISA {

using suffice::Range;

constexpr int64_t LANE = LANES, LINE = 64;  // LINE: bytes of a cache line

// Calls f(at, n) for every 16 features; only the last call (tail) has n < 16.
template <class F>
INLINE void stretches(int64_t width, F f) {
  int64_t at = 0;
  for (; at + LANE <= width; at += LANE) f(at, LANE);
  if (at < width) f(at, width - at);
}

INLINE Floats get(const float *p, int64_t n) {
  return n == LANE ? read<Floats>(p) : get_some<Full>(p, n);
}

INLINE void put(float *p, Floats v, int64_t n) {
  if (n == LANE) write(p, v);
  else __builtin_memcpy(p, &v, n * sizeof(float));
}

INLINE Floats first_lanes(const Floats &v, int64_t n) {
  float few[LANES] = {};
  __builtin_memcpy(few, &v, n * sizeof(float));
  return read<Floats>(few);
}

// y = norm(x), in float32; the variance sums squared differences from the mean, as the reference
// does.
static void normalise(const Norm &norm, bool root_mean_square, float eps, const float *x,
                      int64_t width, float *y) {
  float mean = 0.0f;
  if (!root_mean_square) {
    Floats total = all(0.0f);
    stretches(width, [&](int64_t at, int64_t n) { total += get(x + at, n); });
    mean = sum(total) / (float)width;
  }
  Floats squares = all(0.0f);
  stretches(width, [&](int64_t at, int64_t n) {
    Floats d = get(x + at, n) - all(mean);
    if (n < LANE) d = first_lanes(d, n);
    squares += d * d;
  });
  float factor = 1.0f / __builtin_sqrtf(sum(squares) / (float)width + eps);
  stretches(width, [&](int64_t at, int64_t n) {
    Floats v = (get(x + at, n) - all(mean)) * all(factor);
    if (norm.weight) v *= get(norm.weight + at, n);
    if (norm.bias) v += get(norm.bias + at, n);
    put(y + at, v, n);
  });
}

INLINE Floats sigmoid(Floats x) { return all(1.0f) / (all(1.0f) + exp(-x)); }

// erfc(|x|), relative error 1.2e-7.
INLINE Floats complement_of_error(Floats x) {
  Floats size = max_of(x, -x);
  Floats t = all(1.0f) / (all(1.0f) + all(0.5f) * size);
  const float terms[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                         -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f};
  Floats p = all(terms[0]);
  for (int i = 1; i < 10; ++i) p = p * t + all(terms[i]);
  return t * exp(p - size * size);
}

INLINE Floats gelu(Floats x) {
  Floats tail = all(0.5f) * x * complement_of_error(x * all(0.70710678f));
  return where_positive(x, x - tail, tail);
}

INLINE Floats gelu_tanh(Floats x) {  // tanh approximation of GELU
  const Floats inner = x * (all(0.7978845608f) + all(0.0356774081f) * x * x);
  return all(0.5f) * x * (all(1.0f) + tanh(inner));
}

INLINE Floats relu(Floats x) { return max_of(all(0.0f), x); }  // NaN stays NaN

// Activations quantised symmetrically to 8 bits: per group of columns a step and the sum of its
// codes.
struct QuantisedRows {
  int8_t *codes;
  float *steps;
  int32_t *sums;
};

constexpr float MIN_ABSMAX =
    1e-33f;  // a smaller absmax counts as 0: its step has no finite reciprocal

static void encode(const float *x, int64_t width, int64_t group, QuantisedRows coded) {
  for (int64_t g = 0; g * group < width; ++g, x += group) {
    Floats absmax = all(0.0f), nonfinite = all(0.0f);
    stretches(group, [&](int64_t at, int64_t n) {
      Floats v = get(x + at, n);
      absmax = max_of(absmax, max_of(v, -v));
      nonfinite += v - v;
    });
    float top = largest(absmax), nan_sum = sum(nonfinite);
    if (top < MIN_ABSMAX) top = 0.0f;
    float factor = top > 0.0f ? 127.0f / top : 0.0f;
    int32_t total = 0;
    int8_t *codes = coded.codes + g * group;
    coded.sums[g] = 0;
    if (nan_sum != nan_sum) {  // NaN and infinity have no code: a NaN step carries them on
      for (int64_t i = 0; i < group; ++i) codes[i] = 0;
      coded.steps[g] = nan_sum;
      continue;
    }
    for (int64_t i = 0; i < group; ++i) {
      int32_t code = (int32_t)(x[i] * factor + (x[i] < 0.0f ? -0.5f : 0.5f));
      codes[i] = (int8_t)code;
      total += code;
    }
    coded.steps[g] = top / 127.0f;
    coded.sums[g] = total;
  }
}

}  // namespace SUFFICE_ISA
