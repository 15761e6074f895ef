// Decode step: one token of each text, or several in a row, through the whole decoder.
//
// A row is a token. Threads share every matrix product; a barrier ends each phase of a layer. Cheap
// work is repeated by every thread, which saves barriers: norms, quantising activations, merging
// splits.

#pragma once

#include <algorithm>

#include "../threads.h"
#include "matrix.h"
#include "arena.h"

namespace SUFFICE_ISA {

struct Step {
  const Model &model;
  const KVCache *cache;
  const Mixing *mixes;
  const int64_t *tokens, *places, *padding;
  int64_t queries;  // tokens of each text
  Sizes sizes;      // of all rows
  SharedScratch shared;
  ThreadScratch own[suffice::MAX_THREADS];
  float *features, *logits;
};

// One thread's view of a step.
struct Worker {
  suffice::Team &team;
  Step &step;
  ThreadScratch &own;
  const Sizes &sizes;
  const SharedScratch &shared;

  // Parallel for over `total`, with a barrier at its end.
  template <class F>
  void share(int64_t total, int64_t grain, F f) {
    Range range;
    while (team.take(total, grain, range)) f(range);
    team.barrier();
  }

  int64_t grain(int64_t rows) const {
    int64_t each = rows / (4 * team.threads) / PANEL * PANEL;
    return each > PANEL ? each : PANEL;
  }

  // The input of a branch: normalised, or the residual stream itself (post-norm models).
  Inputs read_by_branch(const Norm &norm) {
    const int64_t width = step.model.d_model;
    if (step.model.residual == OUT) return {shared.x, sizes.rows, width, own.coded};
    return normed(norm, width);
  }

  // The normalised residual stream [rows, width].
  Inputs normed(const Norm &norm, int64_t width) {
    const Model &model = step.model;
    for (int64_t r = 0; r < sizes.rows; ++r)
      normalise(norm, model.root_mean_square, model.eps, shared.x + r * width, width,
                own.normed + r * width);
    return {own.normed, sizes.rows, width, own.coded};
  }

  void embed() {
    const Model &model = step.model;
    const int64_t width = model.d_model;
    share(sizes.rows, 1, [&](Range span) {
      for (int64_t r = span.begin; r < span.end; ++r) {
        float *x = shared.x + r * width;
        row_of(model.embedding, step.tokens[r], own.padded);
        const float *p = model.positions ? model.positions + place_of(r) * width : nullptr;
        for (int64_t c = 0; c < width; ++c) x[c] = own.padded[c] + (p ? p[c] : 0.0f);
      }
    });
  }

  // Position of a row in its text, below 0: padding.
  int64_t index_of(int64_t row) const {
    return step.places[row / step.queries] + row % step.queries;
  }

  // The same, where padding is at 0.
  int64_t place_of(int64_t row) const { return index_of(row) > 0 ? index_of(row) : 0; }

  // The input of an attention; 0 at padding, whose keys share the ranges of quantised blocks.
  Inputs read_by_attention(const Norm &norm) {
    Inputs in = read_by_branch(norm);
    for (int64_t r = 0; r < sizes.rows; ++r) {
      if (index_of(r) >= 0) continue;
      if (in.x != own.normed)
        std::copy(in.x, in.x + sizes.rows * in.columns, own.normed), in.x = own.normed;
      std::fill(own.normed + r * in.columns, own.normed + (r + 1) * in.columns, 0.0f);
    }
    return in;
  }

  // Projects queries, keys and values of the new positions, before rotary embedding.
  void project(const Layer &layer) {
    Inputs in = read_by_attention(layer.attention_norm);
    const Matrix *maps[] = {&layer.q, &layer.k, &layer.v};
    float *outs[] = {shared.q, shared.k, shared.v};
    int64_t total = 0;
    const int64_t kv[] = {0, layer.kv_heads * layer.head_dim,
                          layer.kv_heads / layer.maps * layer.value_dim};
    for (const Matrix *map : maps) total += map->kind == ABSENT ? 0 : padded(map->rows);
    share(total, grain(total), [&](Range span) {
      int64_t before = 0;
      for (int i = 0; i < 3; ++i) {
        if (maps[i]->kind == ABSENT) continue;
        Range mine = within(span, before, maps[i]->rows);
        before += padded(maps[i]->rows);
        if (mine.begin >= mine.end) continue;
        quantise_inputs(in, *maps[i]);
        product(*maps[i], in, mine, outs[i]);
      }
    });
    // mechanisms without W_K or W_V read the input itself, which every thread has
    for (int i = 1; i < 3; ++i)
      if (maps[i]->kind == ABSENT) columns[i] = in.x, strides[i] = in.columns;
      else columns[i] = outs[i], strides[i] = kv[i];
    if (layer.q_gains && layer.head_norm == PROJECTION_RMS) norm_projections(layer, kv[1]);
  }

