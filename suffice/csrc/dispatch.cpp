// The interface, answered by the kernels for this processor.

#include <string.h>

#include "interface.h"
#include "isa/table.h"

namespace avx512 { extern const suffice::Kernels kernels; }
namespace avx2 { extern const suffice::Kernels kernels; }
namespace portable { extern const suffice::Kernels kernels; }

namespace {

using suffice::Kernels;

struct Choices {
  const Kernels *best_first[3] = {};
  int count = 0;
  char names[64] = "";

  Choices() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vnni");
    if (wide) add(avx512::kernels);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
      add(avx2::kernels);
#endif
    add(portable::kernels);
  }

  void add(const Kernels &kernels) {
    best_first[count++] = &kernels;
    if (names[0]) strcat(names, " ");
    strcat(names, kernels.name);
  }
};

const Choices choices;
const Kernels *used = choices.best_first[0];

int64_t bounded(int64_t threads) { return threads < 1 ? 1 : threads > 256 ? 256 : threads; }

}  // namespace

extern "C" {

const char *suffice_isa(void) { return used->name; }

const char *suffice_isas(void) { return choices.names; }

int suffice_use_isa(const char *name) {
  for (int i = 0; i < choices.count; ++i)
    if (!strcmp(choices.best_first[i]->name, name)) {
      used = choices.best_first[i];
      return 0;
    }
  return 1;
}

void suffice_sizes(int64_t *sizes) {
  const size_t bytes[] = {sizeof(Matrix), sizeof(Norm), sizeof(Layer), sizeof(Span),
                          sizeof(KVCache),   sizeof(Mixing),  sizeof(DecodeAttention),  sizeof(Model),
                          sizeof(Strides), sizeof(SequenceAttention), sizeof(Linear)};
  for (size_t i = 0; i < sizeof(bytes) / sizeof(*bytes); ++i) sizes[i] = (int64_t)bytes[i];
}

void suffice_multiply(const Matrix *matrix, const float *x, int64_t rows, float *y,
                      int64_t threads) {
  used->multiply(matrix, x, rows, y, bounded(threads));
}

int suffice_look(const DecodeAttention *look, const KVCache *cache, int64_t rows, int64_t threads) {
  return used->look(look, cache, rows, bounded(threads));
}

int64_t suffice_step_room(const Model *model, int64_t rows, int64_t longest, int64_t threads) {
  return used->step_room(model, rows, longest, bounded(threads));
}

void suffice_step(const Model *model, const KVCache *cache, const Mixing *mixes, const int64_t *tokens,
                  const int64_t *places, const int64_t *padding, int64_t rows, int64_t longest,
                  float *logits, void *room, int64_t threads) {
  used->step(model, cache, mixes, tokens, places, padding, rows, longest, logits, room, bounded(threads));
}

int suffice_attend(const SequenceAttention *whole, const float *q, const float *k, const float *v, float *out,
                   float *logs, int64_t threads) {
  return used->attend(whole, q, k, v, out, logs, bounded(threads));
}

void suffice_attend_back(const SequenceAttention *whole, const float *q, const float *k, const float *v,
                         const float *out, const float *logs, const float *slope, float *of_q,
                         float *of_k, float *of_v, int64_t threads) {
  used->attend_back(whole, q, k, v, out, logs, slope, of_q, of_k, of_v, bounded(threads));
}

void suffice_linear(const Linear *linear, const float *q, const float *k, const float *v,
                    float *out, float *totals, int64_t threads) {
  used->linear(linear, q, k, v, out, totals, bounded(threads));
}

void suffice_linear_back(const Linear *linear, const float *q, const float *k, const float *v,
                         const float *out, const float *totals, const float *slope, float *of_q,
                         float *of_k, float *of_v, int64_t threads) {
  used->linear_back(linear, q, k, v, out, totals, slope, of_q, of_k, of_v, bounded(threads));
}

}  // extern "C"
