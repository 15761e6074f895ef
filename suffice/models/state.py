"""What a model keeps of a text while it is read or written in pieces."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import ShapeError
from suffice.layers.state import LayerState


class ModelState:
    """The states of all layers, moved together.

    Made by a model's `state`; `model(tokens, state=state)` reads it and adds to it.

    Args:
        layers: one for each attention layer, in order.
    """

    def __init__(self, layers: list[LayerState]) -> None:
        self.layers = layers

    @property
    def length(self) -> int:
        """Tokens read so far in each row, padding included."""
        return self.layers[0].length

    @property
    def exact(self) -> bool:
        """True if any pieces give what one call without a state gives, within rounding."""
        return all(layer.exact for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept, spare room included."""
        return sum(layer.nbytes for layer in self.layers)

    def places(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Return where the next tokens [B, T] stand: int [B or 1, T]."""
        new = self.layers[0].begin(tokens.shape[0], tokens.shape[1], valid, tokens.device)
        return new.rows.positions

    def can_drop(self, tokens: int) -> bool:
        """Return whether the last tokens can be taken back, exactly."""
        return all(layer.can_drop(tokens) for layer in self.layers)

    def drop_last(self, tokens: int) -> None:
        """Take the last tokens back, as if they had never been read.

        Raises:
            ConfigError: if a layer cannot; nothing has changed then.
        """
        for layer in sorted(self.layers, key=lambda layer: layer.can_drop(tokens)):
            layer.drop_last(tokens)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times."""
        for layer in self.layers:
            layer.select(rows)

    def reorder(self, rows: Tensor) -> None:
        """Put a row of the batch in the place of each, as beams do.

        Raises:
            ShapeError: for another number of rows than there are.
        """
        batch = self.layers[0].batch
        if len(rows) != batch:
            raise ShapeError(f"{len(rows)} rows to reorder {batch}; give as many, or select.")
        self.select(rows)

    def repeat(self, times: int) -> None:
        """Put copies of each row behind it: `times` of each, itself included."""
        rows = torch.arange(self.layers[0].batch or 0).repeat_interleave(times)
        self.select(rows)

    def reset(self) -> None:
        """Forget everything."""
        for layer in self.layers:
            layer.reset()
