"""Positions of tokens in their documents: of whole inputs, and of a step that continues a cache.

Letters: B batch, T new tokens, S cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from suffice.mixing import RowLayout
from suffice.ops.call import MaskInputs

A = TypeVar("A")
UNMASKED, UNPADDED = MaskInputs(), RowLayout()


@dataclass(frozen=True, kw_only=True, eq=False)
class StepPositions:
    """Positions of the new tokens of a call; layers with equal ones share them.

    With 2 rows that have read [a b] and [- c] ("-" is padding) and now read [d e] in both:
    start is 2, before is [[0, 1], [-1, 0]] and places is [[2, 3], [1, 2]].
    """

    batch: int  # B
    length: int  # T
    start: int  # positions read before, padding included
    device: torch.device
    valid: Tensor | None  # bool [B, T] as passed by the caller; None: all are real
    cached: Tensor | None  # int [B, n], of the last n read, -1 = padding; None: rows are alike
    before: Tensor | None  # `cached`, but never None where there is padding now
    rows: RowLayout  # layout of the new tokens, for mixing and rotation
    places: Tensor | None  # int [B, T] in each row, -1 = padding; None: all rows are real and alike
    memo: dict[Hashable, Any] = field(default_factory=dict)  # see `once`

    @classmethod
    def after(
        cls, cached: Tensor | None, start: int, tokens: Tensor, valid: Tensor | None
    ) -> StepPositions:
        """Return the positions of tokens [B, T, ...] that follow those read before."""
        (batch, length), device = tokens.shape[:2], tokens.device
        sizes = {"batch": batch, "length": length, "start": start, "device": device}
        if valid is None and cached is None:
            rows = RowLayout(positions=torch.arange(start, start + length, device=device)[None])
            return cls(**sizes, valid=None, cached=None, before=None, rows=rows, places=None)
        real = valid
        if valid is None:
            real = torch.ones(batch, length, dtype=torch.bool, device=device)
        before = torch.arange(start, device=device).expand(batch, -1) if cached is None else cached
        at = real_tokens(before)[:, None] + positions(real, None)
        return cls(
            **sizes,
            valid=valid,
            cached=cached,
            before=before,
            rows=RowLayout(valid=real, positions=at),
            places=at.masked_fill(~real, -1),
        )

    def once(self, key: Hashable, make: Callable[[], A], *sizes: int) -> A:
        """Return `make()`, computed once for each key and sizes and shared by all layers."""
        if sizes:
            if torch.compiler.is_compiling():  # as part of a key a symbol would become a number
                return make()
            key = (key, sizes)
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def with_cached(self, remembered: int | None) -> Tensor | None:
        """Return positions of the new tokens and the `remembered` before; None: rows are alike."""
        if self.places is None:
            return None
        first = 0 if remembered is None else -(self.length + remembered)
        return self.once(
            ("with cached", remembered),
            lambda: torch.cat([self.before, self.places], dim=1)[:, first:],
        )

    def masks(
        self, places: Tensor | None, first: int, sinks: int, keys: int, *, relative: bool = False
    ) -> tuple[MaskInputs, bool]:
        """Return the masks of the new queries among S cached keys, and whether they name pairs.

        The first `sinks` keys are those of the very beginning, the others start at position
        `first`; `places` are the positions of the last tokens, as `with_cached` returns them.
        With `relative` nothing but the distances of queries and keys counts.
        """
        if self.places is None and (first == 0 or (not sinks and relative)):
            return UNMASKED, False

        def unpadded() -> MaskInputs:
            spans = ((0, sinks), (first, first + keys - sinks))
            k_at = torch.cat([torch.arange(*span, device=self.device) for span in spans])[None]
            return MaskInputs(q_positions=self.rows.positions, k_positions=k_at)

        def padded() -> MaskInputs:
            cached = places[:, places.shape[1] - (keys - sinks) :]
            return MaskInputs(
                valid=cached >= 0,
                q_positions=self.rows.positions,
                k_positions=cached.clamp(min=0),
                q_valid=self.rows.valid,
            )

        find = unpadded if self.places is None else padded
        masks = self.once(find.__name__, find, first, sinks, keys)
        return masks, self.places is None or self.start > 0 or keys != self.length


def real_tokens(places: Tensor) -> Tensor:
    """Return how many real tokens each row has, [B]."""
    if not places.shape[1]:
        return places.new_zeros(places.shape[0])
    return places.max(dim=1).values + 1


def positions(valid: Tensor | None, segments: Tensor | None) -> Tensor:
    """Return the position [B, S] of each token in its document: the real tokens before it.

    Runs of equal segments int [B, S] are documents; None: one document.
    """
    like = segments if valid is None else valid
    real = torch.ones_like(like, dtype=torch.long) if valid is None else valid.long()
    before = real.cumsum(dim=1) - real
    if segments is None:
        return before
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return before - torch.where(starts, before, 0).cummax(dim=1).values
