// Queries that share keys, and their score modifications: soft cap, linear biases (ALiBi), masks.

#pragma once

#include "../interface.h"
#include "lanes.h"

namespace SUFFICE_ISA {

constexpr int64_t MAX_HEAD_DIM = 576;    // largest head width; 512 for quantised caches
constexpr int64_t MAX_SHARED_QUERIES = 128;  // query heads per KV head, times positions
constexpr int64_t MIN_CODE_QUERIES = 3;
constexpr int64_t QUERY_TILE = 8;  // row block: queries that go through a block of keys together

// Queries of one row that share keys: those of each head, position by position.
struct Queries {
  const float *q;       // [count, width], scaled
  int64_t count, width, value_width;
  const float *slopes;  // ALiBi slopes of the heads, or null
  int64_t place;        // position of the first query
  int64_t oldest = 0, end = int64_t(1) << 40;  // positions that any of them sees, padding included
  int64_t num_positions = 1;  // positions
  int64_t first_index = 0;   // index of the first query of this row block
  const DecodeAttention *attention = nullptr;  // masks, windows and explicit positions, or null
  int64_t row = 0, head = 0;   // row and KV head
  int64_t shift = 0;           // from positions of the span to those that masks count
  int64_t maps = 1;            // key heads that share one head of values
  float cap = 0.0f;            // scores s become cap tanh(s / cap), or 0
  int *nonfinite = nullptr;    // set to 1 where masking or capping would hide a non-finite score
};

// Soft-caps scores: cap * tanh(score / cap). tanh would hide infinities, so they are reported.
static void soft_cap(const Queries &queries, int64_t count, float *scores) {
  const Wide cap = wide(queries.cap), factor = wide(1.0f / queries.cap);
  Wide nan_sum = {};
  for (int64_t j = 0; j < count; j += WIDE) {
    const Wide v = j + WIDE <= count ? read<Wide>(scores + j) : read_some(scores + j, count - j);
    nan_sum += v - v;
    write(scores + j, cap * tanh(v * factor));
  }
  if (queries.nonfinite && sum_of(nan_sum) != 0.0f) *queries.nonfinite = 1;
}

// Subtracts the linear bias slope * |distance| from the scores of keys `begin` and after.
static void add_alibi(const Queries &queries, int64_t r, int64_t begin, int64_t count,
                      float *scores) {
  const int64_t index = queries.first_index + r,
                position = index % queries.num_positions;
  const float slope = queries.slopes[index / queries.num_positions];
  if (queries.attention && queries.attention->k_at) {
    const DecodeAttention &attention = *queries.attention;
    const int64_t *keys = attention.k_at + queries.row * attention.keys + queries.shift + begin;
    const int64_t place = attention.q_at[queries.row * attention.queries + position];
    for (int64_t j = 0; j < count; ++j)
      scores[j] -= slope * __builtin_fabsf((float)(place - keys[j]));
    return;
  }
  const int64_t distance = queries.place + position - begin;
  for (int64_t j = 0; j < count; ++j) scores[j] -= slope * __builtin_fabsf((float)(distance - j));
}

// Sets the scores of masked keys from `begin` on to -inf; reports non-finite scores, which the mask
// would hide.
static void mask_scores(const Queries &queries, int64_t r, int64_t begin, int64_t count,
                        float *scores) {
  const DecodeAttention &attention = *queries.attention;
  const int64_t index = queries.first_index + r,
                position = index % queries.num_positions;
  const int64_t place = queries.place + position - begin;
  const float none = -__builtin_inff();
  float nan_sum = 0.0f;
  for (int64_t j = 0; j < count; ++j) nan_sum = scores[j] - scores[j] == 0.0f ? nan_sum : 1.0f;
  if (nan_sum != 0.0f) *queries.nonfinite = 1;
  for (int64_t j = 0; j < count && j < place - attention.before; ++j) scores[j] = none;
  for (int64_t j = count - 1; j >= 0 && j > place + attention.after; --j) scores[j] = none;
  if (!attention.allowed) return;
  const int64_t head =
      queries.head * (attention.heads / attention.kv_heads) + index / queries.num_positions;
  const uint8_t *seen = attention.allowed + queries.row * attention.allowed_row +
                        head * attention.allowed_head + position * attention.allowed_query +
                        queries.shift + begin;
  for (int64_t j = 0; j < count; ++j) scores[j] = seen[j] ? scores[j] : none;
}

// Applies everything that comes between dot products and softmax.
INLINE void apply_score_mods(const Queries &queries, int64_t r, int64_t begin, int64_t count,
                             float *scores) {
  if (queries.cap != 0.0f) soft_cap(queries, count, scores);
  if (queries.slopes) add_alibi(queries, r, begin, count, scores);
  if (queries.attention) mask_scores(queries, r, begin, count, scores);
}

}  // namespace SUFFICE_ISA
