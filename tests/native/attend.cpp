// Softmax attention of whole sequences and its gradients.

#include <algorithm>

#include "check.h"
#include "tensor.h"

namespace check {

// Keys that the queries see: a band, or lists for each block of 32 queries.
struct Seen {
  int64_t queries, keys, low = 0, high = 0;
  Buffer<uint8_t> valid;                       // [batch, keys] or none
  std::vector<std::vector<uint8_t>> patterns;  // [queries, keys]; none: the band
  Buffer<int64_t> starts, list_of;
  Buffer<int32_t> listed;
  Buffer<uint32_t> bits;

  bool holds(int64_t batch, int64_t head, int64_t q, int64_t k) const {
    if (valid.size() && !valid[batch * keys + k]) return false;
    if (patterns.empty()) return q + low <= k && k <= q + high;
    return patterns[list_of[head]][q * keys + k];
  }
};

static void draw_band(Case &c, Seen &seen) {
  Random &random = c.random;
  const int64_t offset = seen.keys - seen.queries, all = seen.queries + seen.keys;
  switch (random.up_to(3)) {
    case 0: seen.low = -all, seen.high = all; break;               // every pair
    case 1: seen.low = -all, seen.high = offset; break;            // causal
    case 2: seen.low = offset - random.up_to(70), seen.high = offset; break;
    default: seen.low = random.between(-all, all), seen.high = seen.low + random.up_to(all);
  }
}

static void draw_lists(Case &c, Seen &seen, int64_t heads) {
  Random &random = c.random;
  const int64_t lists = random.between(1, 3), blocks = (seen.queries + 31) / 32;
  std::vector<int64_t> starts;
  std::vector<int32_t> keys;
  std::vector<uint32_t> bits;
  for (int64_t list = 0; list < lists; ++list) {
    const int64_t one_in = random.one_of<int64_t>({1, 2, 30});
    std::vector<uint8_t> pattern(seen.queries * seen.keys);
    for (uint8_t &pair : pattern) pair = random.chance(one_in);
    for (int64_t b = 0; b < blocks; ++b) {
      starts.push_back((int64_t)keys.size());
      for (int64_t k = 0; k < seen.keys; ++k) {
        uint32_t word = 0;
        for (int64_t q = 32 * b; q < std::min(32 * b + 32, seen.queries); ++q)
          word |= (uint32_t)pattern[q * seen.keys + k] << (q - 32 * b);
        if (!word) continue;
        keys.push_back((int32_t)k);
        bits.push_back(word);
      }
    }
    starts.push_back((int64_t)keys.size());
    seen.patterns.push_back(pattern);
  }
  auto copy = [&](auto &to, const auto &from) {
    to = std::decay_t<decltype(to)>((int64_t)from.size(), true);
    std::copy(from.begin(), from.end(), to.begin());
    to.freeze();
  };
  copy(seen.starts, starts);
  copy(seen.listed, keys);
  copy(seen.bits, bits);
  std::vector<int64_t> of_heads(heads);
  for (int64_t &list : of_heads) list = random.up_to(lists - 1);
  copy(seen.list_of, of_heads);
}

struct Expected {
  std::vector<double> out, logs, grad_q, grad_k, grad_v;
};

// The outputs, and the gradients of the sum of the outputs times `out_grad`.
static Expected reference(const SequenceAttention &s, const Seen &seen, const Tensor &q, const Tensor &k,
                          const Tensor &v, const Tensor &out_grad) {
  const int64_t D = s.width, E = s.value_width, T = s.queries, S = s.keys, H = s.heads, G = s.kv_heads;
  Expected e;
  e.out.assign(s.batch * H * T * E, 0.0), e.logs.assign(s.batch * H * T, -INFINITY);
  e.grad_q.assign(s.batch * H * T * D, 0.0);
  e.grad_k.assign(s.batch * G * S * D, 0.0), e.grad_v.assign(s.batch * G * S * E, 0.0);
  std::vector<double> weights(S), of_caps(S, 1.0);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t t = 0; t < T; ++t) {
        const int64_t g = h / (H / G), row = (b * H + h) * T + t;
        double most = -INFINITY, total = 0.0;
        for (int64_t j = 0; j < S; ++j) {
          weights[j] = -INFINITY;
          if (!seen.holds(b, h, t, j)) continue;
          weights[j] = 0.0;
          for (int64_t d = 0; d < D; ++d) weights[j] += q.at(b, h, t, d) * k.at(b, g, j, d);
          weights[j] *= s.scale;
          if (s.cap > 0.0f) {
            const double bounded = tanh(weights[j] / s.cap);
            weights[j] = s.cap * bounded, of_caps[j] = 1.0 - bounded * bounded;
          }
          most = std::max(most, weights[j]);
        }
        if (most == -INFINITY) continue;
        for (double &weight : weights) total += weight = exp(weight - most);
        e.logs[row] = most + log(total);
        double mean = 0.0;  // of the slopes' products with the values
        for (int64_t j = 0; j < S; ++j) {
          weights[j] /= total;
          for (int64_t d = 0; d < E && weights[j] > 0.0; ++d) {
            e.out[row * E + d] += weights[j] * v.at(b, g, j, d);
            e.grad_v[((b * G + g) * S + j) * E + d] += weights[j] * out_grad.at(b, h, t, d);
          }
        }
        for (int64_t d = 0; d < E; ++d) mean += out_grad.at(b, h, t, d) * e.out[row * E + d];
        for (int64_t j = 0; j < S; ++j) {
          if (weights[j] == 0.0) continue;
          double product = -mean;
          for (int64_t d = 0; d < E; ++d) product += out_grad.at(b, h, t, d) * v.at(b, g, j, d);
          product *= weights[j] * s.scale * of_caps[j];
          for (int64_t d = 0; d < D; ++d) {
            e.grad_q[row * D + d] += product * k.at(b, g, j, d);
            e.grad_k[((b * G + g) * S + j) * D + d] += product * q.at(b, h, t, d);
          }
        }
      }
  return e;
}

