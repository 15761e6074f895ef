// Products of this project's kernels, of the instruction set that is named.

#include <string.h>

#include "../../suffice/csrc/interface.h"
#include "cases.h"

int main(int words, char **word) {
  if (words != 2 || suffice_use_isa(word[1])) return 2;
  const struct {
    const char *name;
    int64_t kind, group, bits;
  } kinds[] = {{"float32", F32, 0, 32}, {"float16", F16, 0, 16}, {"8-bit", INT8, 32, 8}, {"4-bit", INT4, 32, 4}};
  for (const auto &kind : kinds)
    for (const Shape &shape : shapes()) {
      const int64_t numbers = shape.outputs * shape.inputs;
      std::vector<uint8_t> weights(numbers * kind.bits / 8);
      std::vector<uint16_t> scales(kind.group ? numbers / kind.group : 0, 0x3c00);
      std::vector<float> x(shape.rows * shape.inputs), y(shape.rows * shape.outputs);
      for (size_t i = 0; i < x.size(); ++i) x[i] = (float)(i % 17) - 8.0f;
      Matrix matrix = {};
      matrix.kind = kind.kind, matrix.rows = shape.outputs, matrix.columns = shape.inputs;
      matrix.group = kind.group, matrix.data = weights.data(), matrix.scales = scales.data();
      count(kind.name, "ours", shape,
            [&] { suffice_multiply(&matrix, x.data(), shape.rows, y.data(), 1); });
    }
}