  // QK-norm over all heads at once, in place.
  void norm_projections(const Layer &layer, int64_t key_width) {
    const int64_t width = layer.heads * layer.head_dim;
    share(sizes.rows, 1, [&](Range span) {
      for (int64_t r = span.begin; r < span.end; ++r) {
        float *q = shared.q + r * width;
        normalise({layer.q_gains, nullptr}, true, layer.gain_eps, q, width, q);
        if (!layer.k_gains) continue;
        normalise({layer.k_gains, nullptr}, true, layer.gain_eps, columns[1] + r * strides[1],
                  key_width, shared.k + r * key_width);
      }
    });
    if (layer.k_gains) columns[1] = shared.k, strides[1] = key_width;
  }

  static int64_t padded(int64_t rows) { return (rows + PANEL - 1) / PANEL * PANEL; }

  static Range within(Range span, int64_t before, int64_t rows) {
    int64_t begin = span.begin - before, end = span.end - before;
    return {begin > 0 ? begin : 0, end < rows ? end : rows};
  }

  const float *columns[3];
  int64_t strides[3];

  // Applies QK-norm per head, if any, and rotary embedding to a query or key.
  void norm_and_rotate(const Layer &layer, const float *gains, int64_t head, int64_t place,
                       const float *from, float *to) const {
    float sized[MAX_HEAD_DIM];
    if (gains && layer.head_norm != PROJECTION_RMS) {
      const bool own_gains = layer.head_norm == HEAD_LAYER;
      normalise({gains + (own_gains ? head * layer.head_dim : 0), nullptr}, !own_gains,
                layer.gain_eps, from, layer.head_dim, sized);
      from = sized;
    }
    const int64_t n = layer.turn == STAY ? 0 : layer.turning, half = n / 2;
    const float *cosines = layer.cosines + place * n, *sines = layer.sines + place * n;
    if (layer.turn == HALVES) {  // two branch-free loops, which vectorise
      for (int64_t c = 0; c < half; ++c) to[c] = from[c] * cosines[c] + from[c + half] * sines[c];
      for (int64_t c = half; c < n; ++c) to[c] = from[c] * cosines[c] + from[c - half] * sines[c];
    } else {
      for (int64_t c = 0; c < n; ++c) to[c] = from[c] * cosines[c] + from[c ^ 1] * sines[c];
    }
    for (int64_t c = n; c < layer.head_dim; ++c) to[c] = from[c];
  }

  static void store(const Span &span, void *buffer, int64_t at, const float *from, int64_t width) {
    for (int64_t c = 0; c < width; ++c) {
      if (span.kind == F32) ((float *)buffer)[at + c] = from[c];
      else if (span.kind == F16) Half::put((uint16_t *)buffer + at + c, from[c]);
      else Brain::put((uint16_t *)buffer + at + c, from[c]);
    }
  }

