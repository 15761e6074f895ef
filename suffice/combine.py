"""Combination of the heads' outputs into the output of the layer.

Letters: B batch, H heads, N attention maps of a head, T queries, E value width, M model width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from suffice.encoders import Factory
from suffice.errors import ConfigError
from suffice.utils.records import Axis

if TYPE_CHECKING:
    from suffice.utils.protocols import LayerLike, SpecLike


class Combine(Axis, ABC, family="combine"):
    """Base of the combinations; all end with the learned output map o_proj."""

    maps: ClassVar[int] = 1
    """Attention maps N that each head computes over the same values, which are N times as wide."""

    def conflicts(self, spec: SpecLike) -> list[str]:  # noqa: ARG002 - most fit any spec
        """Return a sentence for each axis value that does not go with this combination."""
        return []

    def parameters(self, spec: SpecLike) -> int:
        """Count the learned numbers, the output map's among them."""
        return spec.widths.o * spec.d_model + spec.d_model * spec.bias

    def flops(self, spec: SpecLike, queries: int) -> int:
        """Return the FLOPs of the matrix products for this number of queries."""
        return 2 * queries * spec.widths.o * spec.d_model

    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the modules of a layer by name."""
        return {"o_proj": factory.map(spec.widths.o, spec.d_model, bias=spec.bias)}

    def steps(self) -> list[tuple[str, str]]:
        """Return what happens to the heads before the output map: title and note of each step."""
        return []

    @abstractmethod
    def heads(self, layer: LayerLike, out: Tensor) -> Tensor:
        """Return the heads [B, H, T, E] of the outputs of their maps [B, H N, T, E]."""

    def output(
        self,
        layer: LayerLike,
        out: Tensor,
        x: Tensor,  # noqa: ARG002
        own: tuple[Tensor, ...],  # noqa: ARG002
    ) -> Tensor:
        """Return the output [B, T, M] of the outputs of the maps [B, H N, T, E].

        x [B, T, M] is where the queries came from, and own what is cached of the same positions.
        """
        return layer.o_proj(self.heads(layer, out).transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class Concat(Combine):
    """Y = [O_1; ...; O_H] W_O: the heads side by side, then the output map.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. No difference.
    """

    def heads(self, layer: LayerLike, out: Tensor) -> Tensor:  # noqa: ARG002
        """Return the heads unchanged."""
        return out


@dataclass(frozen=True)
class Gated(Concat):
    """Y = (sigmoid(x W_G) * [O_1; ...; O_H]) W_O: each token decides what it takes of the heads.

    With norm=True each head is divided by its root mean square first, times a learned gain for each
    of its features: the sums of a recurrence have no fixed size.

    A gate of 0 lets a token take nothing, so no head has to attend to a token that means nothing;
    and the map from values to the output is no longer of the rank of one head.

    Args:
        per: "feature", a gate for each number of a head's output, or "head", one for each head.
        activation: function of the gates, "sigmoid" or "silu".
        norm: whether heads are normalised before.
        eps: epsilon of the norm, above 0.

    Raises:
        ConfigError: for another `per` or activation, or eps not above 0.

    Cost: M H E parameters for features, M H for heads; one multiply-add for each, a token.
    Source: Qiu et al. 2025, arXiv:2505.06708, equation 5 and table 1, rows of gates after the
    attention. With a norm and SiLU, Sun et al. 2023, arXiv:2307.08621, equation 8; differs:
    gains of the norm, as in Yang et al. 2024, arXiv:2412.06464, section 3.4.
    """

    per: str = "feature"
    activation: str = "sigmoid"
    norm: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per not in ("feature", "head"):
            raise ConfigError(f"{self!r}: give per='feature' or per='head'.")
        if self.activation not in ("sigmoid", "silu") or self.eps <= 0.0:
            raise ConfigError(f"{self!r}: give activation='sigmoid' or 'silu', and eps above 0.")

    def steps(self) -> list[tuple[str, str]]:
        """Return the norm, if there is one, and the gates."""
        gate = "σ" if self.activation == "sigmoid" else "silu"
        norm = [("norm", "of each head")] if self.norm else []
        return [*norm, (f"× {gate}(x W_G)", f"a {self.per}")]

    def _gates(self, spec: SpecLike) -> int:
        return spec.widths.o if self.per == "feature" else spec.num_heads

    def parameters(self, spec: SpecLike) -> int:
        """Count the map of the gates, and the output map."""
        gates = self._gates(spec)
        gains = spec.value_width * self.norm
        return super().parameters(spec) + spec.d_model * gates + gates * spec.bias + gains

    def flops(self, spec: SpecLike, queries: int) -> int:
        """Add the map of the gates."""
        return super().flops(spec, queries) + 2 * queries * spec.d_model * self._gates(spec)

    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the output map and the map of the gates."""
        gate = factory.map(spec.d_model, self._gates(spec), bias=spec.bias)
        modules = super().build(spec, factory) | {"gate_proj": gate}
        if self.norm:
            modules["head_norm"] = factory.norm(spec.value_width, self.eps)
        return modules

    def heads(self, layer: LayerLike, out: Tensor) -> Tensor:
        """Return the heads, normalised if they are to be."""
        return layer.head_norm(out) if self.norm else out

    def output(
        self,
        layer: LayerLike,
        out: Tensor,
        x: Tensor,
        own: tuple[Tensor, ...],  # noqa: ARG002
    ) -> Tensor:
        """Return the output of the heads that the gates let through."""
        gates = layer.gate_proj(x).unflatten(-1, (out.shape[1], -1))
        if self.norm and self.activation == "silu" and self.per == "feature":
            return layer.o_proj(layer.head_norm(out.transpose(1, 2), gates).flatten(2))
        gates = gates.sigmoid() if self.activation == "sigmoid" else torch.nn.functional.silu(gates)
        let_through = self.heads(layer, out).transpose(1, 2) * gates
        return layer.o_proj(let_through.flatten(2))

    @classmethod
    def samples(cls) -> tuple[Combine, ...]:
        """Return both kinds, and one that normalises."""
        return cls(), cls(per="head"), cls(activation="silu", norm=True)


