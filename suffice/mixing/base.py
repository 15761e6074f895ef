"""How values, or keys and values, are mixed along the sequence before the kernel reads them.

Letters: B batch, S keys, G key/value heads, D and E head widths, R keys after the mixing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.axis import Axis


@dataclass(frozen=True)
class Rows:
    """What a mixing must know about the rows of a batch; None where every row is simply 0..S-1.

    Args:
        valid: bool [B, S], True = real token.
        positions: int [B, S], position of each token within its document, pads included.
        together: bool [B, S, S], True where two positions belong to one document.
    """

    valid: Tensor | None = None
    positions: Tensor | None = None
    together: Tensor | None = None


class Mixing(Axis, ABC, family="mixing"):
    """Base of the mixings."""

    mixes: bool = True
    """True if values of different positions meet before the kernel."""

    keeps_keys: bool = True
    """False if what the kernel reads is no longer one key per position (Linformer)."""

    max_length: int | None = None
    """The longest key sequence, in tokens; None = any."""

    @abstractmethod
    def parameters(self, num_kv_heads: int) -> int:
        """Count the learned numbers."""

    def reads(self, keys: int) -> int:
        """Return how many keys the kernel reads of S: S unless the mixing shortens the sequence."""
        return keys

    @abstractmethod
    def flops(self, keys: int, num_kv_heads: int, value_width: int) -> int:
        """Count the FLOPs (2 per multiply-add) of mixing S keys; value_width = G * E."""

    @abstractmethod
    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module: (k [B, G, S, D], v [B, G, S, E], rows) -> the keys and values read.

        They are [B, G, R, D] and [B, G, R, E] with R = reads(S).
        """
