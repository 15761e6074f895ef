// How a task of the backward pass goes through its sequence.

#pragma once

#include "linear_back.h"

namespace SUFFICE_ISA {

// The strips of a causal sequence: those before the first query, then the others.
struct Course {
  int64_t early, keys, early_strips, strips;
};

static Course course_of(const Linear &l) {
  int64_t early = l.keys - l.queries, before = (early + STRIP - 1) / STRIP;
  return {early, l.keys, before, before + (l.queries + STRIP - 1) / STRIP};
}

static void place_number(const Course &course, int64_t number, Strip &strip) {
  int64_t later = number - course.early_strips;
  if (later < 0) place_strip(strip, number * STRIP, course.early);
  else place_strip(strip, course.early + later * STRIP, course.keys);
}

// What was tallied before each stretch.
struct Marks {
  float *numbers;  // [stretches, F (E + 1)]
  Tally *tallies;  // their levels, and whether they are empty
};

static void keep(const Tally &tally, int64_t features, int64_t columns, float *to, Tally &mark) {
  mark = {to, to + features * columns, tally.level, tally.empty};
  if (tally.empty) return;
  __builtin_memcpy(mark.sums, tally.sums, features * columns * sizeof(float));
  __builtin_memcpy(mark.totals, tally.totals, features * sizeof(float));
}

static void fall_back(const Tally &mark, int64_t features, int64_t columns, Tally &tally) {
  tally.level = mark.level, tally.empty = mark.empty;
  if (mark.empty) return;
  __builtin_memcpy(tally.sums, mark.sums, features * columns * sizeof(float));
  __builtin_memcpy(tally.totals, mark.totals, features * sizeof(float));
}

static void put_strip(const LinearBack &b, const Strides &at, int64_t batch, int64_t head,
                      int64_t first, int64_t count, const float *features, const float *turned,
                      float *slopes, float *lanes, float *to) {
  to += batch * at.batch + head * at.head + first * at.row;
  put_rows(b.l, features, turned, slopes, lanes, count, to, at.row);
}

// A strip on the way forward: its features, the gradients of its queries, its keys to the tally.
static void learn_forward(const LinearBack &b, const Lane &lane, const Course &course,
                          int64_t number, BackTable &t, Strip &strip, float *keys) {
  const Linear &l = b.l;
  const int64_t group = group_of(l), each = l.features * STRIP;
  LinearDesk &desk = t.desk;
  float *queries = keys + each;
  place_number(course, number, strip);
  read_strip(l, lane, lane.documents, desk.tally.level, strip, desk.turned, keys, desk.values);
  const bool asks = number >= course.early_strips;
  const int64_t first = strip.first - course.early;
  if (asks) {
    read_queries(l, lane, b.q, first, strip.count, desk.turned, queries);
    zero(t.to_features, group * each);
  }
  for (int64_t p = 0; p < strip.pieces; ++p) {
    const Piece &piece = strip.piece[p];
    fade(desk.tally, l.features, lane.columns, piece);
    for (int64_t h = 0; asks && h < group; ++h) {
      if (p == 0 || group > 1)
        read_slopes(b, lane.batch, lane.shared * group + h, first, strip.count, lane.columns,
                    t.slopes);
      const float *lanes = lanes_of(t.slopes.lanes, lane.columns, piece, strip.count, t.some);
      ask_tally(l, desk.tally, lane.columns, lanes, t.slopes.weights, piece,
                t.to_features + h * each);
      slopes_to_queries(l, keys, piece, lane.columns, t, t.to_features + h * each);
    }
    add_to_tally(desk.tally, l.features, keys, desk.values, lane.columns, piece.begin, piece.end);
  }
  for (int64_t h = 0; asks && h < group; ++h)
    put_strip(b, l.of_q, lane.batch, lane.shared * group + h, first, strip.count,
              queries + h * each, nullptr, t.to_features + h * each, t.to_rows, b.of_q);
}

// Values of a strip as rows and lanes, its keys as lanes; gradients begin with 0.
static void begin_keys(const LinearBack &b, const Lane &lane, const Strip &strip, BackTable &t) {
  copy_rows<Full>({lane.v.data + strip.first * lane.v.row, lane.v.row}, strip.count, lane.width, 1.0f,
            strip.count, t.desk.values);
  turn_rows<LANE_VECTORS>(t.desk.values, lane.columns, strip.count, lane.columns, 1.0f,
                          t.value_lanes);
  turn_strip(b.l, lane.k.data + strip.first * lane.k.row, lane.k.row, strip.count, t.desk.turned);
  zero(t.to_features, b.l.features * STRIP);
  zero(t.to_values, STRIP * lane.columns);
}

static void finish_keys(const LinearBack &b, const Lane &lane, const Strip &strip,
                        const float *keys, BackTable &t) {
  put_strip(b, b.l.of_k, lane.batch, lane.shared, strip.first, strip.count, keys, t.desk.turned,
            t.to_features, t.to_rows, b.of_k);
  put_values(b, lane, strip, t.to_values);
}

// The same strip on the way back: the gradients of its keys and values.
static void learn_back(const LinearBack &b, const Lane &lane, const Course &course, bool asks,
                       BackTable &t, const Strip &strip, const float *keys) {
  const Linear &l = b.l;
  const int64_t group = group_of(l), each = l.features * STRIP;
  begin_keys(b, lane, strip, t);
  for (int64_t p = strip.pieces - 1; p >= 0; --p) {
    const Piece &piece = strip.piece[p];
    ask_keys(l, keys, piece, strip.count, lane.columns, t);
    for (int64_t h = 0; asks && h < group; ++h) {
      const float *queries = keys + (1 + h) * each;
      if (p == strip.pieces - 1 || group > 1)
        read_slopes(b, lane.batch, lane.shared * group + h, strip.first - course.early,
                    strip.count, lane.columns, t.slopes);
      slopes_to_keys(l, queries, keys, piece, lane.columns, t);
      add_asked(l, queries, piece, lane.columns, t.slopes, t.asked);
    }
    fade(t.asked, l.features, lane.columns, piece);
  }
  finish_keys(b, lane, strip, keys, t);
}

static void causal_slopes(const LinearBack &b, const Lane &lane, const Marks &marks, BackTable &t) {
  const Linear &l = b.l;
  const Course course = course_of(l);
  const int64_t each = (1 + group_of(l)) * l.features * STRIP;
  const int64_t stretches = (course.strips + b.strips - 1) / b.strips;
  Tally &tally = t.desk.tally;
  for (int64_t s = 0; s < stretches; ++s) {
    keep(tally, l.features, lane.columns, marks.numbers + s * l.features * (lane.columns + 1),
         marks.tallies[s]);
    for (int64_t i = s * b.strips; s + 1 < stretches && i < (s + 1) * b.strips; ++i) {
      place_number(course, i, t.desk.strip);
      tally_keys(l, lane, lane.documents, t.desk.strip.first,
                 t.desk.strip.first + t.desk.strip.count, t.desk);
    }
  }
  for (int64_t s = stretches - 1; s >= 0; --s) {
    const int64_t first = s * b.strips;
    const int64_t some = course.strips - first < b.strips ? course.strips - first : b.strips;
    fall_back(marks.tallies[s], l.features, lane.columns, tally);
    for (int64_t i = 0; i < some; ++i)
      learn_forward(b, lane, course, first + i, t, t.strips[i], t.features + i * each);
    for (int64_t i = some - 1; i >= 0; --i)
      learn_back(b, lane, course, first + i >= course.early_strips, t, t.strips[i],
                 t.features + i * each);
  }
}

// Gradients of a document whose queries see all its keys.
static void full_slopes(const LinearBack &b, const Lane &lane, int64_t begin, int64_t end,
                        int64_t last, BackTable &t) {
  const Linear &l = b.l;
  const int64_t group = group_of(l);
  LinearDesk &desk = t.desk;
  forget(desk.tally);
  forget(t.asked);
  tally_keys(l, lane, nullptr, begin, end, desk);
  for (int64_t at = begin; at < last; at += STRIP) {
    int64_t count = last - at < STRIP ? last - at : STRIP;
    const Piece all = {0, count, 0.0f, 1.0f};
    read_queries(l, lane, b.q, at, count, desk.turned, desk.queries);
    for (int64_t h = 0; h < group; ++h) {
      int64_t head = lane.shared * group + h;
      const float *queries = desk.queries + h * l.features * STRIP;
      read_slopes(b, lane.batch, head, at, count, lane.columns, t.slopes);
      zero(t.to_features, l.features * STRIP);
      ask_tally(l, desk.tally, lane.columns, t.slopes.lanes, t.slopes.weights, all, t.to_features);
      put_strip(b, l.of_q, lane.batch, head, at, count, queries, nullptr, t.to_features, t.to_rows,
                b.of_q);
      add_asked(l, queries, all, lane.columns, t.slopes, t.asked);
    }
  }
  for (int64_t at = begin; at < end; at += STRIP) {
    place_strip(desk.strip, at, end);
    read_strip(l, lane, nullptr, desk.tally.level, desk.strip, desk.turned, desk.keys, desk.values);
    begin_keys(b, lane, desk.strip, t);
    ask_keys(l, desk.keys, {0, desk.strip.count, 0.0f, 1.0f}, desk.strip.count, lane.columns, t);
    finish_keys(b, lane, desk.strip, desk.keys, t);
  }
}

static void linear_back_worker(suffice::Team &team, int, void *context) {
  const LinearBack &b = *(const LinearBack *)context;
  const Linear &l = b.l;
  const int64_t columns = whole_vectors(l.value_width), each = l.features * STRIP;
  const int64_t group = group_of(l), tally = l.features * columns + whole_vectors(l.features);
  const int64_t made = l.causal ? b.strips * (1 + group) * each : 0;
  int64_t numbers = 2 * l.width * STRIP + (1 + 2 * group) * each + STRIP * STRIP +
                    6 * STRIP * columns + 2 * tally + made;
  float *place = (float *)suffice::room_of_thread(numbers * sizeof(float));
  auto next = [&](int64_t count) {
    float *found = place;
    place += count;
    return found;
  };
  BackTable t;
  t.desk.turned = next(l.width * STRIP);
  t.to_rows = next(l.width * STRIP);
  t.desk.keys = next(each);
  t.desk.queries = next(group * each);
  t.to_features = next(group * each);
  t.desk.pairs = next(STRIP * STRIP);
  float **of_values[] = {&t.desk.values,   &t.to_values, &t.slopes.rows,
                         &t.slopes.lanes, &t.some,      &t.value_lanes};
  for (float **one : of_values) *one = next(STRIP * columns);
  Tally *tallies[] = {&t.desk.tally, &t.asked};
  for (Tally *one : tallies) {
    one->sums = next(l.features * columns);
    one->totals = next(whole_vectors(l.features));
  }
  t.features = next(made);
  const int64_t stretches = l.causal ? (course_of(l).strips + b.strips - 1) / b.strips : 0;
  Marks marks = {(float *)malloc(stretches * l.features * (columns + 1) * sizeof(float) + 1),
                 (Tally *)malloc(stretches * sizeof(Tally) + 1)};
  t.strips = (Strip *)malloc(b.strips * sizeof(Strip));
  suffice::Range range;
  while (team.take(l.batch * l.kv_heads, 1, range)) {
    Lane lane = lane_of(l, b.k, b.v, range.begin, 0, l.value_width);
    forget(t.desk.tally);
    forget(t.asked);
    if (l.causal) causal_slopes(b, lane, marks, t);
    for (int64_t begin = 0, end; !l.causal && begin < l.keys; begin = end) {
      end = document_end(lane.documents, begin, l.keys);
      full_slopes(b, lane, begin, end, lane.documents ? end : l.queries, t);
    }
  }
  free(marks.numbers);
  free(marks.tallies);
  free(t.strips);
}

static void linear_back(const Linear *linear, const float *q, const float *k, const float *v,
                        const float *out, const float *totals, const float *slope, float *of_q,
                        float *of_k, float *of_v, int64_t threads) {
  const Linear &l = *linear;
  int64_t strips = STRETCH_NUMBERS / ((1 + group_of(l)) * l.features * STRIP);
  LinearBack back{l, q, k, v, out, totals, slope, of_q, of_k, of_v, strips < 1 ? 1 : strips};
  int64_t rows = l.batch * l.kv_heads;
  if (rows == 0 || l.queries == 0) return;
  threads = threads_for(l, threads);
  suffice::together((int)(rows < threads ? rows : threads), linear_back_worker, &back);
}

}  // namespace SUFFICE_ISA
