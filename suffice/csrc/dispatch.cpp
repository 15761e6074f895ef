// The exported C functions: run-time dispatch to the best instruction set of this processor.

#include <string.h>

#include "interface.h"
#include "isa/table.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
namespace avx512 { extern const suffice::Kernels kernels; }
namespace avx2 { extern const suffice::Kernels kernels; }
#if defined(SUFFICE_HAS_AVXVNNI)
namespace avxvnni { extern const suffice::Kernels kernels; }
#endif
#if defined(SUFFICE_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
namespace amx {
int attend(const SequenceAttention *, const void *, const void *, const void *, void *, float *,
           int64_t);
}
#endif
namespace portable { extern const suffice::Kernels kernels; }
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
namespace i8mm { extern const suffice::Kernels kernels; }
namespace dotprod { extern const suffice::Kernels kernels; }
namespace neon { extern const suffice::Kernels kernels; }
#else
namespace portable { extern const suffice::Kernels kernels; }
#endif

namespace {

using suffice::Kernels;

#if defined(__x86_64__) || defined(_M_X64)

// CPU features that the operating system also saves on context switches. Read by cpuid here:
// __builtin_cpu_supports needs a runtime library that not every linker provides.
struct X86 {
  // Linux saves tiles only for processes that ask to use them.
  static bool may_use_tiles() {
#if defined(SUFFICE_HAS_AMX)
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
  }

  bool avx2 = false, avxvnni = false, avx512 = false, amx = false;

  X86() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool fma = c & 1u << 12, saves = c & 1u << 27, f16c = c & 1u << 29;
    if (!saves || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    avx2 = (low & 0x06) == 0x06 && (b & 1u << 5) && fma && f16c;
    avx512 = avx2 && (low & 0xe6) == 0xe6 && (b & f_dq_bw_vl) == f_dq_bw_vl && (c & 1u << 11);
    const unsigned bf16_tile = 1u << 22 | 1u << 24;
    const bool tiles = avx512 && (low & 0x60000) == 0x60000 && (d & bf16_tile) == bf16_tile;
    const bool more = avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
    avxvnni = more && (a & 1u << 4);
    amx = tiles && more && (a & 1u << 5) && may_use_tiles();
  }
};

#elif defined(__linux__) && defined(__aarch64__)

// Linux hwcap bits that older C libraries do not define.
bool has_dotprod() {
  const unsigned long half_precision = 1ul << 10, dot_products = 1ul << 20;
  const unsigned long both = half_precision | dot_products;
  return (getauxval(AT_HWCAP) & both) == both;
}

bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) & 1ul << 13); }

#elif defined(__APPLE__) && defined(__aarch64__)

bool has(const char *feature) {
  int value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(feature, &value, &bytes, nullptr, 0) == 0 && value;
}

bool has_dotprod() {
  return has("hw.optional.arm.FEAT_DotProd") && has("hw.optional.arm.FEAT_FP16");
}

bool has_i8mm() { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }

#elif defined(__aarch64__)

bool has_dotprod() { return false; }

bool has_i8mm() { return false; }

#endif

struct Choices {
  const Kernels *best_first[5] = {};
  int count = 0;
  char names[64] = "";

