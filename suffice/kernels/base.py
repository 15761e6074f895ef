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

    stabilised: ClassVar[bool] = False
    """True if the feature map gives each key the logarithm of a scale."""

    def conflicts(self, scale: float | None) -> list[str]:  # noqa: ARG002 - a softmax takes any
        """Return a sentence for each reason why products cannot have this factor; empty = fine."""
        return []

    def num_features(self, head_dim: int) -> int:  # noqa: ARG002 - a softmax has none
        """Return F, the features of a head this wide; 0 if the kernel weighs pairs."""
        return 0

    def feature_flops(self, head_dim: int) -> int:  # noqa: ARG002
        """Return the FLOPs of the products that make the features of one query or key."""
        return 0

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

    Features are float32 or better whatever the dtype of q and k, and depend on their own row only.
    """

    floor: float = 0.0
    """The least magnitude a sum of weights is divided by where features can be negative, so that
    the sum can vanish; 0 = features are never negative."""

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """Return phi [..., T, F] of queries [..., T, D], each row up to a factor of its own.

        A factor per query cancels in its weights, so a row may be scaled by its own maximum.
        """

    @abstractmethod
    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return phi [..., S, F] of keys [..., S, D] and the logarithm of each key's scale.

        The true features of key s are phi[s] * exp(log[s]), log [..., S] without gradient; None =
        all zero. A stabiliser per key keeps rows independent of each other and of the future:
        nothing is shared between keys.
        """
