"""What a model keeps of a text while it is read or written in pieces."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from suffice.errors import ConfigError, ShapeError, StateError
from suffice.layers.next import Next
from suffice.layers.state import LayerState
from suffice.memory import Memory
from suffice.spec import AttentionSpec


class ModelState:
    """The states of all layers, moved together.

    Made by a model's `state`; `model(tokens, state=state)` reads it and adds to it.

    Args:
        layers: one for each attention layer, in order.
    """

    def __init__(self, layers: list[LayerState]) -> None:
        self.layers = layers
        kinds: list[tuple[AttentionSpec, Memory]] = []
        for layer in layers:
            if (layer.spec, layer.memory) not in kinds:
                kinds.append((layer.spec, layer.memory))
            layer.kind = kinds.index((layer.spec, layer.memory))

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
        places = [layer.places for layer in self.layers if layer.places is not None]
        shared = {id(held): held.nbytes for held in places}  # layers hold the same tensor
        twice = sum(held.nbytes for held in places) - sum(shared.values())
        return sum(layer.nbytes for layer in self.layers) - twice

    def places(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Return where the next tokens [B, T] stand: int [B or 1, T]."""
        return self.next(tokens, valid).rows.positions

    def next(self, tokens: Tensor, valid: Tensor | None = None) -> Next:
        """Return where the next tokens [B, T] stand, and what layers share of it.

        What any layer refuses of them is refused here, before a layer has read something.
        """
        given = tokens.shape[0], tokens.shape[1], valid, tokens.device
        new = self.layers[0].begin(*given)
        asked = {self.layers[0].kind}
        for layer in self.layers[1:]:
            layer.offered = new
            if layer.kind not in asked and not torch.compiler.is_compiling():
                layer.begin(*given)
                asked.add(layer.kind)
        return new

    def can_drop(self, tokens: int) -> bool:
        """Return whether the last tokens can be taken back, exactly."""
        return all(layer.can_drop(tokens) for layer in self.layers)

    def drop_last(self, tokens: int) -> None:
        """Take the last tokens back, as if they had never been read.

        Raises:
            ConfigError: if a layer cannot; nothing has changed then.
        """
        # those that cannot come first
        first = sorted(self.layers, key=lambda layer: layer.can_drop(tokens))
        self._each(lambda layer: layer.drop_last(tokens), first)

    def _each(self, move: Callable[[LayerState], None], layers: list[LayerState]) -> None:
        """Move layers, so that those which held the same places still hold the same."""
        before = {id(layer): layer.places for layer in layers}
        moved: dict[int, Tensor | None] = {}
        for layer in layers:
            move(layer)
            layer.places = moved.setdefault(id(before[id(layer)]), layer.places)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times.

        Raises:
            StateError: if nothing was read yet.
            ShapeError: if rows are not numbers of rows there are.
        """
        batch = self._batch()
        _check_numbers(rows)
        if rows.dim() != 1 or bool(((rows < 0) | (rows >= batch)).any()):
            raise ShapeError(
                f"rows {rows.tolist()} of a state of {batch}; give a list of numbers of 0 to "
                f"{batch - 1}."
            )
        self._each(lambda layer: layer.select(rows), self.layers)

    def _batch(self) -> int:
        """Return how many rows were read."""
        batch = self.layers[0].batch
        if batch is None:
            raise StateError(
                "the state has read nothing, so there are no rows to move; call the model with it "
                "first."
            )
        return batch

    def reorder(self, rows: Tensor) -> None:
        """Put a row of the batch in the place of each, as beams do.

        Raises:
            StateError: if nothing was read yet.
            ShapeError: for another number of rows than there are, or numbers of none.
        """
        _check_numbers(rows)
        if rows.numel() != self._batch():
            raise ShapeError(
                f"{rows.numel()} rows to reorder {self._batch()}; give as many, or select."
            )
        self.select(rows)

    def repeat(self, times: int) -> None:
        """Put copies of each row behind it: `times` of each, itself included.

        Raises:
            StateError: if nothing was read yet.
            ConfigError: if times < 1.
        """
        batch = self._batch()
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigError(
                f"repeat({times!r}): give a whole number of at least 1, each row itself."
            )
        device = self.layers[0].device
        self.select(torch.arange(batch, device=device).repeat_interleave(times))

    def reset(self) -> None:
        """Forget everything."""
        for layer in self.layers:
            layer.reset()


def check_state(state: object, layers: int) -> None:
    """Refuse what is no state of a model with so many attention layers.

    Raises:
        ConfigError: naming what it is.
    """
    if not isinstance(state, ModelState):
        raise ConfigError(f"state is a {type(state).__name__}; give what model.state() makes.")
    if len(state.layers) != layers:
        raise ConfigError(
            f"a state of {len(state.layers)} layers for a model of {layers}; give what "
            "model.state() makes."
        )


def _check_numbers(rows: object) -> None:
    """Refuse what are no numbers of rows."""
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int32, torch.int64):
        told = f"a {rows.dtype} tensor" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
        raise ShapeError(f"rows are {told}; give their numbers as a tensor, int64 or int32.")
