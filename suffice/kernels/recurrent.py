"""Kernels of recurrences: sums of keys and values that decay, or are corrected by the delta rule.

They are not divided by a sum of weights, and see what lies before them, so they are causal. A
combination that normalises heads goes with them: `Gated(norm=True, activation="silu")`.

Letters: B batch, H heads, T positions, D key width, E value width, M model width.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.kernels.base import Kernel
from suffice.utils.records import is_whole

if TYPE_CHECKING:
    from suffice.encoders import Factory
    from suffice.utils.protocols import SpecLike

CHUNK = 64  # positions
CHUNK_OF_FEATURES = 16  # where each feature decays by itself: pairs take C^2 D numbers
LEAST = -1e4  # logarithm of a decay; e^-10000 is 0
EPS = 1e-6  # added to the squared norm of a key
SLOWEST, FASTEST = 1e-3, 1e-1  # steps that gates start with
RANK, TEMPER = 16, 16.0  # of the gates of features


class Gates(NamedTuple):
    """What a token does to the state; None where it is the same for all tokens."""

    log_decay: Tensor | None  # [B, T, H, 1 or D], at most 0
    beta: Tensor | None  # [B, T, H, 1]
    step: Tensor | None  # [B, T, H, 1], factor of the values


class GateLogits(NamedTuple):
    """Products of a token that its gates are functions of; None where there is none."""

    decay: Tensor | None  # [B, T, H or H D]
    beta: Tensor | None  # [B, T, H]


class Recurrent(Kernel, base=True):
    """Base of the recurrences."""

    lane = "recurrence"

    corrects: ClassVar[bool] = False
    """True if a value is corrected by what the state already gives for its key."""

    by_features: bool = False
    """True if each feature of a key decays by itself."""

    convolution: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convolution is not None and not is_whole(self.convolution, least=2):
            raise ConfigError(f"{self!r}: give a convolution of at least 2 tokens, or None.")

    def refusals(self, spec: SpecLike) -> list[str]:
        """Refuse what looks ahead or reads pairs of tokens."""
        wanted = {
            f"pattern={spec.pattern!r}: give Causal()": not spec.pattern.causal,
            f"mixing={spec.mixing!r}: give NoMixing()": "mixing" in spec.beyond_pairs,
            f"combine={spec.combine!r}: give Concat() or Gated()": spec.combine.maps > 1,
        }
        broken = [reason for reason, is_broken in wanted.items() if is_broken]
        if not broken:
            return []
        return [f"{self!r} sums from token to token, but {'; '.join(broken)}."]

    def taps(self, spec: SpecLike) -> int:
        """Return the channels of queries, keys and values that the convolution reads."""
        return spec.widths.q + spec.widths.kv + spec.kv_heads * spec.value_width

    def parameters(self, spec: SpecLike) -> int:
        """Count the numbers of the gates and of the convolution."""
        return self.gate_parameters(spec) + self.taps(spec) * (self.convolution or 0)

    def state_numbers(self, spec: SpecLike) -> int:
        """Return the numbers of the state of one text."""
        history = self.taps(spec) * ((self.convolution or 1) - 1)
        return spec.num_heads * spec.head_width * spec.value_width + history

    @abstractmethod
    def gate_parameters(self, spec: SpecLike) -> int:
        """Count the learned numbers of the gates."""

    @abstractmethod
    def gate_flops(self, spec: SpecLike) -> int:
        """Return the FLOPs of the gates of one token."""

    @abstractmethod
    def build_gates(self, spec: SpecLike, factory: Factory) -> nn.Module:
        """Return x [B, T, M] -> Gates."""


@dataclass(frozen=True)
class Decayed(Recurrent):
    """o_t = scale sum over s <= t of (q_t . (a_t ... a_(s+1) k_s)) v_s: older keys count less.

    The decay a is one number for each head (per="head"), one for each head and token
    (per="token"), or one for each feature of a key and each token (per="feature"). Per head it is
    fixed: `decays`, or 1 - 2^(-5 - h) for head h. Per token a_t = exp(-A d_t), where
    d_t = softplus(W x_t + b) is also the factor of the values and A is learned for each head. Per
    feature a_t = sigmoid(W_2 W_1 x_t + b)^(1/16), with W_1 of rank 16.

    Args:
        per: "head", "token" or "feature".
        decays: of each head, in (0, 1]; with per="head" alone. None = as above.
        convolution: tokens that a learned causal sum of each feature of q, k and v reads, SiLU
            after it; None = q, k and v as they are.

    Raises:
        ConfigError: for another `per`, decays outside (0, 1] or not per head, or a convolution of
            fewer than 2 tokens.

    Cost: O(T D (E + C)) for chunks of C positions; state D E numbers for a head, float32.
    Source: per head, Sun et al. 2023, arXiv:2307.08621, equations 5 to 8. Per token, Dao and Gu
    2024, arXiv:2405.21060, section 7; differs: no skip from values to outputs, and keys of each
    head. Per feature, Yang et al. 2023, arXiv:2312.06635, section 4.
    """

    per: str = "head"
    decays: tuple[float, ...] | None = None
    convolution: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per not in ("head", "token", "feature"):
            raise ConfigError(f"{self!r}: give per='head', 'token' or 'feature'.")
        if self.decays is not None and (
            self.per != "head" or not all(0.0 < decay <= 1.0 for decay in self.decays)
        ):
            raise ConfigError(f"{self!r}: decays go with per='head', a number in (0, 1] a head.")

    @property
    def by_features(self) -> bool:  # type: ignore[override]
        """True per feature."""
        return self.per == "feature"

    def of_heads(self, heads: int) -> tuple[float, ...]:
        """Return the decay of each head."""
        if self.decays is None:
            return tuple(1.0 - 2.0 ** (-5 - head) for head in range(heads))
        return self.decays

    def refusals(self, spec: SpecLike) -> list[str]:
        """Refuse another number of decays than of heads, too."""
        reasons = super().refusals(spec)
        if self.decays is not None and len(self.decays) != spec.num_heads:
            reasons.append(
                f"{self!r} has {len(self.decays)} decays for {spec.num_heads} heads; give one each."
            )
        return reasons

    def gate_parameters(self, spec: SpecLike) -> int:
        """Count the maps from x to the decays."""
        if self.per == "head":
            return 0
        if self.per == "token":
            return spec.num_heads * (spec.d_model + 2)
        return RANK * spec.d_model + (RANK + 1) * spec.widths.q

    def gate_flops(self, spec: SpecLike) -> int:
        """Count the maps from x to the decays."""
        if self.per == "head":
            return 0
        if self.per == "token":
            return 2 * spec.d_model * spec.num_heads
        return 2 * RANK * (spec.d_model + spec.widths.q)

    def build_gates(self, spec: SpecLike, factory: Factory) -> nn.Module:
        """Return the gates of this kind."""
        if self.per == "head":
            return _OfHeads(self.of_heads(spec.num_heads))
        if self.per == "token":
            return _OfTokens(spec, factory, corrects=False)
        return _OfFeatures(spec, factory)

    @classmethod
    def samples(cls) -> tuple[Decayed, ...]:
        """Return each kind."""
        return cls(), cls(per="token", convolution=2), cls(per="feature")


@dataclass(frozen=True)
class Delta(Recurrent):
    """S_t = a_t S_(t-1) + b_t k_t (v_t - a_t S_(t-1)^T k_t)^T, o_t = scale S_t^T q_t.

    A key does not add its value to what the state gives for it, but moves that to its value by the
    share b_t = sigmoid(W_b x_t). Queries and keys are divided by sqrt(|k|^2 + 1e-6): their norm is
    1 but for very short ones. The decay a_t = exp(-A d_t), d_t = softplus(W x_t + b) with A learned
    for each head, lets the state be cleared; without `gated` a_t = 1.

    Choose it where a state of one size must recall what a key was last given.

    Args:
        gated: whether the state decays.
        convolution: tokens that a learned causal sum of each feature of q, k and v reads, SiLU
            after it; None = q, k and v as they are.

    Raises:
        ConfigError: for a convolution of fewer than 2 tokens.

    Cost: O(T D (E + C)) for chunks of C positions; state D E numbers for a head, float32.
    Source: Yang et al. 2024, arXiv:2406.06484, section 2.2, and gated 2412.06464, equation 10.
    Differs: the 1e-6, which the papers leave out and the released models have.
    """

    gated: bool = True
    convolution: int | None = None

    corrects = True

    def gate_parameters(self, spec: SpecLike) -> int:
        """Count the map to b and that to the decay."""
        return spec.num_heads * (spec.d_model + self.gated * (spec.d_model + 2))

    def gate_flops(self, spec: SpecLike) -> int:
        """Count the same maps."""
        return 2 * spec.d_model * spec.num_heads * (1 + self.gated)

    def build_gates(self, spec: SpecLike, factory: Factory) -> nn.Module:
        """Return the gates."""
        return _OfTokens(spec, factory, corrects=True, decays=self.gated)

    @classmethod
    def samples(cls) -> tuple[Delta, ...]:
        """Return it with and without a decay."""
        return cls(convolution=2), cls(gated=False)


class _OfHeads(nn.Module):
    """The same decay for every token."""

    kind = "head"

    def __init__(self, decays: tuple[float, ...]) -> None:
        super().__init__()
        self.logs = tuple(math.log(decay) for decay in decays)

    def logits(self, x: Tensor) -> GateLogits:  # noqa: ARG002 - they do not depend on it
        return GateLogits(None, None)

    def constants(self) -> tuple[Tensor, None]:
        return _on_cpu(self.logs), None

    def forward(self, x: Tensor) -> Gates:
        exact = torch.promote_types(x.dtype, torch.float32)
        logs = torch.tensor(self.logs, dtype=exact, device=x.device)
        return Gates(logs[:, None].expand(*x.shape[:2], -1, -1), None, None)


@lru_cache(maxsize=64)
def _on_cpu(numbers: tuple[float, ...]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device="cpu")


class _OfTokens(nn.Module):
    """exp(-A softplus(W x + b)), and for the delta rule sigmoid(W_b x)."""

    def __init__(
        self, spec: SpecLike, factory: Factory, *, corrects: bool, decays: bool = True
    ) -> None:
        super().__init__()
        heads, where = spec.num_heads, {"device": factory.device, "dtype": factory.dtype}
        self.corrects, self.decays = corrects, decays
        self.kind = "token" if decays else "none"
        if corrects:
            self.beta_proj = factory.map(spec.d_model, heads, bias=False)
        if decays:
            self.decay_proj = factory.map(spec.d_model, heads, bias=False)
            self.log_rate = nn.Parameter(torch.linspace(1.0, 16.0, heads, **where).log())
            first = torch.linspace(math.log(SLOWEST), math.log(FASTEST), heads, **where).exp()
            self.step_bias = nn.Parameter(first + (-(-first).expm1()).log())  # softplus inverted

    def logits(self, x: Tensor) -> GateLogits:
        decay = self.decay_proj(x) if self.decays else None
        return GateLogits(decay, self.beta_proj(x) if self.corrects else None)

    def constants(self) -> tuple[Tensor | None, Tensor | None]:
        return (self.log_rate, self.step_bias) if self.decays else (None, None)

    def forward(self, x: Tensor) -> Gates:
        exact = torch.promote_types(x.dtype, torch.float32)
        logits = self.logits(x)
        log_decay = beta = step = None
        if logits.beta is not None:
            beta = logits.beta.to(exact).sigmoid()[..., None]
        if logits.decay is not None:
            step = F.softplus(logits.decay.to(exact) + self.step_bias.to(exact))[..., None]
            log_decay = (-self.log_rate.to(exact).exp()[:, None] * step).clamp(min=LEAST)
        return Gates(log_decay, beta, None if self.corrects else step)


class _OfFeatures(nn.Module):
    """sigmoid(W_2 W_1 x + b)^(1/16) for each feature of a key."""

    kind = "feature"

    def __init__(self, spec: SpecLike, factory: Factory) -> None:
        super().__init__()
        self.heads = spec.num_heads
        self.down_proj = factory.map(spec.d_model, RANK, bias=False)
        self.up_proj = factory.map(RANK, spec.widths.q, bias=True)

    def logits(self, x: Tensor) -> GateLogits:
        return GateLogits(self.up_proj(self.down_proj(x)), None)

    def constants(self) -> tuple[None, None]:
        return None, None

    def forward(self, x: Tensor) -> Gates:
        logits = self.logits(x).decay
        logits = logits.to(torch.promote_types(x.dtype, torch.float32))
        log_decay = (F.logsigmoid(logits) / TEMPER).clamp(min=LEAST)
        return Gates(log_decay.unflatten(-1, (self.heads, -1)), None, None)


def chunk_of(length: int, *, by_features: bool) -> int:
    return min(length, CHUNK_OF_FEATURES if by_features else CHUNK)


def flops(
    length: int,
    *,
    heads: int,
    key_width: int,
    value_width: int,
    by_features: bool,
    corrects: bool,
) -> int:
    """Return the FLOPs of the products of a chunked scan, for one row."""
    if not length:
        return 0
    chunk = chunk_of(length, by_features=by_features)
    number = -(-length // chunk)
    positions = number * chunk
    within = positions * chunk * (value_width + key_width * (not by_features))
    states = positions * key_width * value_width * 2
    if corrects:
        within += positions * chunk * key_width
        states += positions * key_width * value_width
    return 2 * heads * (within + states)
