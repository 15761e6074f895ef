"""Token embeddings with learned, sinusoidal or no positions.

Letters: B batch, T tokens, M d_model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers.inputs import positions as count_real
from suffice.layers.packed import Packed
from suffice.layers.sinusoidal import sinusoidal, sinusoidal_at
from suffice.ops.linear import linear
from suffice.torch_compat import check, check_mask


def check_rows(name: str, tokens: Tensor, valid: Tensor | None, segments: Tensor | None) -> None:
    """Raise unless tokens are a batch, and valid and segments have its shape.

    Args:
        name: what the caller calls the tokens.
        tokens: [B, T].
        valid: bool [B, T] or None.
        segments: [B, T] or None.

    Raises:
        ShapeError: if a shape does not fit.
        MaskError: if valid is not boolean.
    """
    check(name, tokens, (None, None))
    if valid is not None:
        check_mask("valid", valid)
    for label, marks in (("valid", valid), ("segments", segments)):
        if marks is not None:
            check(label, marks, tuple(tokens.shape), hint=f"One entry for each of {name}.")


class Embedding(nn.Module):
    """A vector for each token id, plus one for its position.

    Args:
        vocabulary_size: ids are below this.
        length: the longest text with learned positions, tokens.
        d_model: features.
        positions: "learned", "sinusoidal" (see `sinusoidal`) or "none".
        device: where the parameters live.
        dtype: of the parameters.

    Shapes:
        tokens: int [B, T] -> [B, T, M]
    """

    def __init__(
        self,
        vocabulary_size: int,
        length: int,
        d_model: int,
        *,
        positions: str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, d_model, device=device, dtype=dtype)
        self.positions = None
        if positions == "learned":
            self.positions = nn.Embedding(length, d_model, device=device, dtype=dtype)
        self.position_type = positions

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the features [B, T, M] of tokens; positions count as in an attention layer.

        Args:
            tokens: ids; where valid is False they may be anything.
            valid: bool [B, T], True = a real token.
            segments: int [B, T], runs of equal numbers are documents.
            positions: int [B or 1, T], of tokens that continue a text; None = counted from 0.

        Raises:
            ConfigError: if the ids are not integers.
            ShapeError: if the rows are longer than the learned positions.
        """
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"token ids are {tokens.dtype}; give int64 or int32.")
        if valid is not None:
            tokens = tokens.masked_fill(~valid, 0)
        x = self.tokens(tokens)
        return self.add_positions(x, valid=valid, segments=segments, positions=positions)

    def add_positions(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return token features [B, T, M] with their positions added; arguments as of forward.

        Raises:
            ShapeError: if the rows are longer than the learned positions.
        """
        if self.position_type == "none":
            return x
        if positions is not None and torch.compiler.is_compiling():
            return x + self.at(positions, x)
        length = x.shape[1]
        if positions is not None and positions.numel():
            length = int(positions.max()) + 1
        self.check_length(length)
        table = self.table(length, x)
        if positions is None and (valid is not None or segments is not None):
            positions = count_real(valid, segments)
        return x + (table if positions is None else F.embedding(positions, table))

    def check_length(self, length: int) -> None:
        """Raise ShapeError if rows are longer than the learned positions."""
        if self.positions is not None and length > self.positions.num_embeddings:
            raise ShapeError(
                f"rows of {length} tokens in a model that learned positions for "
                f"{self.positions.num_embeddings}; cut them, or build a model of "
                f"length={length}."
            )

    def logits(self, features: Tensor) -> Tensor:
        """Return the products [..., V] of features [..., M] with every token's vector."""
        if isinstance(self.tokens, Packed):
            return self.tokens.product(features)
        return linear(features, self.tokens.weight, None)

    def at(self, positions: Tensor, x: Tensor) -> Tensor:
        """Return what is added at positions; reads no values, so that graphs can record it."""
        if self.positions is not None:
            return self.positions(positions)
        return sinusoidal_at(positions, x.shape[-1], dtype=x.dtype)

    def table(self, length: int, x: Tensor) -> Tensor:
        """Return what is added at positions 0..length - 1: [length, M], as x's dtype and device."""
        if self.positions is not None:
            return self.positions.weight[:length]
        return sinusoidal(length, x.shape[-1], device=x.device, dtype=x.dtype)
