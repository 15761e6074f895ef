// Attention of one position of each row to what is held, alone.

#pragma once

#include "attend.h"

namespace SUFFICE_ISA {

struct Looking {
  const Look &look;
  const Held &held;
  int64_t rows, most;
  Seen *seen;     // [rows, heads, most]
  float *values;  // [rows, heads, most, head_dim]
};

static int64_t look_room(const Look &look, int64_t rows, int64_t longest) {
  int64_t each = sizeof(Seen) + look.head_dim * sizeof(float);
  return rows * look.heads * most_pieces(longest) * each + 128;
}

static void look_worker(suffice::Team &team, int, void *context) {
  const Looking &work = *(Looking *)context;
  const Look &look = work.look;
  const int64_t groups = look.kv_heads, count = look.heads / groups, width = look.head_dim;
  const int64_t pieces = pieces_of(work.held);
  Range span;
  while (team.take(work.rows * groups * pieces, 1, span))
    for (int64_t i = span.begin; i < span.end; ++i) {
      int64_t row = i / (groups * pieces), group = i / pieces % groups, piece = i % pieces;
      int64_t first = row * look.heads + group * count;
      float q[MOST_QUERIES * WIDEST];
      Seen local[MOST_QUERIES];
      for (int64_t r = 0; r < count; ++r) {
        local[r] = {-__builtin_inff(), 0.0f, work.values + ((first + r) * work.most + piece) * width};
        for (int64_t c = 0; c < width; ++c) {
          q[r * width + c] = look.q[(first + r) * width + c] * look.scale;
          local[r].values[c] = 0.0f;
        }
      }
      const float *slopes = look.slopes ? look.slopes + group * count : nullptr;
      see_piece({q, count, width, slopes, look.places[row]}, work.held, row, group,
                look.padding[row], piece, local);
      for (int64_t r = 0; r < count; ++r) work.seen[(first + r) * work.most + piece] = local[r];
    }
  team.meet();
  while (team.take(work.rows * look.heads, 1, span))
    for (int64_t h = span.begin; h < span.end; ++h)
      merge(work.seen + h * work.most, pieces, width, look.out + h * width);
}

static void run_look(const Look &look, const Held &held, int64_t rows, int64_t longest, void *room,
                     int64_t threads) {
  const int64_t most = most_pieces(longest);
  Seen *seen = (Seen *)(((uintptr_t)room + 63) / 64 * 64);
  Looking work{look, held, rows, most, seen, (float *)(seen + rows * look.heads * most)};
  suffice::together((int)threads, look_worker, &work);
}

}  // namespace SUFFICE_ISA
