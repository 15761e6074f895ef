// The plain C interface of the kernels: structures of 64-bit fields over raw pointers.
//
// Letters: M rows of a batch, N outputs, K inputs, H query heads, G key/value heads, D head width,
// S positions. Whoever calls has checked sizes and pointers; nothing here allocates what it returns.

#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

extern "C" {

// What a matrix or a store of keys holds. Codes are unsigned; what they mean is told beside them.
enum Kind { ABSENT = -1, F32 = 0, F16 = 1, BF16 = 2, INT8 = 3, INT4 = 4 };

// A linear map [N, K]. F32, F16 and BF16 lie row by row. INT8 and INT4 lie in panels of 16 rows,
// each panel in groups of columns, each group in pieces of 64 bytes: 4 columns of 16 rows (INT8),
// or 8 columns, the first 4 in the low halves (INT4). A weight is (code - zero) * scale, zero 128
// or 8, with a scale for each row of a panel and group.
struct Matrix {
  int64_t kind;
  int64_t rows;         // N
  int64_t columns;      // K, a multiple of `group` for INT8 and INT4
  int64_t group;        // columns with one scale
  const void *data;
  const uint16_t *scales;  // half precision [panels, K / group, 16]
  const float *bias;       // [N] or null
};

struct Norm {
  const float *weight;  // [d_model] or null
  const float *bias;    // [d_model] or null
};

// What a gated one multiplies: the others have no gate.
enum Activation { GELU = 0, RELU = 1, SWIGLU = 2, GELU_TANH = 3, TANH = 4, GEGLU = 5, GEGLU_TANH = 6 };
enum Turn { STAY = 0, HALVES = 1, PAIRS = 2 };

// Norms of queries and keys: root mean squares of each head, with gains that heads share; layer norms of
// each head, with gains of its own; root mean squares of all heads at once.
enum HeadNorm { HEAD_RMS = 0, HEAD_LAYER = 1, PROJECTION_RMS = 2 };

// What branches read: norms of the sum so far; the sum itself; one and the same norms' input.
enum Residual { PRE = 0, OUT = 1, PARALLEL = 2 };

// Constants of a decoder layer.
struct Layer {
  Norm attention_norm, mlp_norm;
  Norm attention_out_norm, mlp_out_norm;  // of what a branch adds; no weight = there is none
  Matrix q, k, v, o, gate, up, down;
  int64_t heads, kv_heads, head_dim, value_dim;
  int64_t maps;         // 2 = of each pair of heads that share values the second is taken away
  float scale;          // of products of queries and keys
  int32_t turn;         // enum Turn
  int64_t turning;      // features of a head that turn
  const float *cosines; // [positions, turning]
  const float *sines;   // as the cosines, signs included
  const float *slopes;  // [H] or null: minus slope * distance is added to a score
  const float *q_gains, *k_gains; // of a norm `head_norm`: [head_dim], else [H, head_dim] and [G, head_dim]; or null
  const float *logits;  // [H] of no key, one more term of each sum, or null
  const float *difference_gains;  // [value_dim] of differences, divided by their root mean square
  float gain_eps, difference_eps;
  float lambda;         // what the second map of a pair counts
  float cap;            // scores s become cap tanh(s / cap), or 0
  int64_t head_norm;      // enum HeadNorm
  int64_t reads_another;  // 1 = the cache is that of an earlier layer, and k and v are ABSENT
};

// Positions of one kind, [M, G, room, D] each; codes follow each other in memory.
//
// INT8 and INT4 come in blocks of positions. Keys have a least number and a step for each channel
// of a block; values for each position and group of channels, or as the keys where they are keys.
// A number is least + step * code; ranges of a block are all least numbers, then all steps. Two
// 4-bit codes of neighbouring channels share a byte, the first in its low half.
struct Span {
  int64_t kind;
  void *keys, *values;                            // the same where keys are values
  const float *key_ranges, *value_ranges;
  int64_t key_row, key_head, value_row, value_head;  // strides of a batch row and of a head
  int64_t key_range_row, key_range_head, value_range_row, value_range_head;
  int64_t key_step, value_step;                   // from a position to the next, of no codes
  int64_t first, end;                             // what is read of it
  int64_t shift;                                  // position i is position i + shift of the text
};

// The KV cache of a layer: the beginning of the text, what is coded, what is not. The last
// position of `near` is the new one.
struct KVCache {
  Span sinks, coded, near;
  int64_t block;   // positions coded together
  int64_t group;   // channels of a value with one range; the last group is filled up
};

// Values along the text, mixed before attention reads them: weights of the latest positions, the
// own one last, times the values as they were.
struct Mixing {
  const float *weights;    // [maps, ...]; null = no mixing
  const float *bias;       // [maps, ...] or null
  int64_t map, bias_map;   // strides of a map; 0 = one for all heads
  const int64_t *first;    // [M] of the weights that each row reads, in a map
  const int64_t *count;    // [M] how many
  const int64_t *offset;   // [M] of the number that is added
  void *raw;               // [M, G, room, D] of the kind of the keys; these, where they are values
  int64_t row, head, at;   // strides, and where the new position is written
};

// Attention of the latest T positions of each row to the cache.
struct DecodeAttention {
  const float *q;         // [M, H, T, D]
  float *out;             // [M, T, H, E], E = value_dim
  int64_t heads, kv_heads, head_dim, value_dim, queries;  // queries: T
  float scale;
  float cap;              // scores s become cap tanh(s / cap), or 0
  int64_t before, after;  // positions beside its own that a query sees
  const float *slopes;    // [H] or null
  const int64_t *places;  // [M] of the first queries in their rows; null = they end where `near` does
  const int64_t *padding; // [M] positions at the beginning of a row's text that are none; null = 0
  const uint8_t *allowed; // [M, H, T, positions of the text] 0 = not seen, or null
  int64_t allowed_row, allowed_head, allowed_query;  // strides
  const int64_t *q_at;    // [M, T] places that biases count from, or null = as above
  const int64_t *k_at;    // [M, keys] those of the text
  int64_t keys;
  const float *logits;    // [H] of no key, one more term of each sum, or null
};

// A stack of layers between an embedding and a head.
struct Model {
  int64_t depth, d_model, width, vocabulary;  // width: of the MLPs
  int64_t root_mean_square;                   // 1: RMSNorm, 0: LayerNorm
  int64_t activation;
  int64_t residual;                           // enum Residual
  float eps;
  float logit_cap;         // as the layers' caps, of logits
  const Layer *layers;
  Matrix embedding;        // [V, d_model]
  Matrix head;
  Norm norm;
  const float *positions;  // [length, d_model] or null, added to the embedded token
};

// Where something [B, heads, positions, width] lies; features follow each other.
struct Strides {
  int64_t batch, head, row;
};

// Attention of whole sequences: q [B, H, T, D], k [B, G, S, D], v [B, G, S, E].
//
// Query i sees the keys i + low to i + high; or, with lists, those listed for its block of 32
// queries, each with a bit for every query of the block that sees it.
//
// A key of batch b that `valid` [B, S] names 0 is seen by none.
struct SequenceAttention {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  float scale;
  int32_t kind;             // of all tensors but logarithms: F32, F16 or BF16
  Strides q, k, v, out;     // out: of the outputs [B, H, T, E]
  Strides slope, of_q, of_k, of_v;  // of the gradients
  int64_t low, high;
  const int64_t *starts;    // [lists, blocks + 1] into what follows, or null
  const int32_t *listed;    // keys, ascending for each block
  const uint32_t *seen_by;  // bits of the queries
  const int64_t *list_of;   // [H]
  const uint8_t *valid;     // or null
  float cap;                // scores s become cap tanh(s / cap), or 0
  int32_t unused;
};

// Sums of features along the sequence: q [B, H, T, D], k [B, G, S, D], v [B, G, S, E]. A row x has
// the features elu(x) + 1, or with omega exp(omega x' - |x'|^2 / 2), x' = sqrt(scale) x. Where it is
// causal the queries stand last among the keys, T <= S.
struct Linear {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  int64_t features;         // F; the width of a head where there is no omega
  int64_t causal;
  const float *omega;       // [F, D] or null
  float scale;
  int32_t unused;
  const uint8_t *valid;     // [B, S], 0 = a masked key; null = none is
  const int64_t *documents; // [B, S], runs of equal numbers; T = S; null = one
  Strides q, k, v, out, slope, of_q, of_k, of_v;
};

// Recurrences: a state S [D, E] of each head, at every position
//
//   S = exp(decay) S,   S = S + k (v, or beta (v - S^T k))^T,   out = S^T q,
//
// with q, k [B, H, T, D] and v [B, H, T, E]. Logarithms of decays are finite and at most 0; where
// they are those of features, nothing is corrected.
struct Recurrence {
  int64_t batch, heads, length, width, value_width;
  int64_t decays;           // logarithms of a position: none, 1 or D
  const int64_t *documents; // [B, T], runs of equal numbers; a state is 0 before each but the first; null = one
  Strides q, k, v, decay, beta, out, slope, of_q, of_k, of_v, of_decay, of_beta;
};

// The instruction set in use; those this processor has, best first, with spaces between; and a
// choice among them, 0 = done. On x86-64 "avx512" (with VNNI), "avxvnni", "avx2" and "portable"; on
// ARM "i8mm", "dotprod" and "neon"; elsewhere "portable".
EXPORTED const char *suffice_isa(void);
EXPORTED const char *suffice_isas(void);
EXPORTED int suffice_use_isa(const char *name);

// The bytes of the structures above in their order, by which a caller knows that they are his own.
EXPORTED void suffice_sizes(int64_t *sizes);

// y [M, N] = x [M, K] W^T + b.
EXPORTED void suffice_multiply(const Matrix *matrix, const float *x, int64_t rows, float *y, int64_t threads);

// Attention of a few positions of each row, whose keys and values are there. A query that sees no
// key has output 0. Returns 1 if an output is no finite number, or a score beside hidden keys.
EXPORTED int suffice_look(const DecodeAttention *look, const KVCache *cache, int64_t rows, int64_t threads);

// The bytes a step needs to work in, with at most `longest` positions seen.
EXPORTED int64_t suffice_step_room(const Model *model, int64_t rows, int64_t longest, int64_t threads);

// One token of each row through the model: logits [M, V]. `mixes` are those of the layers. The first `padding` positions of a row's
// text are not seen, and its token stands at `places`.
EXPORTED void suffice_step(const Model *model, const KVCache *cache, const Mixing *mixes,
                           const int64_t *tokens, const int64_t *places, const int64_t *padding,
                           int64_t rows, int64_t longest, float *logits, void *room,
                           int64_t threads);

// Softmax attention: the outputs, and [B, H, T] logarithms of the rows' total weights where `logs`
// is not null. A query that sees no key has output 0 and logarithm -inf. Returns 1 if a score or an
// output is no finite number: then what is hidden may have been read.
EXPORTED int suffice_attend(const SequenceAttention *whole, const void *q, const void *k,
                            const void *v, void *out, float *logs, int64_t threads);

// The gradients of q, k and v, from that of the outputs.
EXPORTED void suffice_attend_back(const SequenceAttention *whole, const void *q, const void *k,
                                  const void *v, const void *out, const float *logs,
                                  const void *slope, void *of_q, void *of_k, void *of_v,
                                  int64_t threads);

// Weighted values over the sums of their weights: the outputs, and [B, H, T] those sums, relative
// to a scale of the kernels' own. A query that sees no key has output and sum 0.
EXPORTED void suffice_linear(const Linear *linear, const float *q, const float *k, const float *v,
                             float *out, float *totals, int64_t threads);

// The gradients of q, k and v, from that of the outputs.
EXPORTED void suffice_linear_back(const Linear *linear, const float *q, const float *k,
                                  const float *v, const float *out, const float *totals,
                                  const float *slope, float *of_q, float *of_k, float *of_v,
                                  int64_t threads);

// A recurrence from the state `start` [B, H, D, E], null = 0: the outputs, and the state `end` after
// them, which may be where `start` is. Without `beta` [B, H, T, 1] nothing is corrected.
EXPORTED void suffice_recur(const Recurrence *recurrence, const float *q, const float *k,
                            const float *v, const float *decay, const float *beta,
                            const float *start, float *out, float *end, int64_t threads);

// The gradients, from those of the outputs and of the state after them; what is null is not wanted,
// or not given.
struct RecurrenceSlopes {
  const float *out, *end;
  float *q, *k, *v, *decay, *beta, *start;
};

EXPORTED void suffice_recur_back(const Recurrence *recurrence, const float *q, const float *k,
                                 const float *v, const float *decay, const float *beta,
                                 const float *start, const RecurrenceSlopes *slopes, int64_t threads);

}  // extern "C"
