// Attention of one position to the cache: softmax over blocks of keys, merged as they come.

#pragma once

#include "see_codes.h"
#include "see_many.h"

namespace SUFFICE_ISA {

constexpr int64_t SPLIT = 512;     // keys of one piece of work, about

template <class E>
static void see_numbers(const Queries &queries, const Span &span, int64_t row, int64_t head,
                        Range range, Seen *seen) {
  typedef typename E::Element Element;
  constexpr int64_t SIZE = sizeof(Element);
  const int64_t width = queries.width, value_width = queries.value_width;
  const int64_t key_step = span.key_step, value_step = span.value_step;
  const bool tied = span.keys == span.values;
  const Element *keys = (const Element *)span.keys + row * span.key_row + head * span.key_head;
  const Element *values =
      (const Element *)span.values + row * span.value_row + head / queries.maps * span.value_head;
  float scores[MOST_AT_ONCE][BLOCK];
  for (int64_t begin = range.begin; begin < range.end; begin += BLOCK) {
    const int64_t left = range.end - begin, count = left < BLOCK ? left : BLOCK;
    const int64_t next = left - count < BLOCK ? left - count : BLOCK;
    if (!tied) ask_for(values + begin * value_step, value_step * SIZE, count, value_width * SIZE);
    score<E>(queries.q, queries.count, width, keys + begin * key_step, key_step, count, scores);
    for (int64_t r = 0; r < queries.count; ++r) {
      bend(queries, r, begin, count, scores[r]);
      weigh(scores[r], count, value_width, seen[r]);
    }
    ask_for(keys + (begin + BLOCK) * key_step, key_step * SIZE, next, width * SIZE);
    add_to<E>(seen, queries.count, scores, values + begin * value_step, value_step, value_width, count);
  }
}

// Lets queries see a range of a span; biases count from `queries.place`, in places of the span.
static void see(const Queries &queries, const Span &span, const KVCache &cache, int64_t row,
                int64_t head, Range range, Seen *seen) {
  switch (span.kind) {
    case F32: return see_numbers<Full>(queries, span, row, head, range, seen);
    case F16: return see_numbers<Half>(queries, span, row, head, range, seen);
    case BF16: return see_numbers<Brain>(queries, span, row, head, range, seen);
    case INT8: return see_codes<Byte>(queries, span, cache, row, head, range, seen);
    default: return see_codes<Nibble>(queries, span, cache, row, head, range, seen);
  }
}

// Pieces of work in a span; blocks of codes are not cut.
INLINE int64_t piece_of(const KVCache &cache, const Span &span) {
  if (span.kind != INT8 && span.kind != INT4) return SPLIT;
  return (SPLIT + cache.block - 1) / cache.block * cache.block;
}

INLINE int64_t pieces_of(const KVCache &cache, const Span &span) {
  if (span.end <= span.first) return 0;
  int64_t piece = piece_of(cache, span);
  return (span.end - 1) / piece - span.first / piece + 1;
}

static int64_t pieces_of(const KVCache &cache) {
  return pieces_of(cache, cache.sinks) + pieces_of(cache, cache.coded) + pieces_of(cache, cache.near);
}

// The most there can be, with at most `longest` positions in each span.
static int64_t most_pieces(int64_t longest) { return 3 * (longest / SPLIT + 2); }

// Lets the queries of one row and head see one piece of the cache.
static void see_piece(Queries queries, const KVCache &cache, int64_t row, int64_t head, int64_t padding,
                      int64_t number, Seen *seen) {
  for (const Span *span = &cache.sinks; span <= &cache.near; ++span) {
    int64_t pieces = pieces_of(cache, *span);
    if (number >= pieces) {
      number -= pieces;
      continue;
    }
    int64_t piece = piece_of(cache, *span), start = (span->first / piece + number) * piece;
    int64_t first = span->first > padding - span->shift ? span->first : padding - span->shift;
    Range range = {start > first ? start : first,
                   start + piece < span->end ? start + piece : span->end};
    queries.place -= span->shift - padding;
    queries.row = row;
    queries.head = head;
    queries.shift = span->shift;
    if (range.begin >= range.end) return;
    if (are_many(queries, *span)) return see_many(queries, *span, row, head, range, seen);
    for (int64_t r = 0; r < queries.count; r += MOST_AT_ONCE) {
      Queries few = queries;
      few.q += r * few.width;
      few.count = few.count - r < MOST_AT_ONCE ? few.count - r : MOST_AT_ONCE;
      few.number = r;
      see(few, *span, cache, row, head, range, seen + r);
    }
    return;
  }
}

// Writes the weighted mean of what was seen in several pieces, [width]. A logit that belongs to no
// key takes its share.
static void merge(const Seen *pieces, int64_t count, int64_t width, float *out,
                  const float *logit = nullptr) {
  float most = logit ? *logit : -__builtin_inff(), total = 0.0f;
  for (int64_t p = 0; p < count; ++p) most = pieces[p].most > most ? pieces[p].most : most;
  for (int64_t c = 0; c < width; ++c) out[c] = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    if (pieces[p].total == 0.0f) continue;
    float by = exp_one(pieces[p].most - most);
    total += pieces[p].total * by;
    for (int64_t c = 0; c < width; ++c) out[c] += pieces[p].values[c] * by;
  }
  if (total == 0.0f) return;
  if (logit) total += exp_one(*logit - most);
  for (int64_t c = 0; c < width; ++c) out[c] /= total;
}

}  // namespace SUFFICE_ISA
