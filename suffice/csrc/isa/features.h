// Features of a strip of neighbouring positions, a position in each lane: what is the largest of a
// row, or its sum, needs no sum across lanes.
//
// A key counts relative to a reference that no key before it exceeds by more than a step: a level,
// which is a whole number of steps. Positions that share level and document are a piece, within
// which all factors are 1; between two pieces they are powers of two.
//
// Letters: D width of a head, F features, N = STRIP lanes.

#pragma once

#include <math.h>

#include "product.h"
#include "tile.h"

namespace SUFFICE_ISA {

constexpr int64_t STRIP = 64;  // positions
constexpr int LANE_VECTORS = STRIP / WIDE;
constexpr float STEP = 24.0f;       // of levels, base 2; features stay below 2^STEP
constexpr float LOWEST = -0x1p36f;  // level where no key was seen

struct Piece {
  int64_t begin, end;  // lanes
  float level;
  float kept;          // of what was summed before it
};

struct Strip {
  int64_t first, count;  // positions
  int64_t pieces;
  Piece piece[STRIP];
};

// elu(x) + 1, e^x below 0.
INLINE Wide positive(Wide x) {
  Wide below = x < 0.0f ? x : Wide{};
  return power(below * LOG2E) + above(Wide{}, x);
}

// Rows as lanes [D, N], as their features meet them.
static void turn_strip(const Linear &l, const float *rows, int64_t stride, int64_t count,
                       float *lanes) {
  float by = l.omega ? sqrtf(l.scale) * LOG2E : 1.0f;
  turn_rows<LANE_VECTORS>(rows, stride, count, l.width, by, lanes);
}

// Exponents of features [F, N], base 2, before anything is taken out.
static void exponents(const Linear &l, const float *lanes, float *to) {
  add_product<ALONG>(l.omega, l.width, l.features, lanes, STRIP, LANE_VECTORS, l.width, to, STRIP,
                     true);
}

APART void largest_of(const float *rows, int64_t count, float *to) {
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide most = read<Wide>(rows + lane);
    for (int64_t f = 1; f < count; ++f) most = above(most, read<Wide>(rows + f * STRIP + lane));
    write(to + lane, most);
  }
}

// 2^(x - less) of rows [count, N], in place.
APART void powers(float *rows, int64_t count, const float *less) {
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide by = read<Wide>(less + lane);
    for (int64_t f = 0; f < count; ++f) {
      float *at = rows + f * STRIP + lane;
      write(at, power(read<Wide>(at) - by));
    }
  }
}

// Features of queries [F, N], the largest of each 1 where they are powers.
static void query_features(const Linear &l, const float *rows, int64_t stride, int64_t count,
                           float *room, float *to) {
  if (l.omega == nullptr) {
    turn_strip(l, rows, stride, count, to);
    for (int64_t i = 0; i < l.width * STRIP; i += WIDE)
      write(to + i, positive(read<Wide>(to + i)));
    return;
  }
  float most[STRIP];
  turn_strip(l, rows, stride, count, room);
  exponents(l, room, to);
  largest_of(to, l.features, most);
  powers(to, l.features, most);
}

// Where pieces of a strip begin and what their levels are; `level` is that of the positions before.
static void cut_strip(const float *levels, const int64_t *documents, bool causal, float &level,
                      Strip &strip) {
  strip.pieces = 0;
  float top = level;  // with no key to wait for, all that follows
  for (int64_t i = 0; !causal && levels && i < strip.count; ++i)
    if (levels[i] > top) top = levels[i];
  for (int64_t i = 0; i < strip.count; ++i) {
    int64_t at = strip.first + i;
    bool other = documents && at > 0 && documents[at] != documents[at - 1];
    float now = other ? LOWEST : causal ? level : top;
    if (causal && levels && levels[i] > now) now = levels[i];
    if (i == 0 || other || now != level) {
      float kept = other ? 0.0f : exp2f(STEP * (level - now));
      strip.piece[strip.pieces++] = {i, i, now, kept};
    }
    strip.piece[strip.pieces - 1].end = i + 1;
    level = now;
  }
}

// Features of keys [F, N] relative to the levels of their pieces, 0 for hidden ones; cuts the
// strip. `room` holds [D, N].
static void key_features(const Linear &l, const float *rows, int64_t stride, const uint8_t *seen,
                         const int64_t *documents, float &level, Strip &strip, float *room,
                         float *to) {
  if (l.omega == nullptr) {
    query_features(l, rows, stride, strip.count, room, to);
    for (int64_t i = 0; i < STRIP; ++i)
      if (i >= strip.count || (seen && !seen[strip.first + i]))
        for (int64_t f = 0; f < l.width; ++f) to[f * STRIP + i] = 0.0f;
    cut_strip(nullptr, documents, l.causal, level, strip);
    return;
  }
  float most[STRIP], less[STRIP], levels[STRIP];
  turn_strip(l, rows, stride, strip.count, room);
  exponents(l, room, to);
  largest_of(to, l.features, most);
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide norm[4] = {};  // four sums round less than one
    for (int64_t d = 0; d < l.width; ++d) {
      Wide x = read<Wide>(room + d * STRIP + lane);
      norm[d % 4] += x * x;
    }
    write(less + lane, ((norm[0] + norm[1]) + (norm[2] + norm[3])) * (0.5f / LOG2E));
  }
  for (int64_t i = 0; i < strip.count; ++i) {
    float found = ceilf((most[i] - less[i]) * (1.0f / STEP)) - 1.0f;
    bool hidden = seen && !seen[strip.first + i];
    levels[i] = hidden ? LOWEST : fminf(fmaxf(found, LOWEST + 0x1p16f), -LOWEST);
  }
  cut_strip(levels, documents, l.causal, level, strip);
  for (int64_t p = 0; p < strip.pieces; ++p)
    for (int64_t i = strip.piece[p].begin; i < strip.piece[p].end; ++i)
      less[i] = levels[i] == LOWEST ? __builtin_inff() : less[i] + STEP * strip.piece[p].level;
  for (int64_t i = strip.count; i < STRIP; ++i) less[i] = __builtin_inff();
  powers(to, l.features, less);
}

}  // namespace SUFFICE_ISA
