"""The state of a model that reads or writes a text in pieces: a KV cache or sums per layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from suffice.errors import ConfigError, ShapeError, StateError
from suffice.layers.attention import Attention
from suffice.layers.positions import StepPositions
from suffice.layers.state import Entries, LayerState
from suffice.memory import Dynamic, Memory
from suffice.spec import AttentionSpec
from suffice.utils.records import is_whole


class ModelState:
    """The states of all layers of a model, in order; `model(tokens, state=state)` adds to it."""

    def __init__(self, layers: list[LayerState]) -> None:
        self.layers = layers
        kinds: dict[tuple[AttentionSpec, Memory], int] = {}
        for layer in layers:
            layer.kind = kinds.setdefault((layer.spec, layer.memory), len(kinds))
            if layer.spec.shares is not None:  # reads what that layer has kept
                layer.remembered = layers[layer.spec.shares].remembered

    @property
    def length(self) -> int:
        """Tokens read so far in each row, padding included."""
        return self.layers[0].length

    @property
    def exact(self) -> bool:
        """True if pieces of any lengths give, within rounding, what one call gives."""
        return all(layer.exact for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of everything the state holds, spare capacity included."""
        tensors = [layer.places for layer in self.layers if layer.places is not None]
        shared = {id(tensor): tensor.nbytes for tensor in tensors}  # layers hold the same one
        repeated = sum(tensor.nbytes for tensor in tensors) - sum(shared.values())
        return sum(layer.nbytes for layer in self.layers) - repeated

    def positions(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Return the positions of the next tokens [B, T]: int [B or 1, T]."""
        return self.next(tokens, valid).rows.positions

    def next(self, tokens: Tensor, valid: Tensor | None = None) -> StepPositions:
        """Return the step of the next tokens [B, T], which all kinds of layers check first."""
        step = self.layers[0].begin(tokens, valid)
        checked = {self.layers[0].kind}
        for layer in self.layers[1:]:
            layer.offered = step
            if layer.kind not in checked and not torch.compiler.is_compiling():
                layer.begin(tokens, valid)
                checked.add(layer.kind)
        return step

    def can_drop(self, tokens: int) -> bool:
        """Return whether the last `tokens` can be dropped, exactly."""
        return all(layer.can_drop(tokens) for layer in self.layers)

    def drop_last(self, tokens: int) -> None:
        """Drop the last tokens, as if they had never been read; ConfigError if a layer cannot."""
        # layers that cannot come first and raise before another has changed
        layers = sorted(self.layers, key=lambda layer: layer.can_drop(tokens))
        self._change(layers, lambda layer: layer.drop_last(tokens))

    def _change(self, layers: list[LayerState], change: Callable[[LayerState], None]) -> None:
        """Change layers one by one; those that shared a tensor of positions share it still."""
        before = {id(layer): layer.places for layer in layers}
        changed: dict[int, Tensor | None] = {}
        for layer in layers:
            change(layer)
            layer.places = changed.setdefault(id(before[id(layer)]), layer.places)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; rows may repeat."""
        batch = self._batch()
        _check_indices(rows)
        if rows.dim() != 1 or bool(((rows < 0) | (rows >= batch)).any()):
            raise ShapeError(
                f"rows {rows.tolist()} of a state of {batch}; give a list of indices from 0 to "
                f"{batch - 1}."
            )
        self._change(self.layers, lambda layer: layer.select(rows))

    def _batch(self) -> int:
        batch = self.layers[0].batch
        if batch is None:
            raise StateError(
                "the state has read nothing, so there are no rows to move; call the model with it "
                "first."
            )
        return batch

    def reorder(self, rows: Tensor) -> None:
        """Replace every row of the batch by another one, as a beam search does."""
        _check_indices(rows)
        if rows.numel() != self._batch():
            raise ShapeError(
                f"{rows.numel()} rows to reorder {self._batch()}; give that many, or select."
            )
        self.select(rows)

    def repeat(self, times: int) -> None:
        """Repeat each row `times` times, itself included; copies follow their row."""
        batch = self._batch()
        if not is_whole(times, least=1):
            raise ConfigError(
                f"repeat({times!r}): give a whole number of at least 1, each row itself."
            )
        device = self.layers[0].device
        self.select(torch.arange(batch, device=device).repeat_interleave(times))

    def fork(self) -> ModelState:
        """Return a copy that goes on by itself; what it holds is copied."""
        # values are shared: they never change, and are compared by `is` or `==`
        shared: dict[int, object] = {}
        for layer in self.layers:
            layer.offered = None
            values = (layer.spec, layer.memory, layer.pattern)
            shared |= {id(value): value for value in values}
        return copy.deepcopy(self, shared)

    @property
    def can_join(self) -> bool:
        """True if rows of several texts can be put into one state."""
        return all(layer.can_join for layer in self.layers)

    @classmethod
    def join(cls, rows: Sequence[tuple[ModelState, int]]) -> ModelState:
        """Return a state of (state, row) pairs, which have read texts of any lengths.

        Shorter texts are padded on the left, so that each row gives what it gives alone, within
        rounding. The states given are left as they are.
        """
        if not rows or not all(state.can_join for state, _ in rows):
            raise StateError(
                "join takes rows of states that keep all keys and values and nothing else; step "
                "others one by one."
            )
        entries = [_entries_of(state.layers[0], row) for state, row in rows]
        layers = []
        for number, layer in enumerate(rows[0][0].layers):
            joined = LayerState(layer.spec, layer.memory)
            joined.join([(state.layers[number], row) for state, row in rows], entries)
            layers.append(joined)
        for layer in layers[1:]:
            layer.places = layers[0].places
        return cls(layers)

    def put(self, row: int, other: ModelState) -> None:
        """Replace a row by the only row of another state, which has read no more tokens."""
        if not (self.can_join and other.can_join) or other._batch() != 1:
            raise StateError(
                "put takes one row of a state that keeps all keys and values and nothing else."
            )
        if other.length > self.length:
            raise StateError(
                f"a row that has read {other.length} tokens does not fit into a state of "
                f"{self.length}; join them."
            )
        first, entries = self.layers[0], _entries_of(other.layers[0], 0)
        if first.places is None:
            first.places = torch.arange(self.length, device=first.device).expand(self._batch(), -1)
        places = first.places.clone()
        places[row] = torch.arange(self.length, device=first.device) - self.length + entries.count
        places[row].clamp_(min=-1)
        for layer, source in zip(self.layers, other.layers, strict=True):
            layer.put(row, source, entries)
            layer.places = places

    def reset(self) -> None:
        """Forget everything."""
        for layer in self.layers:
            layer.reset()


def check_state(state: object, layers: int) -> None:
    """Raise unless this is the state of a model with `layers` attention layers."""
    if not isinstance(state, ModelState):
        raise ConfigError(f"state is a {type(state).__name__}; give what model.state() makes.")
    if len(state.layers) != layers:
        raise ConfigError(
            f"a state of {len(state.layers)} layers for a model of {layers}; give what "
            "model.state() makes."
        )


def _entries_of(layer: LayerState, row: int) -> Entries:
    """Return which entries of a row are real tokens, in order."""
    if layer.places is None:
        return Entries(slice(layer.length), layer.length)
    real = (layer.places[row] >= 0).nonzero()[:, 0]
    start, count = layer.length - len(real), len(real)
    after_padding = not count or int(real[0]) == start
    return Entries(slice(start, layer.length) if after_padding else real, count)


def _check_indices(rows: object) -> None:
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int32, torch.int64):
        what = f"a {rows.dtype} tensor" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
        raise ShapeError(f"rows are {what}; give their indices as a tensor, int64 or int32.")


def layer_states(layers: Iterable[Attention], memory: Memory) -> list[LayerState]:
    """Return an empty state for each layer; layers that keep sums take no memory."""
    return [layer.state(memory if layer.spec.lane == "pairs" else Dynamic()) for layer in layers]
