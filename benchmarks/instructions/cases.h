// Shapes of products and the marks between which their instructions are counted.

#pragma once

#include <stdio.h>
#include <unistd.h>

#include <vector>

struct Shape {
  int64_t outputs, inputs, rows;
};

inline std::vector<Shape> shapes() {
  std::vector<Shape> found;
  for (int64_t outputs : {768, 2048})
    for (int64_t rows : {1, 4, 16}) found.push_back({outputs, 768, rows});
  return found;
}

// Runs a product twice and has the instructions of the second time counted under a name.
template <class F>
void count(const char *weights, const char *kernels, const Shape &shape, F product) {
  product();
  getppid();
  product();
  getppid();
  printf("%s %s %lld %lld %lld\n", weights, kernels, (long long)shape.outputs,
         (long long)shape.inputs, (long long)shape.rows);
}
