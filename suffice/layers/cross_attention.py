"""Keys and values of a source, computed once for all the queries that will read them.

Letters: B batch, S positions of the source, T queries, M width of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suffice.layers.attention import Attention
from suffice.layers.inputs import Inputs, KVView
from suffice.layers.positions import UNMASKED, UNPADDED, positions
from suffice.mixing import RowLayout
from suffice.ops.call import MaskInputs


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedSource:
    """Keys and values of a source as one layer reads them: views of it where nothing is learned."""

    view: KVView

    @classmethod
    def of(cls, layer: Attention, source: Tensor, valid: Tensor | None) -> EncodedSource:
        """Encode a source [B, S, M], 0 at padding; valid is bool [B, S] or None."""
        rows, masks = UNPADDED, UNMASKED
        if valid is not None:
            rows = RowLayout(valid=valid, positions=positions(valid, None))
            masks = MaskInputs(valid=valid) if layer.spec.mixing.keeps_keys else UNMASKED
        inputs = Inputs(x=source, source=source, masks=masks, rows=rows)
        return cls(view=inputs.view(layer, layer.spec.encoder.cached(layer, source)))

    def attend(self, layer: Attention, x: Tensor) -> Tensor:
        """Return the output of `layer(x, source, valid=valid)`: [B, T, d_model]."""
        out = layer.attend(layer.queries(x), self.view)
        return layer.spec.combine.output(layer, out, x, ())


class EncodedSources:
    """The encoded sources of a decoder's layers; layers that read one tensor share it."""

    def __init__(self, layers: Sequence[EncodedSource]) -> None:
        self.layers = list(layers)

    @property
    def batch(self) -> int:
        return len(self.layers[0].view.cached[0])

    @property
    def nbytes(self) -> int:
        return sum({_view_key(x): x.nbytes for x in self._tensors()}.values())

    def _tensors(self) -> list[Tensor]:
        tensors = [
            x for source in self.layers for x in (*source.view.cached, source.view.masks.valid)
        ]
        return [x for x in tensors if x is not None]

    def select(self, rows: Tensor) -> None:
        tensors = {_view_key(x): x for x in self._tensors()}
        moved = {place: x.index_select(0, rows) for place, x in tensors.items()}

        def move(source: EncodedSource) -> EncodedSource:
            valid = source.view.masks.valid
            masks = UNMASKED if valid is None else MaskInputs(valid=moved[_view_key(valid)])
            cached = tuple(moved[_view_key(x)] for x in source.view.cached)
            return replace(source, view=source.view._replace(cached=cached, masks=masks))

        self.layers = [move(source) for source in self.layers]


def _view_key(x: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()
