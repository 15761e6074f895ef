// The plain C interface of the kernels: structures of 64-bit fields over raw pointers.
//
// Letters: M rows of a batch, N outputs, K inputs, H query heads, G key/value heads, D head width,
// S positions. Whoever calls has checked sizes and pointers; nothing here allocates what it returns.

#pragma once

#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

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

enum Activation { GELU = 0, RELU = 1, SWIGLU = 2 };
enum Turn { STAY = 0, HALVES = 1, PAIRS = 2 };

// Constants of a decoder layer.
struct Layer {
  Norm attention_norm, mlp_norm;
  Matrix q, k, v, o, gate, up, down;
  int64_t heads, kv_heads, head_dim;
  float scale;          // of products of queries and keys
  int32_t turn;         // enum Turn
  int64_t turning;      // features of a head that turn
  const float *cosines; // [positions, turning]
  const float *sines;   // as the cosines, signs included
  const float *slopes;  // [H] or null: minus slope * distance is added to a score
};

// What a layer holds of the past, for one call: keys and values [M, G, room, D].
struct Held {
  int64_t kind;         // F32, F16 or BF16
  void *keys;
  void *values;         // the same pointer where keys are values
  int64_t row, head;    // strides: of a batch row, of a head; elements
  int64_t at;           // where the new position is written
  int64_t first;        // first position that is read, in the buffer
  int64_t sinks;        // positions read at the start of the buffer, before those
  int64_t shift;        // position i of the buffer is position i + shift of the text
};

// A stack of layers between an embedding and a head.
struct Model {
  int64_t depth, d_model, width, vocabulary;  // width: of the MLPs
  int64_t root_mean_square;                   // 1: RMSNorm, 0: LayerNorm
  int64_t activation;
  float eps;
  int32_t unused;
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
struct Whole {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  float scale;
  int32_t unused;
  Strides q, k, v, out;     // out: of the outputs [B, H, T, E]
  Strides slope, of_q, of_k, of_v;  // of the gradients
  int64_t low, high;
  const int64_t *starts;    // [lists, blocks + 1] into what follows, or null
  const int32_t *listed;    // keys, in any order
  const uint32_t *seen_by;  // bits of the queries
  const int64_t *list_of;   // [H]
};

// The instructions in use: "avx512", "avx2" or "portable"; those this processor has, with spaces
// between; and a choice among them, 0 = done.
EXPORTED const char *suffice_isa(void);
EXPORTED const char *suffice_isas(void);
EXPORTED int suffice_use_isa(const char *name);

// y [M, N] = x [M, K] W^T + b.
EXPORTED void suffice_multiply(const Matrix *matrix, const float *x, int64_t rows, float *y, int64_t threads);

// The bytes a step needs to work in, with at most `longest` positions seen.
EXPORTED int64_t suffice_step_room(const Model *model, int64_t rows, int64_t longest, int64_t threads);

// One token of each row through the model: logits [M, V]. The first `padding` positions of a row's
// text are not seen, and its token stands at `places`.
EXPORTED void suffice_step(const Model *model, const Held *held, const int64_t *tokens,
                  const int64_t *places, const int64_t *padding, int64_t rows, int64_t longest,
                  float *logits, void *room, int64_t threads);

// Softmax attention: the outputs, and [B, H, T] logarithms of the rows' total weights where `logs`
// is not null. A query that sees no key has output 0 and logarithm -inf. Returns 1 if a score or an
// output is no finite number: then what is hidden may have been read.
EXPORTED int suffice_attend(const Whole *whole, const float *q, const float *k, const float *v,
                            float *out, float *logs, int64_t threads);

// The gradients of q, k and v, from that of the outputs.
EXPORTED void suffice_attend_back(const Whole *whole, const float *q, const float *k,
                                  const float *v, const float *out, const float *logs,
                                  const float *slope, float *of_q, float *of_k, float *of_v,
                                  int64_t threads);

}  // extern "C"
