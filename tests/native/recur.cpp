// Recurrences and their gradients.

#include <algorithm>

#include "check.h"
#include "tensor.h"

namespace check {

// What a case is made of, for the loops below.
struct Sums {
  const Recurrence &r;
  const Tensor &q, &k, &v, *decay, *beta, &out_grad;
  const Buffer<float> &start, &grad_end;
  bool begun;  // the state at the start is no 0
};

struct Recurred {
  std::vector<double> out, end, grad_q, grad_k, grad_v, grad_decay, grad_beta, of_start;
};

static Recurred reference(const Sums &s) {
  const Recurrence &r = s.r;
  const int64_t H = r.heads, T = r.length, D = r.width, E = r.value_width, all = r.batch * H;
  Recurred e;
  e.out.assign(all * T * E, 0.0), e.grad_v = e.out, e.grad_q.assign(all * T * D, 0.0), e.grad_k = e.grad_q;
  e.end.assign(all * D * E, 0.0), e.of_start = e.end;
  const int64_t logs = r.decays > 1 ? D : 1;
  e.grad_decay.assign(all * T * logs, 0.0), e.grad_beta.assign(all * T, 0.0);
  for (int64_t b = 0; b < r.batch; ++b)
    for (int64_t h = 0; h < H; ++h) {
      const int64_t head = b * H + h;
      std::vector<double> state(D * E), faded(T * D * E), after(T * D * E), taken(T * E), left(T * E);
      for (int64_t i = 0; i < D * E && s.begun; ++i) state[i] = s.start[head * D * E + i];
      auto begins = [&](int64_t t) {
        return t && r.documents && r.documents[b * T + t] != r.documents[b * T + t - 1];
      };
      auto share = [&](int64_t t) { return s.beta ? s.beta->at(b, h, t, 0) : 1.0; };
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t d = 0; d < D; ++d)
          for (int64_t c = 0; c < E; ++c) {
            double &x = state[d * E + c];
            if (begins(t)) x = 0.0;
            if (s.decay) x *= exp(s.decay->at(b, h, t, r.decays > 1 ? d : 0));
            faded[(t * D + d) * E + c] = x;
          }
        for (int64_t c = 0; c < E; ++c) {
          double known = 0.0;
          for (int64_t d = 0; d < D && s.beta; ++d) known += state[d * E + c] * s.k.at(b, h, t, d);
          left[t * E + c] = s.v.at(b, h, t, c) - known;
          taken[t * E + c] = share(t) * left[t * E + c];
          for (int64_t d = 0; d < D; ++d) {
            state[d * E + c] += s.k.at(b, h, t, d) * taken[t * E + c];
            e.out[(head * T + t) * E + c] += state[d * E + c] * s.q.at(b, h, t, d);
          }
        }
        std::copy(state.begin(), state.end(), after.begin() + t * D * E);
      }
      std::copy(state.begin(), state.end(), e.end.begin() + head * D * E);
      for (int64_t i = 0; i < D * E; ++i) state[i] = s.grad_end[head * D * E + i];
      for (int64_t t = T - 1; t >= 0; --t) {
        const int64_t row = head * T + t;
        for (int64_t c = 0; c < E; ++c) {
          const double asked = s.out_grad.at(b, h, t, c);
          double of_taken = 0.0;
          for (int64_t d = 0; d < D; ++d) {
            state[d * E + c] += s.q.at(b, h, t, d) * asked;
            e.grad_q[row * D + d] += after[(t * D + d) * E + c] * asked;
            e.grad_k[row * D + d] += state[d * E + c] * taken[t * E + c];
            of_taken += state[d * E + c] * s.k.at(b, h, t, d);
          }
          e.grad_v[row * E + c] = share(t) * of_taken;
          e.grad_beta[row] += of_taken * left[t * E + c];
          for (int64_t d = 0; d < D; ++d) {
            double &x = state[d * E + c];
            if (s.beta) {
              e.grad_k[row * D + d] -= faded[(t * D + d) * E + c] * share(t) * of_taken;
              x -= s.k.at(b, h, t, d) * share(t) * of_taken;
            }
            e.grad_decay[row * logs + (logs > 1 ? d : 0)] += x * faded[(t * D + d) * E + c];
            if (s.decay) x *= exp(s.decay->at(b, h, t, r.decays > 1 ? d : 0));
            if (begins(t)) x = 0.0;
          }
        }
      }
      std::copy(state.begin(), state.end(), e.of_start.begin() + head * D * E);
    }
  return e;
}

// Makes rows of keys and queries as long as layers have them: corrections of long keys do not end.
static void normalise(Tensor &x) {
  for (int64_t b = 0; b < x.batch; ++b)
    for (int64_t h = 0; h < x.heads; ++h)
      for (int64_t i = 0; i < x.rows; ++i) {
        double size = 1e-6;
        for (int64_t d = 0; d < x.width; ++d) size += x.at(b, h, i, d) * x.at(b, h, i, d);
        for (int64_t d = 0; d < x.width; ++d)
          x.data.set(x.place(b, h, i, d), x.at(b, h, i, d) / sqrt(size));
      }
}

// Numbers between two bounds in place of those drawn.
static void spread(Case &c, Tensor &x, double least, double most) {
  for (int64_t i = 0; i < x.data.size(); ++i) x.data.set(i, c.random.uniform(least, most));
}