void attend_case(Case &c) {
  Random &random = c.random;
  SequenceAttention s = {};
  s.batch = random.between(1, 2), s.kv_heads = random.between(1, 2);
  s.heads = s.kv_heads * random.between(1, 3);
  s.width = random.chance(2) ? random.one_of<int64_t>({16, 32, 64, 128}) : random.between(1, 70);
  s.value_width = random.chance(2) ? s.width : random.between(1, 70);
  const int64_t most = std::max<int64_t>(
      20, std::min<int64_t>(320, (int64_t)sqrt(2.5e6 / (double)(s.batch * s.heads * s.width))));
  s.queries = random.between(1, most);
  s.keys = random.chance(2) ? s.queries : random.between(1, most);
  s.scale = (float)random.uniform(0.5, 1.5) / sqrtf((float)s.width);
  if (random.chance(3)) s.cap = (float)random.uniform(0.3, 5.0);
  Seen seen = {};
  seen.queries = s.queries, seen.keys = s.keys;
  const bool lists = random.chance(3);
  if (lists) {
    draw_lists(c, seen, s.heads);
    s.starts = seen.starts.data(), s.listed = seen.listed.data();
    s.seen_by = seen.bits.data(), s.list_of = seen.list_of.data();
  } else {
    draw_band(c, seen);
    s.low = seen.low, s.high = seen.high;
  }
  s.kind = random.one_of<int32_t>({F32, F32, F16, BF16});
  if (random.chance(3)) {
    seen.valid = c.buffer<uint8_t>(s.batch * s.keys);
    const int64_t one_in = random.one_of<int64_t>({1, 2, 10});
    for (uint8_t &one : seen.valid) one = one_in == 1 ? 0 : !random.chance(one_in);
    seen.valid.freeze();
    s.valid = seen.valid.data();
  }
  c.say("%s, %lld rows, %lld heads, %lld of keys, %lld queries, %lld keys, widths %lld and %lld, %s "
        "[%lld, %lld]%s, cap %g, %lld threads",
        name_of(s.kind), (long long)s.batch, (long long)s.heads, (long long)s.kv_heads, (long long)s.queries,
        (long long)s.keys, (long long)s.width, (long long)s.value_width, lists ? "lists" : "band",
        (long long)s.low, (long long)s.high, s.valid ? ", mask" : "", s.cap, (long long)c.threads);
  const int64_t B = s.batch, H = s.heads, G = s.kv_heads, T = s.queries, S = s.keys;
  Tensor q(c, s.q, B, H, T, s.width, s.kind), k(c, s.k, B, G, S, s.width, s.kind), v(c, s.v, B, G, S, s.value_width, s.kind);
  Tensor out_grad(c, s.out_grad, B, H, T, s.value_width, s.kind);
  Tensor out(c, s.out, B, H, T, s.value_width, s.kind), grad_q(c, s.grad_q, B, H, T, s.width, s.kind);
  Tensor grad_k(c, s.grad_k, B, G, S, s.width, s.kind), grad_v(c, s.grad_v, B, G, S, s.value_width, s.kind);

  int64_t odd = -1;  // a key that some query sees
  if (random.chance(8))
    for (int64_t i = 0; i < S && odd < 0; ++i)
      for (int64_t t = 0; t < T && odd < 0; ++t)
        if (seen.holds(0, 0, t, i)) odd = i;
  if (odd >= 0) {
    const bool of_key = random.chance(2);
    Tensor &one = of_key ? k : v;
    one.data.set(odd * (of_key ? s.k : s.v).row, random.one_of<double>({NAN, INFINITY}));
  }
  for (Tensor *input : {&q, &k, &v, &out_grad}) input->data.freeze();
  for (Tensor *output : {&out, &grad_q, &grad_k, &grad_v}) output->erase();
  Buffer<float> logs = c.unwritten(B * H * T);
  const bool wants_logs = random.chance(2) || odd < 0;
  const int returned = suffice_attend(&s, q.data.data(), k.data.data(), v.data.data(), out.data.data(),
                                      wants_logs ? logs.data() : nullptr, c.threads);
  c.expect(out.data.intact(), "wrote beside the outputs");
  c.intact(logs);
  if (odd >= 0) return c.expect(returned == 1, "what is no number was not told of");
  c.expect(returned == 0, "returned 1 although all numbers are finite");

  const Expected e = reference(s, seen, q, k, v, out_grad);
  // half a unit in the last place of what is stored, and of the outputs that gradients are made of
  const double ulp = s.kind == F32 ? 0.0 : s.kind == F16 ? 0x1p-11 : 0x1p-8;
  auto bound = [&](double of_sums, const std::vector<double> &x, double times) {
    return of_sums + times * ulp * (1.0 + largest(x));
  };
  c.close("outputs", out.values().data(), e.out, bound(4e-5, e.out, 1.0));
  for (int64_t i = 0; i < logs.size(); ++i) {
    if (e.logs[i] != -INFINITY) continue;
    c.expect(logs[i] == -INFINITY, "the logarithm of no weight is not -inf");
  }
  std::vector<double> expected_logs = e.logs;
  std::vector<float> some_logs(logs.begin(), logs.end());
  for (size_t i = 0; i < some_logs.size(); ++i)
    if (e.logs[i] == -INFINITY) expected_logs[i] = some_logs[i] = 0.0f;
  c.close("logarithms", some_logs.data(), expected_logs, 4e-5);

  logs.freeze();
  suffice_attend_back(&s, q.data.data(), k.data.data(), v.data.data(), out.data.data(), logs.data(),
                      out_grad.data.data(), grad_q.data.data(), grad_k.data.data(), grad_v.data.data(), c.threads);
  for (const Tensor *output : {&grad_q, &grad_k, &grad_v}) c.expect(output->data.intact(), "wrote beside the gradients");
  c.close("gradients of q", grad_q.values().data(), e.grad_q,
          bound(1e-4 * (1.0 + largest(e.grad_q)), e.grad_q, 4.0));
  c.close("gradients of k", grad_k.values().data(), e.grad_k,
          bound(1e-4 * (1.0 + largest(e.grad_k)), e.grad_k, 4.0));
  c.close("gradients of v", grad_v.values().data(), e.grad_v,
          bound(1e-4 * (1.0 + largest(e.grad_v)), e.grad_v, 4.0));
}

}  // namespace check
