// One token of each row through a small decoder.

#include <algorithm>

#include "cache.h"

namespace check {

typedef std::vector<double> Row;

struct NormData {
  Buffer<float> weight, bias;
  Norm norm = {};

  NormData() = default;
  NormData(Case &c, int64_t width) {
    if (!c.random.chance(4)) weight = c.normals(width), weight.freeze(), norm.weight = weight.data();
    if (c.random.chance(2)) bias = c.normals(width), bias.freeze(), norm.bias = bias.data();
  }

  static Row apply(const Norm &norm, bool root_mean_square, double eps, const double *x, int64_t width) {
    double mean = 0.0, square = 0.0;
    for (int64_t i = 0; i < width && !root_mean_square; ++i) mean += x[i] / (double)width;
    for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean) / (double)width;
    Row y(width);
    for (int64_t i = 0; i < width; ++i) {
      y[i] = (x[i] - mean) / sqrt(square + eps);
      if (norm.weight) y[i] *= norm.weight[i];
      if (norm.bias) y[i] += norm.bias[i];
    }
    return y;
  }
};

static bool gated(int64_t activation) { return activation == SWIGLU || activation >= GEGLU; }

struct LayerData {
  NormData attention_norm, mlp_norm, attention_out_norm, mlp_out_norm;
  Weights q, k, v, o, gate, up, down;
  Buffer<float> cosines, sines, slopes, q_gains, k_gains, logits;
  TextCache text;
  // mixing of values
  Buffer<float> mix_weights, mix_bias;
  Buffer<int64_t> first, count, offset;
  Numbers raw;
  int64_t raw_room = 0;
};

static double activated(int64_t activation, double x, double gate) {
  auto gelu = [](double y) { return 0.5 * y * (1.0 + erf(y / sqrt(2.0))); };
  auto gelu_tanh = [](double y) { return 0.5 * y * (1.0 + tanh(sqrt(2.0 / PI) * (y + 0.044715 * y * y * y))); };
  switch (activation) {
    case GELU: return gelu(x);
    case RELU: return x > 0.0 ? x : 0.0;
    case GELU_TANH: return gelu_tanh(x);
    case TANH: return tanh(x);
    case GEGLU: return x * gelu(gate);
    case GEGLU_TANH: return x * gelu_tanh(gate);
    default: return x * gate / (1.0 + exp(-gate));
  }
}

struct Decoder {
  Case &c;
  Random &random;
  int64_t rows, unit = 1, length = 0;
  bool coded = false, out_norms = false;
  Model model = {};
  std::vector<int64_t> kinds;
  std::deque<LayerData> data;
  std::vector<Layer> layers;
  std::vector<KVCache> caches;
  std::vector<Mixing> mixes;
  NormData norm;
  Weights embedding, head;
  Buffer<float> positions;
  Buffer<int64_t> tokens, places, padding;

  explicit Decoder(Case &c) : c(c), random(c.random) {}

  Weights weights(int64_t outputs, int64_t inputs, bool biased) {
    const int64_t kind = kinds[random.up_to((int64_t)kinds.size() - 1)];
    return Weights(c, kind, outputs, inputs, kind < INT8 ? 0 : unit, biased);
  }

  void draw_mixing(LayerData &d, Mixing &mix, int64_t groups, int64_t width) {
    const Span &near = d.text.near.span;
    if (d.text.tied || !random.chance(3)) return;
    const bool maps = random.chance(2);
    const int64_t length = random.between(1, 9), biases = random.between(1, 9);
    d.mix_weights = c.normals((maps ? groups : 1) * length, 0.5);
    mix.weights = d.mix_weights.data(), mix.map = maps ? length : 0;
    if (random.chance(2)) {
      d.mix_bias = c.normals((maps ? groups : 1) * biases);
      mix.bias = d.mix_bias.data(), mix.bias_map = maps ? biases : 0;
    }
    d.raw_room = length + random.up_to(3);
    mix.at = length - 1;
    mix.head = d.raw_room * width, mix.row = groups * mix.head + random.up_to(5);
    d.raw = Numbers(c, near.kind, (rows - 1) * mix.row + groups * mix.head);
    mix.raw = d.raw.data();
    for (Buffer<int64_t> *one : {&d.first, &d.count, &d.offset}) *one = c.buffer<int64_t>(rows);
    for (int64_t r = 0; r < rows; ++r) {
      d.count[r] = random.between(1, length), d.first[r] = random.up_to(length - d.count[r]);
      d.offset[r] = random.up_to(biases - 1);
    }
    mix.first = d.first.data(), mix.count = d.count.data(), mix.offset = d.offset.data();
  }

