// The plain C interface of the kernels: structures of 64-bit fields over raw pointers.
//
// Letters: M rows of a batch, N outputs, K inputs, H query heads, G key/value heads, D head width,
// S positions. Callers have checked sizes and pointers; results go into memory of the caller.

#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

extern "C" {

// Storage type of a matrix or of a KV cache. Codes are unsigned; their scales and ranges are stored
// separately.
enum Kind { ABSENT = -1, F32 = 0, F16 = 1, BF16 = 2, INT8 = 3, INT4 = 4 };

// A linear map [N, K]. F32, F16 and BF16 are row-major. INT8 and INT4 are packed: panels of 16
// rows, each panel in groups of columns, each group in pieces of 64 bytes with 4 columns of 16 rows
// (INT8) or 8 columns, the first 4 in the low nibbles (INT4). A weight is (code - zero) * scale,
// where zero is 128 or 8, and every row of a panel has one scale per group.
struct Matrix {
  int64_t kind;
  int64_t rows;         // N
  int64_t columns;      // K, a multiple of `group` for INT8 and INT4
  int64_t group;        // columns per scale
  const void *data;
  const uint16_t *scales;  // half precision [panels, K / group, 16]
  const float *bias;       // [N] or null
};

struct Norm {
  const float *weight;  // [d_model] or null
  const float *bias;    // [d_model] or null
};

// Activation function of the MLP; the *GLU ones multiply it with a gate.
enum Activation {
  GELU = 0,
  RELU = 1,
  SWIGLU = 2,
  GELU_TANH = 3,
  TANH = 4,
  GEGLU = 5,
  GEGLU_TANH = 6
};
// Rotary embedding: none, by halves (GPT-NeoX), or by adjacent pairs (GPT-J).
enum Turn { STAY = 0, HALVES = 1, PAIRS = 2 };

// QK-norm: RMS norm per head with shared gains, layer norm per head with separate gains, or RMS
// norm over all heads at once.
enum HeadNorm { HEAD_RMS = 0, HEAD_LAYER = 1, PROJECTION_RMS = 2 };

// Input of the branches: pre-norm; the residual stream itself, with norms on the branch outputs; or
// pre-norm with attention and MLP in parallel.
enum Residual { PRE = 0, OUT = 1, PARALLEL = 2 };

// Constants of a decoder layer.
struct Layer {
  Norm attention_norm, mlp_norm;
  Norm attention_out_norm, mlp_out_norm;  // norms of branch outputs; weight null: none
  Matrix q, k, v, o, gate, up, down;
  int64_t heads, kv_heads, head_dim, value_dim;
  int64_t maps;         // 2: differential attention, the second head of a pair is subtracted
  float scale;          // factor of query-key products
  int32_t turn;         // enum Turn
  int64_t turning;      // rotated features of a head
  const float *cosines; // [positions, turning]
  const float *sines;   // [positions, turning], signs included
  const float *slopes;  // ALiBi slopes [H] or null: score -= slope * distance
  const float *q_gains, *k_gains;  // QK-norm gains, see HeadNorm: [head_dim], or [H, head_dim] and
                                   // [G, head_dim]; or null
  const float *logits;  // attention sinks [H]: one more term of the denominator, or null
  const float *difference_gains;  // RMS norm gains [value_dim] of the differences
  float gain_eps, difference_eps;
  float lambda;         // weight of the second map of a pair
  float cap;            // soft cap: cap * tanh(score / cap); 0: none
  int64_t head_norm;      // enum HeadNorm
  int64_t reads_another;  // 1: reads the KV cache of an earlier layer; k and v are ABSENT
  int64_t before;         // positions before its own that a query sees, attention sinks apart
};

// A part of a KV cache: keys and values [M, G, room, D], of one storage type or both codes; codes
// are contiguous.
//
// INT8 and INT4 are quantised in blocks of positions. Keys have a range (least, step) per channel
// of a block; values per position and group of channels, or those of the keys where values are
// keys. A number is least + step * code; a block stores all leasts, then all steps. Two 4-bit codes
// of neighbouring channels share a byte, the first in the low nibble.
struct Span {
  int64_t kind;        // of the keys, and of values that are no codes
  int64_t value_kind;  // of values in codes, INT8 or INT4
  void *keys, *values;                            // equal where values are the keys (MLA)
  const float *key_ranges, *value_ranges;
  int64_t key_row, key_head, value_row, value_head;  // strides of a batch row and of a head
  int64_t key_range_row, key_range_head, value_range_row, value_range_head;
  int64_t key_step, value_step;                   // stride of a position; unused for codes
  int64_t first, end;                             // range of positions to read
  int64_t shift;  // position i of the span is position i + shift of the text
};

// The KV cache of a layer in three spans: attention sinks, quantised positions, recent positions.
// The last positions of `near` are the new ones.
struct KVCache {
  Span sinks, coded, near;
  int64_t block;   // positions per quantisation block
  int64_t group;   // channels of a value per range; the last group is padded
};

// A causal mixing of values along the text, applied before attention reads them: a weighted sum of
// the raw values of the latest positions, the current one last.
struct Mixing {
  const float *weights;    // [maps, ...]; null: no mixing
  const float *bias;       // [maps, ...] or null
  int64_t map, bias_map;   // strides of a map; 0: one map for all heads
  const int64_t *first;    // [M] first weight of each row, in a map
  const int64_t *count;    // [M] number of weights
  const int64_t *offset;   // [M] index of the bias
  void *raw;  // raw values [M, G, room, D], stored as the keys are; or the keys themselves
  int64_t row, head, at;   // strides, and the index of the new position
};

// Decode attention: the latest T positions of each row attend to its KV cache.
struct DecodeAttention {
  const float *q;         // [M, H, T, D]
  float *out;             // [M, T, H, E], E = value_dim
  int64_t heads, kv_heads, head_dim, value_dim, queries;  // queries: T
  float scale;
  float cap;              // soft cap: cap * tanh(score / cap); 0: none
  int64_t before, after;  // window: positions before and after its own that a query sees
  const float *slopes;    // [H] or null
  const int64_t *
      places;  // [M] position of each row's first query; null: the last query is the last of `near`
  const int64_t *padding; // [M] leading positions of a row that are padding; null: 0
  const uint8_t *allowed; // mask [M, H, T, positions of the text], 0: hidden; or null
  int64_t allowed_row, allowed_head, allowed_query;  // strides
  const int64_t *q_at;    // [M, T] query positions for biases; null: as `places`
  const int64_t *k_at;    // [M, keys] key positions for biases
  int64_t keys;
  const float *logits;    // attention sinks [H]: one more term of the denominator, or null
};

// A stack of layers between an embedding and a head.
struct Model {
  int64_t depth, d_model, width, vocabulary;  // width of the MLPs
  int64_t root_mean_square;                   // 1: RMSNorm, 0: LayerNorm
  int64_t activation;
  int64_t residual;                           // enum Residual
  float eps;
  float logit_cap;         // soft cap of the logits; 0: none
  const Layer *layers;
  Matrix embedding;        // [V, d_model]
  Matrix head;
  Norm norm;
  const float *positions;  // learned positions [length, d_model], or null
};

// Strides of a tensor [B, heads, positions, width], in elements; features are contiguous.
struct Strides {
  int64_t batch, head, row;
};

// Attention of whole sequences: q [B, H, T, D], k [B, G, S, D], v [B, G, S, E].
//
// Query i attends to keys i + low to i + high; or, with lists (block-sparse), to the keys listed
// for its block of 32 queries, each with a bit mask of the queries of the block that may see it.
//
// `valid` [B, S] is a padding mask: 0 hides a key from all queries.
struct SequenceAttention {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  float scale;
  int32_t kind;             // F32, F16 or BF16, of all tensors except the log-sum-exps
  Strides q, k, v, out;     // out: outputs [B, H, T, E]
  Strides out_grad, grad_q, grad_k, grad_v;  // of the gradients
  int64_t low, high;
  const int64_t *starts;    // [lists, blocks + 1] offsets into `listed`, or null
  const int32_t *listed;    // keys, ascending within a block
  const uint32_t *seen_by;  // bit masks of queries
  const int64_t *list_of;   // [H] list of each head
  const uint8_t *valid;     // or null
  float cap;                // soft cap: cap * tanh(score / cap); 0: none
  int32_t unused;
};

// Linear attention: q [B, H, T, D], k [B, G, S, D], v [B, G, S, E]. The feature map is elu(x) + 1
// or, with omega (random features), exp(omega x' - |x'|^2 / 2) with x' = sqrt(scale) x. Causal
// queries are the last T of the S keys.
struct Linear {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  int64_t features;         // F; without omega the width of a head
  int64_t causal;
  const float *omega;       // [F, D] or null
  float scale;
  int32_t unused;
  const uint8_t *valid;     // [B, S], 0: masked key; null: none
  const int64_t *documents; // [B, S] document ids in runs; requires T = S; null: one document
  Strides q, k, v, out, out_grad, grad_q, grad_k, grad_v;
};

// Linear recurrences: each head has a state S [D, E]; at every position
//
//   S = exp(decay) S,   S = S + k (v, or beta (v - S^T k))^T,   out = S^T q,
//
// with q, k [B, H, T, D] and v [B, H, T, E]. Log decays are finite and at most 0. Per-feature
// decays exclude beta (the delta rule).
struct Recurrence {
  int64_t batch, heads, length, width, value_width;
  int64_t decays;           // log decays per position: 0, 1 or D
  const int64_t
      *documents;  // [B, T] document ids in runs; the state is reset between documents; null: one
  Strides q, k, v, decay, beta, out, out_grad, grad_q, grad_k, grad_v, grad_decay, grad_beta;
};

// When a gated norm multiplies with silu(gate): never, before it normalises, or after.
enum Gate { UNGATED = 0, GATE_FIRST = 1, GATE_LAST = 2 };

// Root-mean-square norm of each group of a row: x / sqrt(mean(x^2) + eps) (weight + offset), where
// weights are [groups, width] or absent.
struct GatedNorm {
  int64_t rows, groups, width;
  int64_t gate;                        // enum Gate
  int64_t x_row, gate_row, grad_row;   // strides
  float eps, offset;
};

// Rotary embedding by halves of the first `turned` features of x [B, heads, T, D], with cosines and
// sines [B, T, turned]; results lie as [B, T, heads, D].
struct Rotation {
  int64_t batch, heads, length, width, turned;
  int64_t table_batch;  // stride of the tables; 0: the same for all rows
  int64_t back;         // 1: gradients
  Strides x;
};

constexpr int64_t MAX_TAPS = 16;

// Causal convolution of each channel of x [B, T, channels]: the last weight is that of the position
// itself. Weights are [taps, channels] for sequences, [channels, taps] for one position.
struct Convolution {
  int64_t batch, length, channels, taps;
  int64_t silu;  // 1: silu of the sums
  int64_t x_batch, x_row, grad_batch, grad_row;  // strides
  const int64_t *documents;  // [B, T] document ids in runs; null: one
};

// One token through a recurrence with E = value_width, D = width; inputs are [B, heads, ...] with
// strides of rows; a key and a query serve heads / key_heads heads.
struct TokenStep {
  int64_t batch, heads, key_heads, width, value_width;
  int64_t q_batch, k_batch, v_batch;
  int64_t unit;      // 1: keys and queries are scaled to length 1, by eps + their squares
  float eps, scale;  // scale: factor of the queries
};

// How a state decays: never; by a constant of each head, whose logarithm is its rate; by
// exp(-exp(rate) softplus(logit + bias)) of each head and token, where the softplus is the factor of
// values that are not corrected; or by sigmoid(logit)^(1/16) of each feature of a key and token.
enum Decay { NO_DECAY = 0, OF_HEAD = 1, OF_TOKEN = 2, OF_FEATURE = 3 };

// A recurrent layer of the library's own, for single tokens.
struct RecurrentToken {
  int64_t heads, groups, width, value_width;
  int64_t taps;      // of the convolution of q, k and v, silu after it; 0: none
  int64_t decay;     // enum Decay
  int64_t corrects;  // 1: delta rule, with keys and queries scaled to length 1
  float scale, eps;  // factor of the queries; beside the squares of a key
};

// What it reads and writes: q [B, H, D], k [B, G, D] and v [B, G, E]; logits of decays [B, H] or
// [B, H, D] and of beta [B, H]; weights [channels, taps] over the channels of q, k and v; rates and
// biases [H]; a padding mask [B] (0: the row stays as it is, with outputs 0) or null.
struct RecurrentTensors {
  const float *q, *k, *v, *decay, *beta, *weights, *rates, *biases;
  const uint8_t *valid;
  float *history;  // [B, taps - 1, channels], moves on
  float *sums;     // [B, H, D, E], moves on
  float *out;      // [B, H, E]
};

// The instruction set in use; those this processor supports, best first, separated by spaces; and a
// choice among them, which returns 0 on success. On x86-64 "amx" (on Linux: attention of bfloat16,
// all else as "avx512"), "avx512" (with VNNI), "avxvnni", "avx2" and "portable"; on ARM "i8mm",
// "dotprod" and "neon"; elsewhere "portable".
EXPORTED const char *suffice_isa(void);
EXPORTED const char *suffice_isas(void);
EXPORTED int suffice_use_isa(const char *name);

// The sizes of the structures above, in their order: callers check that their layout is the same.
EXPORTED void suffice_sizes(int64_t *sizes);

// y [M, N] = x [M, K] W^T + b.
EXPORTED void suffice_multiply(const Matrix *matrix, const float *x, int64_t rows, float *y,
                               int64_t threads);

// Decode attention; the keys and values of the queries are already in the cache. A query without a
// visible key has output 0. Returns 1 if an output, or a score that a mask or cap would hide, is
// not finite.
EXPORTED int suffice_decode_attention(const DecodeAttention *attention, const KVCache *cache,
                                      int64_t rows, int64_t threads);

// Bytes of scratch memory that a step of M T = `rows` tokens needs with at most `longest` positions
// in the cache.
EXPORTED int64_t suffice_step_room(const Model *model, int64_t rows, int64_t longest,
                                   int64_t threads);

// One decode step: `queries` tokens [M, T] through the model, to the input of the head [M, T,
// d_model] or to logits [M T, V]; the other is null. `mixes` has one entry per layer; several tokens
// are neither mixed nor have attention sinks in the cache. The first `padding` positions of a row
// are masked; its first token is at position `places`, below 0 if it is padding.
EXPORTED void suffice_step(const Model *model, const KVCache *cache, const Mixing *mixes,
                           const int64_t *tokens, const int64_t *places, const int64_t *padding,
                           int64_t rows, int64_t queries, int64_t longest, float *features,
                           float *logits, void *room, int64_t threads);

// Softmax attention: outputs and, unless `logs` is null, log-sum-exps [B, H, T]. A query without a
// visible key has output 0 and log-sum-exp -inf. Returns 1 if a score or output is not finite: then
// a masked key may have spoilt visible outputs.
EXPORTED int suffice_attend(const SequenceAttention *attention, const void *q, const void *k,
                            const void *v, void *out, float *logs, int64_t threads);

// Gradients of q, k and v from the gradient of the outputs.
EXPORTED void suffice_attend_back(const SequenceAttention *attention, const void *q, const void *k,
                                  const void *v, const void *out, const float *logs,
                                  const void *out_grad, void *grad_q, void *grad_k, void *grad_v,
                                  int64_t threads);

// Linear attention: outputs, and denominators [B, H, T] relative to an internal scale, for the
// backward pass. A query without a visible key has output and denominator 0.
EXPORTED void suffice_linear(const Linear *linear, const float *q, const float *k, const float *v,
                             float *out, float *totals, int64_t threads);

// Gradients of q, k and v from the gradient of the outputs.
EXPORTED void suffice_linear_back(const Linear *linear, const float *q, const float *k,
                                  const float *v, const float *out, const float *totals,
                                  const float *out_grad, float *grad_q, float *grad_k,
                                  float *grad_v, int64_t threads);

// A recurrence from the state `start` [B, H, D, E] (null: 0): outputs, and the final state `end`,
// which may alias `start`. `beta` [B, H, T, 1] selects the delta rule.
EXPORTED void suffice_recur(const Recurrence *recurrence, const float *q, const float *k,
                            const float *v, const float *decay, const float *beta,
                            const float *start, float *out, float *end, int64_t threads);

// Incoming gradients (out, end) and wanted gradients; null: absent or not wanted.
struct RecurrenceGradients {
  const float *out, *end;
  float *q, *k, *v, *decay, *beta, *start;
};

EXPORTED void suffice_recur_back(const Recurrence *recurrence, const float *q, const float *k,
                                 const float *v, const float *decay, const float *beta,
                                 const float *start, const RecurrenceGradients *grads,
                                 int64_t threads);

EXPORTED void suffice_norm(const GatedNorm *norm, const float *x, const float *gate,
                           const float *weight, float *out, int64_t threads);

// `weight_grads` [threads, groups, width] start at 0; null: not wanted.
EXPORTED void suffice_norm_back(const GatedNorm *norm, const float *x, const float *gate,
                                const float *weight, const float *out_grad, float *x_grad,
                                float *gate_grad, float *weight_grads, int64_t threads);

// activation(gate) up, with SWIGLU, GEGLU or GEGLU_TANH of enum Activation; `out` may be an input.
EXPORTED void suffice_glu(int64_t activation, int64_t count, const float *gate, const float *up,
                          float *out, int64_t threads);

EXPORTED void suffice_glu_back(int64_t activation, int64_t count, const float *gate,
                               const float *up, const float *out_grad, float *gate_grad,
                               float *up_grad, int64_t threads);

EXPORTED void suffice_rotate(const Rotation *rotation, const float *x, const float *cosines,
                             const float *sines, float *out, int64_t threads);

EXPORTED void suffice_convolve(const Convolution *convolution, const float *x, const float *weight,
                               const float *bias, float *out, int64_t threads);

// `inner` [B, T, channels] takes the gradients before the activation; `sums` [threads, taps + 1,
// channels], which start at 0, those of the weights by tap and of the bias.
EXPORTED void suffice_convolve_back(const Convolution *convolution, const float *x,
                                    const float *weight, const float *bias, const float *out_grad,
                                    float *inner, float *x_grad, float *sums, int64_t threads);

// One position of each row; the states [B, channels, room] move on by it.
EXPORTED void suffice_convolve_step(const Convolution *convolution, const float *x,
                                    const float *weight, const float *bias, float *states,
                                    int64_t room, float *out, int64_t threads);

// Mamba-2: states [B, H, E, D] decay by exp(dt rate), take in dt x b^T, and are read by c; x times
// `skip` [H] is added unless that is null.
EXPORTED void suffice_mamba2_step(const TokenStep *step, const float *x, const float *dt,
                                  const float *rates, const float *b, const float *c,
                                  const float *skip, float *states, float *out, int64_t threads);

// Gated delta rule: states [B, H, D, E]; log decays and beta are [B, H]. E is a multiple of 16.
EXPORTED void suffice_delta_step(const TokenStep *step, const float *q, const float *k,
                                 const float *v, const float *logs, const float *beta,
                                 float *states, float *out, int64_t threads);

// One token of each row. Where q, k or v of a row is not finite, its outputs and states become NaN
// and its history takes in zeros.
EXPORTED void suffice_recurrent_token(const RecurrentToken *token, const RecurrentTensors *tensors,
                                      int64_t rows, int64_t threads);

}  // extern "C"
