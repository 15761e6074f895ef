"""The new positions of one streamed call, and what layers that read them alike share.

Letters: B batch, T new positions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from suffice.layers.place import positions as count_real
from suffice.mixing import RowLayout

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True, eq=False)
class Next:
    """Where the new tokens stand.

    Args:
        batch: B.
        length: T.
        start: positions read before, padding included.
        device: of the tokens.
        valid: bool [B, T], as it was given; None = all are real.
        told: int [B, n], where the last n of those before stand, -1 = padding; None = all rows
            are real and alike until now.
        before: as told; where there is padding now, never None.
        rows: for the mixing and for positions that turn.
        places: int [B, T], position of each new token in its row, -1 = padding; None = all rows
            are real and alike.
        found: what was worked out for these positions, by what decides it.
    """

    batch: int
    length: int
    start: int
    device: torch.device
    valid: Tensor | None
    told: Tensor | None
    before: Tensor | None
    rows: RowLayout
    places: Tensor | None
    found: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], A], *sizes: int) -> A:
        """Return what `make` gives, made by the first layer that asks for this key and sizes."""
        if sizes:
            if torch.compiler.is_compiling():  # as part of a key a symbol would become a number
                return make()
            key = (key, sizes)
        if key not in self.found:
            self.found[key] = make()
        return self.found[key]

    def after(self, remembered: int | None) -> Tensor | None:
        """Return where the last positions stand with the new ones among them, as `before`.

        Args:
            remembered: how many to tell of beside the new ones; None = all.
        """
        if self.places is None:
            return None
        first = 0 if remembered is None else -(self.length + remembered)
        return self.once(
            ("after", remembered),
            lambda: torch.cat([self.before, self.places], dim=1)[:, first:],
        )


def after(
    told: Tensor | None,
    start: int,
    batch: int,
    length: int,
    valid: Tensor | None,
    device: torch.device,
) -> Next:
    """Return where the next tokens stand; arguments as of `Next`."""
    given = {"batch": batch, "length": length, "start": start, "device": device}
    given |= {"valid": valid, "told": told}
    if valid is None and told is None:
        at = torch.arange(start, start + length, device=device)[None]
        return Next(before=None, rows=RowLayout(positions=at), places=None, **given)
    if valid is None:
        valid = torch.ones(batch, length, dtype=torch.bool, device=device)
    before = torch.arange(start, device=device).expand(batch, -1) if told is None else told
    at = real(before)[:, None] + count_real(valid, None)
    rows = RowLayout(valid=valid, positions=at)
    return Next(before=before, rows=rows, places=at.masked_fill(~valid, -1), **given)


def real(places: Tensor) -> Tensor:
    """Return how many real tokens each row has, [B].

    Example:
        >>> real(torch.tensor([[-1, 0, 1], [-1, -1, 0]])).tolist()
        [2, 1]
    """
    if not places.shape[1]:
        return places.new_zeros(places.shape[0])
    return places.max(dim=1).values + 1