  // `maker`: the layer whose cache this one reads; null = it keeps keys and values of its own.
  void draw_layer(LayerData &d, Layer &layer, Mixing &mix, const Layer *maker) {
    layer = {}, mix = {};
    int64_t width = coded ? unit * random.between(1, 2) : random.between(1, 40);
    int64_t groups = random.between(1, 3);
    const int64_t shared = random.between(1, 3);
    if (maker) width = maker->head_dim, groups = maker->kv_heads;
    layer.heads = groups * shared, layer.kv_heads = groups, layer.head_dim = layer.value_dim = width;
    layer.maps = 1;
    if (random.chance(3)) layer.cap = (float)random.uniform(0.3, 5.0);
    if (random.chance(3)) d.logits = c.normals(layer.heads), layer.logits = d.logits.data();
    layer.scale = 1.0f / sqrtf((float)width);
    d.attention_norm = NormData(c, model.d_model), d.mlp_norm = NormData(c, model.d_model);
    layer.attention_norm = d.attention_norm.norm, layer.mlp_norm = d.mlp_norm.norm;
    for (auto &[norm, to] : {std::pair<NormData &, Norm &>{d.attention_out_norm, layer.attention_out_norm},
                             {d.mlp_out_norm, layer.mlp_out_norm}})
      if (out_norms) {
        norm = NormData(c, model.d_model);
        if (!norm.norm.weight) norm.weight = c.normals(model.d_model), norm.norm.weight = norm.weight.data();
        to = norm.norm;
      }
    const bool columns = groups * width <= model.d_model && random.chance(2);
    layer.k.kind = layer.v.kind = ABSENT;
    d.q = weights(layer.heads * width, model.d_model, random.chance(2)), layer.q = d.q.matrix;
    layer.reads_another = maker != nullptr;
    if (!maker && !columns) d.k = weights(groups * width, model.d_model, random.chance(2)), layer.k = d.k.matrix;
    if (!maker && (!columns || random.chance(2)))
      d.v = weights(groups * width, model.d_model, random.chance(2)), layer.v = d.v.matrix;
    d.o = weights(model.d_model, layer.heads * width, random.chance(2)), layer.o = d.o.matrix;
    d.up = weights(model.width, model.d_model, random.chance(2)), layer.up = d.up.matrix;
    layer.gate.kind = ABSENT;
    if (gated(model.activation))
      d.gate = weights(model.width, model.d_model, random.chance(2)), layer.gate = d.gate.matrix;
    d.down = weights(model.d_model, model.width, random.chance(2)), layer.down = d.down.matrix;
    if (!maker) {
      d.text.fill(c, rows, groups, width, random.chance(3) ? 700 : 40, true);
      length = std::max(length, d.text.length());
      draw_mixing(d, mix, groups, width);
    }
    if (random.chance(3)) {
      d.slopes = c.buffer<float>(layer.heads);
      for (float &slope : d.slopes) slope = (float)random.uniform(0.0, 0.5);
      layer.slopes = d.slopes.data();
    }
    if (random.chance(3)) {
      layer.head_norm = random.one_of<int64_t>({HEAD_RMS, HEAD_LAYER, PROJECTION_RMS});
      const bool each = layer.head_norm != HEAD_RMS;
      d.q_gains = c.normals(each ? layer.heads * width : width);
      d.k_gains = c.normals(each ? groups * width : width);
      layer.q_gains = d.q_gains.data(), layer.k_gains = d.k_gains.data(), layer.gain_eps = 1e-5f;
    }
  }

  // Once all texts are there: the tables of rotations reach as far as the longest.
  void draw_turns(LayerData &d, Layer &layer) {
    layer.turn = layer.head_dim < 2 ? STAY : random.one_of<int32_t>({STAY, HALVES, PAIRS});
    if (layer.turn == STAY) return;
    layer.turning = 2 * random.between(1, layer.head_dim / 2);
    d.cosines = c.normals(length * layer.turning, 0.7), d.sines = c.normals(length * layer.turning, 0.7);
    layer.cosines = d.cosines.data(), layer.sines = d.sines.data();
  }

