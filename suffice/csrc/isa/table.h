// Function table that each instruction set fills.

#pragma once

#include "../interface.h"

namespace suffice {

struct Kernels {
  const char *name;
  void (*multiply)(const Matrix *, const float *, int64_t, float *, int64_t);
  int (*decode_attention)(const DecodeAttention *, const KVCache *, int64_t, int64_t);
  int64_t (*step_room)(const Model *, int64_t, int64_t, int64_t);
  void (*step)(const Model *, const KVCache *, const Mixing *, const int64_t *, const int64_t *,
               const int64_t *, int64_t, int64_t, int64_t, float *, float *, void *, int64_t);
  int (*attend)(const SequenceAttention *, const void *, const void *, const void *, void *,
                float *, int64_t);
  void (*attend_back)(const SequenceAttention *, const void *, const void *, const void *,
                      const void *, const float *, const void *, void *, void *, void *, int64_t);
  void (*linear)(const Linear *, const float *, const float *, const float *, float *, float *,
                 int64_t);
  void (*linear_back)(const Linear *, const float *, const float *, const float *, const float *,
                      const float *, const float *, float *, float *, float *, int64_t);
  void (*recur)(const Recurrence *, const float *, const float *, const float *, const float *,
                const float *, const float *, float *, float *, int64_t);
  void (*recur_back)(const Recurrence *, const float *, const float *, const float *, const float *,
                     const float *, const float *, const RecurrenceGradients *, int64_t);
  void (*norm)(const GatedNorm *, const float *, const float *, const float *, float *, int64_t);
  void (*norm_back)(const GatedNorm *, const float *, const float *, const float *, const float *,
                    float *, float *, float *, int64_t);
  void (*glu)(int64_t, int64_t, const float *, const float *, float *, int64_t);
  void (*glu_back)(int64_t, int64_t, const float *, const float *, const float *, float *, float *,
                   int64_t);
  void (*rotate)(const Rotation *, const float *, const float *, const float *, float *, int64_t);
  void (*convolve)(const Convolution *, const float *, const float *, const float *, float *,
                   int64_t);
  void (*convolve_back)(const Convolution *, const float *, const float *, const float *,
                        const float *, float *, float *, float *, int64_t);
  void (*convolve_step)(const Convolution *, const float *, const float *, const float *, float *,
                        int64_t, float *, int64_t);
  void (*mamba2_step)(const TokenStep *, const float *, const float *, const float *, const float *,
                      const float *, const float *, float *, float *, int64_t);
  void (*delta_step)(const TokenStep *, const float *, const float *, const float *, const float *,
                     const float *, float *, float *, int64_t);
  void (*recurrent_token)(const RecurrentToken *, const RecurrentTensors *, int64_t, int64_t);
};

}  // namespace suffice
