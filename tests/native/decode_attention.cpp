// Attention of a few queries to a cache.

#include <algorithm>

#include "cache.h"

namespace check {

void SpanData::fill(Case &c, int64_t kind, int64_t rows, int64_t heads, int64_t room, bool dense) {
  Random &random = c.random;
  const int64_t gap = dense ? 0 : random.up_to(3);
  const bool heads_inside = !dense && random.chance(2);  // [rows, room, heads, width]
  span.kind = kind;
  span.key_step = heads_inside ? heads * width + gap : width + gap;
  span.key_head = heads_inside ? width : room * span.key_step + random.up_to(5);
  span.key_row = (heads_inside ? room * span.key_step : heads * span.key_head) + random.up_to(5);
  span.value_step = span.key_step, span.value_head = span.key_head, span.value_row = span.key_row;
  const int64_t count = (rows - 1) * span.key_row + (heads - 1) * span.key_head +
                        (room - 1) * span.key_step + width;
  keys = Numbers(c, kind, count);
  if (!tied) values = Numbers(c, kind, count);
  span.keys = keys.data();
  span.values = tied ? span.keys : values.data();
}

static int64_t codes_per_byte(int64_t kind) { return kind == INT8 ? 1 : 2; }
static double largest_step(int64_t kind) { return 4.0 / (kind == INT8 ? 255 : 15); }

void SpanData::fill_codes(Case &c, int64_t kind, int64_t value_kind, int64_t rows, int64_t heads,
                          int64_t blocks) {
  Random &random = c.random;
  const int64_t room = blocks * block, groups = (width + group - 1) / group;
  const int64_t key_bytes = width / codes_per_byte(kind);
  const int64_t value_bytes = groups * group / codes_per_byte(value_kind);
  span.kind = kind, span.value_kind = value_kind;
  span.key_head = room * key_bytes, span.key_row = heads * span.key_head + random.up_to(9);
  span.key_range_head = blocks * 2 * width;
  span.key_range_row = heads * span.key_range_head + random.up_to(9);
  key_codes = c.buffer<uint8_t>((rows - 1) * span.key_row + heads * span.key_head);
  key_ranges = c.buffer<float>((rows - 1) * span.key_range_row + heads * span.key_range_head);
  const bool extremes = random.chance(4);
  auto draw = [&](Buffer<uint8_t> &codes) {
    for (uint8_t &byte : codes)
      byte = (uint8_t)(extremes ? (random.chance(8) ? 0 : 255) : random.up_to(255));
  };
  draw(key_codes);
  for (int64_t i = 0; i < key_ranges.size(); ++i) key_ranges[i] = 1.0f;
  auto draw_rows = [&](Buffer<float> &ranges, int64_t row, int64_t head, int64_t heads_stride,
                       int64_t row_stride, int64_t count, int64_t each, double steps) {
    float *at = ranges.data() + row * row_stride + head * heads_stride;
    for (int64_t i = 0; i < count; ++i)
      at[i] = (float)(i / each % 2 ? steps * random.uniform(0.5, 1.0) : -random.uniform(1.0, 2.0));
  };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h)
      draw_rows(key_ranges, r, h, span.key_range_head, span.key_range_row, blocks * 2 * width, width,
                largest_step(kind));
  if (!tied) {
    const int64_t each = block * groups;
    span.value_head = room * value_bytes, span.value_row = heads * span.value_head + random.up_to(9);
    span.value_range_head = blocks * 2 * each;
    span.value_range_row = heads * span.value_range_head + random.up_to(9);
    value_codes = c.buffer<uint8_t>((rows - 1) * span.value_row + heads * span.value_head);
    value_ranges = c.buffer<float>((rows - 1) * span.value_range_row + heads * span.value_range_head);
    draw(value_codes);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < heads; ++h)
        draw_rows(value_ranges, r, h, span.value_range_head, span.value_range_row, blocks * 2 * each,
                  each, largest_step(value_kind));
    value_codes.freeze();
    value_ranges.freeze();
  }
  key_codes.freeze();
  key_ranges.freeze();
  span.keys = key_codes.data();
  span.key_ranges = key_ranges.data();
  span.values = tied ? key_codes.data() : value_codes.data();
  span.value_ranges = tied ? key_ranges.data() : value_ranges.data();
  if (tied) {
    span.value_row = span.key_row, span.value_head = span.key_head;
    span.value_range_row = span.key_range_row, span.value_range_head = span.key_range_head;
  }
}

