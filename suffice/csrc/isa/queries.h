// Queries that share keys, and what keys they see.

#pragma once

#include "../interface.h"
#include "lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t WIDEST = 576;    // features of a head, 512 of one in codes
constexpr int64_t MOST_QUERIES = 128;  // heads that share keys
constexpr int64_t FEW_QUERIES = 3;
constexpr int64_t MOST_AT_ONCE = 8;  // queries of one piece of work

// Queries of one row that share keys: those of each head, position by position.
struct Queries {
  const float *q;       // [count, width], scaled
  int64_t count, width, value_width;
  const float *slopes;  // of the heads, or null
  int64_t place;        // of the first position
  int64_t at_once = 1;  // positions
  int64_t number = 0;   // of the first of these queries
  const DecodeAttention *look = nullptr;  // what hides keys from some, and tells other places
  int64_t row = 0, head = 0;   // of the keys
  int64_t shift = 0;           // of the span, to what masks and other places count from
  int64_t maps = 1;            // heads of keys that share one of values
  float cap = 0.0f;            // scores s become cap tanh(s / cap), or 0
  int *odd = nullptr;          // set to 1 where what hides keys meets a score that is no finite number
};

// Bounds scores. An infinite one, which it would hide, is told of.
static void bound(const Queries &queries, int64_t count, float *scores) {
  const Wide cap = wide(queries.cap), by = wide(1.0f / queries.cap);
  Wide wrong = {};
  for (int64_t j = 0; j < count; j += WIDE) {
    const Wide v = j + WIDE <= count ? read<Wide>(scores + j) : read_some(scores + j, count - j);
    wrong += v - v;
    write(scores + j, cap * tanh(v * by));
  }
  if (queries.odd && sum_of(wrong) != 0.0f) *queries.odd = 1;
}

// Takes away what linear biases take from the scores of keys at `begin` and after it.
static void lean(const Queries &queries, int64_t r, int64_t begin, int64_t count, float *scores) {
  const int64_t number = queries.number + r, position = number % queries.at_once;
  const float slope = queries.slopes[number / queries.at_once];
  if (queries.look && queries.look->k_at) {
    const DecodeAttention &look = *queries.look;
    const int64_t *keys = look.k_at + queries.row * look.keys + queries.shift + begin;
    const int64_t place = look.q_at[queries.row * look.queries + position];
    for (int64_t j = 0; j < count; ++j)
      scores[j] -= slope * __builtin_fabsf((float)(place - keys[j]));
    return;
  }
  const int64_t distance = queries.place + position - begin;
  for (int64_t j = 0; j < count; ++j) scores[j] -= slope * __builtin_fabsf((float)(distance - j));
}

// Takes the keys from `begin` on out that a query does not see.
static void hide(const Queries &queries, int64_t r, int64_t begin, int64_t count, float *scores) {
  const DecodeAttention &look = *queries.look;
  const int64_t number = queries.number + r, position = number % queries.at_once;
  const int64_t place = queries.place + position - begin;
  const float none = -__builtin_inff();
  float wrong = 0.0f;
  for (int64_t j = 0; j < count; ++j) wrong = scores[j] - scores[j] == 0.0f ? wrong : 1.0f;
  if (wrong != 0.0f) *queries.odd = 1;
  for (int64_t j = 0; j < count && j < place - look.before; ++j) scores[j] = none;
  for (int64_t j = count - 1; j >= 0 && j > place + look.after; --j) scores[j] = none;
  if (!look.allowed) return;
  const int64_t head = queries.head * (look.heads / look.kv_heads) + number / queries.at_once;
  const uint8_t *seen = look.allowed + queries.row * look.allowed_row + head * look.allowed_head +
                        position * look.allowed_query + queries.shift + begin;
  for (int64_t j = 0; j < count; ++j) scores[j] = seen[j] ? scores[j] : none;
}

// What is left to do between products and weights.
INLINE void bend(const Queries &queries, int64_t r, int64_t begin, int64_t count, float *scores) {
  if (queries.cap != 0.0f) bound(queries, count, scores);
  if (queries.slopes) lean(queries, r, begin, count, scores);
  if (queries.look) hide(queries, r, begin, count, scores);
}

}  // namespace SUFFICE_ISA