  // Attends each head to each split of the cache. Of several tokens all keys and values are written
  // first; that of one is written by the thread that reads the last split: no barrier is needed.
  void attend_heads(const Layer &layer, const KVCache &cache, const Mixing &mix) {
    const int64_t groups = layer.kv_heads / layer.maps, splits = num_splits(cache);
    const int64_t shared_by = layer.heads / layer.kv_heads, most = MAX_SHARED_QUERIES / shared_by;
    const int64_t each = most < QUERY_TILE ? most : QUERY_TILE;  // queries of a head and task
    const int64_t blocks = (step.queries + each - 1) / each;
    const bool several = step.queries > 1, writes = !layer.reads_another;
    if (several && writes)
      share(sizes.rows * layer.kv_heads, 1, [&](Range span) {
        for (int64_t i = span.begin; i < span.end; ++i)
          store_key_value(layer, cache.near, mix, i / layer.kv_heads, i % layer.kv_heads);
      });
    share(sizes.rows / step.queries * blocks * groups * splits, 1, [&](Range span) {
      for (int64_t i = span.begin; i < span.end; ++i)
        for (int64_t map = 0; map < layer.maps; ++map) {  // sequentially: a pair shares values
          const int64_t split = i % splits, group = i / splits % groups * layer.maps + map;
          const int64_t block = i / (groups * splits), first = block % blocks * each;
          const int64_t text = block / blocks, left = step.queries - first;
          if (!several && writes && split == splits - 1)
            store_key_value(layer, cache.near, mix, text, group);
          attend_split_of(layer, cache, text, group, split, first, left < each ? left : each);
        }
    });
  }

  // Attends the queries `first` to `first + positions` of a text to a split of what they see.
  void attend_split_of(const Layer &layer, const KVCache &cache, int64_t text, int64_t group,
                       int64_t split, int64_t first, int64_t positions) {
    const int64_t width = layer.head_dim, count = layer.heads / layer.kv_heads;
    const int64_t row = text * step.queries + first;
    SoftmaxState local[MAX_SHARED_QUERIES];
    float *q = own.rotated;
    for (int64_t r = 0; r < count * positions; ++r) {
      // q is interleaved by pair, the outputs are ordered by map
      const int64_t from =
          (group / layer.maps * count + r / positions) * layer.maps + group % layer.maps;
      const int64_t at = row + r % positions;
      norm_and_rotate(layer, layer.q_gains, from, place_of(at),
                      shared.q + (at * layer.heads + from) * width, q + r * width);
      for (int64_t c = 0; c < width; ++c) q[r * width + c] *= layer.scale;
      local[r] = empty(at * layer.heads + group * count + r / positions, split, layer.value_dim);
    }
    const float *slopes = layer.slopes ? layer.slopes + group * count : nullptr;
    Queries queries{q,      count * positions,          width, layer.value_dim,
                    slopes, step.places[text] + first};
    queries.maps = layer.maps;
    queries.cap = layer.cap;
    int nonfinite = 0;
    DecodeAttention mask{};
    if (step.queries > 1) {
      queries.end = cache.near.end + cache.near.shift - (step.queries - first - positions);
      queries.oldest = queries.end - positions - layer.before;
    }
    if (positions > 1) {
      mask.before = layer.before;
      queries.num_positions = positions;
      queries.attention = &mask;
      queries.nonfinite = &nonfinite;
    }
    attend_split(queries, cache, text, group, step.padding[text], split, local);
    for (int64_t p = 0; nonfinite && p < positions; ++p)  // a mask keeps no NaN from the others
      attend_split_of(layer, cache, text, group, split, first + p, 1);
    for (int64_t r = 0; r < count * positions && !nonfinite; ++r)
      shared.states[((row + r % positions) * layer.heads + group * count + r / positions) *
                        sizes.splits + split] = local[r];
  }

  // Softmax state before any key.
  SoftmaxState empty(int64_t head, int64_t split, int64_t width) const {
    SoftmaxState state{-__builtin_inff(), 0.0f,
                       shared.values + (head * sizes.splits + split) * width};
    for (int64_t c = 0; c < width; ++c) state.values[c] = 0.0f;
    return state;
  }

  void store_key_value(const Layer &layer, const Span &near, const Mixing &mix, int64_t row,
            int64_t group) const {
    const int64_t width = layer.head_dim, text = row / step.queries;
    const int64_t at = near.end - step.queries + row % step.queries;
    float rotated[MAX_HEAD_DIM];
    const float *key = columns[1] + row * strides[1] + group * width;
    norm_and_rotate(layer, layer.k_gains, group, place_of(row), key, rotated);
    store(near, near.keys, text * near.key_row + group * near.key_head + at * width, rotated,
          width);
    if (near.values == near.keys || group % layer.maps) return;
    group /= layer.maps;
    const int64_t wide = layer.value_dim;
    const float *value = columns[2] + row * strides[2] + group * wide;
    if (mix.weights) value = mixed(mix, near, row, group, value, wide, rotated);
    store(near, near.values, text * near.value_row + group * near.value_head + at * wide, value,
          wide);
  }

