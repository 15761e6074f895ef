// A random KV cache of rows of text: first positions, coded blocks, and what is near.

#pragma once

#include "check.h"

namespace check {

// What a span holds. A number of codes is least + step * code.
struct SpanData {
  Span span = {};
  Numbers keys, values;
  Buffer<uint8_t> key_codes, value_codes;
  Buffer<float> key_ranges, value_ranges;
  int64_t width = 0, block = 1, group = 1;
  bool tied = false;

  // Numbers [rows, heads, room, width]; `dense`: positions follow each other without gaps.
  void fill(Case &c, int64_t kind, int64_t rows, int64_t heads, int64_t room, bool dense);
  void fill_codes(Case &c, int64_t kind, int64_t value_kind, int64_t rows, int64_t heads,
                  int64_t blocks);
  double key(int64_t row, int64_t head, int64_t at, int64_t channel) const;
  double value(int64_t row, int64_t head, int64_t at, int64_t channel) const;
  bool coded() const { return span.kind == INT8 || span.kind == INT4; }
};

struct TextCache {
  KVCache cache = {};
  SpanData sinks, coded, near;
  int64_t heads = 0, width = 0;
  bool tied = false;
  double step = 0.0;  // the largest of any code

  // At most `most` positions; `dense` as above. The last position of `near` may be written.
  void fill(Case &c, int64_t rows, int64_t heads, int64_t width, int64_t most, bool dense);
  int64_t length() const { return cache.near.end + cache.near.shift; }  // of the text
  int64_t longest() const;  // positions that a span reads at most
  const SpanData *spans() const { return &sinks; }
};

// What a kernel does with scores and values beside the usual: no cap, no logit of no key, whole values.
struct Kernel {
  double cap = 0.0;
  const float *logit = nullptr;
  int64_t value_width = 0;  // the first features of a value alone; 0 = all
};

// Attention of one query to the cache: f(span, position of the span) says what is added to a score,
// -inf = hidden. Returns the largest size of a score.
template <class F>
double attend_to(const TextCache &text, int64_t row, int64_t head, const double *q, F f, double *out,
                 Kernel kernel = {}) {
  const int64_t value_width = kernel.value_width ? kernel.value_width : text.width;
  std::vector<double> scores;
  double most = -INFINITY, size = 0.0, total = 0.0;
  const SpanData *const spans[] = {&text.sinks, &text.coded, &text.near};
  for (const SpanData *s : spans)
    for (int64_t at = s->span.first; at < s->span.end; ++at) {
      double score = f(s->span, at), product = 0.0;
      for (int64_t d = 0; d < text.width && score > -INFINITY; ++d)
        product += q[d] * s->key(row, head, at, d);
      score += kernel.cap > 0.0 ? kernel.cap * tanh(product / kernel.cap) : product;
      scores.push_back(score);
      most = score > most ? score : most;
      if (score > -INFINITY && fabs(score) > size) size = fabs(score);
    }
  for (int64_t d = 0; d < value_width; ++d) out[d] = 0.0;
  if (most == -INFINITY) return 0.0;
  if (kernel.logit) {
    most = *kernel.logit > most ? *kernel.logit : most;
    total += exp(*kernel.logit - most);
  }
  size_t number = 0;
  for (const SpanData *s : spans)
    for (int64_t at = s->span.first; at < s->span.end; ++at, ++number) {
      const double weight = exp(scores[number] - most);
      total += weight;
      for (int64_t d = 0; d < value_width && weight > 0.0; ++d)
        out[d] += weight * s->value(row, head, at, d);
    }
  for (int64_t d = 0; d < value_width; ++d) out[d] /= total;
  return size;
}

}  // namespace check
