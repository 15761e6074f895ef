"""Weights are products of positive random features whose mean is the softmax: Performer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import ConfigError
from suffice.kernels.base import FeatureMap, Kernel
from suffice.kernels.random_features import RandomFeatures


@dataclass(frozen=True)
class Favor(Kernel):
    """w_ts = phi(q_t) . phi(k_s) / sum over allowed s' of phi(q_t) . phi(k_s').

    phi_f(x) = exp(omega_f . x' - |x'|^2 / 2) with x' = sqrt(scale) x, f = 1..F; the factor
    1 / sqrt(F) of the paper cancels in the weights. The mean of phi(q) . phi(k) / F over omega is
    exp(scale q . k), so these are estimates of softmax weights, whose error falls as 1 / sqrt(F).

    omega [F, D] is drawn once from `seed` in float64: blocks of D orthogonal rows (Q of a QR
    decomposition of a Gaussian matrix), each row scaled by the norm of a Gaussian vector of its
    own, so that every row is Gaussian. It is stored as `features.omega`, float32, shared by all
    heads; layers built from one seed share it. `features.redraw(seed)` draws another one; nothing
    else ever does.

    Each row's largest exponent is taken out before exp, so no feature overflows. Where norms are
    so large that all products of a query vanish below the smallest float, its output is 0.

    Choose it in place of a softmax on long sequences.

    Args:
        features: F.
        seed: of omega.

    Raises:
        ConfigError: for fewer features than one, or a negative seed.

    Cost: O(T F (D + E + C)) for chunks of C positions; state F (E + 1) + 1 numbers for a key/value
    head.
    Source: Choromanski et al. 2020, arXiv:2009.14794, lemma 1 and section 2.4. Differs: a row's
    stabiliser is its own, not that of a batch, and nothing is added to the features.
    """

    weighs_pairs = False
    stabilised = True

    features: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features < 1 or self.seed < 0:
            raise ConfigError(
                f"{self!r}: give at least one feature and a seed of at least 0, such as "
                "Favor(features=256, seed=0)."
            )

    def conflicts(self, scale: float | None) -> list[str]:
        """Refuse a scale without a square root."""
        if scale is None or scale > 0.0:
            return []
        return [
            f"Favor scales queries and keys by sqrt(scale): scale={scale} must be above 0; omit "
            "it for 1 / sqrt(head_dim)."
        ]

    def num_features(self, head_dim: int) -> int:  # noqa: ARG002 - as asked
        """Return F."""
        return self.features

    def feature_flops(self, head_dim: int) -> int:
        """Return the FLOPs of omega x."""
        return 2 * head_dim * self.features

    def build(
        self, *, head_dim: int, scale: float, device: torch.device | str | None
    ) -> FeatureMap:
        """Return the feature map with its omega."""
        return FavorFeatures(self, head_dim, scale, device=device)

    @classmethod
    def samples(cls) -> tuple[Favor, ...]:
        """Return a few features, fewer and more than a head is wide."""
        return cls(features=3), cls(features=9, seed=1)


class FavorFeatures(RandomFeatures):
    """phi_f(x) = exp(omega_f . x' - |x'|^2 / 2), x' = sqrt(scale) x."""

    def __init__(
        self,
        kernel: Favor,
        head_dim: int,
        scale: float,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(kernel.features, head_dim, kernel.seed, device=device)
        self.scale = scale

    def queries(self, q: Tensor) -> Tensor:
        """Return phi of queries, the largest feature of each row 1; |q'|^2 / 2 cancels."""
        exponents = self._products(q)
        return exponents.sub_(exponents.detach().amax(dim=-1, keepdim=True)).exp_()

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi of keys, the largest feature of each row 1, and the logarithm taken out."""
        exponents = self._products(k)
        peak = exponents.detach().amax(dim=-1, keepdim=True)
        half_norm = k.to(exponents.dtype).square().sum(dim=-1, keepdim=True) * (0.5 * self.scale)
        if half_norm.requires_grad:  # counts in the gradient; its value is in the logarithm
            exponents = exponents - (half_norm - half_norm.detach())
        return exponents.sub_(peak).exp_(), (peak - half_norm.detach()).squeeze(-1)

    def _products(self, x: Tensor) -> Tensor:
        """Return omega x'."""
        exact = torch.promote_types(x.dtype, torch.float32)
        return F.linear(x.to(exact), self.omega.to(exact) * self.scale**0.5)
