"""Weights are products of elu(x) + 1: linear attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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

    weighs_pairs = False

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

    def build(
        self,
        *,
        head_dim: int,  # noqa: ARG002 - nothing is drawn
        scale: float,  # noqa: ARG002 - None in a spec
        device: torch.device | str | None,  # noqa: ARG002
    ) -> FeatureMap:
        """Return the feature map."""
        return EluFeatures()


class EluFeatures(FeatureMap):
    """phi(x) = elu(x) + 1."""

    def queries(self, q: Tensor) -> Tensor:
        """Return phi of queries."""
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
        """Return e^min(x, 0) + max(x, 0)."""
        return x.clamp(max=0.0).exp_().add_(x.clamp(min=0.0))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001, ARG004 - torch's signature
        """Keep the result."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # noqa: ANN001
        """Return the gradient of x."""
        (phi,) = ctx.saved_tensors
        return gradient * phi.clamp(max=1.0)

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:  # noqa: ANN001
        """Return the tangent of phi."""
        (phi,) = ctx.saved_tensors
        return tangent * phi.clamp(max=1.0)