  // Stores the raw value, and returns the mixture of it and earlier ones.
  static float *mixed(const Mixing &mix, const Span &near, int64_t row, int64_t group,
                      const float *value, int64_t width, float *out) {
    const int64_t base = row * mix.row + group * mix.head, count = mix.count[row];
    if (mix.raw != near.keys) store(near, mix.raw, base + mix.at * width, value, width);
    const float *weights = mix.weights + group * mix.map + mix.first[row];
    const float bias = mix.bias ? mix.bias[group * mix.bias_map + mix.offset[row]] : 0.0f;
    for (int64_t c = 0; c < width; ++c) out[c] = bias;
    int64_t from = base + (mix.at + 1 - count) * width;
    for (int64_t j = 0; j < count; ++j, from += width)
      for (int64_t c = 0; c < width; ++c)
        out[c] +=
            weights[j] * (near.kind == F32   ? ((const float *)mix.raw)[from + c]
                          : near.kind == F16 ? Half::one((const uint16_t *)mix.raw + from + c)
                                             : Brain::one((const uint16_t *)mix.raw + from + c));
    return out;
  }

  // Ends a branch: x += W y, or x += norm(W y).
  void add(const Matrix &matrix, const Norm &norm, Inputs in) {
    if (norm.weight) return add_normed(matrix, norm, in);
    share(padded(matrix.rows), grain(matrix.rows), [&](Range span) {
      Range mine = within(span, 0, matrix.rows);
      quantise_inputs(in, matrix);
      product(matrix, in, mine, own.padded);
      for (int64_t r = 0; r < sizes.rows; ++r) {
        float *x = shared.x + r * matrix.rows, *y = own.padded + r * matrix.rows;
        for (int64_t c = mine.begin; c < mine.end; ++c) x[c] += y[c];
      }
    });
  }

  void add_normed(const Matrix &matrix, const Norm &norm, Inputs in) {
    const Model &model = step.model;
    const int64_t width = matrix.rows;
    share(padded(width), grain(width), [&](Range span) {
      quantise_inputs(in, matrix);
      product(matrix, in, within(span, 0, width), shared.branch);
    });
    share(sizes.rows, 1, [&](Range span) {
      for (int64_t r = span.begin; r < span.end; ++r) {
        normalise(norm, model.root_mean_square, model.eps, shared.branch + r * width, width,
                  own.padded);
        for (int64_t c = 0; c < width; ++c) shared.x[r * width + c] += own.padded[c];
      }
    });
  }

  // Differential attention: normalised differences of pairs of maps, in place: [rows, heads / 2,
  // value_dim].
  void subtract(const Layer &layer, float *heads) const {
    const int64_t width = layer.value_dim, count = layer.heads / layer.kv_heads;
    float *to = heads;
    for (int64_t pair = 0; pair < sizes.rows * layer.kv_heads / 2; ++pair)
      for (int64_t h = 0; h < count; ++h, to += width) {
        const float *first = heads + (2 * pair * count + h) * width,
                    *second = first + count * width;
        for (int64_t c = 0; c < width; ++c) to[c] = first[c] - layer.lambda * second[c];
        normalise({layer.difference_gains, nullptr}, true, layer.difference_eps, to, width, to);
      }
  }

  void project_out(const Layer &layer, const KVCache &cache) {
    const int64_t width = layer.value_dim, all_heads = layer.heads / layer.maps * width;
    const int64_t splits = num_splits(cache);
    for (int64_t h = 0; h < sizes.rows * layer.heads; ++h)
      combine_splits(shared.states + h * sizes.splits, splits, width, own.normed + h * width,
            layer.logits ? layer.logits + h % layer.heads : nullptr);
    if (layer.maps == 2) subtract(layer, own.normed);
    add(layer.o, layer.attention_out_norm, {own.normed, sizes.rows, all_heads, own.coded});
  }

