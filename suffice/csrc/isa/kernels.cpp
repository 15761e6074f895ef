// Compiled once for each set of instructions; SUFFICE_ISA is its namespace.

#include "table.h"

#include <stdlib.h>

#include "../threads.h"
#include "linear_learn.h"
#include "look.h"
#include "recur_back.h"
#include "step.h"
#include "whole.h"
#include "whole_back.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace SUFFICE_ISA {
namespace {

constexpr int64_t SHARED = 8;  // from so many inputs on threads part the work of coding them

struct Product {
  const Matrix &matrix;
  const float *x;
  int64_t rows;
  float *y;
  Coded *coded;
};

void multiply_worker(suffice::Team &team, int thread, void *context) {
  Product &p = *(Product *)context;
  const Matrix &m = p.matrix;
  const bool shares = p.rows >= SHARED;
  Inputs in{p.x, p.rows, m.columns, p.coded[shares ? 0 : thread]};
  Range range;
  if (shares && holds_codes(m)) {
    while (team.take(p.rows, SHARED, range)) fit(in, m, range);
    team.meet();
    in.group = m.group;
  } else {
    fit(in, m);
  }
  int64_t grain = (m.rows / (4 * team.threads) / PANEL + 1) * PANEL;
  while (team.take(m.rows, grain, range)) product(m, in, range, p.y);
}

void multiply(const Matrix *matrix, const float *x, int64_t rows, float *y, int64_t threads) {
  Coded coded[suffice::MOST_THREADS] = {};
  void *memory = nullptr;
  if (holds_codes(*matrix)) {
    int64_t groups = matrix->columns / matrix->group;
    int64_t each = rows * (matrix->columns + 8 * groups) + 256;
    memory = malloc(each * threads);
    for (int64_t t = 0; t < threads; ++t) {
      char *own = (char *)memory + t * each;
      own += 64 - (uintptr_t)own % 64;
      coded[t] = {(int8_t *)(own + 8 * groups * rows), (float *)own,
                  (int32_t *)(own + 4 * groups * rows)};
    }
  }
  Product product{*matrix, x, rows, y, coded};
  suffice::together((int)threads, multiply_worker, &product);
  free(memory);
}

int look(const DecodeAttention *look, const KVCache *cache, int64_t rows, int64_t threads) {
  return run_look(*look, *cache, rows, threads);
}

int64_t room(const Model *model, int64_t rows, int64_t longest, int64_t threads) {
  return step_room(*model, rows, longest, threads);
}

void step(const Model *model, const KVCache *cache, const Mixing *mixes, const int64_t *tokens,
          const int64_t *places, const int64_t *padding, int64_t rows, int64_t longest, float *logits, void *scratch,
          int64_t threads) {
  run_step(*model, cache, mixes, tokens, places, padding, rows, longest, logits, scratch, threads);
}

}  // namespace

extern const suffice::Kernels kernels;
const suffice::Kernels kernels = {TEXT(SUFFICE_ISA), multiply,     look,        room, step,
                                  attend_whole,      attend_back,  linear_whole, linear_back,
                                  recur_whole, recur_back};

}  // namespace SUFFICE_ISA
