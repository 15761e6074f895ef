"""What turns token ids into features: a row for each token, and what its position adds.

Letters: B batch, T tokens, M d_model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers.packed import Packed
from suffice.layers.place import positions as count_real
from suffice.layers.sinusoidal import sinusoidal, sinusoidal_at
from suffice.ops.linear import linear
from suffice.torch_compat import check, check_mask


def check_rows(name: str, tokens: Tensor, valid: Tensor | None, segments: Tensor | None) -> None:
    """Refuse what is no batch of token ids with one mark for each.

    Args:
        name: how the caller named the tokens.
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
    for what, marks in (("valid", valid), ("segments", segments)):
        if marks is not None:
            check(what, marks, tuple(tokens.shape), hint=f"One entry for each of {name}.")


class Embedding(nn.Module):
    """A row of features for each token, and positions added to it.

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
        self.adds = positions

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Return features of tokens; positions count as those of an attention layer.

        Args:
            tokens: ids; whatever stands where valid is False.
            valid: bool [B, T], True = a real token.
            segments: int [B, T], runs of equal numbers are documents.
            places: int [B or 1, T], where the tokens stand in a text that was begun before; None =
                this is its beginning.

        Raises:
            ConfigError: if the ids are no whole numbers.
            ShapeError: if the rows are longer than the learned positions.
        """
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"token ids are {tokens.dtype}; give int64 or int32.")
        if valid is not None:
            tokens = tokens.masked_fill(~valid, 0)
        return self.placed(self.tokens(tokens), valid=valid, segments=segments, places=places)

    def placed(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Return features [B, T, M] of tokens with what their positions add; else as forward.

        Raises:
            ShapeError: if the rows are longer than the learned positions.
        """
        if places is not None and torch.compiler.is_compiling():
            return x if self.adds == "none" else x + self._at(places, x)
        length = x.shape[1]
        if places is not None and places.numel():
            length = int(places.max()) + 1 if self.adds != "none" else 0
        self.check_reach(length)
        if self.adds == "none":
            return x
        table = self.table(length, x)
        if places is not None:
            return x + F.embedding(places, table)
        if valid is None and segments is None:
            return x + table
        return x + F.embedding(count_real(valid, segments), table)

    def check_reach(self, length: int) -> None:
        """Refuse rows beyond the learned positions.

        Raises:
            ShapeError: saying how many there are.
        """
        if self.positions is not None and length > self.positions.num_embeddings:
            raise ShapeError(
                f"rows of {length} tokens in a model that learned positions for "
                f"{self.positions.num_embeddings}; cut them, or build a model of "
                f"length={length}."
            )

    def logits(self, features: Tensor) -> Tensor:
        """Return how well features [..., M] fit the row of each token: [..., V]."""
        if isinstance(self.tokens, Packed):
            return self.tokens.product(features)
        return linear(features, self.tokens.weight, None)

    def _at(self, places: Tensor, x: Tensor) -> Tensor:
        """Return what places that cannot be looked at add; too high ones fail in the table."""
        if self.positions is not None:
            return self.positions(places)
        return sinusoidal_at(places, x.shape[-1], dtype=x.dtype)

    def table(self, length: int, x: Tensor) -> Tensor:
        """Return what positions 0..length - 1 add: [length, M]."""
        if self.positions is not None:
            return self.positions.weight[:length]
        return sinusoidal(length, x.shape[-1], device=x.device, dtype=x.dtype)
