// Linear attention, chunkwise: a task is a KV head, or a slice of its value columns. It goes
// through the sequence strip by strip: causal products within the strip plus the prefix sums of all
// earlier strips. All intermediates stay in cache.
//
// Letters: F features, N = STRIP lanes, E width of values, rounded up to whole vectors.

#pragma once

#include "../threads.h"
#include "prefix_sums.h"
#include "sequence_attention_backward.h"

namespace SUFFICE_ISA {

constexpr float MIN_TOTAL = 0x1p-103f;  // denominators below it are denormal or lose digits

struct LinearCall {
  const Linear &l;
  const float *q, *k, *v;
  float *out, *totals;
  int64_t slices, slice;  // slices of value columns, and columns of each
};

// Working memory of a thread.
struct LinearScratch {
  float *transposed;   // [D, N]
  float *keys;     // [F, N]
  float *queries;  // [heads per KV head, F, N]
  float *values;   // [N, E]
  float *pairs;    // [N, N]
  float *outs;     // [N, E]
  PrefixSums prefix;
  Strip strip;
};

// Numerators [N, E] and denominators of the queries of a segment.
static void query_outputs(const Linear &l, const float *queries, const Segment &segment, bool pairs,
                   int64_t columns, LinearScratch &scratch, float *totals) {
  int64_t begin = segment.begin, count = segment.end - begin;
  const PrefixSums &prefix = scratch.prefix;
  bool fresh = true;
  for (int64_t i = begin; i < segment.end; ++i) totals[i] = 0.0f;
  for (int64_t row = begin; pairs && row < segment.end; row += TRIANGLE_ROWS) {
    int64_t some = segment.end - row < TRIANGLE_ROWS ? segment.end - row : TRIANGLE_ROWS,
            end = row + some;
    masked_pairs(l, queries, scratch.keys, segment, row, some, scratch.pairs);
    add_product<ALONG>(scratch.pairs + row * STRIP + begin, STRIP, some,
                       scratch.values + begin * columns, columns, columns / WIDE, end - begin,
                       scratch.outs + row * columns, columns, true);
    add_lane_sums(scratch.pairs + row * STRIP, STRIP, some, begin, end, nullptr, totals + row);
    fresh = false;
  }
  if (prefix.empty) {
    for (int64_t i = begin * columns; fresh && i < segment.end * columns; ++i)
      scratch.outs[i] = 0.0f;
    return;
  }
  add_product<ACROSS>(queries + begin, STRIP, count, prefix.sums, columns, columns / WIDE,
                      l.features, scratch.outs + begin * columns, columns, fresh);
  float prefix_totals[STRIP];
  add_product<ALONG>(prefix.totals, l.features, 1, queries, STRIP, LANE_VECTORS, l.features,
                     prefix_totals, STRIP, true);
  for (int64_t i = begin; i < segment.end; ++i) totals[i] += prefix_totals[i];
}

INLINE float divisor(float total) {
  return total == 0.0f ? 1.0f : total < MIN_TOTAL ? MIN_TOTAL : total;
}

// Divides and writes the outputs of a strip's queries.
static void write_outputs(const LinearCall &call, int64_t batch, int64_t head, int64_t first,
                    int64_t count, int64_t slice, int64_t columns, const float *outs,
                    const float *totals) {
  const Linear &l = call.l;
  int64_t from = slice * call.slice;
  int64_t width = l.value_width - from < call.slice ? l.value_width - from : call.slice;
  float *out = call.out + batch * l.out.batch + head * l.out.head + first * l.out.row + from;
  for (int64_t i = 0; i < count; ++i, out += l.out.row) {
    float factor = 1.0f / divisor(totals[i]);
    for (int64_t e = 0; e < width; e += WIDE) {
      Wide v = read<Wide>(outs + i * columns + e) * factor;
      if (e + WIDE <= width) write(out + e, v);
      else write_some(out + e, v, width - e);
    }
  }
  if (!call.totals || slice) return;
  float *to = call.totals + (batch * l.heads + head) * l.queries + first;
  for (int64_t i = 0; i < count; ++i) to[i] = totals[i];
}

// Inputs of a task: a head of keys, a slice of values, key mask and document ids.
struct LinearTask {
  int64_t batch, shared, slice, width, columns;
  Rows k, v;
  const uint8_t *seen;
  const int64_t *documents;
};

static LinearTask linear_task(const Linear &l, const float *k, const float *v, int64_t row,
                              int64_t slice, int64_t most) {
  LinearTask task;
  task.batch = row / l.kv_heads, task.shared = row % l.kv_heads, task.slice = slice;
  int64_t from = slice * most;
  task.width = l.value_width - from < most ? l.value_width - from : most;
  task.columns = whole_vectors(task.width);
  task.k = rows_of(k, l.k, task.batch, task.shared);
  task.v = rows_of(v, l.v, task.batch, task.shared);
  task.v.data += from;
  task.seen = l.valid ? l.valid + task.batch * l.keys : nullptr;
  task.documents = l.documents ? l.documents + task.batch * l.keys : nullptr;
  return task;
}

static void place_strip(Strip &strip, int64_t first, int64_t end) {
  strip.first = first;
  strip.count = end - first < STRIP ? end - first : STRIP;
}

// Computes the key features of a strip and copies its values [N, E]; `documents` cuts segments.
static void read_strip(const Linear &l, const LinearTask &task, const int64_t *documents,
                       float &level, Strip &strip, float *transposed, float *keys, float *values) {
  key_features(l, task.k.data + strip.first * task.k.row, task.k.row, task.seen, documents, level,
               strip, transposed, keys);
  copy_rows<Full>({task.v.data + strip.first * task.v.row, task.v.row}, strip.count, task.width,
                  1.0f, strip.count, values);
}

// Adds keys begin to end - 1 to the prefix sums.
static void accumulate_keys(const Linear &l, const LinearTask &task, const int64_t *documents,
                            int64_t begin, int64_t end, LinearScratch &scratch) {
  for (int64_t at = begin; at < end; at += STRIP) {
    place_strip(scratch.strip, at, end);
    read_strip(l, task, documents, scratch.prefix.level, scratch.strip, scratch.transposed,
               scratch.keys, scratch.values);
    for (int64_t p = 0; p < scratch.strip.segments; ++p) {
      const Segment &segment = scratch.strip.segment[p];
      rescale(scratch.prefix, l.features, task.columns, segment);
      add_to_prefix(scratch.prefix, l.features, scratch.keys, scratch.values, task.columns,
                    segment.begin, segment.end);
    }
  }
}

// Query features of a strip, for every head that shares its keys.
static void read_queries(const Linear &l, const LinearTask &task, const float *q, int64_t first,
                         int64_t count, float *transposed, float *queries) {
  for (int64_t h = 0; h < group_of(l); ++h) {
    Rows rows = rows_of(q, l.q, task.batch, task.shared * group_of(l) + h);
    query_features(l, rows.data + first * rows.row, rows.row, count, transposed,
                   queries + h * l.features * STRIP);
  }
}

static void causal_sums(const LinearCall &call, const LinearTask &task, LinearScratch &scratch) {
  const Linear &l = call.l;
  const int64_t early = l.keys - l.queries, group = group_of(l);
  accumulate_keys(l, task, task.documents, 0, early, scratch);
  Strip &strip = scratch.strip;
  for (int64_t at = early; at < l.keys; at += STRIP) {
    place_strip(strip, at, l.keys);
    read_strip(l, task, task.documents, scratch.prefix.level, strip, scratch.transposed,
               scratch.keys, scratch.values);
    read_queries(l, task, call.q, at - early, strip.count, scratch.transposed, scratch.queries);
    for (int64_t p = 0; p < strip.segments; ++p) {
      const Segment &segment = strip.segment[p];
      rescale(scratch.prefix, l.features, task.columns, segment);
      for (int64_t h = 0; h < group; ++h) {
        float totals[STRIP];
        query_outputs(l, scratch.queries + h * l.features * STRIP, segment, true, task.columns,
                      scratch, totals);
        write_outputs(call, task.batch, task.shared * group + h, at - early + segment.begin,
                segment.end - segment.begin, task.slice, task.columns,
                scratch.outs + segment.begin * task.columns, totals + segment.begin);
      }
      if (strip.first + segment.end < l.keys)
        add_to_prefix(scratch.prefix, l.features, scratch.keys, scratch.values, task.columns,
                      segment.begin, segment.end);
    }
  }
}

// The end of the document that begins at a position, or of the sequence without documents.
INLINE int64_t document_end(const int64_t *documents, int64_t begin, int64_t length) {
  if (!documents) return length;
  int64_t end = begin + 1;
  while (end < length && documents[end] == documents[begin]) ++end;
  return end;
}

static void reset_prefix(PrefixSums &prefix) { prefix.empty = true, prefix.level = EMPTY_LEVEL; }

static void full_sums(const LinearCall &call, const LinearTask &task, LinearScratch &scratch) {
  const Linear &l = call.l;
  const int64_t group = group_of(l);
  for (int64_t begin = 0, end; begin < l.keys; begin = end) {
    end = document_end(task.documents, begin, l.keys);
    reset_prefix(scratch.prefix);
    accumulate_keys(l, task, nullptr, begin, end, scratch);
    int64_t last = task.documents ? end : l.queries;
    for (int64_t at = begin; at < last; at += STRIP) {
      int64_t count = last - at < STRIP ? last - at : STRIP;
      Segment all = {0, count, 0.0f, 1.0f};
      read_queries(l, task, call.q, at, count, scratch.transposed, scratch.queries);
      for (int64_t h = 0; h < group; ++h) {
        float totals[STRIP];
        query_outputs(l, scratch.queries + h * l.features * STRIP, all, false, task.columns,
                      scratch, totals);
        write_outputs(call, task.batch, task.shared * group + h, at, count, task.slice,
                      task.columns, scratch.outs, totals);
      }
    }
  }
}

static void linear_worker(suffice::Team &team, int, void *context) {
  const LinearCall &call = *(const LinearCall *)context;
  const Linear &l = call.l;
  int64_t columns = whole_vectors(call.slice), of_strip = l.features * STRIP;
  int64_t numbers = l.width * STRIP + (1 + group_of(l)) * of_strip + 2 * STRIP * columns +
                    STRIP * STRIP + l.features * columns + whole_vectors(l.features);
  float *place = (float *)suffice::thread_scratch(numbers * sizeof(float));
  auto next = [&](int64_t count) {
    float *table = place;
    place += count;
    return table;
  };
  LinearScratch scratch;
  scratch.transposed = next(l.width * STRIP);
  scratch.keys = next(of_strip);
  scratch.queries = next(group_of(l) * of_strip);
  scratch.values = next(STRIP * columns);
  scratch.outs = next(STRIP * columns);
  scratch.pairs = next(STRIP * STRIP);
  scratch.prefix.sums = next(l.features * columns);
  scratch.prefix.totals = next(whole_vectors(l.features));
  suffice::Range range;
  while (team.take(l.batch * l.kv_heads * call.slices, 1, range)) {
    int64_t row = range.begin / call.slices, slice = range.begin % call.slices;
    LinearTask task = linear_task(l, call.k, call.v, row, slice, call.slice);
    reset_prefix(scratch.prefix);
    if (l.causal) causal_sums(call, task, scratch);
    else full_sums(call, task, scratch);
  }
}

// One thread per MACS_PER_THREAD multiply-adds.
INLINE int64_t threads_for(const Linear &l, int64_t threads) {
  int64_t each = l.features * (l.width + l.value_width + STRIP);
  int64_t worth = l.batch * (l.heads * l.queries + l.kv_heads * l.keys) * each / MACS_PER_THREAD;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

static void linear_sequence(const Linear *linear, const float *q, const float *k, const float *v,
                         float *out, float *totals, int64_t threads) {
  const Linear &l = *linear;
  LinearCall call{l, q, k, v, out, totals, 1, l.value_width};
  int64_t rows = l.batch * l.kv_heads;
  if (rows == 0 || l.queries == 0) return;
  threads = threads_for(l, threads);
  if (rows < threads) {  // fewer heads than threads: slice the value columns
    int64_t wanted = (threads + rows - 1) / rows, most = whole_vectors(l.value_width) / WIDE;
    if (wanted > most) wanted = most;
    call.slice = padded_to((l.value_width + wanted - 1) / wanted, WIDE);
    call.slices = (l.value_width + call.slice - 1) / call.slice;
  }
  int64_t tasks = rows * call.slices;
  suffice::run_team((int)(tasks < threads ? tasks : threads), linear_worker, &call);
}

}  // namespace SUFFICE_ISA