void recur_case(Case &c) {
  Random &random = c.random;
  Recurrence r = {};
  r.batch = random.between(1, 2), r.heads = random.between(1, 3);
  r.width = random.chance(2) ? random.one_of<int64_t>({16, 32, 64}) : random.between(1, 50);
  r.value_width = random.chance(2) ? r.width : random.between(1, 50);
  r.length = random.chance(3) ? random.between(1, 9) : random.between(10, 130);
  const bool corrects = random.chance(2), begun = !random.chance(3);
  r.decays = random.one_of<int64_t>({0, 1, corrects ? 1 : r.width});
  const double strength = random.one_of<double>({1e-3, 0.2, 300.0});
  Buffer<int64_t> numbers;
  if (random.chance(3)) {
    numbers = c.buffer<int64_t>(r.batch * r.length);
    const int64_t one_in = random.one_of<int64_t>({2, 20, 100});
    int64_t number = 0;
    for (int64_t &one : numbers) one = number += random.chance(one_in);
    r.documents = numbers.data();
  }
  c.say("%lld rows, %lld heads, %lld positions, widths %lld and %lld, %lld decays up to %g%s%s%s, "
        "%lld threads", (long long)r.batch, (long long)r.heads, (long long)r.length,
        (long long)r.width, (long long)r.value_width, (long long)r.decays, strength,
        corrects ? ", corrected" : "", r.documents ? ", documents" : "", begun ? ", begun" : "",
        (long long)c.threads);
  const int64_t B = r.batch, H = r.heads, T = r.length, D = r.width, E = r.value_width;
  Tensor q(c, r.q, B, H, T, D), k(c, r.k, B, H, T, D), v(c, r.v, B, H, T, E);
  Tensor out_grad(c, r.out_grad, B, H, T, E), out(c, r.out, B, H, T, E);
  Tensor decay(c, r.decay, B, H, T, r.decays ? r.decays : 1), beta(c, r.beta, B, H, T, 1);
  Tensor grad_q(c, r.grad_q, B, H, T, D), grad_k(c, r.grad_k, B, H, T, D), grad_v(c, r.grad_v, B, H, T, E);
  Tensor grad_decay(c, r.grad_decay, B, H, T, decay.width), grad_beta(c, r.grad_beta, B, H, T, 1);
  normalise(q), normalise(k);
  spread(c, decay, -strength, 0.0), spread(c, beta, 0.0, 1.0);
  for (Tensor *input : {&q, &k, &v, &out_grad, &decay, &beta}) input->data.freeze();
  for (Tensor *output : {&out, &grad_q, &grad_k, &grad_v, &grad_decay, &grad_beta}) output->erase();
  Buffer<float> start = c.normals(B * H * D * E), grad_end = c.normals(B * H * D * E);
  start.freeze(), grad_end.freeze();
  Buffer<float> end = c.unwritten(B * H * D * E), of_start = c.unwritten(B * H * D * E);
  const float *decays = r.decays ? decay.floats() : nullptr;
  const float *shares = corrects ? beta.floats() : nullptr, *before = begun ? start.data() : nullptr;
  suffice_recur(&r, q.floats(), k.floats(), v.floats(), decays, shares, before, out.floats(),
                end.data(), c.threads);
  c.intact(out.data.full), c.intact(end);
  const Recurred e = reference({r, q, k, v, r.decays ? &decay : nullptr, corrects ? &beta : nullptr,
                                out_grad, start, grad_end, begun});
  auto bound = [](const std::vector<double> &numbers) { return 2e-4 * (1.0 + largest(numbers)); };
  c.close("outputs", out.values().data(), e.out, bound(e.out));
  c.close("state", end.data(), e.end, bound(e.end));
  if (begun) {  // the state may be changed where it lies
    Buffer<float> moved = c.unwritten(B * H * D * E);
    for (int64_t i = 0; i < moved.size(); ++i) moved[i] = start[i];
    suffice_recur(&r, q.floats(), k.floats(), v.floats(), decays, shares, moved.data(), out.floats(),
                  moved.data(), c.threads);
    c.intact(moved);
    c.close("state in its place", moved.data(), e.end, bound(e.end));
  }
  const RecurrenceGradients slopes = {out_grad.floats(), grad_end.data(), grad_q.floats(), grad_k.floats(),
                                   grad_v.floats(), r.decays ? grad_decay.floats() : nullptr,
                                   corrects ? grad_beta.floats() : nullptr,
                                   begun ? of_start.data() : nullptr};
  suffice_recur_back(&r, q.floats(), k.floats(), v.floats(), decays, shares, before, &slopes, c.threads);
  for (const Tensor *output : {&grad_q, &grad_k, &grad_v, &grad_decay, &grad_beta}) c.intact(output->data.full);
  c.intact(of_start);
  c.close("gradients of q", grad_q.values().data(), e.grad_q, bound(e.grad_q));
  c.close("gradients of k", grad_k.values().data(), e.grad_k, bound(e.grad_k));
  c.close("gradients of v", grad_v.values().data(), e.grad_v, bound(e.grad_v));
  if (r.decays) c.close("gradients of decays", grad_decay.values().data(), e.grad_decay, bound(e.grad_decay));
  if (corrects) c.close("gradients of beta", grad_beta.values().data(), e.grad_beta, bound(e.grad_beta));
  if (begun) c.close("gradients of the start", of_start.data(), e.of_start, bound(e.of_start));
}

}  // namespace check
