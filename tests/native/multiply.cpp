// Products with matrices of every kind.

#include "check.h"

namespace check {

// Columns that a matrix of a kind may have, and how many of them share a scale.
static void draw_columns(Case &c, int64_t kind, int64_t &columns, int64_t &group) {
  group = 0;
  columns = c.random.between(1, c.random.one_of({20, 150, 700}));
  if (kind < INT8) return;
  group = c.random.between(1, c.random.one_of({2, 4, 20})) * (kind == INT8 ? 4 : 8);
  if (c.random.chance(2)) group = c.random.one_of({32, 64, 128});
  columns = group * c.random.between(1, 5);
}

void multiply_case(Case &c) {
  Random &random = c.random;
  const int64_t kind = random.one_of<int64_t>({F32, F16, BF16, INT8, INT4});
  const int64_t rows = random.between(1, random.one_of({1, 4, 30})), outputs = random.between(1, 200);
  int64_t columns, group;
  draw_columns(c, kind, columns, group);
  const Weights w(c, kind, outputs, columns, group, random.chance(2));
  c.say("%s, %lld rows, [%lld, %lld], groups of %lld, %lld threads", name_of(kind), (long long)rows,
        (long long)outputs, (long long)columns, (long long)group, (long long)c.threads);

  Buffer<float> x = c.normals(rows * columns);
  for (int64_t g = 0; kind >= INT8 && g < rows * columns; g += group) {
    // codes near which nothing is rounded the other way; one is the largest
    const double step = ldexp(1.0, (int)random.between(-12, 4));
    const bool zeros = random.chance(8), extremes = random.chance(4);
    for (int64_t i = 0; i < group; ++i) {
      double code = extremes ? 127.0 : (double)random.between(-126, 126) + random.uniform(-.4, .4);
      x[g + i] = zeros ? 0.0f : (float)(step * code);
    }
    if (!zeros) x[g + random.up_to(group - 1)] = (float)(127.0 * step);
  }
  const int64_t odd = random.chance(4) ? random.up_to(rows - 1) : -1;  // a row of no numbers
  const std::vector<double> numbers(x.begin(), x.end());
  if (odd >= 0)
    x[odd * columns + random.up_to(columns - 1)] = random.one_of<float>({NAN, INFINITY, -INFINITY});
  x.freeze();
  Buffer<float> y = c.unwritten(rows * outputs);
  suffice_multiply(&w.matrix, x.data(), rows, y.data(), c.threads);

  std::vector<double> sizes, expected = w.times(numbers, rows, &sizes);
  for (double &size : sizes) size = 4e-6 * size + 1e-30;
  for (int64_t r = 0; r < outputs && odd >= 0; ++r) {
    float &number = y[odd * outputs + r];
    if (isfinite(number)) c.fail("a row with no number in it has a finite output");
    number = (float)expected[odd * outputs + r];
  }
  c.close("outputs", y.data(), expected.data(), sizes.data(), rows * outputs);
  c.intact(y);
}

}  // namespace check
