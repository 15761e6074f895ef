// One token of each row through a recurrence of the library's own layers: convolution, gates, norms
// of keys and queries, the state and its readout. States and histories change in place.
//
// A task is a group: a key, a value, and the heads that they serve.

#pragma once

#include "rows.h"
#include "stock_layers.h"

namespace SUFFICE_ISA {

struct TokenCall {
  const RecurrentToken &s;
  const RecurrentTensors &x;
  int64_t channels, shared;  // of the convolution; heads of a group
};

struct TokenScratch {
  float *q, *k, *v, *head_v, *decays, *decayed_k, *decayed_q;
  float *state;  // [D, E in whole vectors], where E is not a multiple of them
};

static TokenScratch token_scratch(const TokenCall &call) {
  const RecurrentToken &s = call.s;
  const int64_t width = whole_vectors(s.width), columns = whole_vectors(s.value_width);
  const int64_t queries = whole_vectors(call.shared * s.width);
  const int64_t count = queries + 4 * width + 2 * columns + s.width * columns;
  TokenScratch scratch;
  scratch.q = (float *)suffice::thread_scratch(count * sizeof(float));
  scratch.k = scratch.q + queries, scratch.decays = scratch.k + width;
  scratch.decayed_k = scratch.decays + width, scratch.decayed_q = scratch.decayed_k + width;
  scratch.v = scratch.decayed_q + width, scratch.head_v = scratch.v + columns;
  scratch.state = scratch.head_v + columns;
  return scratch;
}

INLINE bool all_finite(const float *x, int64_t count) {
  Floats zeros = all(0.0f);  // 0 x is NaN where x is not finite
  stretches(count, [&](int64_t at, int64_t n) { zeros += all(0.0f) * get(x + at, n); });
  return sum(zeros) == 0.0f;
}

// Channels `first` to `first + count - 1` of a row: x, zeros where the row is not finite, or the
// silu of its convolution, whose history moves on.
static void read_channels(const TokenCall &call, const float *x, int64_t row, int64_t first,
                          int64_t count, bool finite, float *to) {
  const int64_t taps = call.s.taps, past = taps - 1;
  if (finite) __builtin_memcpy(to, x, count * sizeof(float));
  else clear_rows(to, count, 1, count);
  if (!taps) return;
  const float *weights = call.x.weights + first * taps;
  float *history = call.x.history + row * past * call.channels + first;
  for (int64_t c = 0; c < count; ++c) {
    const float *w = weights + c * taps, now = to[c];
    float *earlier = history + c, total = now * w[past];
    for (int64_t t = 0; t < past; ++t, earlier += call.channels) {
      total += *earlier * w[t];
      *earlier = t + 1 < past ? earlier[call.channels] : now;
    }
    to[c] = total;
  }
  stretches(count, [&](int64_t at, int64_t n) {
    const Floats v = get(to + at, n);
    put(to + at, v * sigmoid(v), n);
  });
}

INLINE void scale_to_length(float *x, int64_t width, float eps, float length) {
  Floats squares = all(0.0f);
  stretches(width, [&](int64_t at, int64_t n) {
    const Floats v = get(x + at, n);
    squares += v * v;
  });
  const Floats factor = all(length / __builtin_sqrtf(sum(squares) + eps));
  stretches(width, [&](int64_t at, int64_t n) { put(x + at, get(x + at, n) * factor, n); });
}

INLINE float softplus(float x) { return x > 20.0f ? x : (float)log1p((double)exp_one(x)); }

// sigmoid(x)^(1/16): four square roots of 1 / (1 + e^-|x|), times e^(x/16) below 0.
INLINE Wide sixteenth_root_of_sigmoid(Wide x) {
  const Wide below = x > Wide{} ? Wide{} : x;  // NaN stays NaN
  Wide root = wide(1.0f) / (wide(1.0f) + exp(below + below - x));
  for (int i = 0; i < 4; ++i) root = square_root(root);
  return root * exp(below * wide(0.0625f));
}

// Decays of the features of a head; returns the factor of its values.
INLINE float decays_of_head(const TokenCall &call, int64_t row, int64_t head, float *decays) {
  const RecurrentToken &s = call.s;
  if (s.decay == OF_FEATURE) {
    const float *logits = call.x.decay + (row * s.heads + head) * s.width;
    for (int64_t d = 0; d < s.width; d += WIDE)
      write(decays + d, sixteenth_root_of_sigmoid(first_of(logits + d, s.width - d)));
    return 1.0f;
  }
  float log = 0.0f, size = 1.0f;
  if (s.decay == OF_HEAD) log = call.x.rates[head];
  if (s.decay == OF_TOKEN) {
    size = softplus(call.x.decay[row * s.heads + head] + call.x.biases[head]);
    log = -exp_one(call.x.rates[head]) * size;
  }
  const float decay = exp_one(log);
  for (int64_t d = 0; d < s.width; d += WIDE) write(decays + d, wide(decay));
  return s.corrects ? 1.0f : size;
}

static void head_token(const TokenCall &call, int64_t row, int64_t head, float *q,
                       const TokenScratch &scratch) {
  const RecurrentToken &s = call.s;
  const int64_t width = s.value_width, columns = whole_vectors(width);
  const float size = decays_of_head(call, row, head, scratch.decays), *v = scratch.v;
  if (size != 1.0f) {
    for (int64_t e = 0; e < width; ++e) scratch.head_v[e] = size * scratch.v[e];
    v = scratch.head_v;
  }
  if (s.corrects) scale_to_length(q, s.width, s.eps, s.scale);
  else for (int64_t d = 0; d < s.width; ++d) q[d] *= s.scale;
  PositionStep p{s.width, scratch.k, scratch.decays, scratch.decayed_k, scratch.decayed_q,
                 1.0f, 0.0f};
  decay_position(q, scratch.k, scratch.decays, s.width, p, scratch.decayed_k, scratch.decayed_q);
  float *sums = call.x.sums + (row * s.heads + head) * s.width * width, *state = sums;
  float *out = call.x.out + (row * s.heads + head) * width;
  if (columns != width)
    copy_and_pad_rows(sums, width, s.width, width, state = scratch.state, columns, columns);
  if (s.corrects) {
    p.beta = 1.0f / (1.0f + exp_one(-call.x.beta[row * s.heads + head]));
    step_once<true>(p, state, columns, v, width, state, columns, out);
  } else {
    step_once<false>(p, state, columns, v, width, state, columns, out);
  }
  if (columns != width) copy_and_pad_rows(state, columns, s.width, width, sums, width, width);
}

static void group_token(const TokenCall &call, int64_t row, int64_t group,
                        const TokenScratch &scratch) {
  const RecurrentToken &s = call.s;
  const int64_t queries = s.heads * s.width, keys = s.groups * s.width;
  const int64_t values = s.groups * s.value_width, own = call.shared * s.width;
  const float *q = call.x.q + row * queries, *k = call.x.k + row * keys;
  const float *v = call.x.v + row * values;
  const bool finite = all_finite(q, queries) && all_finite(k, keys) && all_finite(v, values);
  read_channels(call, q + group * own, row, group * own, own, finite, scratch.q);
  read_channels(call, k + group * s.width, row, queries + group * s.width, s.width, finite,
                scratch.k);
  read_channels(call, v + group * s.value_width, row, queries + keys + group * s.value_width,
                s.value_width, finite, scratch.v);
  if (s.corrects) scale_to_length(scratch.k, s.width, s.eps, 1.0f);
  for (int64_t i = 0; i < call.shared; ++i)
    head_token(call, row, group * call.shared + i, scratch.q + i * s.width, scratch);
  if (finite) return;
  const int64_t first = row * s.heads + group * call.shared, state = s.width * s.value_width;
  for (int64_t i = 0; i < call.shared * state; ++i) call.x.sums[first * state + i] = NAN;
  for (int64_t i = 0; i < call.shared * s.value_width; ++i)
    call.x.out[first * s.value_width + i] = NAN;
}

static void recurrent_token(const RecurrentToken *token, const RecurrentTensors *tensors,
                            int64_t rows, int64_t threads) {
  const RecurrentToken &s = *token;
  const int64_t tasks = rows * s.groups, shared = s.heads / s.groups;
  const int64_t channels = s.heads * s.width + s.groups * (s.width + s.value_width);
  if (!tasks) return;
  const TokenCall call{s, *tensors, channels, shared};
  // fixed ranges, so that a thread finds its states in its cache again
  over_rows(tasks, shared * s.width * s.value_width, (tasks + threads - 1) / threads, threads,
            [&](int64_t begin, int64_t end, int) {
    const TokenScratch scratch = token_scratch(call);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / s.groups, group = i % s.groups, width = shared * s.value_width;
      if (tensors->valid && !tensors->valid[row])
        clear_rows(tensors->out + i * width, width, 1, width);
      else group_token(call, row, group, scratch);
    }
  });
}

}  // namespace SUFFICE_ISA
