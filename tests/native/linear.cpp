// Sums of features along sequences and their gradients.

#include <algorithm>

#include "check.h"
#include "tensor.h"

namespace check {

// Features of a row, and their slopes by what they are features of.
struct Features {
  const Linear &l;
  std::vector<double> of(const Tensor &x, int64_t b, int64_t h, int64_t i) const {
    std::vector<double> found(l.features);
    double norm = 0.0;
    for (int64_t d = 0; d < l.width; ++d) norm += x.at(b, h, i, d) * x.at(b, h, i, d);
    for (int64_t f = 0; f < l.features; ++f) {
      if (!l.omega) {
        const double number = x.at(b, h, i, f);
        found[f] = number < 0.0 ? exp(number) : number + 1.0;
        continue;
      }
      double product = 0.0;
      for (int64_t d = 0; d < l.width; ++d) product += l.omega[f * l.width + d] * x.at(b, h, i, d);
      found[f] = exp(sqrt((double)l.scale) * product - 0.5 * l.scale * norm);
    }
    return found;
  }

  // Adds to [D] what slopes of the features make of those of the row.
  void back(const Tensor &x, int64_t b, int64_t h, int64_t i, const std::vector<double> &features,
            const std::vector<double> &slopes, double *to) const {
    const double root = sqrt((double)l.scale);
    for (int64_t f = 0; f < l.features; ++f)
      if (!l.omega) {
        const double number = x.at(b, h, i, f);
        to[f] += slopes[f] * (number < 0.0 ? exp(number) : 1.0);
      } else {
        for (int64_t d = 0; d < l.width; ++d)
          to[d] += slopes[f] * features[f] * root * (l.omega[f * l.width + d] - root * x.at(b, h, i, d));
      }
  }
};

struct Expected {
  std::vector<double> out, grad_q, grad_k, grad_v;
  std::vector<uint8_t> sees;
};

static Expected reference(const Linear &l, const Tensor &q, const Tensor &k, const Tensor &v,
                          const Tensor &out_grad) {
  const int64_t D = l.width, E = l.value_width, T = l.queries, S = l.keys, H = l.heads, G = l.kv_heads;
  const Features features{l};
  Expected e;
  e.out.assign(l.batch * H * T * E, 0.0), e.grad_q.assign(l.batch * H * T * D, 0.0);
  e.grad_k.assign(l.batch * G * S * D, 0.0), e.grad_v.assign(l.batch * G * S * E, 0.0);
  e.sees.assign(l.batch * H * T, 0);
  for (int64_t b = 0; b < l.batch; ++b)
    for (int64_t g = 0; g < G; ++g) {
      std::vector<std::vector<double>> grad_keys(S);
      std::vector<std::vector<double>> slopes_of_keys(S, std::vector<double>(l.features));
      std::vector<int64_t> document(S);
      for (int64_t j = 0; j < S; ++j) {
        grad_keys[j] = features.of(k, b, g, j);
        const int64_t *documents = l.documents ? l.documents + b * S : nullptr;
        document[j] = j ? document[j - 1] + (documents && documents[j] != documents[j - 1]) : 0;
      }
      for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h)
        for (int64_t t = 0; t < T; ++t) {
          const int64_t row = (b * H + h) * T + t, own = S - T + t;
          const std::vector<double> query = features.of(q, b, h, t);
          std::vector<double> weights(S), slopes(l.features);
          double total = 0.0, mean = 0.0;
          for (int64_t j = 0; j < S; ++j) {
            if ((l.causal && j > own) || (l.valid && !l.valid[b * S + j])) continue;
            if (l.documents && document[j] != document[t]) continue;
            for (int64_t f = 0; f < l.features; ++f) weights[j] += query[f] * grad_keys[j][f];
            total += weights[j];
          }
          if (total == 0.0) continue;
          e.sees[row] = 1;
          for (int64_t j = 0; j < S; ++j)
            for (int64_t d = 0; d < E && weights[j] > 0.0; ++d) {
              e.out[row * E + d] += weights[j] / total * v.at(b, g, j, d);
              e.grad_v[((b * G + g) * S + j) * E + d] += weights[j] / total * out_grad.at(b, h, t, d);
            }
          for (int64_t d = 0; d < E; ++d) mean += out_grad.at(b, h, t, d) * e.out[row * E + d];
          for (int64_t j = 0; j < S; ++j) {
            if (weights[j] == 0.0) continue;
            double product = -mean;
            for (int64_t d = 0; d < E; ++d) product += out_grad.at(b, h, t, d) * v.at(b, g, j, d);
            for (int64_t f = 0; f < l.features; ++f) {
              slopes[f] += product / total * grad_keys[j][f];
              slopes_of_keys[j][f] += product / total * query[f];
            }
          }
          features.back(q, b, h, t, query, slopes, &e.grad_q[row * D]);
        }
      for (int64_t j = 0; j < S; ++j)
        features.back(k, b, g, j, grad_keys[j], slopes_of_keys[j], &e.grad_k[((b * G + g) * S + j) * D]);
    }
  return e;
}

