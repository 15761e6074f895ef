// Backward pass of linear attention. A task owns a KV head. Causal: the sequence is cut into
// stretches with a checkpoint of the prefix sums before each. From the last stretch to the first,
// features are recomputed once; query gradients go forwards with prefix sums, key and value
// gradients backwards with suffix sums over later queries.
//
// Letters: F features, N = STRIP lanes, E width of values, rounded up to whole vectors.

#pragma once

#include <stdlib.h>

#include "linear.h"

namespace SUFFICE_ISA {

constexpr int64_t CHECKPOINT_NUMBERS = 1 << 18;  // floats of features per stretch: 1 MiB

struct LinearBack {
  const Linear &l;
  const float *q, *k, *v, *out, *totals, *out_grad;
  float *grad_q, *grad_k, *grad_v;
  int64_t strips;  // strips of a stretch, at most
};

// Gradients of a strip's numerators (rows, lanes) and denominators (weights).
struct OutGradStrip {
  float *rows;   // [N, E]
  float *lanes;  // [E, N]
  float weights[STRIP];
};

struct LinearBackwardScratch {
  LinearScratch scratch;       // queries and keys of one strip of a stretch
  PrefixSums suffix;           // suffix sums over later queries: features times output gradients
  OutGradStrip out_grads;
  float *some;           // [E, N], lanes of one segment
  float *value_lanes;    // [E, N]
  float *grad_features;    // [heads per KV head, F, N]
  float *grad_values;      // [N, E]
  float *grad_rows;        // [D, N]
  float *features;       // [strips, 1 + heads per KV head, F, N]
  Strip *strips;
};

static void read_out_grads(const LinearBack &b, int64_t batch, int64_t head, int64_t first,
                        int64_t count, int64_t columns, OutGradStrip &to) {
  const Linear &l = b.l;
  Rows out_grad = rows_of(b.out_grad, l.out_grad, batch, head),
       out = rows_of(b.out, l.out, batch, head);
  const float *totals = b.totals + (batch * l.heads + head) * l.queries + first;
  for (int64_t i = 0; i < STRIP; ++i) to.weights[i] = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float *given = out_grad.data + (first + i) * out_grad.row;
    const float *found = out.data + (first + i) * out.row;
    float over = divisor(totals[i]), factor = 1.0f / over;
    float *row = to.rows + i * columns;
    Wide moved = {};
    for (int64_t e = 0; e < columns; e += WIDE) {
      bool whole = e + WIDE <= l.value_width;
      Wide g = whole ? read<Wide>(given + e) : read_some(given + e, l.value_width - e);
      Wide o = whole ? read<Wide>(found + e) : read_some(found + e, l.value_width - e);
      moved += g * o;
      write(row + e, g * factor);
    }
    if (over == totals[i]) to.weights[i] = -factor * sum_of(moved);
  }
  rows_to_lanes<LANE_VECTORS>(to.rows, columns, count, columns, 1.0f, to.lanes);
}

// The lanes of a segment with zeros elsewhere; `lanes` itself where the segment is the whole strip.
static const float *lanes_of(const float *lanes, int64_t rows, const Segment &segment,
                             int64_t count, float *buffer) {
  if (segment.begin == 0 && segment.end == count) return lanes;
  for (int64_t e = 0; e < rows; ++e)
    for (int64_t i = 0; i < STRIP; ++i)
      buffer[e * STRIP + i] = i >= segment.begin && i < segment.end ? lanes[e * STRIP + i] : 0.0f;
  return buffer;
}

// to [F, N] += prefix sums times lanes [E, N] and weights [N]; 0 outside the segment.
static void apply_prefix(const Linear &l, const PrefixSums &prefix, int64_t columns,
                         const float *lanes, const float *weights, const Segment &segment,
                         float *to) {
  if (prefix.empty) return;
  add_product<ALONG>(prefix.sums, columns, l.features, lanes, STRIP, LANE_VECTORS, columns, to,
                     STRIP, false);
  float kept[STRIP];
  for (int64_t i = 0; i < STRIP; ++i)
    kept[i] = i < segment.begin || i >= segment.end ? 0.0f : weights ? weights[i] : 1.0f;
  add_product<ACROSS>(prefix.totals, 0, l.features, kept, STRIP, LANE_VECTORS, 1, to, STRIP, false);
}

