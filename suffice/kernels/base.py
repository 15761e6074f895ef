"""What turns query-key products into weights.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from suffice.axis import Axis


class Kernel(Axis, family="kernel"):
    """Base of the kernels."""

    weighs_pairs: ClassVar[bool] = True
    """True if a pair's weight needs the products of all pairs, as a softmax does. False for
    kernels of feature maps, weight = phi(q) . phi(k) / sum, which need no pairs at all."""

    def build(
        self,
        *,
        head_dim: int,  # noqa: ARG002 - a softmax owns nothing
        scale: float,  # noqa: ARG002
        device: torch.device | str | None,  # noqa: ARG002
    ) -> FeatureMap | None:
        """Return the feature map of this kernel, None if it weighs pairs."""
        return None


class FeatureMap(nn.Module, ABC):
    """phi of a kernel: phi(q) . phi(k) takes the place of exp(scale * q . k).

    Features are float32 or better whatever the dtype of q and k.
    """

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """Return phi [B, H, T, F] of queries [B, H, T, D], each row up to a factor of its own.

        A factor per query cancels in its weights, so a row may be scaled by its own maximum.
        """

    @abstractmethod
    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return phi [B, G, S, F] of keys [B, G, S, D] and the logarithm of each key's scale.

        The true features of key s are phi[s] * exp(log[s]), log [B, G, S]; None = all zero. A
        stabiliser per key keeps rows independent of each other and of the future: nothing is
        shared between keys.
        """
