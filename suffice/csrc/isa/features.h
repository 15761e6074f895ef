// Feature maps of linear attention for a strip of neighbouring positions, one position per lane:
// maxima and sums over features need no horizontal reduction.
//
// Stabiliser: exponents of keys are relative to a level, a multiple of STEP that no earlier key
// exceeds by more than one step. Positions with the same level and document form a segment; within
// it all factors are 1, and between segments the running sums are rescaled by powers of two.
//
// Letters: D width of a head, F features, N = STRIP lanes.

#pragma once

#include <math.h>

#include "small_product.h"
#include "tile.h"

namespace SUFFICE_ISA {

constexpr int64_t STRIP = 64;  // positions
constexpr int LANE_VECTORS = STRIP / WIDE;
constexpr float STEP = 24.0f;       // spacing of levels, base 2; features stay below 2^STEP
constexpr float EMPTY_LEVEL = -0x1p36f;  // level before any key

struct Segment {
  int64_t begin, end;  // lanes
  float level;
  float kept;          // factor of everything summed before it
};

struct Strip {
  int64_t first, count;  // positions
  int64_t segments;
  Segment segment[STRIP];
};

// elu(x) + 1.
INLINE Wide positive(Wide x) {
  Wide below = x < 0.0f ? x : Wide{};
  return exp2_negative(below * LOG2E) + maximum(Wide{}, x);
}

// Transposes the rows of a strip to lanes [D, N], scaled for the feature map.
static void strip_to_lanes(const Linear &l, const float *rows, int64_t stride, int64_t count,
                       float *lanes) {
  float factor = l.omega ? sqrtf(l.scale) * LOG2E : 1.0f;
  rows_to_lanes<LANE_VECTORS>(rows, stride, count, l.width, factor, lanes);
}

// Exponents of features [F, N], base 2, before stabilisation.
static void exponents(const Linear &l, const float *lanes, float *to) {
  add_product<ALONG>(l.omega, l.width, l.features, lanes, STRIP, LANE_VECTORS, l.width, to, STRIP,
                     true);
}

NOINLINE void largest_of(const float *rows, int64_t count, float *to) {
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide max_exponent = read<Wide>(rows + lane);
    for (int64_t f = 1; f < count; ++f)
      max_exponent = maximum(max_exponent, read<Wide>(rows + f * STRIP + lane));
    write(to + lane, max_exponent);
  }
}

// 2^(x - less) of rows [count, N], in place.
NOINLINE void exp2_minus(float *rows, int64_t count, const float *less) {
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide factor = read<Wide>(less + lane);
    for (int64_t f = 0; f < count; ++f) {
      float *at = rows + f * STRIP + lane;
      write(at, exp2_negative(read<Wide>(at) - factor));
    }
  }
}

// Features of queries [F, N]; exponential ones are normalised to a maximum of 1 (it cancels).
static void query_features(const Linear &l, const float *rows, int64_t stride, int64_t count,
                           float *buffer, float *to) {
  if (l.omega == nullptr) {
    strip_to_lanes(l, rows, stride, count, to);
    for (int64_t i = 0; i < l.width * STRIP; i += WIDE)
      write(to + i, positive(read<Wide>(to + i)));
    return;
  }
  float max_exponent[STRIP];
  strip_to_lanes(l, rows, stride, count, buffer);
  exponents(l, buffer, to);
  largest_of(to, l.features, max_exponent);
  exp2_minus(to, l.features, max_exponent);
}

// Cuts a strip into segments of one level and document; `level` carries over from strip to strip.
static void segment_strip(const float *levels, const int64_t *documents, bool causal, float &level,
                      Strip &strip) {
  strip.segments = 0;
  float top = level;  // not causal: one level for the whole strip
  for (int64_t i = 0; !causal && levels && i < strip.count; ++i)
    if (levels[i] > top) top = levels[i];
  for (int64_t i = 0; i < strip.count; ++i) {
    int64_t at = strip.first + i;
    bool other = documents && at > 0 && documents[at] != documents[at - 1];
    float now = other ? EMPTY_LEVEL : causal ? level : top;
    if (causal && levels && levels[i] > now) now = levels[i];
    if (i == 0 || other || now != level) {
      float kept = other ? 0.0f : exp2f(STEP * (level - now));
      strip.segment[strip.segments++] = {i, i, now, kept};
    }
    strip.segment[strip.segments - 1].end = i + 1;
    level = now;
  }
}

// Features of keys [F, N] relative to the levels of their segments, 0 for masked keys; cuts the
// strip into segments. `buffer` holds [D, N].
static void key_features(const Linear &l, const float *rows, int64_t stride, const uint8_t *seen,
                         const int64_t *documents, float &level, Strip &strip, float *buffer,
                         float *to) {
  if (l.omega == nullptr) {
    query_features(l, rows, stride, strip.count, buffer, to);
    for (int64_t i = 0; i < STRIP; ++i)
      if (i >= strip.count || (seen && !seen[strip.first + i]))
        for (int64_t f = 0; f < l.width; ++f) to[f * STRIP + i] = 0.0f;
    segment_strip(nullptr, documents, l.causal, level, strip);
    return;
  }
  float max_exponent[STRIP], less[STRIP], levels[STRIP];
  strip_to_lanes(l, rows, stride, strip.count, buffer);
  exponents(l, buffer, to);
  largest_of(to, l.features, max_exponent);
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide norm[4] = {};  // four accumulators round less than one
    for (int64_t d = 0; d < l.width; ++d) {
      Wide x = read<Wide>(buffer + d * STRIP + lane);
      norm[d % 4] += x * x;
    }
    write(less + lane, ((norm[0] + norm[1]) + (norm[2] + norm[3])) * (0.5f / LOG2E));
  }
  for (int64_t i = 0; i < strip.count; ++i) {
    float steps_above = ceilf((max_exponent[i] - less[i]) * (1.0f / STEP)) - 1.0f;
    bool hidden = seen && !seen[strip.first + i];
    levels[i] =
        hidden ? EMPTY_LEVEL : fminf(fmaxf(steps_above, EMPTY_LEVEL + 0x1p16f), -EMPTY_LEVEL);
  }
  segment_strip(levels, documents, l.causal, level, strip);
  for (int64_t p = 0; p < strip.segments; ++p)
    for (int64_t i = strip.segment[p].begin; i < strip.segment[p].end; ++i)
      less[i] =
          levels[i] == EMPTY_LEVEL ? __builtin_inff() : less[i] + STEP * strip.segment[p].level;
  for (int64_t i = strip.count; i < STRIP; ++i) less[i] = __builtin_inff();
  exp2_minus(to, l.features, less);
}

}  // namespace SUFFICE_ISA
