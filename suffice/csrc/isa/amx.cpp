// Softmax attention of whole sequences in bfloat16 by AMX: products of 16 x 32 by 32 x 16 numbers,
// with sums in float32. Queries stay lanes, as in sequence_attention.h: scores are keys times
// queries, outputs are transposed values times weights, which are rounded to bfloat16.
//
// A group of 32 keys is packed once for all query blocks of a chunk; scattered keys are gathered
// into groups of a query block's own.

#include "sequence_attention.h"

namespace SUFFICE_ISA {

constexpr int64_t GROUP = 32;                // keys of a group: a row of a tile of values
constexpr int64_t GROUPS = 2;                // of one online-softmax step: all of it stays in L1
constexpr int64_t STEP = GROUPS * GROUP;     // keys
constexpr int64_t HALVES = 32;               // bfloat16 numbers in a row of a tile
constexpr int64_t CACHED_HALVES = 1 << 17;   // packed keys and values that stay in L2
constexpr int64_t MAX_PACKED = CACHED_HALVES / (HALVES + 16) / GROUP + 1;  // groups
constexpr int64_t DENSE_KEYS = 16;           // listed keys of a group, from which it is not gathered

static_assert(MAX_LANES == 32, "lists have a bit for each query of a block");

// bfloat16 that is multiplied by AMX.
struct Tiled : Brain {};

// Groups of keys for one query block, with a bit mask of the queries that see each key.
struct KeyTile {
  const uint16_t *keys[GROUPS], *values[GROUPS];  // [32, width], [value width, 32], padded
  bool all_seen[GROUPS];
  uint32_t seen[STEP];
  int64_t count;  // groups
};

struct TiledScratch {
  QueryBlock blocks[MAX_BLOCKS];
  KeyTile tile;
  int64_t width, value_width;  // padded to whole tiles
  float *scores;               // [32, N] of each group, then weights in bfloat16
  uint16_t *packed, *gathered;
  bool ready[MAX_PACKED];      // packed groups of the current range of keys
  int32_t numbers[GROUPS][GROUP];  // of gathered keys, -1: none
  int64_t gathered_keys[GROUPS];   // 0: the group is a packed one

  int64_t group_size() const { return GROUP * (width + value_width); }
};

// The compiler must not move reads and writes of memory past those of tiles.
INLINE void fence() { asm volatile("" ::: "memory"); }

INLINE int64_t padded(int64_t width, int64_t to) { return (width + to - 1) / to * to; }

// Mask of the first n of 32 (or 16) numbers.
INLINE uint32_t first_of(int64_t n) { return n >= 32 ? ALL_LANES : n <= 0 ? 0 : (1u << n) - 1; }

// Pairs the first 16 numbers with the last 16.
INLINE __m512i paired(__m512i halves) {
  alignas(64) static constexpr uint16_t ORDER[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(ORDER), halves);
}

// Queries [width / 32, C, 16 pairs of features, 16 lanes, 2].
template <int C>
NOINLINE void load_queries(Tiled, const SequenceAttention &attention, const uint16_t *q,
                           const QueryBlock &block) {
  float *to = block.columns;
  for (int64_t d = 0; d < attention.width; d += HALVES)
    for (int c = 0; c < C; ++c) {
      const __mmask32 some = first_of(attention.width - d);
      Wide square[WIDE];
      for (int i = 0; i < WIDE; ++i) {
        const bool real = c * WIDE + i < block.lanes;
        const uint16_t *row = q + (real ? c * WIDE + i : 0) * attention.q.row + d;
        square[i] = (Wide)_mm512_maskz_loadu_epi16(real ? some : 0, row);
      }
      transpose(square);
      for (int i = 0; i < WIDE; ++i, to += WIDE) write(to, square[i]);
    }
}

// Packs 32 keys and their transposed values; absent ones (-1) are 0. Adds NaN to `nonfinite` where
// a number is not finite.
NOINLINE void pack_group(const SequenceAttention &attention, const Stored<Tiled> &keys,
                         const Stored<Tiled> &values, const int32_t *numbers,
                         const TiledScratch &scratch, uint16_t *to, Wide &nonfinite) {
  const __m512i unsigned_bits = _mm512_set1_epi16(0x7fff);
  __m512i most = _mm512_setzero_si512();
  for (int64_t j = 0; j < GROUP; ++j) {
    const uint16_t *row = keys.data + (numbers[j] < 0 ? 0 : numbers[j]) * keys.row;
    for (int64_t d = 0; d < scratch.width; d += HALVES, to += HALVES) {
      const __mmask32 some = numbers[j] < 0 ? 0 : first_of(attention.width - d);
      const __m512i part = _mm512_maskz_loadu_epi16(some, row + d);
      most = _mm512_max_epu16(most, _mm512_and_si512(part, unsigned_bits));
      _mm512_storeu_si512(to, part);
    }
  }
  for (int64_t d = 0; d < scratch.value_width; d += WIDE) {
    const __mmask16 some = (__mmask16)first_of(attention.value_width - d);
    Wide pairs[WIDE];
    for (int p = 0; p < WIDE; ++p) {
      __m256i rows[2];
      for (int i = 0; i < 2; ++i) {
        const int32_t number = numbers[2 * p + i];
        rows[i] = _mm256_maskz_loadu_epi16(number < 0 ? 0 : some,
                                           values.data + (number < 0 ? 0 : number) * values.row + d);
      }
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(rows[0]), rows[1], 1);
      most = _mm512_max_epu16(most, _mm512_and_si512(both, unsigned_bits));
      pairs[p] = (Wide)paired(both);
    }
    transpose(pairs);
    for (int i = 0; i < WIDE; ++i, to += HALVES) write(to, pairs[i]);
  }
  if (_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80))) nonfinite += wide(__builtin_nanf(""));
}