static double code(int64_t kind, const uint8_t *codes, int64_t at) {
  if (kind == INT8) return codes[at];
  return at % 2 ? codes[at / 2] >> 4 : codes[at / 2] & 15;
}

double SpanData::key(int64_t row, int64_t head, int64_t at, int64_t channel) const {
  if (!coded()) return keys.get(row * span.key_row + head * span.key_head + at * span.key_step + channel);
  const uint8_t *codes = key_codes.data() + row * span.key_row + head * span.key_head;
  const float *ranges = key_ranges.data() + row * span.key_range_row + head * span.key_range_head +
                        at / block * 2 * width + channel;
  return ranges[0] + (double)ranges[width] * code(span.kind, codes, at * width + channel);
}

double SpanData::value(int64_t row, int64_t head, int64_t at, int64_t channel) const {
  if (tied) return key(row, head, at, channel);
  if (!coded())
    return values.get(row * span.value_row + head * span.value_head + at * span.value_step + channel);
  const int64_t groups = (width + group - 1) / group, each = block * groups;
  const uint8_t *codes = value_codes.data() + row * span.value_row + head * span.value_head;
  const float *ranges = value_ranges.data() + row * span.value_range_row +
                        head * span.value_range_head + at / block * 2 * each + at % block * groups +
                        channel / group;
  return ranges[0] + (double)ranges[each] * code(span.value_kind, codes, at * groups * group + channel);
}

void TextCache::fill(Case &c, int64_t rows, int64_t heads_, int64_t width_, int64_t most, bool dense) {
  Random &random = c.random;
  heads = heads_, width = width_, tied = random.chance(4);
  const int64_t kind = random.one_of<int64_t>({F32, F16, BF16});
  const int64_t codes = random.chance(2) ? (width % 2 || random.chance(2) ? INT8 : INT4) : ABSENT;
  const int64_t others = random.chance(2) ? codes : codes == INT8 && width % 2 == 0 ? INT4 : INT8;
  const int64_t value_codes = tied || codes == ABSENT ? codes : others;
  cache.block = codes == ABSENT ? 1 : random.one_of<int64_t>({1, 16, 32, 64, 128, random.between(1, 70)});
  cache.group = 1;
  if (codes != ABSENT) {
    cache.group = random.one_of<int64_t>({16, 32, 64, 128, 2 * random.between(1, 20)});
    cache.group = std::min(cache.group, width);
    if (value_codes == INT4 && cache.group % 2) --cache.group;
  }
  for (SpanData *s : {&sinks, &coded, &near})
    s->width = width, s->tied = tied, s->block = cache.block, s->group = cache.group;

  // the text: what was dropped, what is coded, what is near
  int64_t text = random.chance(2) ? random.up_to(40) : 0;
  if (codes != ABSENT) {
    const int64_t blocks = random.between(0, std::max<int64_t>(1, most / 2 / cache.block));
    text = text / cache.block * cache.block;
    const int64_t spare = random.up_to(1) * cache.block;  // before what is there
    coded.fill_codes(c, codes, value_codes, rows, heads, blocks + spare / cache.block + random.up_to(1) + !blocks);
    coded.span.shift = text - spare;
    coded.span.first = spare + (blocks ? random.up_to(std::min<int64_t>(3, cache.block - 1)) : 0);
    coded.span.end = spare + blocks * cache.block;
    if (!blocks) coded.span.first = coded.span.end;
    text += blocks * cache.block;
  }
  const int64_t count = random.between(1, random.chance(3) ? most : std::min<int64_t>(most, 90));
  near.span.first = random.up_to(5), near.span.end = near.span.first + count;
  const int64_t room = near.span.end + random.up_to(3);
  near.fill(c, kind, rows, heads, room, dense);
  near.span.shift = text - near.span.first;
  const int64_t oldest = codes == ABSENT ? text : coded.span.first + coded.span.shift;
  if (oldest > 0 && random.chance(2)) {
    sinks.span.end = random.between(1, std::min<int64_t>(oldest, codes == ABSENT ? 8 : cache.block));
    const int64_t first = random.chance(3) ? random.up_to(sinks.span.end - 1) : 0;
    const int64_t end = sinks.span.end;
    if (codes != ABSENT && random.chance(2)) sinks.fill_codes(c, codes, value_codes, rows, heads, 1);
    else sinks.fill(c, kind, rows, heads, end, true);
    sinks.span.first = first;
  }
  cache.sinks = sinks.span, cache.coded = coded.span, cache.near = near.span;
  step = codes == ABSENT ? 0.0 : std::max(largest_step(codes), largest_step(value_codes));
  c.say("%s near [%lld, %lld), %s and %s coded [%lld, %lld), %s sinks [%lld, %lld), block %lld, group %lld%s, "
        "width %lld, %lld keys' heads, %lld rows, ",
        name_of(kind), (long long)near.span.first, (long long)near.span.end, name_of(codes), name_of(value_codes),
        (long long)coded.span.first, (long long)coded.span.end, name_of(sinks.span.kind),
        (long long)sinks.span.first, (long long)sinks.span.end, (long long)cache.block,
        (long long)cache.group, tied ? ", tied" : "", (long long)width, (long long)heads,
        (long long)rows);
}

