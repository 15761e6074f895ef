"""Kernels of feature maps: linear attention and random features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import ConfigError
from suffice.kernels.base import FeatureMap, Kernel


@dataclass(frozen=True)
class Elu(Kernel):
    """w_ts = phi(q_t) . phi(k_s) / sum over allowed s' of phi(q_t) . phi(k_s').

    phi(x) = elu(x) + 1 for each of the D numbers of a head: x + 1 where x > 0, e^x elsewhere; so
    F = D features, all positive. The products are not scaled: a spec gives no `scale`.

    Choose it for long sequences where a smooth weighting is enough: time and memory grow with T,
    and a streaming state has one size whatever the length.

    Cost: O(T F (E + C)) for chunks of C positions; state F (E + 1) numbers for a key/value head.
    Source: Katharopoulos et al. 2020, arXiv:2006.16236, equation 7. No difference.
    """

    lane = "sums"

    def conflicts(self, scale: float | None) -> list[str]:
        """Refuse a scale: features are not linear in it."""
        if scale is None:
            return []
        return [
            f"Elu() takes features of q and k as they are: scale={scale} has no place; omit it."
        ]

    def num_features(self, head_dim: int) -> int:
        """Return F = D."""
        return head_dim

    def build(self, **_: Any) -> FeatureMap:
        """Return the feature map."""
        return EluFeatures()


class EluFeatures(FeatureMap):
    """phi(x) = elu(x) + 1."""

    def queries(self, q: Tensor) -> Tensor:
        return _phi(q)

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        """Return phi of keys, which need no scale."""
        return _phi(k), None


def _phi(x: Tensor) -> Tensor:
    """Return elu(x) + 1, precise where it is small: elu rounds near -1, e^x does not."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if torch.compiler.is_compiling():
        return torch.where(x > 0.0, x + 1.0, x.clamp(max=0.0).exp())
    return _Phi.apply(x)


class _Phi(torch.autograd.Function):
    """elu(x) + 1, whose derivative is the smaller of itself and 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(max=0.0).exp_().add_(x.clamp(min=0.0))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001, ARG004 - torch's signature
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # noqa: ANN001
        (phi,) = ctx.saved_tensors
        return gradient * phi.clamp(max=1.0)

    jvp = backward  # the derivative is diagonal


class RandomFeatures(FeatureMap):
    """A feature map over the products with a random matrix.

    `omega` [F, D] is part of the state dict and stays float32 in layers of any dtype: rounded to
    half it would be another kernel.
    """

    omega: Tensor

    def __init__(
        self, rows: int, columns: int, seed: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("omega", orthogonal(rows, columns, seed).to(device))

    def redraw(self, seed: int) -> None:
        """Draw another matrix in place; layers never do it by themselves."""
        self.omega.copy_(orthogonal(*self.omega.shape, seed))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RandomFeatures:
        """Move omega, but never round it."""
        before = self.omega
        super()._apply(fn, recurse)
        if self.omega.dtype is not before.dtype:
            self.omega = before.to(self.omega.device)
        return self


def orthogonal(rows: int, columns: int, seed: int) -> Tensor:
    """Return a float32 matrix of Gaussian rows, orthogonal within each block of `columns` rows.

    A block is Q of the QR decomposition of a Gaussian matrix, signs fixed so that Q is uniform
    among rotations; each row then gets the norm of another Gaussian vector. Drawn on the CPU in
    float64 from a separate generator, so that a seed means the same matrix on every device.
    """
    generator = torch.Generator().manual_seed(seed)

    def gaussian() -> Tensor:
        return torch.randn(columns, columns, generator=generator, dtype=torch.float64)

    blocks = []
    for _ in range(-(-rows // columns)):
        rotation, triangle = torch.linalg.qr(gaussian())
        rotation = rotation * triangle.diagonal().sign()
        blocks.append(rotation * gaussian().norm(dim=1, keepdim=True))
    return torch.cat(blocks)[:rows].float()


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
    so large that all products of a query vanish below the smallest float, from about 60 on for both
    queries and keys, its output is 0; on a CPU a RuntimeWarning says so.

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

    lane = "sums"
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
        self, kernel: Favor, head_dim: int, scale: float, *, device: torch.device | str | None
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

    lane = "sums"

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

    def build(self, *, head_dim: int, device: torch.device | str | None, **_: Any) -> FeatureMap:
        """Return the feature map with its omega."""
        return RfaFeatures(self, head_dim, device=device)

    @classmethod
    def samples(cls) -> tuple[Rfa, ...]:
        """Return many features: few of them estimate badly enough to meet the floor."""
        return (cls(features=32),)


class RfaFeatures(RandomFeatures):
    """phi(x) = [sin(omega u), cos(omega u)], u = x / |x|."""

    def __init__(self, kernel: Rfa, head_dim: int, *, device: torch.device | str | None) -> None:
        super().__init__(kernel.features // 2, head_dim, kernel.seed, device=device)
        self.floor = kernel.features / 2 * FLOOR

    def queries(self, q: Tensor) -> Tensor:
        return self._waves(q)

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        """Return phi of keys, which need no scale."""
        return self._waves(k), None

    def _waves(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        angles = F.linear(x / norm.masked_fill(norm == 0.0, 1.0), self.omega.to(x.dtype))
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
