"""How values, or keys and values, are mixed along the sequence before the kernel reads them.

Letters: B batch, S keys, G key/value heads, D and E head widths, R keys after the mixing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from suffice.axis import Axis


class Mixing(Axis, ABC, family="mixing"):
    """Base of the mixings."""

    mixes: bool = True
    """True if values of different positions meet before the kernel."""

    keeps_keys: bool = True
    """False if what the kernel reads is no longer one key per position (Linformer)."""

    max_length: int | None = None
    """The longest key sequence, in tokens; None = any."""

    history: int | None = 0
    """Values before a position that a causal layer still reads there; None = all of them."""

    @abstractmethod
    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:
        """Count the learned numbers of a layer, causal or not."""

    def reads(self, keys: int) -> int:
        """Return how many keys the kernel reads of S: S unless the mixing shortens the sequence."""
        return keys

    @abstractmethod
    def flops(self, keys: int, num_kv_heads: int, value_width: int, *, causal: bool = False) -> int:
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