void linear_case(Case &c) {
  Random &random = c.random;
  Linear l = {};
  l.batch = random.between(1, 2), l.kv_heads = random.between(1, 2);
  l.heads = l.kv_heads * random.between(1, 3);
  l.width = random.chance(2) ? random.one_of<int64_t>({16, 32, 64}) : random.between(1, 50);
  l.value_width = random.chance(2) ? l.width : random.between(1, 50);
  const bool exponential = random.chance(2);
  l.features = exponential ? random.between(1, 60) : l.width;
  l.causal = random.chance(2);
  l.scale = 1.0f / sqrtf((float)l.width);
  const int64_t most = std::max<int64_t>(
      20, std::min<int64_t>(300, (int64_t)sqrt(2e6 / (double)(l.batch * l.heads * (l.width + l.features)))));
  l.keys = random.between(1, most);
  const bool documents = random.chance(3);
  l.queries = documents || random.chance(2) ? l.keys : random.between(1, l.causal ? l.keys : most);
  Buffer<float> omega;
  if (exponential) {
    omega = c.normals(l.features * l.width);
    omega.freeze();
    l.omega = omega.data();
  }
  Buffer<uint8_t> valid;
  if (random.chance(3)) {
    valid = c.buffer<uint8_t>(l.batch * l.keys);
    const int64_t one_in = random.one_of<int64_t>({1, 2, 10});
    for (uint8_t &one : valid) one = one_in == 1 ? 0 : !random.chance(one_in);
    l.valid = valid.data();
  }
  Buffer<int64_t> numbers;
  if (documents) {
    numbers = c.buffer<int64_t>(l.batch * l.keys);
    const int64_t one_in = random.one_of<int64_t>({2, 20, 100});
    int64_t number = 0;
    for (int64_t &one : numbers) one = number += random.chance(one_in);
    l.documents = numbers.data();
  }
  c.say("%lld rows, %lld heads, %lld of keys, %lld queries, %lld keys, widths %lld and %lld, %lld %s "
        "features%s%s%s, %lld threads",
        (long long)l.batch, (long long)l.heads, (long long)l.kv_heads, (long long)l.queries,
        (long long)l.keys, (long long)l.width, (long long)l.value_width, (long long)l.features,
        exponential ? "exponential" : "elu", l.causal ? ", causal" : "", l.valid ? ", mask" : "",
        l.documents ? ", documents" : "", (long long)c.threads);
  const int64_t B = l.batch, H = l.heads, G = l.kv_heads, T = l.queries, S = l.keys;
  Tensor q(c, l.q, B, H, T, l.width), k(c, l.k, B, G, S, l.width), v(c, l.v, B, G, S, l.value_width);
  Tensor out_grad(c, l.out_grad, B, H, T, l.value_width);
  Tensor out(c, l.out, B, H, T, l.value_width), grad_q(c, l.grad_q, B, H, T, l.width);
  Tensor grad_k(c, l.grad_k, B, G, S, l.width), grad_v(c, l.grad_v, B, G, S, l.value_width);
  for (Tensor *input : {&q, &k, &v, &out_grad}) input->data.freeze();
  for (Tensor *output : {&out, &grad_q, &grad_k, &grad_v}) output->erase();
  Buffer<float> totals = c.unwritten(B * H * T);
  suffice_linear(&l, q.floats(), k.floats(), v.floats(), out.floats(), totals.data(), c.threads);
  c.intact(out.data.full);
  c.intact(totals);
  const Expected e = reference(l, q, k, v, out_grad);
  c.close("outputs", out.values().data(), e.out, 1e-4);
  for (int64_t i = 0; i < totals.size(); ++i)
    if (e.sees[i] ? !(totals[i] > 0.0f) : totals[i] != 0.0f) c.fail("sum %lld is %g", (long long)i, totals[i]);
  Tensor again(c, l.out, B, H, T, l.value_width);  // without the sums, elsewhere
  again.erase();
  suffice_linear(&l, q.floats(), k.floats(), v.floats(), again.floats(), nullptr, c.threads);
  c.intact(again.data.full);
  c.close("outputs without sums", again.values().data(), e.out, 1e-4);

  totals.freeze();
  suffice_linear_back(&l, q.floats(), k.floats(), v.floats(), again.floats(), totals.data(),
                      out_grad.floats(), grad_q.floats(), grad_k.floats(), grad_v.floats(), c.threads);
  for (const Tensor *output : {&grad_q, &grad_k, &grad_v}) c.intact(output->data.full);
  c.close("gradients of q", grad_q.values().data(), e.grad_q, 4e-4 * (1.0 + largest(e.grad_q)));
  c.close("gradients of k", grad_k.values().data(), e.grad_k, 4e-4 * (1.0 + largest(e.grad_k)));
  c.close("gradients of v", grad_v.values().data(), e.grad_v, 4e-4 * (1.0 + largest(e.grad_v)));
}

}  // namespace check
