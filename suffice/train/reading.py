"""What a model reads of some rows: an image, a text, or a source and the translation so far.

Letters: B rows, S tokens of a source, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from suffice.data.dataset import Split


class Reading(NamedTuple):
    """The tensors a model is called with.

    Args:
        inputs: images [B, C, H, W] or tokens [B, T].
        valid: bool [B, T] for tokens, or None.
        source: tokens [B, S] of the text to translate, or None.
        source_valid: bool [B, S], or None.
    """

    inputs: Tensor
    valid: Tensor | None = None
    source: Tensor | None = None
    source_valid: Tensor | None = None

    @classmethod
    def of(cls, split: Split) -> Reading:
        """Return all rows of a split."""
        return cls(split.inputs, split.valid, split.source, split.source_valid)

    def each(self, change: Callable[[Tensor], Tensor]) -> Reading:
        """Return the reading with every tensor changed alike."""
        return Reading(*(None if tensor is None else change(tensor) for tensor in self))

    def answered(self, model: nn.Module) -> Tensor:
        """Return the logits of a model: [B, C], or [B, T, C] where tokens are asked."""
        if self.source is None:
            return model(self.inputs, valid=self.valid)
        return model(self.source, self.inputs, self.source_valid, self.valid)
