// All kernels, compiled once per instruction set; SUFFICE_ISA is its namespace.

#include "table.h"

#include <stdlib.h>

#include "../threads.h"
#include "linear_backward_pass.h"
#include "decode_attention.h"
#include "recurrence_backward.h"
#include "decode_step.h"
#include "sequence_attention.h"
#include "sequence_attention_backward.h"
#include "recurrent_token.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace SUFFICE_ISA {
namespace {

constexpr int64_t MIN_SHARED_ROWS =
    8;  // rows from which on threads share the quantisation of activations

struct Product {
  const Matrix &matrix;
  const float *x;
  int64_t rows;
  float *y;
  QuantisedRows *coded;
};

void multiply_worker(suffice::Team &team, int thread, void *context) {
  Product &p = *(Product *)context;
  const Matrix &m = p.matrix;
  const bool shares = p.rows >= MIN_SHARED_ROWS;
  Inputs in{p.x, p.rows, m.columns, p.coded[shares ? 0 : thread]};
  Range range;
  if (shares && holds_codes(m)) {
    while (team.take(p.rows, MIN_SHARED_ROWS, range)) quantise_inputs(in, m, range);
    team.barrier();
    in.group = m.group;
  } else {
    quantise_inputs(in, m);
  }
  const int64_t panels = BATCH_PANELS * PANEL;
  const int64_t grain = (m.rows / (4 * team.threads) / panels + 1) * panels;
  while (team.take(m.rows, grain, range)) product(m, in, range, p.y);
}

void multiply(const Matrix *matrix, const float *x, int64_t rows, float *y, int64_t threads) {
  QuantisedRows coded[suffice::MAX_THREADS] = {};
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
  suffice::run_team((int)threads, multiply_worker, &product);
  free(memory);
}

int decode_attention(const DecodeAttention *attention, const KVCache *cache, int64_t rows,
                     int64_t threads) {
  return run_decode_attention(*attention, *cache, rows, threads);
}

int64_t step_scratch_bytes(const Model *model, int64_t rows, int64_t longest, int64_t threads) {
  return step_room(*model, rows, longest, threads);
}

void step(const Model *model, const KVCache *cache, const Mixing *mixes, const int64_t *tokens,
          const int64_t *places, const int64_t *padding, int64_t rows, int64_t queries,
          int64_t longest, float *features, float *logits, void *scratch, int64_t threads) {
  run_step(*model, cache, mixes, tokens, places, padding, rows, queries, longest, features, logits,
           scratch, threads);
}

}  // namespace

extern const suffice::Kernels kernels;
const suffice::Kernels kernels = {
    TEXT(SUFFICE_ISA), multiply,        decode_attention, step_scratch_bytes, step,
    attend_sequence,   attend_backward, linear_sequence,  linear_back,        recur_sequence,
    recur_back,        gated_norm,      gated_norm_back,  gated_linear_unit,  gated_linear_unit_back,
    rotate,            convolve,        convolve_back,    convolve_step,      mamba2_step,
    delta_step,      recurrent_token};

}  // namespace SUFFICE_ISA
