"""The mixing of a layer's values, told to the kernels.

Letters: B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.memory import Stretch
from suffice.mixing.value_map import ValueMap
from suffice.native import structures as of


class Mixing:
    """The structure of one layer, kept true from one position to the next.

    Args:
        mix: what is filled in.
        mixing: of the layer.
        weight: its weights in float32 in one piece.
        bias: likewise, or None.
    """

    def __init__(self, mix: of.Mix, mixing: ValueMap, weight: Tensor, bias: Tensor | None) -> None:
        self.mix, self.mixing = mix, mixing
        mix.weights = weight.data_ptr()
        mix.map = weight[0].numel() if len(weight) > 1 else 0
        if bias is not None:
            mix.bias = bias.data_ptr()
            mix.bias_map = bias[0].numel() if len(bias) > 1 else 0
        self.kept = weight, bias
        self.numbers = torch.empty(0, dtype=torch.int64)

    def place(self, places: list[int]) -> None:
        """Tell where the next position stands in each row, B of them.

        Raises:
            ShapeError: if the mixing does not reach it; nothing has changed then.
        """
        numbers = torch.tensor([self.mixing.reads(place) for place in places])
        self.numbers = numbers.t().contiguous()
        pointers = (row.data_ptr() for row in self.numbers)
        self.mix.first, self.mix.count, self.mix.offset = pointers

    def take(self, raw: Stretch) -> None:
        """Tell of values as they were, the next position's room at the end."""
        mix, values = self.mix, raw.parts[0]
        mix.raw, mix.at = values.data_ptr(), raw.end - 1
        mix.row, mix.head = values.stride(0), values.stride(1)