@dataclass(frozen=True)
class Exclusive(Combine):
    """O_t' = O_t - (O_t . v_t) v_t / |v_t|^2: a head's output without its part along its own value.

    What a token's value says is known to it already, from the residual stream; without that part a
    head speaks of the others alone (exclusive self-attention, XSA). A value of zeros takes nothing
    away.

    Cost: no parameters and no products of matrices; 4 H E multiply-adds a token.
    Source: exclusive self-attention, arXiv:2603.09078. No difference.
    """

    def steps(self) -> list[tuple[str, str]]:
        """Return the subtraction."""
        return [("− its part along v", "the token's own value")]

    def refuses_source(self) -> str:
        """Return why a source is refused: a query needs its own token's value."""
        return "needs a value of each query's own token: use Concat()"

    def conflicts(self, spec: SpecLike) -> list[str]:
        """Refuse layers in which a token cannot attend to its own value."""
        refused = dict(spec.beyond_pairs)
        if not spec.encoder.mixes_values:
            refused["encoder"] = spec.encoder
        return [
            f"{self!r} takes away each token's own value, and cannot have {name}={value!r}; "
            "leave it out."
            for name, value in refused.items()
        ]

    def heads(self, layer: LayerLike, out: Tensor) -> Tensor:  # noqa: ARG002
        """Return the heads unchanged."""
        return out

    def output(self, layer: LayerLike, out: Tensor, x: Tensor, own: tuple[Tensor, ...]) -> Tensor:
        """Return the output of the heads without their parts along the own values."""
        _, v = layer.spec.encoder.expand(layer, own)
        exact = torch.promote_types(v.dtype, torch.float32)  # the least norm is 0 in float16
        along = torch.nn.functional.normalize(v.to(exact), dim=-1).to(v.dtype)
        grouped = out.unflatten(1, (v.shape[1], -1))  # the heads that share a value side by side
        part = (grouped * along[:, :, None]).sum(-1, keepdim=True) * along[:, :, None]
        return super().output(layer, (grouped - part).flatten(1, 2), x, own)


