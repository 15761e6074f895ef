"""The book of what was written: each row ends at its first stop id.

Letters: B rows, N new tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

OnToken = Callable[[list[int | None]], None]


class Rows:
    """New tokens of a batch.

    Args:
        batch: B.
        new: N at most.
        stop: ids that end a row.
        pad: what stands behind its end.
        device: of the tokens.
        on_token: told the token of each row as it comes, None for rows that ended.
    """

    def __init__(
        self,
        batch: int,
        new: int,
        *,
        stop: tuple[int, ...],
        pad: int,
        device: torch.device,
        on_token: OnToken | None,
    ) -> None:
        self.tokens = torch.full((batch, new), pad, device=device)
        self.pad, self.on_token, self.ids = pad, on_token, stop
        self.stop = torch.tensor(stop, device=device) if stop else None
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self.count = 0  # columns written
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)

    def write(self, tokens: Tensor) -> bool:
        """Write the next token [B] of each row; return whether all rows have ended."""
        if self.stop is not None:
            tokens = tokens.masked_fill(self.ended, self.pad)
        self.tokens[:, self.count] = tokens
        self.lengths += ~self.ended
        self.count += 1
        if self.on_token is not None:
            ended = self.ended.tolist()
            pairs = zip(tokens.tolist(), ended, strict=True)
            self.on_token([None if end else token for token, end in pairs])
        if self.stop is None:
            return self.count == self.tokens.shape[1]
        self.ended |= (tokens[:, None] == self.stop).any(dim=1)
        return self.count == self.tokens.shape[1] or bool(self.ended.all())

    def only(self, row: int) -> Rows:
        """Return the book of one row, empty; `take` puts it in its place."""
        batch, new = self.tokens.shape
        told = None
        if self.on_token is not None:
            before, behind = [None] * row, [None] * (batch - row - 1)

            def told(tokens: list[int | None]) -> None:
                self.on_token([*before, *tokens, *behind])

        options = {"pad": self.pad, "device": self.tokens.device, "on_token": told}
        return Rows(1, new, stop=self.ids, **options)

    def take(self, one: Rows, row: int) -> None:
        """Put what was written into the book of one row into its place."""
        self.tokens[row], self.lengths[row] = one.tokens[0], one.lengths[0]
        self.count = max(self.count, one.count)