  Choices() {
#if defined(__x86_64__) || defined(_M_X64)
    const X86 processor;
#if defined(SUFFICE_HAS_AMX)
    static Kernels tiled = avx512::kernels;
    tiled.name = "amx", tiled.attend = amx::attend;
    if (processor.amx) add(tiled);
#endif
    if (processor.avx512) add(avx512::kernels);
#if defined(SUFFICE_HAS_AVXVNNI)
    if (processor.avxvnni) add(avxvnni::kernels);
#endif
    if (processor.avx2) add(avx2::kernels);
    add(portable::kernels);
#elif defined(__aarch64__)
    if (has_i8mm()) add(i8mm::kernels);
    if (has_dotprod()) add(dotprod::kernels);
    add(neon::kernels);
#else
    add(portable::kernels);
#endif
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
  const size_t bytes[] = {sizeof(Matrix),
                          sizeof(Norm),
                          sizeof(Layer),
                          sizeof(Span),
                          sizeof(KVCache),
                          sizeof(Mixing),
                          sizeof(DecodeAttention),
                          sizeof(Model),
                          sizeof(Strides),
                          sizeof(SequenceAttention),
                          sizeof(Linear),
                          sizeof(Recurrence),
                          sizeof(RecurrenceGradients),
                          sizeof(GatedNorm),
                          sizeof(Rotation),
                          sizeof(Convolution),
                          sizeof(TokenStep),
                          sizeof(RecurrentToken),
                          sizeof(RecurrentTensors)};
  for (size_t i = 0; i < sizeof(bytes) / sizeof(*bytes); ++i) sizes[i] = (int64_t)bytes[i];
}

void suffice_multiply(const Matrix *matrix, const float *x, int64_t rows, float *y,
                      int64_t threads) {
  used->multiply(matrix, x, rows, y, bounded(threads));
}

int suffice_decode_attention(const DecodeAttention *attention, const KVCache *cache, int64_t rows,
                             int64_t threads) {
  return used->decode_attention(attention, cache, rows, bounded(threads));
}

int64_t suffice_step_room(const Model *model, int64_t rows, int64_t longest, int64_t threads) {
  return used->step_room(model, rows, longest, bounded(threads));
}

void suffice_step(const Model *model, const KVCache *cache, const Mixing *mixes,
                  const int64_t *tokens, const int64_t *places, const int64_t *padding,
                  int64_t rows, int64_t queries, int64_t longest, float *features, float *logits,
                  void *room, int64_t threads) {
  used->step(model, cache, mixes, tokens, places, padding, rows, queries, longest, features, logits,
             room, bounded(threads));
}

int suffice_attend(const SequenceAttention *attention, const void *q, const void *k, const void *v,
                   void *out, float *logs, int64_t threads) {
  return used->attend(attention, q, k, v, out, logs, bounded(threads));
}

void suffice_attend_back(const SequenceAttention *attention, const void *q, const void *k,
                         const void *v, const void *out, const float *logs, const void *out_grad,
                         void *grad_q, void *grad_k, void *grad_v, int64_t threads) {
  used->attend_back(attention, q, k, v, out, logs, out_grad, grad_q, grad_k, grad_v,
                    bounded(threads));
}

void suffice_linear(const Linear *linear, const float *q, const float *k, const float *v,
                    float *out, float *totals, int64_t threads) {
  used->linear(linear, q, k, v, out, totals, bounded(threads));
}

void suffice_linear_back(const Linear *linear, const float *q, const float *k, const float *v,
                         const float *out, const float *totals, const float *out_grad,
                         float *grad_q, float *grad_k, float *grad_v, int64_t threads) {
  used->linear_back(linear, q, k, v, out, totals, out_grad, grad_q, grad_k, grad_v,
                    bounded(threads));
}

void suffice_recur(const Recurrence *recurrence, const float *q, const float *k, const float *v,
                   const float *decay, const float *beta, const float *start, float *out,
                   float *end, int64_t threads) {
  used->recur(recurrence, q, k, v, decay, beta, start, out, end, bounded(threads));
}

void suffice_recur_back(const Recurrence *recurrence, const float *q, const float *k,
                        const float *v, const float *decay, const float *beta, const float *start,
                        const RecurrenceGradients *grads, int64_t threads) {
  used->recur_back(recurrence, q, k, v, decay, beta, start, grads, bounded(threads));
}

void suffice_norm(const GatedNorm *norm, const float *x, const float *gate, const float *weight,
                  float *out, int64_t threads) {
  used->norm(norm, x, gate, weight, out, bounded(threads));
}

void suffice_norm_back(const GatedNorm *norm, const float *x, const float *gate,
                       const float *weight, const float *out_grad, float *x_grad, float *gate_grad,
                       float *weight_grads, int64_t threads) {
  used->norm_back(norm, x, gate, weight, out_grad, x_grad, gate_grad, weight_grads,
                  bounded(threads));
}

void suffice_glu(int64_t activation, int64_t count, const float *gate, const float *up, float *out,
                 int64_t threads) {
  used->glu(activation, count, gate, up, out, bounded(threads));
}

void suffice_glu_back(int64_t activation, int64_t count, const float *gate, const float *up,
                      const float *out_grad, float *gate_grad, float *up_grad, int64_t threads) {
  used->glu_back(activation, count, gate, up, out_grad, gate_grad, up_grad, bounded(threads));
}

void suffice_rotate(const Rotation *rotation, const float *x, const float *cosines,
                    const float *sines, float *out, int64_t threads) {
  used->rotate(rotation, x, cosines, sines, out, bounded(threads));
}

void suffice_convolve(const Convolution *convolution, const float *x, const float *weight,
                      const float *bias, float *out, int64_t threads) {
  used->convolve(convolution, x, weight, bias, out, bounded(threads));
}

void suffice_convolve_back(const Convolution *convolution, const float *x, const float *weight,
                           const float *bias, const float *out_grad, float *inner, float *x_grad,
                           float *sums, int64_t threads) {
  used->convolve_back(convolution, x, weight, bias, out_grad, inner, x_grad, sums,
                      bounded(threads));
}

void suffice_convolve_step(const Convolution *convolution, const float *x, const float *weight,
                           const float *bias, float *states, int64_t room, float *out,
                           int64_t threads) {
  used->convolve_step(convolution, x, weight, bias, states, room, out, bounded(threads));
}

void suffice_mamba2_step(const TokenStep *step, const float *x, const float *dt, const float *rates,
                         const float *b, const float *c, const float *skip, float *states,
                         float *out, int64_t threads) {
  used->mamba2_step(step, x, dt, rates, b, c, skip, states, out, bounded(threads));
}

void suffice_delta_step(const TokenStep *step, const float *q, const float *k, const float *v,
                        const float *logs, const float *beta, float *states, float *out,
                        int64_t threads) {
  used->delta_step(step, q, k, v, logs, beta, states, out, bounded(threads));
}

void suffice_recurrent_token(const RecurrentToken *token, const RecurrentTensors *tensors,
                             int64_t rows, int64_t threads) {
  used->recurrent_token(token, tensors, rows, bounded(threads));
}

}  // extern "C"
