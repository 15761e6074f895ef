"""Weights are products of sines and cosines at random frequencies: random feature attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import ConfigError
from suffice.kernels.base import FeatureMap, Kernel
from suffice.kernels.random_features import RandomFeatures

FLOOR = 2.0**-10  # of the product of a query with a key equal to it


@dataclass(frozen=True)
class Rfa(Kernel):
    """w_ts = phi(q_t) . phi(k_s) / sum over allowed s' of phi(q_t) . phi(k_s').

    phi(x) = [sin(omega_1 . u), ..., sin(omega_n . u), cos(omega_1 . u), ..., cos(omega_n . u)]
    with u = x / |x| (0 for x = 0) and n = F / 2; the factor 1 / sqrt(n) of the paper cancels in
    the weights. The mean of phi(q) . phi(k) / n over omega is exp(-|u_q - u_k|^2 / 2), which is
    proportional to exp(u_q . u_k): a softmax of cosines. The products are not scaled: a
    spec gives no `scale`.

    omega [F / 2, D] is drawn from `seed` as for `Favor`: Gaussian rows of variance 1, orthogonal
    within blocks of D rows; stored as `features.omega`, float32, shared by all heads.
    `features.redraw(seed)` draws another one.

    An estimate can be negative, so a query's sum of products can come near 0. Its magnitude is
    taken as n / 1024 at least, a thousandth of what one key equal to the query adds, the sign
    kept; below that the weights of the query no longer sum to 1.

    Choose it in place of a softmax on long sequences where the norms of queries and keys should
    not matter.

    Args:
        features: F, even.
        seed: of omega.

    Raises:
        ConfigError: for features that are not even and positive, or a negative seed.

    Cost: O(T F (D + E + C)) for chunks of C positions; state F (E + 1) numbers for a key/value
    head.
    Source: Peng et al. 2021, arXiv:2103.02143, equations 3 to 5, without the gate. Differs: sigma
    is 1, not learned; frequencies of a block are orthogonal; the floor of the sum.
    """

    weighs_pairs = False

    features: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features < 2 or self.features % 2 or self.seed < 0:  # noqa: PLR2004
            raise ConfigError(
                f"{self!r}: features are pairs of a sine and a cosine, so give an even number of "
                "at least 2, and a seed of at least 0, such as Rfa(features=64, seed=0)."
            )

    def conflicts(self, scale: float | None) -> list[str]:
        """Refuse a scale: queries and keys are normalised."""
        if scale is None:
            return []
        return [f"Rfa normalises queries and keys: scale={scale} has no place; omit it."]

    def num_features(self, head_dim: int) -> int:  # noqa: ARG002 - as asked
        """Return F."""
        return self.features

    def feature_flops(self, head_dim: int) -> int:
        """Return the FLOPs of omega u."""
        return head_dim * self.features

    def build(
        self,
        *,
        head_dim: int,
        scale: float,  # noqa: ARG002 - None in a spec
        device: torch.device | str | None,
    ) -> FeatureMap:
        """Return the feature map with its omega."""
        return RfaFeatures(self, head_dim, device=device)

    @classmethod
    def samples(cls) -> tuple[Rfa, ...]:
        """Return many features: few of them estimate badly enough to meet the floor."""
        return (cls(features=32),)


class RfaFeatures(RandomFeatures):
    """phi(x) = [sin(omega u), cos(omega u)], u = x / |x|."""

    def __init__(
        self, kernel: Rfa, head_dim: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__(kernel.features // 2, head_dim, kernel.seed, device=device)
        self.floor = kernel.features / 2 * FLOOR

    def queries(self, q: Tensor) -> Tensor:
        """Return phi of queries."""
        return self._waves(q)

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        """Return phi of keys, which need no scale."""
        return self._waves(k), None

    def _waves(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        turns = F.linear(x / norm.masked_fill(norm == 0.0, 1.0), self.omega.to(x.dtype))
        return torch.cat([turns.sin(), turns.cos()], dim=-1)
