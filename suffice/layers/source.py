"""What cross-attention reads of a memory, worked out once for all the queries that come.

Letters: B batch, G key/value heads, T queries, S positions of the memory, D and E head widths,
M width of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suffice.layers.attention import Attention
from suffice.layers.given import ALL_REAL, PLAIN
from suffice.layers.place import positions
from suffice.mixing import RowLayout
from suffice.ops.call import MaskInputs


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Keys and values of a memory, as one layer reads them.

    A layer that learns neither and mixes nothing reads the memory itself: k and v are views of it.

    Args:
        k: [B, G, S, D].
        v: [B, G, S, E].
        where: which keys are real.
    """

    k: Tensor
    v: Tensor
    where: MaskInputs

    @classmethod
    def of(cls, layer: Attention, memory: Tensor, valid: Tensor | None) -> Source:
        """Return what a layer reads of a memory.

        Args:
            layer: cross-attention.
            memory: [B, S, M], 0 at padding.
            valid: bool [B, S], True = a real position; None = all are.
        """
        k, v = layer.keys_and_values(memory)
        rows, where = ALL_REAL, PLAIN
        if valid is not None:
            rows = RowLayout(valid=valid, positions=positions(valid, None))
            where = MaskInputs(valid=valid) if layer.spec.mixing.keeps_keys else PLAIN
        k, v = layer.mixing(k, v, rows)
        return cls(k=k, v=v, where=where)

    def attended(self, layer: Attention, x: Tensor) -> Tensor:
        """Return what `layer(x, memory, valid=valid)` returns: [B, T, d_model]."""
        q = layer.queries(x)
        dropping = layer.training and layer.spec.dropout > 0.0
        sizes = (x.shape[1], self.k.shape[2])
        problem, op = layer._plan(*sizes, self.where, dropping, x.device.type, q.dtype)
        out = op(q, self.k, self.v, self.where, problem, layer.parts())
        return layer.o_proj(out.transpose(1, 2).flatten(2))


class Sources:
    """What all layers read; those that read the same tensor hold it together.

    Args:
        layers: of each layer, in order.
    """

    def __init__(self, layers: Sequence[Source]) -> None:
        self.layers = list(layers)

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.layers[0].k)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and marks, each counted once."""
        held = {_name(x): x.numel() * x.element_size() for x in self._tensors()}
        return sum(held.values())

    def _tensors(self) -> list[Tensor]:
        found = [x for one in self.layers for x in (one.k, one.v, one.where.valid)]
        return [x for x in found if x is not None]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times."""
        moved = {_name(x): x for x in self._tensors()}
        moved = {name: x.index_select(0, rows) for name, x in moved.items()}

        def move(one: Source) -> Source:
            valid = one.where.valid
            where = PLAIN if valid is None else MaskInputs(valid=moved[_name(valid)])
            return replace(one, k=moved[_name(one.k)], v=moved[_name(one.v)], where=where)

        self.layers = [move(one) for one in self.layers]


def _name(x: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Return what two tensors that are the same memory have in common."""
    return x.data_ptr(), x.shape, x.stride()
