"""Kernels: how query-key products become weights.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.utils.records import Axis

if TYPE_CHECKING:
    from suffice.utils.protocols import SpecLike


class Kernel(Axis, family="kernel"):
    """Base of the kernels."""

    lane: ClassVar[Literal["pairs", "sums", "recurrence"]] = "pairs"
    """How a query reads keys: "pairs" if a weight needs the products of all pairs, as a softmax
    does; "sums" of features, weight = phi(q) . phi(k) / sum; or a "recurrence", whose state decays
    or is corrected from token to token, see `Recurrent`."""

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

    def refusals(self, spec: SpecLike) -> list[str]:  # noqa: ARG002 - most fit any layer
        """Return a sentence for each part of a layer that does not go with this kernel."""
        return []

    def parameters(self, spec: SpecLike) -> int:  # noqa: ARG002 - most learn nothing
        """Count the learned numbers of a layer."""
        return 0

    def build(  # noqa: B027 - a kernel that weighs pairs has none
        self, *, head_dim: int, scale: float, device: torch.device | str | None
    ) -> FeatureMap | None:
        """Return the feature map of this kernel, None if it weighs pairs."""

    def build_sinks(  # noqa: B027 - most have none
        self, heads: int, *, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> nn.Parameter | None:
        """Return a learned logit of each head of queries that belongs to no key, or None."""


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


@dataclass(frozen=True, repr=False)
class Softmax(Kernel):
    """w_ts = exp(s_ts) / sum over allowed s' of exp(s_ts'), with s_ts = scale * q_t . k_s.

    A query that may see no key has weights 0 and output 0. Computed in fp32 or better whatever
    the input dtype. With a sink a query can attend to nothing: the weights of its keys sum to less
    than 1. With a cap no product can rule the others out, and none grows without bound in training.

    Args:
        sink: whether each head learns a logit of its own, which belongs to no key and is one more
            term of the sum.
        cap: s_ts becomes cap * tanh(s_ts / cap), so its size stays below the cap; None = as it is.

    Raises:
        ConfigError: for a cap that is not above 0.

    Cost: O(T * S) multiply-adds of two products, 4 T S D FLOPs for a head of width D.
    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; differs: the empty row is defined.
    The sink: OpenAI 2025, arXiv:2508.10925, section 2.2. The cap: Gemma Team 2024,
    arXiv:2408.00118, section 2.
    """

    sink: bool = False
    cap: float | None = None

    def __repr__(self) -> str:
        """Name what is there: the plain softmax of nearly every spec is Softmax()."""
        told = {k: v for k, v in (("sink", self.sink), ("cap", self.cap)) if v not in (False, None)}
        return f"Softmax({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap is not None and not self.cap > 0.0:
            raise ConfigError(f"{self!r}: give a cap above 0, or leave it out.")

    @property
    def plain(self) -> bool:
        """True without a sink and a cap."""
        return not self.sink and self.cap is None

    def to_json(self) -> dict[str, Any]:
        """Leave out what is not there: specs without them are those of before."""
        data = super().to_json()
        return {key: value for key, value in data.items() if value not in (False, None)}

    def parameters(self, spec: SpecLike) -> int:
        """Count a logit for each head, if they learn one."""
        return spec.query_heads * self.sink

    def build_sinks(
        self, heads: int, *, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> nn.Parameter | None:
        """Return a logit of each head, 0 at first: as one key with a product of 0."""
        if not self.sink:
            return None
        return nn.Parameter(torch.zeros(heads, device=device, dtype=dtype))

    @classmethod
    def samples(cls) -> tuple[Softmax, ...]:
        """Return the plain one, and one with both."""
        return cls(), cls(sink=True, cap=2.0)


CHUNK = 64  # positions; judged by benchmarks/mechanisms.py --case linear
ALIGNED = 8  # numbers; products with a whole number of such columns run faster


def columns(value_dim: int) -> int:
    """Return the width of values with the ones beside them that sum up the weights."""
    return -(-(value_dim + 1) // ALIGNED) * ALIGNED


def flops(
    queries: int,
    keys: int,
    *,
    heads: int,
    groups: int,
    features: int,
    value_dim: int,
    causal: bool,
) -> int:
    """Return the FLOPs of the products of a scan, without those that make the features.

    With causal the queries stand last among the keys.
    """
    width = columns(value_dim)
    state = 2 * features * width  # to add one key, or to read for one query
    if not causal:
        return state * (groups * keys + heads * queries)
    square = min(queries, keys)
    before = keys - square
    whole, rest = divmod(square, CHUNK)
    pairs = whole * CHUNK**2 + rest**2
    added = max(square - 1, 0) // CHUNK * CHUNK  # all but the last chunk
    reading = square if before else max(square - CHUNK, 0)  # all but a chunk with none before it
    within = 2 * (features + width) * heads * pairs
    return within + state * (groups * (before + added) + heads * reading)