  void draw() {
    rows = random.between(1, random.one_of({1, 3, 9}));
    coded = random.chance(2);
    const bool mixed = random.chance(3);
    if (coded) unit = random.one_of<int64_t>({8, 16, 32});
    const int64_t numbers = random.one_of<int64_t>({F32, F16, BF16});
    const int64_t codes = random.one_of<int64_t>({INT8, INT4});
    kinds = !coded ? std::vector<int64_t>{numbers} : std::vector<int64_t>{codes};
    if (mixed) kinds = coded ? std::vector<int64_t>{F32, F16, BF16, INT8, INT4} : std::vector<int64_t>{F32, F16, BF16};
    model.depth = random.between(1, 2);
    model.d_model = coded ? unit * random.between(1, 4) : random.between(1, 70);
    model.width = coded ? unit * random.between(1, 5) : random.between(1, 100);
    model.vocabulary = random.between(1, 90);
    model.root_mean_square = random.up_to(1);
    model.activation = random.one_of({GELU, RELU, SWIGLU, GELU_TANH, TANH, GEGLU, GEGLU_TANH});
    out_norms = random.chance(3);
    if (random.chance(3)) model.logit_cap = (float)random.uniform(0.3, 5.0);
    model.residual = random.one_of<int64_t>({PRE, PRE, OUT, PARALLEL});
    model.eps = 1e-5f;
    c.say("depth %lld, width %lld, MLP %lld, %lld tokens, %s weights%s, %lld rows, %lld threads, ",
          (long long)model.depth, (long long)model.d_model, (long long)model.width,
          (long long)model.vocabulary, name_of(kinds[0]), mixed ? " and others" : "", (long long)rows,
          (long long)c.threads);
    layers.resize(model.depth), mixes.resize(model.depth), caches.resize(model.depth);
    data.resize(model.depth);
    for (int64_t i = 0; i < model.depth; ++i)
      draw_layer(data[i], layers[i], mixes[i], i && random.chance(2) ? &layers[0] : nullptr);
    // every cache holds the same text: what the shorter ones lack was dropped
    for (int64_t i = 0; i < model.depth; ++i) {
      if (layers[i].reads_another) continue;
      LayerData &d = data[i];
      const int64_t more = d.text.coded.coded() ? (length - d.text.length()) / d.text.cache.block * d.text.cache.block
                                                : length - d.text.length();
      d.text.near.span.shift += length - d.text.length();
      d.text.coded.span.shift += more;
      d.text.cache.near = d.text.near.span, d.text.cache.coded = d.text.coded.span;
    }
    for (int64_t i = 0; i < model.depth; ++i) {
      caches[i] = text_of(i).cache;
      draw_turns(data[i], layers[i]);
    }
    model.layers = layers.data();
    embedding = weights(model.vocabulary, model.d_model, false), model.embedding = embedding.matrix;
    head = weights(model.vocabulary, model.d_model, random.chance(2)), model.head = head.matrix;
    norm = NormData(c, model.d_model), model.norm = norm.norm;
    if (random.chance(2)) positions = c.normals(length * model.d_model), model.positions = positions.data();
    for (Buffer<int64_t> *one : {&tokens, &places, &padding}) *one = c.buffer<int64_t>(rows);
    for (int64_t r = 0; r < rows; ++r) {
      tokens[r] = random.up_to(model.vocabulary - 1);
      padding[r] = random.chance(2) ? 0 : random.up_to(length - 1);
      places[r] = length - 1 - padding[r];
    }
  }

