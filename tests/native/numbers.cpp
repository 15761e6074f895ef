// Numbers of 16 bits, matrices, and products with them: what the kernels are compared with.

#include <algorithm>

#include "check.h"

namespace check {

double largest(const std::vector<double> &numbers) {
  double most = 0.0;
  for (double x : numbers) most = std::max(most, fabs(x));
  return most;
}

uint16_t half_of(double x) {
  const uint16_t sign = signbit(x) ? 0x8000 : 0;
  const double size = fabs(x);
  if (x != x) return 0x7e00;
  if (size >= 65520.0) return sign | 0x7c00;
  if (size == 0.0) return sign;
  int exponent = std::max(ilogb(size), -14);
  const int64_t whole = (int64_t)nearbyint(ldexp(size, 10 - exponent));  // 1024 to 2048, or less
  return sign | (uint16_t)(whole + ((int64_t)(exponent + 14) << 10));
}

double of_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                : exponent == 0 ? ldexp(fraction, -24)
                                : ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

uint16_t brain_of(double x) {
  const float single = (float)x;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  if (x != x) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double of_brain(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float single;
  memcpy(&single, &wide, 4);
  return single;
}

Numbers::Numbers(Case &c, int64_t kind, int64_t count, double size) : kind(kind) {
  if (kind == F32) full = c.buffer<float>(count);
  else halves = c.buffer<uint16_t>(count);
  for (int64_t i = 0; i < count; ++i) set(i, size * c.random.normal());
}

double Numbers::get(int64_t i) const {
  return kind == F32 ? full[i] : kind == F16 ? of_half(halves[i]) : of_brain(halves[i]);
}

void Numbers::set(int64_t i, double x) {
  if (kind == F32) full[i] = (float)x;
  else halves[i] = kind == F16 ? half_of(x) : brain_of(x);
}

const char *name_of(int64_t kind) {
  static const char *const names[] = {"none", "f32", "f16", "bf16", "int8", "int4"};
  return names[kind + 1];
}

Weights::Weights(Case &c, int64_t kind, int64_t rows, int64_t columns, int64_t group, bool biased) {
  values.resize(rows * columns);
  if (biased) {
    bias = c.normals(rows);
    bias.freeze();
  }
  matrix = {kind, rows, columns, group, nullptr, nullptr, biased ? bias.data() : nullptr};
  const double size = 1.0 / sqrt((double)columns);
  if (kind < INT8) {
    numbers = Numbers(c, kind, rows * columns, size);
    for (int64_t i = 0; i < rows * columns; ++i) values[i] = numbers.get(i);
    numbers.freeze();
    matrix.data = numbers.data();
    return;
  }
  const int64_t wide = kind == INT8 ? 4 : 8, panels = (rows + 15) / 16, groups = columns / group;
  const int64_t zero = kind == INT8 ? 128 : 8, most = 2 * zero - 1;
  const bool extremes = c.random.chance(4);  // where sums of 16 bits would overflow
  codes = c.buffer<uint8_t>(panels * (columns / wide) * 64);
  scales = c.buffer<uint16_t>(panels * groups * 16);
  memset(codes.data(), 0, codes.size());
  for (uint16_t &scale : scales) scale = half_of(size / (double)zero * c.random.uniform(0.5, 2.0));
  for (int64_t r = 0; r < panels * 16; ++r)
    for (int64_t k = 0; k < columns; ++k) {
      int64_t code = extremes ? (c.random.chance(8) ? 0 : most) : c.random.up_to(most);
      uint8_t &byte = codes[(r / 16 * (columns / wide) + k / wide) * 64 + 4 * (r % 16) + k % 4];
      byte |= (uint8_t)(kind == INT4 && k % 8 >= 4 ? code << 4 : code);
      if (r >= rows) continue;
      const double scale = of_half(scales[(r / 16 * groups + k / group) * 16 + r % 16]);
      values[r * columns + k] = (double)(code - zero) * scale;
    }
  codes.freeze();
  scales.freeze();
  matrix.data = codes.data();
  matrix.scales = scales.data();
}

// Numbers of a group as multiples of their largest / 127.
static std::vector<double> coded(const std::vector<double> &x, int64_t group) {
  std::vector<double> y(x.size());
  for (size_t g = 0; g < x.size(); g += group) {
    double most = 0.0;
    for (int64_t i = 0; i < group; ++i) most = std::max(most, fabs(x[g + i]));
    for (int64_t i = 0; i < group; ++i)
      y[g + i] = most < 1e-33 ? 0.0 : round(x[g + i] * 127.0 / most) * most / 127.0;
  }
  return y;
}

std::vector<double> Weights::times(const std::vector<double> &x, int64_t rows,
                                   std::vector<double> *bounds) const {
  const std::vector<double> in = matrix.kind < INT8 ? x : coded(x, matrix.group);
  const int64_t columns = matrix.columns;
  std::vector<double> y(rows * matrix.rows);
  if (bounds) bounds->assign(y.size(), 0.0);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t r = 0; r < matrix.rows; ++r) {
      double sum = matrix.bias ? matrix.bias[r] : 0.0, sizes = fabs(sum);
      for (int64_t k = 0; k < columns; ++k) {
        const double product = in[m * columns + k] * values[r * columns + k];
        sum += product;
        sizes += fabs(product);
      }
      y[m * matrix.rows + r] = sum;
      if (bounds) (*bounds)[m * matrix.rows + r] = sizes;
    }
  return y;
}

}  // namespace check
