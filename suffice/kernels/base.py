"""Kernels: how query-key products become weights.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width, F features.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.utils.records import Axis

if TYPE_CHECKING:
    from suffice.utils.protocols import SpecLike


GIVEN = {"scores": ("q", "k", "scale"), "weights": ("scores", "allowed")}
"""The methods of a kernel of pairs that take learned tensors, and the arguments before those."""

METHODS = {
    "pairs": ("weights",),
    "sums": ("num_features", "build"),
    "recurrence": ("gate_parameters", "gate_flops", "build_gates"),
}
"""The methods that a kernel of each lane defines."""


class Kernel(Axis, family="kernel"):
    """Base of the kernels.

    A kernel of pairs defines `weights`; also `scores` if they are not the scaled products, and
    `learned` if it learns something. It runs by the ops "matmul" and "reference", which form the
    weights of all pairs; faster ops know `Softmax` alone.

    Example:
        >>> @dataclass(frozen=True)
        ... class Rectified(Kernel):
        ...     def weights(self, scores, allowed):
        ...         return scores.relu() / allowed.sum(dim=-1, keepdim=True)
    """

    lane: ClassVar[Literal["pairs", "sums", "recurrence"]] = "pairs"
    """How a query reads keys: "pairs" if a weight needs the products of all pairs, as a softmax
    does; "sums" of features, weight = phi(q) . phi(k) / sum; or a "recurrence", whose state decays
    or is corrected from token to token, see `Recurrent`."""

    stabilised: ClassVar[bool] = False
    """True if the feature map gives each key the logarithm of a scale."""

    _taken: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # learned numbers, by method

    def __init_subclass__(cls, *, base: bool = False) -> None:
        if not base and not cls.__name__.startswith("_"):
            _check_methods(cls)
        cls._taken = {name: _learned_arguments(cls, name) for name in GIVEN}
        super().__init_subclass__(base=base)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return the scores [B, H, T, S] of queries [B, H, T, D] and keys [B, H, S, D].

        A position that biases the products of pairs adds to these.
        """
        return scale * (q @ k.transpose(-1, -2))

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Return the factor of each value for each query, [B, H, T, S]; pairs only.

        Args:
            scores: [B, H, T, S], float32 or float64, finite also at keys that are not allowed.
            allowed: bool [B, H, T, S], True = may attend. At least one key of each query is True:
                a query without any sees all keys here, and gives 0 afterwards. So do the weights
                of keys that are not allowed, whatever is returned for them.
        """
        raise NotImplementedError

    @property
    def by_products(self) -> bool:
        """True if the scores depend on products of queries and keys alone."""
        return type(self).scores is Kernel.scores

    @property
    def plain_scores(self) -> bool:
        """True if the scores are the scaled products as they are."""
        return type(self).scores is Kernel.scores

    def learned(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the initial value of each tensor that a layer learns, by name.

        `scores` and `weights` take them by these names, as further arguments.
        """
        return {}

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        allowed: Tensor,
        *,
        scale: float,
        bias: Tensor | None,
        learned: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the weights [B, H, T, S] in the dtype of q, exactly 0 at keys not allowed.

        Args:
            q: [B, H, T, D].
            k: [B, H, S, D].
            allowed: bool, broadcasts to [B, H, T, S].
            scale: factor of the products.
            bias: term that the position adds to the scores; None: nothing.
            learned: tensors by name, of any dtype.
        """
        scores = self.biased_scores(q, k, scale=scale, bias=bias, learned=learned)
        if not scores.numel():
            return scores
        opened = (allowed | ~allowed.any(dim=-1, keepdim=True)).expand(scores.shape)
        weights = self.weights(scores, opened, **self._learned_by("weights", q, learned))
        return weights.masked_fill(~allowed, 0.0)

    def biased_scores(
        self,
        q: Tensor,
        k: Tensor,
        *,
        scale: float,
        bias: Tensor | None,
        learned: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the scores [B, H, T, S] with what the position adds; arguments as of `weigh`."""
        scores = self.scores(q, k, scale, **self._learned_by("scores", q, learned))
        return scores if bias is None else scores + bias.to(scores.dtype)

    def _learned_by(
        self, method: str, q: Tensor, learned: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        names = [name for name in self._taken[method] if name in learned]
        return {name: learned[name].to(q.dtype) for name in names}

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

    def parameters(self, spec: SpecLike) -> int:
        """Count the learned numbers of a layer."""
        learned = _initial(self, spec.query_heads, spec.head_width)
        return sum(tensor.numel() for tensor in learned.values())

    def build(  # noqa: B027 - a kernel that weighs pairs has none
        self, *, head_dim: int, scale: float, device: torch.device | str | None
    ) -> FeatureMap | None:
        """Return the feature map of this kernel, None if it weighs pairs."""


def _check_methods(cls: type[Kernel]) -> None:
    legal = ", ".join(map(repr, METHODS))
    if cls.lane not in METHODS:
        raise ConfigError(f"{cls.__name__} has lane={cls.lane!r}; legal: {legal}.")
    absent = [name for name in METHODS[cls.lane] if _is_absent(getattr(cls, name, None), name)]
    if absent:
        raise ConfigError(
            f"{cls.__name__} has lane={cls.lane!r} and lacks {', '.join(absent)}; define "
            f"{', '.join(METHODS[cls.lane])}, or set lane to the one you mean: {legal}."
        )


def _is_absent(method: Any, name: str) -> bool:
    is_default = method is None or method is getattr(Kernel, name, None)
    return is_default or getattr(method, "__isabstractmethod__", False)


def _learned_arguments(cls: type[Kernel], method: str) -> tuple[str, ...]:
    expected = ("self", *GIVEN[method])
    names = tuple(inspect.signature(getattr(cls, method)).parameters)
    if names[: len(expected)] != expected:
        raise ConfigError(
            f"{cls.__name__}.{method} takes ({', '.join(names)}); its first arguments are "
            f"({', '.join(expected)}), and then learned tensors by name."
        )
    return names[len(expected) :]


def _initial(kernel: Kernel, heads: int, head_dim: int) -> dict[str, Tensor]:
    """Return what a layer learns, made on the CPU without a trace in torch's generator."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return kernel.learned(heads, head_dim)


@lru_cache(maxsize=256)
def why_not_weighed(kernel: Kernel, heads: int, head_dim: int, scale: float) -> str | None:
    """Return why weights of a kernel of pairs cannot be computed, tried once; None if they can."""
    heads, head_dim = min(heads, 1024), min(head_dim, 1024)  # numbers of a file may be any
    learned = _initial(kernel, heads, head_dim)
    for name, tensor in learned.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return f"learned() gives {name}={tensor!r:.60}; give a tensor of floating point"
    taken = {name for names in kernel._taken.values() for name in names}
    if unread := sorted(learned.keys() - taken):
        return f"learned() gives {', '.join(unread)}, which neither scores() nor weights() takes"
    shape = (2, heads, 2, 3)  # batch, heads, queries, keys
    with torch.no_grad(), torch.device("cpu"):
        q, k = torch.zeros(*shape[:3], head_dim), torch.zeros(*shape[:2], shape[3], head_dim)
        allowed = torch.tensor([[True, False, False], [True, True, False]])
        try:
            weights = kernel.weigh(q, k, allowed, scale=scale, bias=None, learned=learned)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            return f"its weights cannot be computed: {type(error).__name__}: {error}"
    if weights.shape != shape:
        return (
            f"weights() returns {list(weights.shape)} for scores {list(shape)}; give one for each"
        )
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
        """Return phi [..., T, F] of queries [..., T, D], each row up to a factor.

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

    @property
    def by_products(self) -> bool:
        """True: a cap bounds the products."""
        return True

    @property
    def plain_scores(self) -> bool:
        """True without a cap."""
        return self.cap is None

    def learned(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Return a logit of each head, 0 at first: as one key with a product of 0."""
        return {"sinks": torch.zeros(heads)} if self.sink else {}

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return the scaled products, bounded by the cap."""
        scores = super().scores(q, k, scale)
        return scores if self.cap is None else self.cap * (scores / self.cap).tanh()

    def weights(self, scores: Tensor, allowed: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Return the softmax over the allowed keys, and over the sink of the head."""
        scores = scores.masked_fill(~allowed, -torch.inf)
        if sinks is None:
            return scores.softmax(dim=-1)
        sinks = sinks[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]

    @classmethod
    def samples(cls) -> tuple[Softmax, ...]:
        """Return the plain one, and one with both."""
        return cls(), cls(sink=True, cap=2.0)


CHUNK = 64  # positions; judged by benchmarks/mechanisms.py --case linear
ALIGNED = 8  # numbers; products with a whole number of such columns run faster


def columns(value_dim: int) -> int:
    """Return the width of values with the ones behind them that sum up the weights."""
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
    """Return the FLOPs of the products of a scan, without the features; causal queries are last."""
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