  // Queries or keys [rows, step], of which `heads` of a layer are normalised where it says so.
  Row head_normed(const Layer &layer, const float *gains, int64_t heads, int64_t step, Row x) const {
    if (!gains) return x;
    const int64_t width = layer.head_dim, all = layer.head_norm == PROJECTION_RMS ? heads * width : width;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t at = 0; at < heads * width; at += all) {
        double *part = &x[r * step + at];
        const float *own = gains + (layer.head_norm == HEAD_LAYER ? at : 0);
        const Row y = NormData::apply({own, nullptr}, layer.head_norm != HEAD_LAYER, layer.gain_eps, part, all);
        std::copy(y.begin(), y.end(), part);
      }
    return x;
  }

  static Row turned(const Layer &layer, int64_t place, const double *x) {
    const int64_t width = layer.head_dim, n = layer.turn == STAY ? 0 : layer.turning;
    Row from(x, x + width);
    Row to = from;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t partner = layer.turn == PAIRS ? i ^ 1 : i < n / 2 ? i + n / 2 : i - n / 2;
      to[i] = from[i] * layer.cosines[place * n + i] + from[partner] * layer.sines[place * n + i];
    }
    return to;
  }

  // Compares what was stored with what it should be, and stores that.
  void put(const char *what, Numbers &numbers, int64_t at, const Row &row) {
    double size = largest(row);
    for (size_t i = 0; i < row.size(); ++i) {
      const double stored = numbers.get(at + (int64_t)i);
      if (!(fabs(stored - row[i]) <= bound() * (1.0 + size)))
        return c.fail("%s: number %zu is %g, not %g", what, i, stored, row[i]);
      numbers.set(at + (int64_t)i, row[i]);
    }
    ++c.checks;
  }

  double bound() const {
    double most = coded ? 3e-2 : 2e-4;
    for (size_t i = 0; i < data.size(); ++i) {
      const TextCache &text = text_of(i);
      const int64_t kind = text.near.span.kind;
      most = std::max(most, kind == BF16 ? 2e-2 : kind == F16 ? 2e-3 : text.step > 0.0 ? 2e-3 : 0.0);
    }
    return most;
  }

  const TextCache &text_of(size_t i) const { return data[layers[i].reads_another ? 0 : i].text; }

  void keep(LayerData &d, const Layer &layer, const Mixing &mix, int64_t row, int64_t group,
            const double *key, const double *value) {
    const int64_t width = layer.head_dim;
    SpanData &near = d.text.near;
    const Span &span = near.span;
    put("key", near.keys, row * span.key_row + group * span.key_head + (span.end - 1) * width,
        turned(layer, places[row], key));
    if (d.text.tied) return;
    Row stored(value, value + width);
    if (mix.weights) {
      const int64_t base = row * mix.row + group * mix.head, count = d.count[row];
      put("unmixed value", d.raw, base + mix.at * width, stored);
      for (int64_t i = 0; i < width; ++i) {
        stored[i] = mix.bias ? mix.bias[group * mix.bias_map + d.offset[row]] : 0.0;
        for (int64_t j = 0; j < count; ++j)
          stored[i] += mix.weights[group * mix.map + d.first[row] + j] *
                       d.raw.get(base + (mix.at + 1 - count + j) * width + i);
      }
    }
    put("value", near.values, row * span.value_row + group * span.value_head + (span.end - 1) * width,
        stored);
  }

  void add(Row &x, const Weights &map, const Norm &norm, const Row &y) const {
    Row more = map.times(y, rows);
    if (norm.weight) more = normed(norm, more);
    for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
  }

  Row read(const Norm &one, const Row &x) const { return model.residual == OUT ? x : normed(one, x); }

  Row normed(const Norm &one, const Row &x) const {
    Row all;
    for (int64_t r = 0; r < rows; ++r) {
      const Row y = NormData::apply(one, model.root_mean_square, model.eps, &x[r * model.d_model], model.d_model);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

  void attention(LayerData &d, const TextCache &text, const Layer &layer, const Mixing &mix, Row &x) {
    const int64_t width = layer.head_dim, H = layer.heads, G = layer.kv_heads;
    const Row in = read(layer.attention_norm, x);
    const Row q = head_normed(layer, layer.q_gains, H, H * width, d.q.times(in, rows));
    const Row unnormed = layer.k.kind == ABSENT ? in : d.k.times(in, rows);
    const Row v = layer.v.kind == ABSENT ? in : d.v.times(in, rows);
    const int64_t grad_k = layer.k.kind == ABSENT ? model.d_model : G * width;
    const Row k = layer.reads_another ? unnormed : head_normed(layer, layer.k_gains, G, grad_k, unnormed);
    const int64_t grad_v = layer.v.kind == ABSENT ? model.d_model : G * width;
    Row out(rows * H * width);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < G && !layer.reads_another; ++g)
        keep(d, layer, mix, r, g, &k[r * grad_k + g * width], &v[r * grad_v + g * width]);
      for (int64_t h = 0; h < H; ++h) {
        Row query = turned(layer, places[r], &q[(r * H + h) * width]);
        for (double &number : query) number *= layer.scale;
        auto extra = [&](const Span &s, int64_t at) {
          const int64_t own = at + s.shift - padding[r];
          if (own < 0) return -(double)INFINITY;
          return layer.slopes ? -layer.slopes[h] * fabs((double)(places[r] - own)) : 0.0;
        };
        attend_to(text, r, h / (H / G), query.data(), extra, &out[(r * H + h) * width],
                  {layer.cap, layer.logits ? layer.logits + h : nullptr});
      }
    }
    add(x, d.o, layer.attention_out_norm, out);
  }

  void feed_forward(const LayerData &d, const Layer &layer, const Row &before, Row &x) const {
    const Row in = read(layer.mlp_norm, model.residual == PARALLEL ? before : x);
    Row up = d.up.times(in, rows), gate(up.size());
    if (gated(model.activation)) gate = d.gate.times(in, rows);
    for (size_t i = 0; i < up.size(); ++i) up[i] = activated(model.activation, up[i], gate[i]);
    add(x, d.down, layer.mlp_out_norm, up);
  }

  Row run() {
    const int64_t width = model.d_model;
    Row x(rows * width);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) {
        x[r * width + i] = embedding.values[tokens[r] * width + i];
        if (model.positions) x[r * width + i] += model.positions[places[r] * width + i];
      }
    for (int64_t i = 0; i < model.depth; ++i) {
      const Row before = x;
      attention(data[i], text_of(i), layers[i], mixes[i], x);
      feed_forward(data[i], layers[i], before, x);
    }
    Row logits = head.times(normed(model.norm, x), rows);
    for (double &logit : logits)
      if (model.logit_cap > 0.0f) logit = model.logit_cap * tanh(logit / model.logit_cap);
    return logits;
  }
};

