"""A map along the sequence that goes on where an earlier chunk ended."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.layers.positions import StepPositions, real_tokens
from suffice.memory import Store

MIXED_AT_ONCE = 256  # positions; a longer chunk is mixed piece by piece, and costs no square


def mix_next(
    mixing: nn.Module, raw: Tensor, at: StepPositions, earlier: Store, history: int | None
) -> Tensor:
    """Return new values, raw [B, G, T, E], after the mixing, which reads the `earlier` ones, too.

    The mixing reads `history` positions before one; None = all.
    """
    count = _history_tokens(at, history)
    values = torch.cat([earlier.latest(count)[0], raw], dim=2)
    new = at.rows.positions
    if at.before is None:
        past = torch.arange(at.start - count, at.start, device=raw.device)[None]
    else:
        past = at.before[:, at.before.shape[1] - count :].clamp(min=0)
    places = torch.cat([past, new], dim=1)
    pieces, step = [], raw.shape[2] if history is None else MIXED_AT_ONCE
    for a in range(0, raw.shape[2], max(step, 1)):
        b = min(a + step, raw.shape[2])
        first = _first_read(places[:, : count + a], new[:, a : a + 1] - history) if a else 0
        before, now = values[:, :, first : count + a], values[:, :, count + a : count + b]
        pieces.append(mixing.continued(before, now, new[:, a:b], places[:, first : count + b]))
    return torch.cat(pieces, dim=2) if len(pieces) != 1 else pieces[0]


def _first_read(places: Tensor, oldest: Tensor) -> int:
    """Return the first column of places [B, n] with a position from `oldest` [B, 1] on."""
    read = (places >= oldest).any(dim=0).nonzero()
    return int(read[0]) if len(read) else places.shape[1]


def _history_tokens(at: StepPositions, history: int | None) -> int:
    """Return how many of the last tokens hold the values that a mixing still reads."""
    if history is None or at.before is None:
        return at.start if history is None else min(history, at.start)

    def columns() -> int:
        first = (real_tokens(at.before) - history)[:, None]
        read = ((at.before >= first) & (at.before >= 0)).any(dim=0).nonzero()
        return at.before.shape[1] - int(read[0]) if len(read) else 0

    return at.once(("history", history), columns)
