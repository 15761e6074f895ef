"""What the new positions of a streamed call read of what is held, and what restricts them.

Letters: B batch, G key/value heads, S held positions, D and E head widths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from suffice.layers.given import PLAIN
from suffice.layers.next import Next
from suffice.ops.call import MaskInputs
from suffice.patterns import Pattern


class Seen(NamedTuple):
    """What attention reads.

    Args:
        k: [B, G, S, D].
        v: [B, G, S, E].
        where: what restricts it.
        pairwise: True if the positions name pairs one by one.
    """

    k: Tensor
    v: Tensor
    where: MaskInputs
    pairwise: bool


def where_of(
    new: Next, pattern: Pattern, places: Tensor | None, first: int, sinks: int, keys: int
) -> tuple[MaskInputs, bool]:
    """Return what restricts the new queries among the keys held, and whether it names pairs.

    Args:
        new: where they stand.
        pattern: of the state.
        places: int [B, n], where the last n positions stand, the new ones included; None = all
            rows are real and alike.
        first: where the first of the last keys - sinks positions stands.
        sinks: keys of the very beginning before them.
        keys: S.
    """
    if new.places is None and (first == 0 or (not sinks and pattern.relative)):
        return PLAIN, False

    def apart() -> MaskInputs:
        """Return where queries and keys stand, in rows that are real and alike."""
        spans = ((0, sinks), (first, first + keys - sinks))
        k_at = torch.cat([torch.arange(*span, device=new.device) for span in spans])[None]
        return MaskInputs(q_positions=new.rows.positions, k_positions=k_at)

    def padded() -> MaskInputs:
        """Return where they stand in padded rows, and which are real."""
        held = places[:, places.shape[1] - (keys - sinks) :]
        return MaskInputs(
            valid=held >= 0,
            q_positions=new.rows.positions,
            k_positions=held.clamp(min=0),
            q_valid=new.rows.valid,
        )

    find = apart if new.places is None else padded
    where = new.once(find.__name__, find, first, sinks, keys)
    return where, new.places is None or new.start > 0 or keys != new.length