// Backpropagates feature gradients [F, N] (overwritten) through the feature map and writes
// gradients of rows [D]. `transposed` holds the keys as lanes, null for queries.
static void write_row_grads(const Linear &l, const float *features, const float *transposed,
                            float *out_grads, float *lanes, int64_t count, float *to,
                            int64_t stride) {
  Wide factor[LANE_VECTORS];
  float root = l.omega ? sqrtf(l.scale) : 1.0f;
  for (Wide &one : factor) one = wide(root);
  if (!l.omega) {
    for (int64_t i = 0; i < l.width * STRIP; i += WIDE) {
      Wide phi = read<Wide>(features + i);
      write(out_grads + i, read<Wide>(out_grads + i) * (phi < 1.0f ? phi : wide(1.0f)));
    }
    lanes_to_rows<LANE_VECTORS>(out_grads, factor, count, l.width, to, stride);
    return;
  }
  for (int64_t lane = 0; lane < STRIP; lane += WIDE) {
    Wide total = {};
    for (int64_t f = 0; f < l.features; ++f) {
      float *at = out_grads + f * STRIP + lane;
      Wide u = read<Wide>(at) * read<Wide>(features + f * STRIP + lane);
      total += u;
      write(at, u);
    }
    // the lanes hold rows times sqrt(scale) log2(e)
    for (int64_t d = 0; d < l.width; ++d) {
      float *at = lanes + d * STRIP + lane;
      write(at, transposed ? total * read<Wide>(transposed + d * STRIP + lane) * -LN2 : Wide{});
    }
  }
  add_product<ACROSS>(l.omega, l.width, l.width, out_grads, STRIP, LANE_VECTORS, l.features, lanes,
                      STRIP, false);
  lanes_to_rows<LANE_VECTORS>(lanes, factor, count, l.width, to, stride);
}

static void zero(float *numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) numbers[i] = 0.0f;
}

// Within a segment: gradients of query features, from products [key, query] of values with output
// gradients times key features.
static void add_query_grads(const Linear &l, const float *keys, const Segment &segment,
                              int64_t columns, LinearBackwardScratch &t, float *to) {
  float *pairs = t.scratch.pairs;
  zero(pairs, STRIP * STRIP);
  for (int64_t row = segment.begin; row < segment.end; row += TRIANGLE_ROWS) {
    int64_t some = segment.end - row < TRIANGLE_ROWS ? segment.end - row : TRIANGLE_ROWS;
    int64_t first = row / WIDE * WIDE, end = padded_to(segment.end, WIDE);
    add_product<ALONG>(t.scratch.values + row * columns, columns, some, t.out_grads.lanes + first,
                       STRIP, (end - first) / WIDE, columns, pairs + row * STRIP + first, STRIP,
                       true);
    for (int64_t i = row; i < row + some; ++i)
      for (int64_t lane = first; lane < end; ++lane) {
        float &at = pairs[i * STRIP + lane];
        at = lane < i || lane >= segment.end ? 0.0f : at + t.out_grads.weights[lane];
      }
  }
  for (int64_t lane = segment.begin / WIDE * WIDE; lane < segment.end; lane += 2 * WIDE) {
    int64_t vectors = lane + WIDE < segment.end ? 2 : 1, end = lane + vectors * WIDE;
    if (end > segment.end) end = segment.end;
    add_product<ALONG>(keys + segment.begin, STRIP, l.features,
                       pairs + segment.begin * STRIP + lane, STRIP, vectors, end - segment.begin,
                       to + lane, STRIP, false);
  }
}

