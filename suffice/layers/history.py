"""Values as they were before a mixing, and the mixing of those that follow them.

Letters: B batch, G key/value heads, T new positions, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.layers.next import Next, real
from suffice.memory import Dynamic, Memory, Rolling, Store
from suffice.mixing import RowLayout
from suffice.spec import AttentionSpec

PIECE = 256  # positions mixed at once, so that a long piece costs no square


def kept(spec: AttentionSpec, memory: Memory) -> Memory:
    """Return the memory of keys and values, which holds what the mixing reads, too."""
    return memory.widened((spec.mixing.history or 0) + 1)


def history_of(spec: AttentionSpec, memory: Memory) -> Store:
    """Return the store of values as they were before the mixing."""
    if memory.window is None:
        return Dynamic().build()
    return Rolling(spec.mixing.history + 1, spare=memory.spare).build()


def remembered(spec: AttentionSpec, memory: Memory) -> int | None:
    """Return how many earlier positions a memory may hold or read again; None = all.

    Those that can be dropped count twice: what is left is read with as many beside the window.
    """
    memory = kept(spec, memory)
    return None if memory.window is None else memory.window + 2 * memory.spare + memory.grain


def placed(
    places: Tensor | None, positions: int, left: int, remembered: int | None, memory: Memory
) -> bool:
    """Return whether it is known where all stands that is read once positions are dropped.

    Args:
        places: int [B, n], where the last n positions stand; None = all rows are real and alike.
        positions: how many are dropped.
        left: how many there are then.
        remembered: how many places are told of beside the latest; None = all.
        memory: of the state.
    """
    if places is None or remembered is None or memory.grain:
        return True  # what is not coded is never more than what is remembered
    return places.shape[1] - positions >= min(remembered - memory.spare - 1, left)


def mixed(
    mixing: nn.Module, k: Tensor, v: Tensor, new: Next, source: Store, history: int | None
) -> tuple[Tensor, Tensor]:
    """Return new values as they are, and after the mixing, [B, G, T, E] each.

    Args:
        mixing: of the layer.
        k: [B, G, T, D].
        v: [B, G, T, E].
        new: where they stand.
        source: holds the values before them, first of its tensors.
        history: positions before one that the mixing reads; None = all.
    """
    valid, raw = new.rows.valid, v
    if valid is not None:
        raw = v.masked_fill(~valid[:, None, :, None], 0.0)
    if new.start:
        return raw, _continued(mixing, raw, new, source, history)
    return raw, mixing(k, v, RowLayout() if valid is None else new.rows)[1]


def _continued(
    mixing: nn.Module, raw: Tensor, new: Next, source: Store, history: int | None
) -> Tensor:
    """Mix new values with those before them, piece by piece."""
    past = _past(new, history)
    values = torch.cat([source.latest(past)[0], raw], dim=2)
    at = new.rows.positions
    if new.before is None:
        places = torch.arange(new.start - past, new.start, device=raw.device)[None]
    else:
        places = new.before[:, new.before.shape[1] - past :].clamp(min=0)
    places = torch.cat([places, at], dim=1)
    outs, step = [], raw.shape[2] if history is None else PIECE
    for a in range(0, raw.shape[2], max(step, 1)):
        b = min(a + step, raw.shape[2])
        span = values[:, :, a : past + b]
        outs.append(
            mixing.continued(
                span[:, :, :past], span[:, :, past:], at[:, a:b], places[:, a : past + b]
            )
        )
    return torch.cat(outs, dim=2) if len(outs) != 1 else outs[0]


def _past(new: Next, history: int | None) -> int:
    """Return how many of the last positions hold the values that a mixing still reads."""
    if history is None or new.before is None:
        return new.start if history is None else min(history, new.start)
    return new.once(("past", history), lambda: _columns(new.before, history))


def _columns(places: Tensor, history: int) -> int:
    read = (places >= (real(places) - history)[:, None]) & (places >= 0)
    columns = read.any(dim=0).nonzero()
    return places.shape[1] - int(columns[0]) if len(columns) else 0