int64_t TextCache::longest() const {
  int64_t most = 0;
  for (const Span *s : {&cache.sinks, &cache.coded, &cache.near}) most = std::max(most, s->end - s->first);
  return most;
}

void decode_attention_case(Case &c) {
  Random &random = c.random;
  const int64_t rows = random.between(1, 3), groups = random.between(1, 3);
  const int64_t width = random.chance(2) ? random.one_of<int64_t>({32, 64, 128, 256, 512})
                                         : random.between(1, 150);
  const int64_t queries = random.chance(2) ? 1 : random.between(2, 8);
  const int64_t shared = random.between(1, std::min<int64_t>(9, 128 / queries)), heads = groups * shared;
  const int64_t most = std::max<int64_t>(20, std::min<int64_t>(1500, 1000000 / (rows * heads * queries * width)));
  TextCache text;
  text.fill(c, rows, groups, width, most, false);
  const int64_t length = text.length();
  const bool nothing = random.chance(20);  // no key at all
  if (nothing)
    for (Span *s : {&text.sinks.span, &text.coded.span, &text.near.span}) s->first = s->end;
  text.cache.sinks = text.sinks.span, text.cache.coded = text.coded.span, text.cache.near = text.near.span;

  Buffer<float> q = c.normals(rows * heads * queries * width);
  q.freeze();
  // values may be the first features of what keys are
  const bool prefix = text.tied && text.cache.coded.end == 0 && random.chance(2);
  Kernel kernel;
  kernel.value_width = prefix ? random.between(1, width) : width;
  if (random.chance(3)) kernel.cap = (float)random.uniform(0.3, 5.0);
  Buffer<float> out = c.unwritten(rows * queries * heads * kernel.value_width), slopes, logits;
  Buffer<int64_t> places, padding, q_at, k_at;
  Buffer<uint8_t> allowed;
  const int64_t everything = int64_t(1) << 40;
  DecodeAttention attention = {};
  attention.q = q.data(), attention.out = out.data();
  attention.heads = heads, attention.kv_heads = groups, attention.head_dim = width, attention.queries = queries;
  attention.value_dim = kernel.value_width, attention.cap = (float)kernel.cap;
  if (random.chance(3)) logits = c.normals(heads), attention.logits = logits.data();
  attention.scale = (float)(1.0 / sqrt((double)width));
  attention.before = random.chance(3) ? random.up_to(2 * length) : everything;
  attention.after = random.chance(3) ? everything : random.chance(4) ? random.up_to(5) : 0;
  if (random.chance(3)) {
    slopes = c.buffer<float>(heads);
    for (float &slope : slopes) slope = (float)random.uniform(0.0, 0.5);
    attention.slopes = slopes.data();
  }
  if (random.chance(3)) {
    padding = c.buffer<int64_t>(rows);
    for (int64_t &n : padding) n = random.up_to(std::max<int64_t>(0, length - queries));
    attention.padding = padding.data();
  }
  auto padded = [&](int64_t row) { return attention.padding ? attention.padding[row] : 0; };
  auto last_place = [&](int64_t row) { return length - padded(row) - queries; };
  if (random.chance(4)) {
    places = c.buffer<int64_t>(rows);
    for (int64_t r = 0; r < rows; ++r) places[r] = last_place(r) - random.up_to(3);
    attention.places = places.data();
  }
  const int64_t allowed_gap = random.up_to(3);
  if (random.chance(3)) {  // [rows, heads or 1, queries, length]
    const bool one_head = random.chance(2), one_row = random.chance(3);
    attention.allowed_query = length + allowed_gap;
    attention.allowed_head = one_head ? 0 : queries * attention.allowed_query;
    attention.allowed_row = one_row ? 0 : (one_head ? 1 : heads) * queries * attention.allowed_query;
    allowed = c.buffer<uint8_t>(((one_row ? 1 : rows) * (one_head ? 1 : heads) * queries - 1) *
                                    attention.allowed_query + length);
    const int64_t hidden = random.one_of<int64_t>({1, 2, 10});
    for (uint8_t &seen : allowed) seen = hidden == 1 ? 0 : !random.chance(hidden);
    attention.allowed = allowed.data();
  }
  if (random.chance(5)) {
    q_at = c.buffer<int64_t>(rows * queries), k_at = c.buffer<int64_t>(rows * length);
    for (int64_t &at : q_at) at = random.up_to(length);
    for (int64_t &at : k_at) at = random.up_to(length);
    attention.q_at = q_at.data(), attention.k_at = k_at.data(), attention.keys = length;
  }
  // the last position is seen by the last query
  const bool odd = random.chance(8) && !nothing && !attention.allowed && !attention.places;
  if (odd) {
    const Span &s = text.near.span;
    const int64_t at = random.up_to(rows - 1) * s.key_row + random.up_to(groups - 1) * s.key_head +
                       (s.end - 1) * s.key_step + random.up_to(width - 1);
    // an infinite key may have the score -inf for all, which is a weight of 0
    if (random.chance(2) || text.tied) text.near.keys.set(at, NAN);
    else text.near.values.set(at, random.one_of<double>({NAN, INFINITY}));
  }
  text.near.keys.freeze();
  if (!text.tied) text.near.values.freeze();
  c.say("%lld heads, %lld queries, before %lld, after %lld, values %lld, cap %g%s%s%s%s%s%s%s%s, %lld threads", (long long)heads,
        (long long)queries, (long long)attention.before, (long long)attention.after, (long long)attention.value_dim, attention.cap,
        attention.logits ? ", sinks" : "", attention.slopes ? ", slopes" : "",
        attention.padding ? ", padding" : "", attention.places ? ", places" : "", attention.allowed ? ", mask" : "",
        attention.k_at ? ", positions" : "", odd ? ", no number" : "", nothing ? ", no key" : "",
        (long long)c.threads);

  const int returned = suffice_decode_attention(&attention, &text.cache, rows, c.threads);
  c.intact(out);
  if (odd) return c.expect(returned == 1, "what is no number was not told of");
  c.expect(returned == 0, "returned 1 although all numbers are finite");

  std::vector<double> expected(out.size()), bounds(out.size());
  double most_query = 0.0;
  for (float x : q) most_query = std::max(most_query, (double)fabsf(x));
  // queries have codes of 16 bits, half a step of which is off in each of the channels
  const double coded = text.step * most_query * attention.scale / (2 * 16256.0) * (text.step > 0.1 ? 15 : 255) *
                       4.0 * sqrt((double)width);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < queries; ++t) {
        std::vector<double> query(width);
        for (int64_t d = 0; d < width; ++d)
          query[d] = (double)q[((row * heads + h) * queries + t) * width + d] * attention.scale;
        const int64_t place = (attention.places ? attention.places[row] : last_place(row)) + t;
        auto extra = [&](const Span &s, int64_t at) {
          const int64_t here = at + s.shift, own = here - padded(row);
          if (own < 0 || own < place - attention.before || own > place + attention.after) return -(double)INFINITY;
          if (attention.allowed && !attention.allowed[row * attention.allowed_row + h * attention.allowed_head +
                                            t * attention.allowed_query + here])
            return -(double)INFINITY;
          if (!attention.slopes) return 0.0;
          const int64_t distance = attention.k_at ? attention.q_at[row * queries + t] - attention.k_at[row * length + here]
                                             : place - own;
          return -(double)attention.slopes[h] * fabs((double)distance);
        };
        double *to = &expected[((row * queries + t) * heads + h) * kernel.value_width];
        kernel.logit = attention.logits ? attention.logits + h : nullptr;
        const double size = attend_to(text, row, h / shared, query.data(), extra, to, kernel);
        double bound = 8.0 * (4e-6 + 4e-7 * size + 2.0 * coded + (text.step > 0.0 ? 2e-4 : 0.0));
        for (int64_t d = 0; d < kernel.value_width; ++d) bounds[to - expected.data() + d] = bound;
      }
  c.close("outputs", out.data(), expected.data(), bounds.data(), out.size());
}

}  // namespace check
