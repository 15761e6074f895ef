// Schedule of the backward pass of linear attention: checkpoints, forward and backward sweeps.

#pragma once

#include "linear_backward.h"

namespace SUFFICE_ISA {

// The strips of a causal sequence: first those before the first query, then the others.
struct StripSchedule {
  int64_t early, keys, early_strips, strips;
};

static StripSchedule strip_schedule(const Linear &l) {
  int64_t early = l.keys - l.queries, before = (early + STRIP - 1) / STRIP;
  return {early, l.keys, before, before + (l.queries + STRIP - 1) / STRIP};
}

static void place_scheduled(const StripSchedule &schedule, int64_t number, Strip &strip) {
  int64_t later = number - schedule.early_strips;
  if (later < 0) place_strip(strip, number * STRIP, schedule.early);
  else place_strip(strip, schedule.early + later * STRIP, schedule.keys);
}

// Prefix sums before each stretch (activation checkpoints).
struct Checkpoints {
  float *numbers;  // [stretches, F (E + 1)]
  PrefixSums *prefixes;  // levels and empty flags
};

static void save(const PrefixSums &prefix, int64_t features, int64_t columns, float *to,
                 PrefixSums &checkpoint) {
  checkpoint = {to, to + features * columns, prefix.level, prefix.empty};
  if (prefix.empty) return;
  __builtin_memcpy(checkpoint.sums, prefix.sums, features * columns * sizeof(float));
  __builtin_memcpy(checkpoint.totals, prefix.totals, features * sizeof(float));
}

static void restore(const PrefixSums &checkpoint, int64_t features, int64_t columns,
                    PrefixSums &prefix) {
  prefix.level = checkpoint.level, prefix.empty = checkpoint.empty;
  if (checkpoint.empty) return;
  __builtin_memcpy(prefix.sums, checkpoint.sums, features * columns * sizeof(float));
  __builtin_memcpy(prefix.totals, checkpoint.totals, features * sizeof(float));
}

static void write_strip_grads(const LinearBack &b, const Strides &at, int64_t batch, int64_t head,
                      int64_t first, int64_t count, const float *features, const float *transposed,
                      float *out_grads, float *lanes, float *to) {
  to += batch * at.batch + head * at.head + first * at.row;
  write_row_grads(b.l, features, transposed, out_grads, lanes, count, to, at.row);
}

// Forward sweep of a strip: features, query gradients, keys added to the prefix sums.
static void forward_strip(const LinearBack &b, const LinearTask &task,
                          const StripSchedule &schedule, int64_t number, LinearBackwardScratch &t,
                          Strip &strip, float *keys) {
  const Linear &l = b.l;
  const int64_t group = group_of(l), each = l.features * STRIP;
  LinearScratch &scratch = t.scratch;
  float *queries = keys + each;
  place_scheduled(schedule, number, strip);
  read_strip(l, task, task.documents, scratch.prefix.level, strip, scratch.transposed, keys,
             scratch.values);
  const bool has_queries = number >= schedule.early_strips;
  const int64_t first = strip.first - schedule.early;
  if (has_queries) {
    read_queries(l, task, b.q, first, strip.count, scratch.transposed, queries);
    zero(t.grad_features, group * each);
  }
  for (int64_t p = 0; p < strip.segments; ++p) {
    const Segment &segment = strip.segment[p];
    rescale(scratch.prefix, l.features, task.columns, segment);
    for (int64_t h = 0; has_queries && h < group; ++h) {
      if (p == 0 || group > 1)
        read_out_grads(b, task.batch, task.shared * group + h, first, strip.count, task.columns,
                    t.out_grads);
      const float *lanes = lanes_of(t.out_grads.lanes, task.columns, segment, strip.count, t.some);
      apply_prefix(l, scratch.prefix, task.columns, lanes, t.out_grads.weights, segment,
                t.grad_features + h * each);
      add_query_grads(l, keys, segment, task.columns, t, t.grad_features + h * each);
    }
    add_to_prefix(scratch.prefix, l.features, keys, scratch.values, task.columns, segment.begin,
                  segment.end);
  }
  for (int64_t h = 0; has_queries && h < group; ++h)
    write_strip_grads(b, l.grad_q, task.batch, task.shared * group + h, first, strip.count,
              queries + h * each, nullptr, t.grad_features + h * each, t.grad_rows, b.grad_q);
}

// Reads values of a strip as rows and lanes and its keys as lanes; clears their gradients.
static void begin_key_grads(const LinearBack &b, const LinearTask &task, const Strip &strip,
                            LinearBackwardScratch &t) {
  copy_rows<Full>({task.v.data + strip.first * task.v.row, task.v.row}, strip.count, task.width,
                  1.0f, strip.count, t.scratch.values);
  rows_to_lanes<LANE_VECTORS>(t.scratch.values, task.columns, strip.count, task.columns, 1.0f,
                          t.value_lanes);
  strip_to_lanes(b.l, task.k.data + strip.first * task.k.row, task.k.row, strip.count,
                 t.scratch.transposed);
  zero(t.grad_features, b.l.features * STRIP);
  zero(t.grad_values, STRIP * task.columns);
}

static void finish_key_grads(const LinearBack &b, const LinearTask &task, const Strip &strip,
                        const float *keys, LinearBackwardScratch &t) {
  write_strip_grads(b, b.l.grad_k, task.batch, task.shared, strip.first, strip.count, keys,
                    t.scratch.transposed, t.grad_features, t.grad_rows, b.grad_k);
  write_value_grads(b, task, strip, t.grad_values);
}

// Backward sweep of a strip: gradients of its keys and values.
static void backward_strip(const LinearBack &b, const LinearTask &task,
                           const StripSchedule &schedule, bool has_queries,
                           LinearBackwardScratch &t, const Strip &strip, const float *keys) {
  const Linear &l = b.l;
  const int64_t group = group_of(l), each = l.features * STRIP;
  begin_key_grads(b, task, strip, t);
  for (int64_t p = strip.segments - 1; p >= 0; --p) {
    const Segment &segment = strip.segment[p];
    apply_suffix(l, keys, segment, strip.count, task.columns, t);
    for (int64_t h = 0; has_queries && h < group; ++h) {
      const float *queries = keys + (1 + h) * each;
      if (p == strip.segments - 1 || group > 1)
        read_out_grads(b, task.batch, task.shared * group + h, strip.first - schedule.early,
                    strip.count, task.columns, t.out_grads);
      add_key_grads(l, queries, keys, segment, task.columns, t);
      add_to_suffix(l, queries, segment, task.columns, t.out_grads, t.suffix);
    }
    rescale(t.suffix, l.features, task.columns, segment);
  }
  finish_key_grads(b, task, strip, keys, t);
}

static void causal_gradients(const LinearBack &b, const LinearTask &task,
                             const Checkpoints &checkpoints, LinearBackwardScratch &t) {
  const Linear &l = b.l;
  const StripSchedule schedule = strip_schedule(l);
  const int64_t each = (1 + group_of(l)) * l.features * STRIP;
  const int64_t stretches = (schedule.strips + b.strips - 1) / b.strips;
  PrefixSums &prefix = t.scratch.prefix;
  for (int64_t s = 0; s < stretches; ++s) {
    save(prefix, l.features, task.columns,
         checkpoints.numbers + s * l.features * (task.columns + 1), checkpoints.prefixes[s]);
    for (int64_t i = s * b.strips; s + 1 < stretches && i < (s + 1) * b.strips; ++i) {
      place_scheduled(schedule, i, t.scratch.strip);
      accumulate_keys(l, task, task.documents, t.scratch.strip.first,
                 t.scratch.strip.first + t.scratch.strip.count, t.scratch);
    }
  }
  for (int64_t s = stretches - 1; s >= 0; --s) {
    const int64_t first = s * b.strips;
    const int64_t some = schedule.strips - first < b.strips ? schedule.strips - first : b.strips;
    restore(checkpoints.prefixes[s], l.features, task.columns, prefix);
    for (int64_t i = 0; i < some; ++i)
      forward_strip(b, task, schedule, first + i, t, t.strips[i], t.features + i * each);
    for (int64_t i = some - 1; i >= 0; --i)
      backward_strip(b, task, schedule, first + i >= schedule.early_strips, t, t.strips[i],
                 t.features + i * each);
  }
}

// Gradients of a document without a causal mask.
static void full_gradients(const LinearBack &b, const LinearTask &task, int64_t begin, int64_t end,
                        int64_t last, LinearBackwardScratch &t) {
  const Linear &l = b.l;
  const int64_t group = group_of(l);
  LinearScratch &scratch = t.scratch;
  reset_prefix(scratch.prefix);
  reset_prefix(t.suffix);
  accumulate_keys(l, task, nullptr, begin, end, scratch);
  for (int64_t at = begin; at < last; at += STRIP) {
    int64_t count = last - at < STRIP ? last - at : STRIP;
    const Segment all = {0, count, 0.0f, 1.0f};
    read_queries(l, task, b.q, at, count, scratch.transposed, scratch.queries);
    for (int64_t h = 0; h < group; ++h) {
      int64_t head = task.shared * group + h;
      const float *queries = scratch.queries + h * l.features * STRIP;
      read_out_grads(b, task.batch, head, at, count, task.columns, t.out_grads);
      zero(t.grad_features, l.features * STRIP);
      apply_prefix(l, scratch.prefix, task.columns, t.out_grads.lanes, t.out_grads.weights, all,
                   t.grad_features);
      write_strip_grads(b, l.grad_q, task.batch, head, at, count, queries, nullptr, t.grad_features,
                        t.grad_rows, b.grad_q);
      add_to_suffix(l, queries, all, task.columns, t.out_grads, t.suffix);
    }
  }
  for (int64_t at = begin; at < end; at += STRIP) {
    place_strip(scratch.strip, at, end);
    read_strip(l, task, nullptr, scratch.prefix.level, scratch.strip, scratch.transposed,
               scratch.keys, scratch.values);
    begin_key_grads(b, task, scratch.strip, t);
    apply_suffix(l, scratch.keys, {0, scratch.strip.count, 0.0f, 1.0f}, scratch.strip.count,
                 task.columns, t);
    finish_key_grads(b, task, scratch.strip, scratch.keys, t);
  }
}

static void linear_back_worker(suffice::Team &team, int, void *context) {
  const LinearBack &b = *(const LinearBack *)context;
  const Linear &l = b.l;
  const int64_t columns = whole_vectors(l.value_width), each = l.features * STRIP;
  const int64_t group = group_of(l), prefix = l.features * columns + whole_vectors(l.features);
  const int64_t made = l.causal ? b.strips * (1 + group) * each : 0;
  int64_t numbers = 2 * l.width * STRIP + (1 + 2 * group) * each + STRIP * STRIP +
                    6 * STRIP * columns + 2 * prefix + made;
  float *place = (float *)suffice::thread_scratch(numbers * sizeof(float));
  auto next = [&](int64_t count) {
    float *table = place;
    place += count;
    return table;
  };
  LinearBackwardScratch t;
  t.scratch.transposed = next(l.width * STRIP);
  t.grad_rows = next(l.width * STRIP);
  t.scratch.keys = next(each);
  t.scratch.queries = next(group * each);
  t.grad_features = next(group * each);
  t.scratch.pairs = next(STRIP * STRIP);
  float **value_buffers[] = {&t.scratch.values,   &t.grad_values, &t.out_grads.rows,
                         &t.out_grads.lanes, &t.some,      &t.value_lanes};
  for (float **one : value_buffers) *one = next(STRIP * columns);
  PrefixSums *prefixes[] = {&t.scratch.prefix, &t.suffix};
  for (PrefixSums *one : prefixes) {
    one->sums = next(l.features * columns);
    one->totals = next(whole_vectors(l.features));
  }
  t.features = next(made);
  const int64_t stretches = l.causal ? (strip_schedule(l).strips + b.strips - 1) / b.strips : 0;
  Checkpoints checkpoints = {
      (float *)malloc(stretches * l.features * (columns + 1) * sizeof(float) + 1),
      (PrefixSums *)malloc(stretches * sizeof(PrefixSums) + 1)};
  t.strips = (Strip *)malloc(b.strips * sizeof(Strip));
  suffice::Range range;
  while (team.take(l.batch * l.kv_heads, 1, range)) {
    LinearTask task = linear_task(l, b.k, b.v, range.begin, 0, l.value_width);
    reset_prefix(t.scratch.prefix);
    reset_prefix(t.suffix);
    if (l.causal) causal_gradients(b, task, checkpoints, t);
    for (int64_t begin = 0, end; !l.causal && begin < l.keys; begin = end) {
      end = document_end(task.documents, begin, l.keys);
      full_gradients(b, task, begin, end, task.documents ? end : l.queries, t);
    }
  }
  free(checkpoints.numbers);
  free(checkpoints.prefixes);
  free(t.strips);
}

static void linear_back(const Linear *linear, const float *q, const float *k, const float *v,
                        const float *out, const float *totals, const float *out_grad, float *grad_q,
                        float *grad_k, float *grad_v, int64_t threads) {
  const Linear &l = *linear;
  int64_t strips = CHECKPOINT_NUMBERS / ((1 + group_of(l)) * l.features * STRIP);
  LinearBack back{
      l, q, k, v, out, totals, out_grad, grad_q, grad_k, grad_v, strips < 1 ? 1 : strips};
  int64_t rows = l.batch * l.kv_heads;
  if (rows == 0 || l.queries == 0) return;
  threads = threads_for(l, threads);
  suffice::run_team((int)(rows < threads ? rows : threads), linear_back_worker, &back);
}

}  // namespace SUFFICE_ISA