// The last positions once more, in one call, beside a call for each of them.
static void piece_case(Decoder &decoder, int64_t longest) {
  Case &c = decoder.c;
  const int64_t rows = decoder.rows, width = decoder.model.d_model;
  int64_t queries = c.random.between(2, 20);
  for (size_t i = 0; i < decoder.caches.size(); ++i) {
    const KVCache &cache = decoder.caches[i];
    if (decoder.mixes[i].weights || cache.sinks.end > cache.sinks.first) return;
    queries = std::min(queries, cache.near.end - cache.near.first);
    decoder.layers[i].before = int64_t{1} << 40;
  }
  if (queries < 2) return;
  Buffer<int64_t> tokens = c.buffer<int64_t>(rows * queries), token = c.buffer<int64_t>(rows),
                  places = c.buffer<int64_t>(rows);
  for (int64_t &id : tokens) id = c.random.up_to(decoder.model.vocabulary - 1);
  Buffer<char> room = c.buffer<char>(
      suffice_step_room(&decoder.model, rows * queries, longest, c.threads));
  Buffer<float> piece = c.unwritten(rows * queries * width), features = c.unwritten(rows * width);
  const auto step = [&](const std::vector<KVCache> &caches, int64_t *ids, int64_t count, float *to) {
    for (char &byte : room) byte = (char)0xff;
    suffice_step(&decoder.model, caches.data(), decoder.mixes.data(), ids, places.data(),
                 decoder.padding.data(), rows, count, longest, to, nullptr, room.data(), c.threads);
  };
  for (int64_t r = 0; r < rows; ++r) places[r] = decoder.places[r] + 1 - queries;
  step(decoder.caches, tokens.data(), queries, piece.data());
  c.intact(piece);
  c.intact(room);
  for (int64_t t = 0; t < queries; ++t) {
    std::vector<KVCache> caches = decoder.caches;
    for (KVCache &cache : caches) cache.near.end -= queries - 1 - t;
    for (int64_t r = 0; r < rows; ++r)
      token[r] = tokens[r * queries + t], places[r] = decoder.places[r] + 1 - queries + t;
    step(caches, token.data(), 1, features.data());
    for (int64_t r = 0; r < rows; ++r) {
      if (places[r] < 0) continue;  // padding
      const Row expected(&features[r * width], &features[(r + 1) * width]);
      c.close("piece", &piece[(r * queries + t) * width], expected,
              decoder.bound() * (1.0 + largest(expected)));
    }
  }
}

void step_case(Case &c) {
  Decoder decoder(c);
  decoder.draw();
  int64_t longest = 0;
  for (size_t i = 0; i < decoder.data.size(); ++i)
    longest = std::max(longest, decoder.text_of(i).longest());
  const int64_t rows = decoder.rows, vocabulary = decoder.model.vocabulary;
  Buffer<char> room = c.buffer<char>(suffice_step_room(&decoder.model, rows, longest, c.threads));
  Buffer<float> logits = c.unwritten(rows * vocabulary);
  for (char &byte : room) byte = (char)0xff;  // what is read before it is written is no number
  suffice_step(&decoder.model, decoder.caches.data(), decoder.mixes.data(), decoder.tokens.data(),
               decoder.places.data(), decoder.padding.data(), rows, 1, longest, nullptr, logits.data(),
               room.data(), c.threads);
  c.intact(logits);
  c.intact(room);
  for (size_t i = 0; i < decoder.data.size(); ++i) {
    const TextCache &text = decoder.text_of(i);
    c.expect(text.near.keys.intact(), "wrote beside the keys");
    if (!text.tied) c.expect(text.near.values.intact(), "wrote beside the values");
  }
  const Row expected = decoder.run();
  c.close("logits", logits.data(), expected, decoder.bound() * (1.0 + largest(expected)));
  piece_case(decoder, longest);
}

}  // namespace check
