// What layers of published models compute around their products with matrices: root-mean-square
// norms with gates, gated activations, rotary embeddings, short convolutions; and one token through
// the recurrences of Mamba-2 and of the gated delta rule, with the state changed in place.

#pragma once

#include "recurrence.h"

namespace SUFFICE_ISA {

constexpr int64_t NUMBERS_PER_THREAD = 1 << 14, STRETCH = 256, ROWS_PER_TASK = 32;

INLINE Floats silu_slope(Floats x, Floats s) { return s * (all(1.0f) + x * (all(1.0f) - s)); }

// Runs f(begin, end, thread) on ranges of rows, on as many threads as the numbers are worth.
template <class F>
static void over_rows(int64_t rows, int64_t numbers, int64_t grain, int64_t threads, F f) {
  const int64_t worth = rows * numbers / NUMBERS_PER_THREAD, tasks = (rows + grain - 1) / grain;
  if (worth < threads) threads = worth;
  if (tasks < threads) threads = tasks;
  if (threads < 2) return f(0, rows, 0);
  struct Context {
    F &f;
    int64_t rows, grain;
  } context{f, rows, grain};
  suffice::run_team(
      (int)threads,
      [](suffice::Team &team, int thread, void *data) {
        Context &c = *(Context *)data;
        Range range;
        while (team.take(c.rows, c.grain, range)) c.f(range.begin, range.end, thread);
      },
      &context);
}

INLINE int64_t grain_of(int64_t numbers) {  // rows of a task
  const int64_t rows = 8192 / (numbers + 1);
  return rows < 1 ? 1 : rows;
}

INLINE Floats scale_at(const GatedNorm &norm, const float *weight, int64_t at, int64_t n) {
  return weight ? get(weight + at, n) + all(norm.offset) : all(norm.offset);
}

// What is normalised: x, or x silu(gate).
INLINE Floats norm_input(const GatedNorm &norm, const float *x, const float *gate, int64_t at,
                         int64_t n) {
  Floats v = get(x + at, n);
  if (norm.gate == GATE_FIRST) {
    const Floats z = get(gate + at, n);
    v *= z * sigmoid(z);
  }
  return v;
}

INLINE float norm_factor(const GatedNorm &norm, const float *x, const float *gate) {
  Floats squares = all(0.0f);
  stretches(norm.width, [&](int64_t at, int64_t n) {
    const Floats v = norm_input(norm, x, gate, at, n);
    squares += v * v;
  });
  return 1.0f / __builtin_sqrtf(sum(squares) / (float)norm.width + norm.eps);
}

static void gated_norm(const GatedNorm *call, const float *x, const float *gate,
                       const float *weight, float *out, int64_t threads) {
  const GatedNorm &norm = *call;
  const int64_t all_widths = norm.groups * norm.width;
  over_rows(norm.rows, all_widths, grain_of(all_widths), threads,
            [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * norm.groups; i < end * norm.groups; ++i) {
      const int64_t row = i / norm.groups, from = i % norm.groups * norm.width;
      const float *in = x + row * norm.x_row + from, *w = weight ? weight + from : nullptr;
      const float *z = gate ? gate + row * norm.gate_row + from : nullptr;
      const Floats factor = all(norm_factor(norm, in, z));
      stretches(norm.width, [&](int64_t at, int64_t n) {
        Floats v = norm_input(norm, in, z, at, n) * factor * scale_at(norm, w, at, n);
        if (norm.gate == GATE_LAST) {
          const Floats g = get(z + at, n);
          v *= g * sigmoid(g);
        }
        put(out + row * all_widths + from + at, v, n);
      });
    }
  });
}