// Within a segment: gradients of values and of key features, from products [query, key].
static void add_key_grads(const Linear &l, const float *queries, const float *keys,
                           const Segment &segment, int64_t columns, LinearBackwardScratch &t) {
  float *pairs = t.scratch.pairs;
  for (int64_t row = segment.begin; row < segment.end; row += TRIANGLE_ROWS)
    masked_pairs(l, queries, keys, segment, row,
                 segment.end - row < TRIANGLE_ROWS ? segment.end - row : TRIANGLE_ROWS, pairs);
  for (int64_t row = segment.begin; row < segment.end; row += TRIANGLE_ROWS) {
    int64_t some = segment.end - row < TRIANGLE_ROWS ? segment.end - row : TRIANGLE_ROWS;
    add_product<ACROSS>(pairs + row * STRIP + row, STRIP, some, t.out_grads.rows + row * columns,
                        columns, columns / WIDE, segment.end - row, t.grad_values + row * columns,
                        columns, false);
  }
  zero(pairs, STRIP * STRIP);
  for (int64_t row = segment.begin; row < segment.end; row += TRIANGLE_ROWS) {
    int64_t some = segment.end - row < TRIANGLE_ROWS ? segment.end - row : TRIANGLE_ROWS;
    int64_t first = segment.begin / WIDE * WIDE, end = padded_to(row + some, WIDE);
    float *rows = pairs + row * STRIP;
    add_product<ALONG>(t.out_grads.rows + row * columns, columns, some, t.value_lanes + first,
                       STRIP, (end - first) / WIDE, columns, rows + first, STRIP, true);
    for (int64_t i = 0; i < some; ++i)
      for (int64_t lane = segment.begin; lane <= row + i; ++lane)
        rows[i * STRIP + lane] += t.out_grads.weights[row + i];
    mask_future(rows, row, some, segment.begin, first, end);
  }
  for (int64_t lane = segment.begin / WIDE * WIDE; lane < segment.end; lane += 2 * WIDE) {
    int64_t vectors = lane + WIDE < segment.end ? 2 : 1;
    int64_t from = lane > segment.begin ? lane : segment.begin;
    add_product<ALONG>(queries + from, STRIP, l.features, pairs + from * STRIP + lane, STRIP,
                       vectors, segment.end - from, t.grad_features + lane, STRIP, false);
  }
}

// Adds the queries of a segment to the suffix sums.
static void add_to_suffix(const Linear &l, const float *queries, const Segment &segment,
                          int64_t columns, const OutGradStrip &out_grads, PrefixSums &suffix) {
  bool fresh = suffix.empty;
  if (fresh) zero(suffix.totals, l.features);
  int64_t begin = segment.begin, count = segment.end - begin;
  add_product<ALONG>(queries + begin, STRIP, l.features, out_grads.rows + begin * columns, columns,
                     columns / WIDE, count, suffix.sums, columns, fresh);
  add_lane_sums(queries, STRIP, l.features, begin, segment.end, out_grads.weights, suffix.totals);
  suffix.empty = false;
}

// Gradients of keys and values of a segment from the suffix sums over later queries.
static void apply_suffix(const Linear &l, const float *keys, const Segment &segment, int64_t count,
                     int64_t columns, LinearBackwardScratch &t) {
  if (t.suffix.empty) return;
  int64_t begin = segment.begin;
  add_product<ACROSS>(keys + begin, STRIP, segment.end - begin, t.suffix.sums, columns,
                      columns / WIDE, l.features, t.grad_values + begin * columns, columns, false);
  const float *lanes = lanes_of(t.value_lanes, columns, segment, count, t.some);
  apply_prefix(l, t.suffix, columns, lanes, nullptr, segment, t.grad_features);
}

static void write_value_grads(const LinearBack &b, const LinearTask &task, const Strip &strip,
                       const float *rows) {
  const Strides &at = b.l.grad_v;
  float *to = b.grad_v + task.batch * at.batch + task.shared * at.head + strip.first * at.row;
  for (int64_t i = 0; i < strip.count; ++i)
    __builtin_memcpy(to + i * at.row, rows + i * task.columns, task.width * sizeof(float));
}

}  // namespace SUFFICE_ISA
