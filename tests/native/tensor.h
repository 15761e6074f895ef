// A tensor [batch, heads, positions, width] with gaps between what belongs to it.

#pragma once

#include "check.h"

namespace check {

struct Tensor {
  Numbers data;
  Strides strides = {};
  int64_t batch, heads, rows, width;

  // Draws strides and numbers; features follow each other.
  Tensor(Case &c, Strides &used, int64_t batch, int64_t heads, int64_t rows, int64_t width,
         int64_t kind = F32)
      : batch(batch), heads(heads), rows(rows), width(width) {
    const int64_t gap = c.random.chance(2) ? 0 : c.random.between(1, 5);
    const bool heads_inside = c.random.chance(2);  // [batch, rows, heads, width]
    strides.row = (heads_inside ? heads * width : width) + gap;
    strides.head = heads_inside ? width : rows * strides.row + gap;
    strides.batch = (heads_inside ? rows * strides.row : heads * strides.head) + gap;
    data = Numbers(c, kind, (batch - 1) * strides.batch + (heads - 1) * strides.head +
                                (rows - 1) * strides.row + width);
    used = strides;
  }

  int64_t place(int64_t b, int64_t h, int64_t i, int64_t d) const {
    return b * strides.batch + h * strides.head + i * strides.row + d;
  }
  double at(int64_t b, int64_t h, int64_t i, int64_t d) const { return data.get(place(b, h, i, d)); }
  float *floats() const { return data.full.data(); }

  void erase() {
    for (int64_t i = 0; i < data.size(); ++i) data.set(i, NAN);
  }

  // What belongs to it, without gaps; a gap that was written counts as no number.
  std::vector<float> values() const {
    std::vector<float> found;
    std::vector<uint8_t> own(data.size());
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t d = 0; d < width; ++d) {
            found.push_back((float)at(b, h, i, d));
            own[place(b, h, i, d)] = 1;
          }
    for (int64_t i = 0; i < data.size(); ++i)
      if (!own[i] && data.get(i) == data.get(i)) found[0] = NAN;
    return found;
  }
};

}  // namespace check
