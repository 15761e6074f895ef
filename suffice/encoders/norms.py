"""QK-norm: norms of queries and keys, after projection and before rotation.

Letters: B batch, T positions, H heads, D head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from suffice.encoders.base import Factory
from suffice.errors import ConfigError
from suffice.utils.records import Axis


class Norm(Axis, ABC, family="norm"):
    """Base of the norms of queries and keys."""

    norms: ClassVar[bool] = True
    """True if anything is divided: then no factor passes from the map of the keys to that of the
    queries, and keys that were the values no longer are."""

    @abstractmethod
    def parameters(self, heads: int, head_dim: int) -> int:
        """Count the learned numbers of `heads` heads of queries or of keys."""

    @abstractmethod
    def build(self, heads: int, head_dim: int, factory: Factory) -> nn.Module:
        """Return a module [B, T, H, D] -> [B, T, H, D]; queries and keys have one each."""

    def build_values(self) -> nn.Module:
        """Return a module [B, T, G, E] -> [B, T, G, E] for the values."""
        return nn.Identity()


@dataclass(frozen=True)
class NoNorm(Norm):
    """Queries and keys without a norm.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1. No difference.
    """

    norms = False

    def parameters(self, heads: int, head_dim: int) -> int:  # noqa: ARG002 - nothing is learned
        """Count none."""
        return 0

    def build(self, heads: int, head_dim: int, factory: Factory) -> nn.Module:  # noqa: ARG002
        """Return the identity."""
        return nn.Identity()


@dataclass(frozen=True)
class HeadRMS(Norm):
    """q' = g_q * q / sqrt(mean(q^2) + eps) over the features of a head; the same for k with g_k.

    The gains g_q and g_k are learned, one number for each feature of a head, and shared by all
    heads. Positions turn what comes out. A product is then at most D max|g_q| max|g_k|, whatever
    the maps grow to.

    Choose it for models whose scores grow without bound while they train, and to read Qwen3.

    Args:
        eps: number that keeps a query or key of zeros finite, > 0.

    Raises:
        ConfigError: if eps is not above 0.

    Cost: 2 D parameters for heads of width D; no products.
    Source: Henry et al. 2020, arXiv:2010.04245. Differs: root mean squares with a gain for each
        feature in place of lengths with one factor, as in Qwen3 (Yang et al. 2025,
        arXiv:2505.09388, section 2), whose attention this is.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps <= 0.0:
            raise ConfigError(f"{self!r}: give a number above 0, such as 1e-6.")

    def parameters(self, heads: int, head_dim: int) -> int:  # noqa: ARG002 - the heads share them
        """Count the gains of a head."""
        return head_dim

    def build(self, heads: int, head_dim: int, factory: Factory) -> nn.Module:  # noqa: ARG002
        """Return the norm of queries or of keys, gains of 1."""
        return factory.norm(head_dim, self.eps)


@dataclass(frozen=True)
class QKVNorm(HeadRMS):
    """As `HeadRMS`, and v' = v / sqrt(mean(v^2) + eps) without gains: V-norm.

    What a head adds is then as long for one token as for another, so a token is heard because it is
    attended to and not because its value is large. With an encoder whose values are its keys
    (`Latent`) both are normalised from the same product, and the keys alone have gains.

    Args:
        eps: number that keeps a query, key or value of zeros finite, > 0.

    Raises:
        ConfigError: if eps is not above 0.

    Cost: 2 D parameters for heads of width D; no products.
    Source: the published configuration and weights of Gemma 4, whose attention this is.
    """

    def build_values(self) -> nn.Module:
        """Return the norm of the values."""
        return _Plain(self.eps)


class _Plain(nn.Module):
    """x / sqrt(mean(x^2) + eps) over the last dimension, in float32 or better."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return (exact * (exact.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)


@dataclass(frozen=True)
class ProjectionRMS(Norm):
    """q' = g_q * q / sqrt(mean(q^2) + eps) over all features of all heads at once; k the same.

    The gains are one number for each feature of each head. Unlike with `HeadRMS` a head may be
    longer than another, and shared keys have another mean than the queries that read them.

    Choose it to read OLMo 2; `HeadRMS` has fewer gains and is as stable.

    Args:
        eps: number that keeps a query or key of zeros finite, > 0.

    Raises:
        ConfigError: if eps is not above 0.

    Cost: (H + G) D parameters for H heads of queries and G of keys, D wide; no products.
    Source: OLMo team 2024, "2 OLMo 2 Furious", arXiv:2501.00656, section 3.1. No difference.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps <= 0.0:
            raise ConfigError(f"ProjectionRMS(eps={self.eps}): give a number above 0.")

    def parameters(self, heads: int, head_dim: int) -> int:
        """Count the gains of all heads."""
        return heads * head_dim

    def build(self, heads: int, head_dim: int, factory: Factory) -> nn.Module:
        """Return the norm of queries or of keys, gains of 1."""
        return _AllHeads(factory.norm(heads * head_dim, self.eps))


@dataclass(frozen=True)
class HeadLayerNorm(Norm):
    """q' = g_q * (q - mean(q)) / sqrt(var(q) + eps) over the features of a head; k the same.

    Every head has its gains, and there are no biases.

    Choose it to read Command R+ (Cohere); `HeadRMS` has fewer gains and is as stable.

    Args:
        eps: number that keeps a query or key of equal features finite, > 0.

    Raises:
        ConfigError: if eps is not above 0.

    Cost: (H + G) D parameters for H heads of queries and G of keys, D wide; no products.
    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters",
        arXiv:2302.05442, section 2. Differs: gains for each head.
    """

    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps <= 0.0:
            raise ConfigError(f"HeadLayerNorm(eps={self.eps}): give a number above 0.")

    def parameters(self, heads: int, head_dim: int) -> int:
        """Count the gains of all heads."""
        return heads * head_dim

    def build(self, heads: int, head_dim: int, factory: Factory) -> nn.Module:
        """Return the norm of queries or of keys, gains of 1."""
        gains = torch.ones(heads, head_dim, device=factory.device, dtype=factory.dtype)
        return _EachHead(gains, self.eps)


class _EachHead(nn.Module):
    """A layer norm with gains [H, D], [B, T, H, D] -> [B, T, H, D]."""

    def __init__(self, gains: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(gains)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight


class _AllHeads(nn.Module):
    """A norm over the heads side by side, [B, T, H, D] -> [B, T, H, D]."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(2)).view_as(x)
