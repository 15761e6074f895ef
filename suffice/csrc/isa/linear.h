// Sums of features along the sequence. A task is a key/value head, or some columns of its values:
// it goes through the sequence strip by strip, sums pairs within a strip and asks what was tallied
// before it, so everything between inputs and outputs stays in the cache.
//
// Letters: F features, N = STRIP lanes, E width of values, rounded up to whole vectors.

#pragma once

#include "../threads.h"
#include "tally.h"
#include "whole_back.h"

namespace SUFFICE_ISA {

constexpr float LEAST = 0x1p-103f;  // sums of weights below it lose digits

struct LinearCall {
  const Linear &l;
  const float *q, *k, *v;
  float *out, *totals;
  int64_t slices, slice;  // of values, and columns of each
};

// What a thread works in.
struct LinearDesk {
  float *turned;   // [D, N]
  float *keys;     // [F, N]
  float *queries;  // [heads of a group, F, N]
  float *values;   // [N, E]
  float *pairs;    // [N, N]
  float *outs;     // [N, E]
  Tally tally;
  Strip strip;
};

// Sums of weighted values [N, E] of the queries of a piece and, for each, of the weights.
static void answer(const Linear &l, const float *queries, const Piece &piece, bool pairs,
                   int64_t columns, LinearDesk &desk, float *totals) {
  int64_t begin = piece.begin, count = piece.end - begin;
  const Tally &tally = desk.tally;
  bool fresh = true;
  for (int64_t i = begin; i < piece.end; ++i) totals[i] = 0.0f;
  for (int64_t row = begin; pairs && row < piece.end; row += FEW_ROWS) {
    int64_t some = piece.end - row < FEW_ROWS ? piece.end - row : FEW_ROWS, end = row + some;
    pair_up(l, queries, desk.keys, piece, row, some, desk.pairs);
    add_product<ALONG>(desk.pairs + row * STRIP + begin, STRIP, some,
                       desk.values + begin * columns, columns, columns / WIDE, end - begin,
                       desk.outs + row * columns, columns, true);
    add_lane_sums(desk.pairs + row * STRIP, STRIP, some, begin, end, nullptr, totals + row);
    fresh = false;
  }
  if (tally.empty) {
    for (int64_t i = begin * columns; fresh && i < piece.end * columns; ++i) desk.outs[i] = 0.0f;
    return;
  }
  add_product<ACROSS>(queries + begin, STRIP, count, tally.sums, columns, columns / WIDE,
                      l.features, desk.outs + begin * columns, columns, fresh);
  float asked[STRIP];
  add_product<ALONG>(tally.totals, l.features, 1, queries, STRIP, LANE_VECTORS, l.features, asked,
                     STRIP, true);
  for (int64_t i = begin; i < piece.end; ++i) totals[i] += asked[i];
}

INLINE float divisor(float total) { return total == 0.0f ? 1.0f : total < LEAST ? LEAST : total; }

// Writes the outputs of a strip's queries.
static void put_out(const LinearCall &call, int64_t batch, int64_t head, int64_t first,
                    int64_t count, int64_t slice, int64_t columns, const float *outs,
                    const float *totals) {
  const Linear &l = call.l;
  int64_t from = slice * call.slice;
  int64_t width = l.value_width - from < call.slice ? l.value_width - from : call.slice;
  float *out = call.out + batch * l.out.batch + head * l.out.head + first * l.out.row + from;
  for (int64_t i = 0; i < count; ++i, out += l.out.row) {
    float by = 1.0f / divisor(totals[i]);
    for (int64_t e = 0; e < width; e += WIDE) {
      Wide v = read<Wide>(outs + i * columns + e) * by;
      if (e + WIDE <= width) write(out + e, v);
      else write_some(out + e, v, width - e);
    }
  }
  if (!call.totals || slice) return;
  float *to = call.totals + (batch * l.heads + head) * l.queries + first;
  for (int64_t i = 0; i < count; ++i) to[i] = totals[i];
}

// What a task reads: a head of keys, its slice of values, what hides and parts them.
struct Lane {
  int64_t batch, shared, slice, width, columns;
  Rows k, v;
  const uint8_t *seen;
  const int64_t *documents;
};

static Lane lane_of(const Linear &l, const float *k, const float *v, int64_t row, int64_t slice,
                    int64_t most) {
  Lane lane;
  lane.batch = row / l.kv_heads, lane.shared = row % l.kv_heads, lane.slice = slice;
  int64_t from = slice * most;
  lane.width = l.value_width - from < most ? l.value_width - from : most;
  lane.columns = whole_vectors(lane.width);
  lane.k = rows_of(k, l.k, lane.batch, lane.shared);
  lane.v = rows_of(v, l.v, lane.batch, lane.shared);
  lane.v.data += from;
  lane.seen = l.valid ? l.valid + lane.batch * l.keys : nullptr;
  lane.documents = l.documents ? l.documents + lane.batch * l.keys : nullptr;
  return lane;
}

static void place_strip(Strip &strip, int64_t first, int64_t end) {
  strip.first = first;
  strip.count = end - first < STRIP ? end - first : STRIP;
}

// Reads the keys of a strip, and its values [N, E]; `documents` where it is parted by them.
static void read_strip(const Linear &l, const Lane &lane, const int64_t *documents, float &level,
                       Strip &strip, float *turned, float *keys, float *values) {
  key_features(l, lane.k.data + strip.first * lane.k.row, lane.k.row, lane.seen, documents, level,
               strip, turned, keys);
  copy_rows<Full>({lane.v.data + strip.first * lane.v.row, lane.v.row}, strip.count, lane.width, 1.0f,
            strip.count, values);
}

// Adds keys begin to end - 1 to the tally.
static void tally_keys(const Linear &l, const Lane &lane, const int64_t *documents, int64_t begin,
                       int64_t end, LinearDesk &desk) {
  for (int64_t at = begin; at < end; at += STRIP) {
    place_strip(desk.strip, at, end);
    read_strip(l, lane, documents, desk.tally.level, desk.strip, desk.turned, desk.keys,
               desk.values);
    for (int64_t p = 0; p < desk.strip.pieces; ++p) {
      const Piece &piece = desk.strip.piece[p];
      fade(desk.tally, l.features, lane.columns, piece);
      add_to_tally(desk.tally, l.features, desk.keys, desk.values, lane.columns, piece.begin,
                   piece.end);
    }
  }
}

// Features of the queries of a strip, of every head that shares its keys.
static void read_queries(const Linear &l, const Lane &lane, const float *q, int64_t first,
                         int64_t count, float *turned, float *queries) {
  for (int64_t h = 0; h < group_of(l); ++h) {
    Rows rows = rows_of(q, l.q, lane.batch, lane.shared * group_of(l) + h);
    query_features(l, rows.data + first * rows.row, rows.row, count, turned,
                   queries + h * l.features * STRIP);
  }
}

static void causal_sums(const LinearCall &call, const Lane &lane, LinearDesk &desk) {
  const Linear &l = call.l;
  const int64_t early = l.keys - l.queries, group = group_of(l);
  tally_keys(l, lane, lane.documents, 0, early, desk);
  Strip &strip = desk.strip;
  for (int64_t at = early; at < l.keys; at += STRIP) {
    place_strip(strip, at, l.keys);
    read_strip(l, lane, lane.documents, desk.tally.level, strip, desk.turned, desk.keys,
               desk.values);
    read_queries(l, lane, call.q, at - early, strip.count, desk.turned, desk.queries);
    for (int64_t p = 0; p < strip.pieces; ++p) {
      const Piece &piece = strip.piece[p];
      fade(desk.tally, l.features, lane.columns, piece);
      for (int64_t h = 0; h < group; ++h) {
        float totals[STRIP];
        answer(l, desk.queries + h * l.features * STRIP, piece, true, lane.columns, desk, totals);
        put_out(call, lane.batch, lane.shared * group + h, at - early + piece.begin,
                piece.end - piece.begin, lane.slice, lane.columns,
                desk.outs + piece.begin * lane.columns, totals + piece.begin);
      }
      if (strip.first + piece.end < l.keys)
        add_to_tally(desk.tally, l.features, desk.keys, desk.values, lane.columns, piece.begin,
                     piece.end);
    }
  }
}

// The end of the document that begins at a position; of a sequence that is not parted.
INLINE int64_t document_end(const int64_t *documents, int64_t begin, int64_t length) {
  if (!documents) return length;
  int64_t end = begin + 1;
  while (end < length && documents[end] == documents[begin]) ++end;
  return end;
}

static void forget(Tally &tally) { tally.empty = true, tally.level = LOWEST; }

static void full_sums(const LinearCall &call, const Lane &lane, LinearDesk &desk) {
  const Linear &l = call.l;
  const int64_t group = group_of(l);
  for (int64_t begin = 0, end; begin < l.keys; begin = end) {
    end = document_end(lane.documents, begin, l.keys);
    forget(desk.tally);
    tally_keys(l, lane, nullptr, begin, end, desk);
    int64_t last = lane.documents ? end : l.queries;
    for (int64_t at = begin; at < last; at += STRIP) {
      int64_t count = last - at < STRIP ? last - at : STRIP;
      Piece all = {0, count, 0.0f, 1.0f};
      read_queries(l, lane, call.q, at, count, desk.turned, desk.queries);
      for (int64_t h = 0; h < group; ++h) {
        float totals[STRIP];
        answer(l, desk.queries + h * l.features * STRIP, all, false, lane.columns, desk, totals);
        put_out(call, lane.batch, lane.shared * group + h, at, count, lane.slice, lane.columns,
                desk.outs, totals);
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
  float *place = (float *)suffice::room_of_thread(numbers * sizeof(float));
  auto next = [&](int64_t count) {
    float *found = place;
    place += count;
    return found;
  };
  LinearDesk desk;
  desk.turned = next(l.width * STRIP);
  desk.keys = next(of_strip);
  desk.queries = next(group_of(l) * of_strip);
  desk.values = next(STRIP * columns);
  desk.outs = next(STRIP * columns);
  desk.pairs = next(STRIP * STRIP);
  desk.tally.sums = next(l.features * columns);
  desk.tally.totals = next(whole_vectors(l.features));
  suffice::Range range;
  while (team.take(l.batch * l.kv_heads * call.slices, 1, range)) {
    int64_t row = range.begin / call.slices, slice = range.begin % call.slices;
    Lane lane = lane_of(l, call.k, call.v, row, slice, call.slice);
    forget(desk.tally);
    if (l.causal) causal_sums(call, lane, desk);
    else full_sums(call, lane, desk);
  }
}

// So many threads as have a million products of numbers each.
INLINE int64_t threads_for(const Linear &l, int64_t threads) {
  int64_t each = l.features * (l.width + l.value_width + STRIP);
  int64_t worth = l.batch * (l.heads * l.queries + l.kv_heads * l.keys) * each / WORTH;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

static void linear_whole(const Linear *linear, const float *q, const float *k, const float *v,
                         float *out, float *totals, int64_t threads) {
  const Linear &l = *linear;
  LinearCall call{l, q, k, v, out, totals, 1, l.value_width};
  int64_t rows = l.batch * l.kv_heads;
  if (rows == 0 || l.queries == 0) return;
  threads = threads_for(l, threads);
  if (rows < threads) {  // the others take columns of the values
    int64_t wanted = (threads + rows - 1) / rows, most = whole_vectors(l.value_width) / WIDE;
    if (wanted > most) wanted = most;
    call.slice = padded_to((l.value_width + wanted - 1) / wanted, WIDE);
    call.slices = (l.value_width + call.slice - 1) / call.slice;
  }
  int64_t tasks = rows * call.slices;
  suffice::together((int)(tasks < threads ? tasks : threads), linear_worker, &call);
}

}  // namespace SUFFICE_ISA