// `weight_grads` [threads, groups, width] start at 0; all gradients but `out_grad` are contiguous.
static void gated_norm_back(const GatedNorm *call, const float *x, const float *gate,
                            const float *weight, const float *out_grad, float *x_grad,
                            float *gate_grad, float *weight_grads, int64_t threads) {
  const GatedNorm &norm = *call;
  const int64_t all_widths = norm.groups * norm.width;
  over_rows(norm.rows, all_widths, grain_of(all_widths), threads,
            [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin * norm.groups; i < end * norm.groups; ++i) {
      const int64_t row = i / norm.groups, from = i % norm.groups * norm.width;
      const float *in = x + row * norm.x_row + from, *w = weight ? weight + from : nullptr;
      const float *z = gate ? gate + row * norm.gate_row + from : nullptr;
      const float *grad = out_grad + row * norm.grad_row + from;
      float *to_x = x_grad + row * all_widths + from;
      float *to_gate = gate_grad ? gate_grad + row * all_widths + from : nullptr;
      float *to_weight = weight_grads ? weight_grads + thread * all_widths + from : nullptr;
      const float factor = norm_factor(norm, in, z);
      Floats along = all(0.0f);
      stretches(norm.width, [&](int64_t at, int64_t n) {
        const Floats v = norm_input(norm, in, z, at, n), scale = scale_at(norm, w, at, n);
        Floats g = get(grad + at, n);
        const Floats normed = v * all(factor);
        if (norm.gate == GATE_LAST) {
          const Floats y = get(z + at, n), s = sigmoid(y);
          put(to_gate + at, g * normed * scale * silu_slope(y, s), n);
          g *= y * s;
        }
        if (to_weight) put(to_weight + at, get(to_weight + at, n) + g * normed, n);
        g *= scale;
        put(to_x + at, g, n);
        along += g * v;
      });
      const float less = sum(along) / (float)norm.width * factor * factor;
      stretches(norm.width, [&](int64_t at, int64_t n) {
        const Floats v = get(in + at, n);
        if (norm.gate != GATE_FIRST) {
          put(to_x + at, (get(to_x + at, n) - v * all(less)) * all(factor), n);
          return;
        }
        const Floats y = get(z + at, n), s = sigmoid(y);
        const Floats to = (get(to_x + at, n) - v * y * s * all(less)) * all(factor);
        put(to_gate + at, to * v * silu_slope(y, s), n);
        put(to_x + at, to * y * s, n);
      });
    }
  });
}

INLINE Floats activated(int64_t activation, Floats x) {
  return activation == SWIGLU ? x * sigmoid(x) : activation == GEGLU ? gelu(x) : gelu_tanh(x);
}

// Slope of the activation.
INLINE Floats slope_of(int64_t activation, Floats x) {
  if (activation == SWIGLU) return silu_slope(x, sigmoid(x));
  if (activation == GEGLU) {
    const Floats tail = all(0.5f) * complement_of_error(x * all(0.70710678f));
    return where_positive(x, all(1.0f) - tail, tail) +
           x * all(0.3989422804f) * exp(all(-0.5f) * x * x);
  }
  const Floats t = tanh(x * (all(0.7978845608f) + all(0.0356774081f) * x * x));
  const Floats inner = all(0.7978845608f) + all(0.1070322243f) * x * x;
  return all(0.5f) * (all(1.0f) + t + x * (all(1.0f) - t * t) * inner);
}

static void gated_linear_unit(int64_t activation, int64_t count, const float *gate, const float *up,
                              float *out, int64_t threads) {
  over_rows((count + STRETCH - 1) / STRETCH, STRETCH, ROWS_PER_TASK, threads,
            [&](int64_t begin, int64_t end, int) {
    const int64_t from = begin * STRETCH, to = end * STRETCH < count ? end * STRETCH : count;
    stretches(to - from, [&](int64_t at, int64_t n) {
      put(out + from + at, activated(activation, get(gate + from + at, n)) * get(up + from + at, n),
          n);
    });
  });
}

static void gated_linear_unit_back(int64_t activation, int64_t count, const float *gate,
                                   const float *up, const float *out_grad, float *gate_grad,
                                   float *up_grad, int64_t threads) {
  over_rows((count + STRETCH - 1) / STRETCH, STRETCH, ROWS_PER_TASK, threads,
            [&](int64_t begin, int64_t end, int) {
    const int64_t from = begin * STRETCH, to = end * STRETCH < count ? end * STRETCH : count;
    stretches(to - from, [&](int64_t i, int64_t n) {
      const int64_t at = from + i;
      const Floats x = get(gate + at, n), grad = get(out_grad + at, n);
      const Floats through = grad * get(up + at, n);
      put(up_grad + at, grad * activated(activation, x), n);
      put(gate_grad + at, through * slope_of(activation, x), n);
    });
  });
}

// Turns the first `turned` features of each head by halves, or turns gradients back.
static void rotate(const Rotation *call, const float *x, const float *cosines, const float *sines,
                   float *out, int64_t threads) {
  const Rotation &r = *call;
  const int64_t half = r.turned / 2;
  over_rows(r.batch * r.length, r.heads * r.width, grain_of(r.heads * r.width), threads,
            [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * r.heads; i < end * r.heads; ++i) {
      const int64_t row = i / r.heads, head = i % r.heads;
      const int64_t batch = row / r.length, t = row % r.length;
      const float *in = x + batch * r.x.batch + head * r.x.head + t * r.x.row;
      const float *c = cosines + batch * r.table_batch + t * r.turned;
      const float *s = sines + batch * r.table_batch + t * r.turned;
      float *to = out + (row * r.heads + head) * r.width;
      stretches(half, [&](int64_t at, int64_t n) {
        const Floats a = get(in + at, n), b = get(in + half + at, n);
        const Floats first = get(s + at, n), second = get(s + half + at, n);
        const Floats to_a = r.back ? b * second : -b * first;
        const Floats to_b = r.back ? -a * first : a * second;
        put(to + at, a * get(c + at, n) + to_a, n);
        put(to + half + at, b * get(c + half + at, n) + to_b, n);
      });
      __builtin_memcpy(to + r.turned, in + r.turned, (r.width - r.turned) * sizeof(float));
    }
  });
}