  // Hidden layer of the MLP, into `shared.hidden`.
  void expand(const Layer &layer) {
    const Model &model = step.model;
    Inputs in = read_by_branch(layer.mlp_norm);
    const int64_t width = layer.up.rows;
    share(padded(width), grain(width), [&](Range span) {
      Range mine = within(span, 0, width);
      quantise_inputs(in, layer.up);
      product(layer.up, in, mine, shared.hidden);
      if (layer.gate.kind != ABSENT) {
        quantise_inputs(in, layer.gate);
        product(layer.gate, in, mine, own.padded);
      }
      for (int64_t r = 0; r < sizes.rows; ++r)
        activate(model.activation, shared.hidden + r * width + mine.begin,
                 own.padded + r * width + mine.begin, mine.end - mine.begin);
    });
  }

  static void activate(int64_t activation, float *x, const float *gate, int64_t width) {
    stretches(width, [&](int64_t at, int64_t n) {
      Floats v = get(x + at, n);
      const bool gated = activation == SWIGLU || activation >= GEGLU;
      Floats g = gated ? get(gate + at, n) : v;
      switch (activation) {
        case SWIGLU: g *= sigmoid(g); break;
        case RELU: g = relu(g); break;
        case TANH: g = tanh(g); break;
        case GELU: case GEGLU: g = gelu(g); break;
        default: g = gelu_tanh(g);
      }
      put(x + at, gated ? v * g : g, n);
    });
  }

  void cap_logits(float *logits, int64_t count) const {
    const float cap = step.model.logit_cap;
    stretches(count, [&](int64_t at, int64_t n) {
      put(logits + at, all(cap) * tanh(get(logits + at, n) * all(1.0f / cap)), n);
    });
  }

  void run() {
    const Model &model = step.model;
    embed();
    for (int64_t i = 0; i < model.depth; ++i) {
      const Layer &layer = model.layers[i];
      const KVCache &cache = step.cache[i];
      const Mixing &mix = step.mixes[i];
      project(layer);
      attend_heads(layer, cache, mix);
      const bool parallel = model.residual == PARALLEL;
      if (parallel)
        expand(layer);  // parallel branches read the same input: before attention is added
      project_out(layer, cache);
      if (!parallel) expand(layer);
      add(layer.down, layer.mlp_out_norm, {shared.hidden, sizes.rows, layer.up.rows, own.coded});
    }
    if (step.features)
      return share(sizes.rows, 1, [&](Range span) {
        for (int64_t at = span.begin * model.d_model; at < span.end * model.d_model;
             at += model.d_model)
          normalise(model.norm, model.root_mean_square, model.eps, shared.x + at, model.d_model,
                    step.features + at);
      });
    Inputs in = normed(model.norm, model.d_model);
    const Matrix &head = model.head;
    share(padded(head.rows), grain(head.rows), [&](Range span) {
      quantise_inputs(in, head);
      const Range mine = within(span, 0, head.rows);
      product(head, in, mine, step.logits);
      for (int64_t r = 0; r < sizes.rows && model.logit_cap != 0.0f; ++r)
        cap_logits(step.logits + r * head.rows + mine.begin, mine.end - mine.begin);
    });
  }
};

static void step_worker(suffice::Team &team, int thread, void *context) {
  Step &step = *(Step *)context;
  Worker worker{team, step, step.own[thread], step.sizes, step.shared, {}, {}};
  worker.run();
}

static void run_step(const Model &model, const KVCache *cache, const Mixing *mixes,
                     const int64_t *tokens, const int64_t *places, const int64_t *padding,
                     int64_t rows, int64_t queries, int64_t longest, float *features, float *logits,
                     void *scratch, int64_t threads) {
  Sizes sizes = sizes_of(model, rows * queries, longest);
  Arena arena{(char *)(((uintptr_t)scratch + 63) / 64 * 64), 0};
  Step step{model, cache,    mixes, tokens, places, padding, queries, sizes,
            shared_scratch_of(arena, sizes), {},    features, logits};
  for (int64_t t = 0; t < threads; ++t) step.own[t] = thread_scratch_of(arena, sizes);
  suffice::run_team((int)threads, step_worker, &step);
}

}  // namespace SUFFICE_ISA