@dataclass(frozen=True)
class Differential(Combine):
    """O_h = (1 - l) norm(A_1 V_h - lambda A_2 V_h): the difference of two softmaxes.

    Each head has two queries and two keys, D wide, and one value, 2 D wide; A_i is the softmax of
    the i-th query and key. lambda = exp(q_1 . k_1) - exp(q_2 . k_2) + l with four learned vectors
    of width D shared by the heads, and norm is an RMS norm over the features of a head with a
    learned gain. l = 0.8 - 0.6 exp(-0.3 depth). What both maps attend to cancels: choose it where
    attention is spread over much that is irrelevant. The spec's num_heads are pairs of maps, so
    the default width D is d_model / (2 num_heads), and a layer costs what Standard costs with
    twice the heads.

    Where heads share keys, their first maps stand together, and then their second ones: the order
    of sinks, slopes, masks, patterns, and gains of `HeadLayerNorm` and `ProjectionRMS`.

    Args:
        depth: layers before this one, which decides how lambda starts, >= 0.
        eps: epsilon of the norm, above 0.

    Raises:
        ConfigError: for a negative depth, or eps not above 0.

    Cost: 6 D parameters more than the maps.
    Source: Ye et al. 2024, arXiv:2410.05258, section 2.1. No difference.
    """

    depth: int = 0
    eps: float = 1e-5

    maps = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 0 or self.eps <= 0.0:
            raise ConfigError(f"{self!r}: give a depth of at least 0 and eps above 0.")

    def steps(self) -> list[tuple[str, str]]:
        """Return the difference."""
        return [("A₁v − λ A₂v", "λ learned, then norm")]

    @property
    def lambda_start(self) -> float:
        """The constant part of lambda, l."""
        return 0.8 - 0.6 * math.exp(-0.3 * self.depth)

    def conflicts(self, spec: SpecLike) -> list[str]:
        """Refuse kernels, mixings and pasts without weights of single pairs."""
        allowed = {"shares", "mixing"} if spec.mixing.keeps_keys else {"shares"}
        return [
            f"{self!r} subtracts two softmaxes over the same keys, and cannot have "
            f"{name}={value!r}; leave it out."
            for name, value in spec.beyond_pairs.items()
            if name not in allowed
        ]

    def parameters(self, spec: SpecLike) -> int:
        """Count lambda's vectors, the gains and the output map."""
        return super().parameters(spec) + 4 * spec.head_width + spec.value_width

    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the output map and the difference of a head's maps."""
        modules = super().build(spec, factory)
        return modules | {"difference": _Difference(self, spec, factory)}

    def heads(self, layer: LayerLike, out: Tensor) -> Tensor:
        """Return the difference of each head's two maps."""
        return layer.difference(out)

    @classmethod
    def samples(cls) -> tuple[Combine, ...]:
        """Return a first and a later layer."""
        return cls(), cls(depth=3)


class _Difference(nn.Module):
    """(1 - l) norm(O_1 - lambda O_2) of maps [B, 2 H, T, E]; heads of one key are adjacent."""

    def __init__(self, combine: Differential, spec: SpecLike, factory: Factory) -> None:
        super().__init__()
        self.start, self.groups = combine.lambda_start, spec.kv_heads
        self.norm = factory.norm(spec.value_width, combine.eps)
        shape, where = (4, spec.head_width), {"device": factory.device, "dtype": factory.dtype}
        self.lambdas = nn.Parameter(torch.empty(shape, **where))  # q_1, k_1, q_2, k_2
        nn.init.normal_(self.lambdas, std=0.1)

    def factor(self) -> Tensor:
        """Return lambda, in float32 or better."""
        exact = torch.promote_types(self.lambdas.dtype, torch.float32)
        q_1, k_1, q_2, k_2 = self.lambdas.to(exact).unbind()
        return (q_1 @ k_1).exp() - (q_2 @ k_2).exp() + self.start

    def forward(self, out: Tensor) -> Tensor:
        factor = self.factor()
        first, second = out.unflatten(1, (self.groups, 2, -1)).unbind(2)
        difference = (first - factor.to(out.dtype) * second).flatten(1, 2)
        return (1.0 - self.start) * self.norm(difference)


__all__ = ["Combine", "Concat", "Differential", "Exclusive", "Gated"]