// Whether position t - back is of the row and of the document of t.
INLINE bool reaches(const Convolution &call, const int64_t *documents, int64_t t, int64_t back) {
  const int64_t at = t - back;
  return at >= 0 && at < call.length && (!documents || documents[at] == documents[t]);
}

// Calls f(batch, t, first channel, channels of the tile) for tiles of channels, rows innermost.
template <class F>
static void over_tiles(const Convolution &call, int64_t threads, F f) {
  over_rows(call.batch * call.length, call.channels, ROWS_PER_TASK, threads,
            [&](int64_t begin, int64_t end, int thread) {
    for (int64_t from = 0; from < call.channels; from += STRETCH)
      for (int64_t row = begin; row < end; ++row)
        f(row / call.length, row % call.length, from,
          from + STRETCH < call.channels ? STRETCH : call.channels - from, thread);
  });
}

INLINE Floats convolved(const Convolution &call, const float *x, const float *weight,
                        const float *bias, int64_t taps, const bool *seen, int64_t channel,
                        int64_t n) {
  Floats v = bias ? get(bias + channel, n) : all(0.0f);
  for (int64_t back = 0; back < taps; ++back)
    if (seen[back])
      v += get(weight + (taps - 1 - back) * call.channels + channel, n) *
           get(x - back * call.x_row + channel, n);
  return v;
}

static void convolve(const Convolution *convolution, const float *x, const float *weight,
                     const float *bias, float *out, int64_t threads) {
  const Convolution &call = *convolution;
  over_tiles(call, threads, [&](int64_t batch, int64_t t, int64_t from, int64_t width, int) {
    const int64_t *documents = call.documents ? call.documents + batch * call.length : nullptr;
    bool seen[MAX_TAPS];
    for (int64_t back = 0; back < call.taps; ++back) seen[back] = reaches(call, documents, t, back);
    const float *in = x + batch * call.x_batch + t * call.x_row;
    float *to = out + (batch * call.length + t) * call.channels;
    stretches(width, [&](int64_t i, int64_t n) {
      Floats v = convolved(call, in, weight, bias, call.taps, seen, from + i, n);
      if (call.silu) v *= sigmoid(v);
      put(to + from + i, v, n);
    });
  });
}

// `inner` [B, T, channels] takes the gradients before the activation; `sums` [threads, taps + 1,
// channels], which start at 0, those of the weights by tap and of the bias.
static void convolve_back(const Convolution *convolution, const float *x, const float *weight,
                          const float *bias, const float *out_grad, float *inner, float *x_grad,
                          float *sums, int64_t threads) {
  const Convolution &call = *convolution;
  const int64_t taps = call.taps, channels = call.channels;
  over_tiles(call, threads, [&](int64_t batch, int64_t t, int64_t from, int64_t width, int thread) {
    const int64_t *documents = call.documents ? call.documents + batch * call.length : nullptr;
    bool seen[MAX_TAPS];
    for (int64_t back = 0; back < taps; ++back) seen[back] = reaches(call, documents, t, back);
    const float *in = x + batch * call.x_batch + t * call.x_row;
    const float *grad = out_grad + batch * call.grad_batch + t * call.grad_row;
    float *to = inner + (batch * call.length + t) * channels;
    float *own = sums + thread * (taps + 1) * channels;
    stretches(width, [&](int64_t i, int64_t n) {
      const int64_t at = from + i;
      Floats g = get(grad + at, n);
      if (call.silu) {
        const Floats v = convolved(call, in, weight, bias, taps, seen, at, n);
        g *= silu_slope(v, sigmoid(v));
      }
      put(to + at, g, n);
      for (int64_t back = 0; back < taps; ++back) {
        float *sum = own + (taps - 1 - back) * channels + at;
        if (seen[back]) put(sum, get(sum, n) + g * get(in - back * call.x_row + at, n), n);
      }
      put(own + taps * channels + at, get(own + taps * channels + at, n) + g, n);
    });
  });
  over_tiles(call, threads, [&](int64_t batch, int64_t t, int64_t from, int64_t width, int) {
    const int64_t *documents = call.documents ? call.documents + batch * call.length : nullptr;
    const float *in = inner + (batch * call.length + t) * channels;
    float *to = x_grad + (batch * call.length + t) * channels;
    bool seen[MAX_TAPS];
    for (int64_t back = 0; back < taps; ++back) seen[back] = reaches(call, documents, t, -back);
    stretches(width, [&](int64_t i, int64_t n) {
      Floats v = all(0.0f);
      for (int64_t back = 0; back < taps; ++back)
        if (seen[back])
          v += get(weight + (taps - 1 - back) * channels + from + i, n) *
               get(in + back * channels + from + i, n);
      put(to + from + i, v, n);
    });
  });
}