// Scores [32, N] of a group.
template <int C>
NOINLINE void score_group(const uint16_t *keys, int64_t width, const float *queries, float *scores) {
  const int64_t row = width * sizeof(uint16_t), step = C * 64;
  fence();
  _tile_zero(0);
  _tile_zero(1);
  if (C == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t d = 0; d < width; d += HALVES, queries += C * 16 * WIDE) {
    _tile_loadd(6, queries, 64);
    _tile_loadd(4, keys + d, row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, keys + 16 * width + d, row);
    _tile_dpbf16ps(1, 5, 6);
    if (C == 2) {
      _tile_loadd(7, queries + 16 * WIDE, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, scores, step);
  _tile_stored(1, scores + 16 * C * WIDE, step);
  if (C == 2) {
    _tile_stored(2, scores + WIDE, step);
    _tile_stored(3, scores + 16 * C * WIDE + WIDE, step);
  }
  fence();
}

// Masks scores and returns the largest of each lane.
template <int C>
NOINLINE void mask_tile(const KeyTile &tile, float *scores, Wide (&largest)[C]) {
  constexpr int CHAINS = 4;
  Wide most[CHAINS][C];
  UNROLL for (int i = 0; i < CHAINS; ++i)
    UNROLL for (int c = 0; c < C; ++c) most[i][c] = wide(-__builtin_inff());
  for (int64_t g = 0; g < tile.count; ++g)
    for (int64_t j = g * GROUP; j < (g + 1) * GROUP; j += CHAINS)
      UNROLL for (int i = 0; i < CHAINS; ++i)
        UNROLL for (int c = 0; c < C; ++c) {
          float *at = scores + ((j + i) * C + c) * WIDE;
          Wide score = read<Wide>(at);
          if (!tile.all_seen[g]) {
            const __mmask16 hidden = (__mmask16)(~tile.seen[j + i] >> (c * WIDE));
            score = (Wide)_mm512_mask_mov_ps((__m512)score, hidden,
                                             (__m512)wide(-__builtin_inff()));
            write(at, score);
          }
          most[i][c] = maximum(most[i][c], score);
        }
  UNROLL for (int c = 0; c < C; ++c)
    largest[c] = maximum(maximum(most[0][c], most[1][c]), maximum(most[2][c], most[3][c]));
}

// Moves the reference of the exponents where scores outgrow it, and everything summed so far.
template <int C>
NOINLINE void raise_reference(const Wide (&largest)[C], int64_t value_width, QueryBlock &block) {
  Wide rescale[C];
  UNROLL for (int c = 0; c < C; ++c) {
    const Wide before = read<Wide>(block.row_max + c * WIDE), now = maximum(largest[c], before);
    rescale[c] = exp2_negative(before - now);
    write(block.row_max + c * WIDE, now);
    write(block.total + c * WIDE, read<Wide>(block.total + c * WIDE) * rescale[c]);
  }
  for (int64_t i = 0; !block.fresh && i < value_width; ++i)
    UNROLL for (int c = 0; c < C; ++c) {
      float *at = block.sums + (i * C + c) * WIDE;
      write(at, read<Wide>(at) * rescale[c]);
    }
}

// 2^x for x < 64, to 3e-6 of it; what is below 2^-126 is 0 or denormal, which rounding to bfloat16 makes 0.
INLINE Wide weight_of(Wide x) {
  const Wide shift = wide(0x1.8p23f);
  x = maximum(wide(-127.0f), x);  // NaN stays NaN
  const Wide shifted = x + shift, r = x - (shifted - shift);
  Wide p = wide(9.5827426e-3f);
  p = p * r + wide(5.5906184e-2f);
  p = p * r + wide(2.4024099e-1f);
  p = p * r + wide(6.9312422e-1f);
  p = p * r + wide(1.0f);
  return (Wide)((WideInts)p + ((WideInts)shifted << 23));
}

// Turns scores into weights 2^(score * factor - reference) in bfloat16, [16 pairs of keys, N, 2] of
// each group, in place. Meanwhile values, and keys `next` numbers further on, come into L1: as many
// as heads of 64 features have.
template <int C>
NOINLINE void weigh_tile(const KeyTile &tile, int64_t next, float factor, QueryBlock &block,
                         float *scores) {
  Wide reference[C], total[C];
  UNROLL for (int c = 0; c < C; ++c) {
    reference[c] = read<Wide>(block.row_max + c * WIDE);
    total[c] = read<Wide>(block.total + c * WIDE);
  }
  for (int64_t p = 0; p < tile.count * GROUP / 2; ++p) {
    const uint16_t *values = tile.values[p / 16] + p % 16 * 128;
    const uint16_t *keys = tile.keys[p / 16] + next + p % 16 * 128;
    UNROLL for (int i = 0; i < 128; i += 32) {
      __builtin_prefetch(values + i, 0, 3);
      __builtin_prefetch(keys + i, 0, 3);
    }
    UNROLL for (int c = 0; c < C; ++c) {
      const float *at = scores + (2 * p * C + c) * WIDE;
      const Wide even = weight_of(read<Wide>(at) * factor - reference[c]);
      const Wide odd = weight_of(read<Wide>(at + C * WIDE) * factor - reference[c]);
      const __m512i both = paired((__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
      total[c] += even + odd;
      _mm512_storeu_si512(scores + (p * C + c) * WIDE, both);
    }
  }
  UNROLL for (int c = 0; c < C; ++c) write(block.total + c * WIDE, total[c]);
}

// Adds the weighted values of F x 16 features from feature 16 f on.
template <int C, int F>
NOINLINE void add_values(const KeyTile &tile, int64_t f, const float *weights, QueryBlock &block) {
  const int64_t step = C * 64;
  float *into = block.sums + f * 16 * C * WIDE;
  fence();
  if (block.fresh) {
    _tile_zero(0);
    if (C == 2) _tile_zero(1);
    if (F == 2) _tile_zero(2);
    if (C == 2 && F == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, into, step);
    if (C == 2) _tile_loadd(1, into + WIDE, step);
    if (F == 2) _tile_loadd(2, into + 16 * C * WIDE, step);
    if (C == 2 && F == 2) _tile_loadd(3, into + 16 * C * WIDE + WIDE, step);
  }
  for (int64_t g = 0; g < tile.count; ++g, weights += 16 * C * WIDE) {
    const uint16_t *values = tile.values[g] + f * 16 * GROUP;
    _tile_loadd(6, weights, step);
    _tile_loadd(4, values, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (C == 2) {
      _tile_loadd(7, weights + WIDE, step);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (F == 2) {
      _tile_loadd(5, values + 16 * GROUP, 64);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (C == 2 && F == 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, into, step);
  if (C == 2) _tile_stored(1, into + WIDE, step);
  if (F == 2) _tile_stored(2, into + 16 * C * WIDE, step);
  if (C == 2 && F == 2) _tile_stored(3, into + 16 * C * WIDE + WIDE, step);
  fence();
}

template <int C>
static void attend_tile(const SequenceAttention &attention, const TiledScratch &scratch,
                        QueryBlock &block) {
  const KeyTile &tile = scratch.tile;
  const float factor = factor_of(attention);
  for (int64_t g = 0; g < tile.count; ++g)
    score_group<C>(tile.keys[g], scratch.width, block.columns,
                   scratch.scores + g * GROUP * C * WIDE);
  Wide largest[C];
  mask_tile<C>(tile, scratch.scores, largest);
  bool outgrown = false;  // a weight of 1, that of the largest score, is not rounded
  UNROLL for (int c = 0; c < C; ++c) {
    largest[c] *= factor;
    const Wide held = read<Wide>(block.row_max + c * WIDE);
    outgrown |= _mm512_cmp_ps_mask((__m512)largest[c], (__m512)held, _CMP_GT_OQ) != 0;
  }
  if (outgrown) raise_reference<C>(largest, attention.value_width, block);
  weigh_tile<C>(tile, GROUPS * scratch.group_size(), factor, block, scratch.scores);
  int64_t f = 0;
  for (; f + 2 <= scratch.value_width / 16; f += 2)
    add_values<C, 2>(tile, f, scratch.scores, block);
  if (f < scratch.value_width / 16) add_values<C, 1>(tile, f, scratch.scores, block);
  block.fresh = false;
}

// What a query block's next groups are taken from.
struct KeyRangeOfChunk {
  const SequenceAttention &attention;
  const Stored<Tiled> &keys, &values;
  int64_t begin, until;  // `begin` is the first key of a group
  TiledScratch &scratch;
  Wide &nonfinite;
};

// Appends the packed group that begins with a key.
INLINE void append_packed(const KeyRangeOfChunk &range, const QueryBlock &block, int64_t first) {
  TiledScratch &scratch = range.scratch;
  KeyTile &tile = scratch.tile;
  const int64_t number = (first - range.begin) / GROUP;
  uint16_t *packed = scratch.packed + number * scratch.group_size();
  if (!scratch.ready[number]) {
    int32_t numbers[GROUP];
    for (int64_t j = 0; j < GROUP; ++j) {
      const bool real = first + j < range.attention.keys && key_is_valid(block, first + j);
      numbers[j] = real ? (int32_t)(first + j) : -1;
    }
    pack_group(range.attention, range.keys, range.values, numbers, scratch, packed,
               range.nonfinite);
    scratch.ready[number] = true;
  }
  tile.keys[tile.count] = packed;
  tile.values[tile.count] = packed + GROUP * scratch.width;
  scratch.gathered_keys[tile.count++] = 0;
}

// The next groups of a band; false if there are none below the end of the range.
static bool next_of_band(const KeyRangeOfChunk &range, QueryBlock &block) {
  KeyTile &tile = range.scratch.tile;
  const int64_t end = block.end < range.until ? block.end : range.until;
  for (tile.count = 0; tile.count < GROUPS && block.next < end;) {
    const int64_t first = block.next / GROUP * GROUP;
    const int64_t stop = first + GROUP < end ? first + GROUP : end;
    uint32_t *seen = tile.seen + tile.count * GROUP, any = ALL_LANES;
    const bool all = block.next == first && stop == first + GROUP && !block.valid &&
                     visible_lanes(range.attention, block, first) == ALL_LANES &&
                     visible_lanes(range.attention, block, stop - 1) == ALL_LANES;
    if (!all) {
      any = 0;
      for (int64_t j = 0; j < GROUP; ++j) {
        const int64_t key = first + j;
        const bool visible = key >= block.next && key < stop && key_is_valid(block, key);
        any |= seen[j] = visible ? visible_lanes(range.attention, block, key) : 0;
      }
    }
    block.next = stop;
    if (!any) continue;
    tile.all_seen[tile.count] = all;
    append_packed(range, block, first);
  }
  return tile.count > 0;
}

// The next groups of a list: those of which many keys are listed as they are, the other keys
// gathered.
static bool next_of_list(const KeyRangeOfChunk &range, QueryBlock &block) {
  const SequenceAttention &attention = range.attention;
  TiledScratch &scratch = range.scratch;
  KeyTile &tile = scratch.tile;
  const uint32_t real = first_of(block.lanes);
  int64_t gathering = -1;  // the group that takes single keys
  tile.count = 0;
  while (next_key(attention, block) < range.until) {
    const int64_t first = attention.listed[block.next] / GROUP * GROUP;
    uint32_t seen[GROUP] = {}, all = ALL_LANES;
    int64_t listed = 0, i = block.next;
    for (; i < block.end && attention.listed[i] < first + GROUP; ++i) {
      const uint32_t lanes = attention.seen_by[i] & real;
      if (!lanes || !key_is_valid(block, attention.listed[i])) continue;
      seen[attention.listed[i] - first] = lanes == real ? ALL_LANES : lanes;
      ++listed;
    }
    if (listed >= DENSE_KEYS) {
      if (tile.count == GROUPS) break;
      for (int64_t j = 0; j < GROUP; ++j) all &= tile.seen[tile.count * GROUP + j] = seen[j];
      tile.all_seen[tile.count] = all == ALL_LANES;
      append_packed(range, block, first);
    } else if (listed > 0) {
      if (gathering < 0 || scratch.gathered_keys[gathering] + listed > GROUP) {
        if (tile.count == GROUPS) break;
        gathering = tile.count++;
        scratch.gathered_keys[gathering] = 0;
        tile.all_seen[gathering] = false;
        for (int64_t j = 0; j < GROUP; ++j)
          scratch.numbers[gathering][j] = -1, tile.seen[gathering * GROUP + j] = 0;
      }
      for (int64_t j = 0; j < GROUP; ++j) {
        if (!seen[j]) continue;
        const int64_t at = scratch.gathered_keys[gathering]++;
        scratch.numbers[gathering][at] = (int32_t)(first + j);
        tile.seen[gathering * GROUP + at] = seen[j];
      }
    }
    block.next = i;
  }
  for (int64_t g = 0; g < tile.count; ++g) {
    if (!scratch.gathered_keys[g]) continue;
    uint16_t *to = scratch.gathered + g * scratch.group_size();
    pack_group(attention, range.keys, range.values, scratch.numbers[g], scratch, to,
               range.nonfinite);
    tile.keys[g] = to;
    tile.values[g] = to + GROUP * scratch.width;
  }
  return tile.count > 0;
}

INLINE int64_t keys_of_range(const TiledScratch &scratch) {
  return CACHED_HALVES / (scratch.width + scratch.value_width) / GROUP * GROUP + GROUP;
}

NOINLINE void attend_keys(const SequenceAttention &attention, const Stored<Tiled> &q,
                          const Stored<Tiled> &out, const Stored<Tiled> &keys,
                          const Stored<Tiled> &values, int64_t count, TiledScratch &scratch,
                          Wide &nonfinite) {
  int64_t begin, until;
  while (range_of(attention, scratch.blocks, count, begin, until)) {
    begin = begin / GROUP * GROUP;
    if (begin + keys_of_range(scratch) < until) until = begin + keys_of_range(scratch);
    for (int64_t g = 0; g < (until - begin + GROUP - 1) / GROUP; ++g) scratch.ready[g] = false;
    const KeyRangeOfChunk range{attention, keys, values, begin, until, scratch, nonfinite};
    for (int64_t g = 0; g < count; ++g) {
      QueryBlock &block = scratch.blocks[g];
      prefetch_next<Tiled>(attention, block, count, until + g * MAX_LANES, {&keys, &values},
                           {&q, &out});
      while (attention.starts ? next_of_list(range, block) : next_of_band(range, block)) {
        if (block.lanes <= WIDE) attend_tile<1>(attention, scratch, block);
        else attend_tile<COLUMNS>(attention, scratch, block);
      }
    }
  }
}

static void tiled_worker(suffice::Team &team, int, void *context) {
  SequenceCall &a = *(SequenceCall *)context;
  const SequenceAttention &w = a.attention;
  TiledScratch scratch;
  scratch.width = padded(w.width, HALVES);
  scratch.value_width = padded(w.value_width, 16);
  const int64_t columns = scratch.width / 2 * MAX_LANES, sums = scratch.value_width * MAX_LANES;
  const int64_t groups = GROUPS + keys_of_range(scratch) / GROUP;
  const int64_t numbers = a.blocks_per_chunk * (columns + sums) + STEP * MAX_LANES;
  float *place = (float *)suffice::thread_scratch(numbers * sizeof(float) +
                                                  groups * scratch.group_size() * sizeof(uint16_t));
  for (int64_t g = 0; g < a.blocks_per_chunk; ++g) {
    scratch.blocks[g].columns = place;
    scratch.blocks[g].sums = place + columns;
    place += columns + sums;
  }
  scratch.scores = place;
  scratch.gathered = (uint16_t *)(place + STEP * MAX_LANES);
  scratch.packed = scratch.gathered + GROUPS * scratch.group_size();
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, unused[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  fence();
  _tile_loadconfig(&config);
  attend_chunks<Tiled>(team, a, scratch);
  _tile_release();
}

int attend(const SequenceAttention *attention, const void *q, const void *k, const void *v,
           void *out, float *logs, int64_t threads) {
  // largest scores are taken before the factor
  if (attention->kind != BF16 || attention->cap != 0.0f || !(attention->scale > 0.0f))
    return attend_sequence(attention, q, k, v, out, logs, threads);
  return run_attention({*attention, q, k, v, out, logs, 0, 0, 0, 0}, tiled_worker, threads);
}

}  // namespace SUFFICE_ISA