// One position of each row: the states [B, channels, room] move on by it.
static void convolve_step(const Convolution *convolution, const float *x, const float *weight,
                          const float *bias, float *states, int64_t room, float *out,
                          int64_t threads) {
  const Convolution &call = *convolution;
  over_rows(call.batch * call.channels, 2 * room, STRETCH, threads,
            [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / call.channels, c = i % call.channels;
      float *state = states + i * room, sum = bias ? bias[c] : 0.0f;
      for (int64_t at = 1; at < room; ++at) state[at - 1] = state[at];
      state[room - 1] = x[batch * call.x_batch + c * call.x_row];
      for (int64_t k = 0; k < call.taps; ++k)
        sum += weight[c * call.taps + k] * state[room - call.taps + k];
      out[i] = sum;
    }
    if (call.silu)
      stretches(end - begin, [&](int64_t at, int64_t n) {
        const Floats v = get(out + begin + at, n);
        put(out + begin + at, v * sigmoid(v), n);
      });
  });
}

// Mamba-2: states [B, H, E, D] take in dt x B^T after a decay of exp(dt A) and are read by C.
static void mamba2_step(const TokenStep *step, const float *x, const float *dt, const float *rates,
                        const float *b, const float *c, const float *skip, float *states,
                        float *out, int64_t threads) {
  const TokenStep &s = *step;
  over_rows(s.batch * s.heads, s.width * s.value_width, 1, threads,
            [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / s.heads, head = i % s.heads;
      const int64_t group = head / (s.heads / s.key_heads);
      const float size = dt[i], decay = exp_one(size * rates[head]);
      const float *key = b + batch * s.k_batch + group * s.width;
      const float *query = c + batch * s.q_batch + group * s.width;
      const float *in = x + batch * s.v_batch + head * s.value_width;
      float *state = states + i * s.value_width * s.width, *to = out + i * s.value_width;
      for (int64_t e = 0; e < s.value_width; ++e, state += s.width) {
        Floats read_out = all(0.0f);
        const Floats value = all(size * in[e]);
        stretches(s.width, [&](int64_t at, int64_t n) {
          const Floats v = get(state + at, n) * all(decay) + value * get(key + at, n);
          put(state + at, v, n);
          read_out += v * get(query + at, n);
        });
        to[e] = sum(read_out) + (skip ? skip[head] * in[e] : 0.0f);
      }
    }
  });
}

// Gated delta rule: states [B, H, D, E]; keys and queries are scaled to length 1 if asked for.
static void delta_step(const TokenStep *step, const float *q, const float *k, const float *v,
                       const float *logs, const float *beta, float *states, float *out,
                       int64_t threads) {
  const TokenStep &s = *step;
  over_rows(s.batch * s.heads, s.width * s.value_width, 1, threads,
            [&](int64_t begin, int64_t end, int) {
    const int64_t padded = whole_vectors(s.width);
    float *query = (float *)suffice::thread_scratch(5 * padded * sizeof(float));
    float *key = query + padded, *decays = key + padded;
    float *decayed_k = decays + padded, *decayed_q = decayed_k + padded;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / s.heads, head = i % s.heads;
      const int64_t group = head / (s.heads / s.key_heads);
      const float *from[] = {q + batch * s.q_batch + group * s.width,
                             k + batch * s.k_batch + group * s.width};
      for (int part = 0; part < 2; ++part) {
        float squares = s.eps, *to = part ? key : query;
        for (int64_t d = 0; d < s.width; ++d) squares += from[part][d] * from[part][d];
        const float factor = s.unit ? 1.0f / __builtin_sqrtf(squares) : 1.0f;
        for (int64_t d = 0; d < s.width; ++d)
          to[d] = from[part][d] * factor * (part ? 1.0f : s.scale);
      }
      const float decay = exp_one(logs[i]);
      for (int64_t d = 0; d < padded; ++d) decays[d] = decay;
      PositionStep p{s.width, key, decays, decayed_k, decayed_q, beta[i],
                     0.0f};
      decay_position(query, key, decays, s.width, p, decayed_k, decayed_q);
      float *state = states + i * s.width * s.value_width;
      step_once<true>(p, state, s.value_width, v + batch * s.v_batch + head * s.value_width,
                      s.value_width, state, s.value_width, out + i * s.value_width);
    }
  });
}

}  // namespace SUFFICE_ISA
