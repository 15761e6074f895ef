"""Rotary position embedding (RoPE) and its scalings for longer inputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError, check_known
from suffice.positions.base import Position
from suffice.utils.records import Axis, derived, is_whole
from suffice.utils.torch_compat import readable


class Scaling(Axis, ABC, family="scaling"):
    """Base of the ways to stretch rotary frequencies for longer input."""

    @abstractmethod
    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return the frequency of each pair in radians per position: float64 [features / 2]."""

    @property
    def amplitude(self) -> float:
        """Factor of rotated queries and rotated keys."""
        return 1.0


class _ByFactor(Scaling):
    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor < 1.0:
            raise ConfigError(
                f"{type(self).__name__}(factor={self.factor}): give the new length over the "
                "trained one, at least 1."
            )


def plain_frequencies(theta: float, features: int) -> Tensor:
    """Return theta^(-2i/features) for each pair i: float64 [features / 2].

    In float64, because at position 10^5 an fp32 frequency is already off by 0.006 radians.
    """
    steps = torch.arange(features // 2, dtype=torch.float64) / (features // 2)
    return theta**-steps


@dataclass(frozen=True)
class LinearScaling(_ByFactor):
    """Every frequency divided by `factor`: position p rotates as p / factor did.

    Args:
        factor: new length over the trained one, >= 1.

    Raises:
        ConfigError: if factor < 1.

    Example:
        >>> LinearScaling(4.0).frequencies(10_000.0, 4)
        tensor([0.2500, 0.0025], dtype=torch.float64)

    Source: Chen et al. 2023, arXiv:2306.15595, equation 4. No difference.
    """

    factor: float

    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return theta_i / factor."""
        return plain_frequencies(theta, features) / self.factor

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return a factor of 4."""
        return (cls(4.0),)


@dataclass(frozen=True)
class FastPairs(Scaling):
    """The fastest pairs rotate as they did, the others not at all: p-RoPE.

    The slow pairs of plain rotary positions carry what a token means, and their slow turning blurs
    it over long texts; here they stand still. Unlike `Rope(features=)`, which rotates the first
    features with frequencies from 1 to 1 / theta, the pairs that rotate keep the frequencies they
    have among all.

    Args:
        share: share of pairs that rotate, > 0 and <= 1; whole pairs, rounded down, at least one.

    Raises:
        ConfigError: if share is not above 0 and at most 1.

    Example:
        >>> FastPairs(0.5).frequencies(10_000.0, 8)
        tensor([1.0000, 0.1000, 0.0000, 0.0000], dtype=torch.float64)

    Source: Barbero et al. 2024, arXiv:2410.06205, section 6 (p-RoPE). No difference.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"FastPairs(share={self.share}): give a share above 0, at most 1.")

    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return the plain frequencies of the fastest pairs, then zeros."""
        frequencies = plain_frequencies(theta, features)
        frequencies[max(1, int(self.share * len(frequencies))) :] = 0.0
        return frequencies

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return half of the pairs."""
        return (cls(0.5),)


@dataclass(frozen=True)
class NTKScaling(_ByFactor):
    """A larger base, theta * factor^(D / (D - 2)).

    The slowest pair rotates `factor` times slower, the first as before, the others between.

    Args:
        factor: new length over the trained one, >= 1; fixed, whatever the input's length.

    Raises:
        ConfigError: if factor < 1.

    Example:
        >>> NTKScaling(4.0).frequencies(10_000.0, 4)
        tensor([1.0000, 0.0025], dtype=torch.float64)

    Source: Peng et al. 2023, arXiv:2309.00071, definition 1. No difference.
    """

    factor: float

    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return the frequencies of the larger base; a single pair keeps its own."""
        exponent = features / max(features - 2, 1)
        return plain_frequencies(theta * self.factor**exponent, features)

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return a factor of 4."""
        return (cls(4.0),)


@dataclass(frozen=True)
class Llama3Scaling(_ByFactor):
    """Slow pairs divided by `factor`, fast ones kept, a blend between.

    A pair makes r_i = length * theta_i / (2 pi) rotations in the trained length. Its frequency is
    (1 - w) theta_i / factor + w theta_i with w = (r_i - low) / (high - low), held within 0..1.

    Args:
        factor: new length over the trained one, >= 1.
        length: the trained length, tokens, >= 1.
        low: rotations up to which a pair is slowed by the whole factor, > 0.
        high: rotations from which a pair is kept, > low.

    Raises:
        ConfigError: if factor or length is below 1, or not 0 < low < high.

    Example:
        >>> Llama3Scaling(4.0, length=16).frequencies(100.0, 4)
        tensor([0.6366, 0.0250], dtype=torch.float64)

    Source: the published Llama 3.1 weights, whose configuration calls it "rope_type": "llama3"
    (Grattafiori et al. 2024, arXiv:2407.21783). No difference.
    """

    factor: float
    length: int = 8192
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1 or not 0.0 < self.low < self.high:
            raise ConfigError(
                f"Llama3Scaling(length={self.length}, low={self.low}, high={self.high}): give the "
                "trained length, at least 1, and rotations with 0 < low < high."
            )

    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return the blended frequencies."""
        plain = plain_frequencies(theta, features)
        rotations = self.length * plain / (2 * math.pi)
        share = ((rotations - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - share) * plain / self.factor + share * plain

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return a factor of 4 over 16 tokens."""
        return (cls(4.0, length=16),)


MAX_TURNS = 1e9  # rotations in a trained length


@dataclass(frozen=True)
class YarnScaling(_ByFactor):
    """Fast pairs kept, slow pairs divided by `factor`, a linear ramp between.

    Pair i(n) = D ln(length / (2 pi n)) / (2 ln theta) makes n rotations in the trained length.
    The frequency of pair i is (1 - w) theta_i + w theta_i / factor, where w rises from 0 at pair
    i(fast) to 1 at pair i(slow) in equal steps. Rotated queries and keys are multiplied by
    `attention_factor`, so that products of rotated features grow by its square.

    Args:
        factor: new length over the trained one, >= 1.
        length: the trained length, tokens, >= 1.
        fast: rotations from which a pair is kept, > slow.
        slow: rotations up to which a pair is slowed by the whole factor, > 0.
        attention_factor: > 0; None: 0.1 ln(factor) + 1.
        truncate: round i(fast) down and i(slow) up to whole pairs, as most models do.

    Raises:
        ConfigError: if factor or length is below 1, not 0 < slow < fast < 1e9, or
            attention_factor is not above 0.

    Example:
        >>> YarnScaling(4.0, length=4096).frequencies(10_000.0, 4)
        tensor([1.0000, 0.0063], dtype=torch.float64)
        >>> round(YarnScaling(4.0, length=4096).amplitude, 4)
        1.1386

    Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4. Differs: the ramp is linear in
    the pair, as in the authors' program and the published weights, not in its rotations.
    """

    factor: float
    length: int
    fast: float = 32.0
    slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1 or not 0.0 < self.slow < self.fast < MAX_TURNS:
            raise ConfigError(
                f"YarnScaling(length={self.length}, fast={self.fast}, slow={self.slow}): give the "
                "trained length, at least 1, and rotations with 0 < slow < fast < 1e9."
            )
        if self.attention_factor is not None and self.attention_factor <= 0.0:
            raise ConfigError(
                f"YarnScaling(attention_factor={self.attention_factor}): give a number above 0, "
                "or None for 0.1 ln(factor) + 1."
            )

    @property
    def amplitude(self) -> float:
        """The attention factor."""
        if self.attention_factor is None:
            return 0.1 * math.log(self.factor) + 1.0
        return self.attention_factor

    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return the frequencies on the ramp."""
        plain = plain_frequencies(theta, features)
        first, last = (self._pair(n, theta, features) for n in (self.fast, self.slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, features - 1)
        steps = torch.arange(features // 2, dtype=torch.float64) - first
        share = (steps / max(last - first, 0.001)).clamp(0.0, 1.0)
        return (1 - share) * plain + share * plain / self.factor

    def _pair(self, rotations: float, theta: float, features: int) -> float:
        return features * math.log(self.length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return one of each kind."""
        return (
            cls(4.0, length=64, fast=4.0),
            cls(2.0, length=64, fast=4.0, attention_factor=1.5, truncate=False),
        )


@dataclass(frozen=True)
class PairScaling(Scaling):
    """The frequency of pair i divided by factors[i]; sines and cosines times `attention_factor`.

    Such factors are searched for, one for each pair. Where a model has short and long ones, those
    of the length that it is used at are given here, and `Rope(length=)` says up to where they hold:
    keys that were cached stay as they are.

    Args:
        factors: factor of each rotated pair, > 0.
        attention_factor: factor of rotated queries and keys, > 0.

    Raises:
        ConfigError: if there are no factors, or a number is not above 0; in a spec, if there are
            not one factor for each pair.

    Example:
        >>> PairScaling((1.0, 4.0)).frequencies(10_000.0, 4)
        tensor([1.0000, 0.0025], dtype=torch.float64)

    Source: Ding et al. 2024, arXiv:2402.13753, equation 2. Differs: one set of factors for all
    positions.
    """

    factors: tuple[float, ...]
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factors or min(*self.factors, self.attention_factor) <= 0.0:
            raise ConfigError(f"{self!r:.200}: give a number above 0 for each pair of features.")

    @property
    def amplitude(self) -> float:
        """The attention factor."""
        return self.attention_factor

    def frequencies(self, theta: float, features: int) -> Tensor:
        """Return theta_i / factors[i]."""
        return plain_frequencies(theta, features) / torch.tensor(self.factors, dtype=torch.float64)

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return two pairs."""
        return (cls((1.5, 4.0), attention_factor=1.25),)


LAYOUTS = ("half", "interleaved")
CACHED_ANGLES = 1 << 19  # tables up to 4 MiB in fp32 are cached between calls


class _Rotary(Position):
    rotates = True
    layout: str
    features: int | None

    @abstractmethod
    def angles(self, positions: Tensor, features: int) -> Tensor:
        """Return the angle of each pair in radians: float64 [..., features / 2]."""

    @property
    def amplitude(self) -> float:
        """Factor of sines and cosines."""
        return 1.0

    def cos_sin(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the factors of a feature and of its partner: [..., 1, T, features] each.

        The factor of the partner is -sin for the first feature of a pair and sin for the second.
        """
        features = head_dim if self.features is None else self.features
        dtype = torch.promote_types(dtype, torch.float32)
        if readable(positions) and positions.numel():
            end = int(positions.max()) + 1
            self.check_length(end)
            if end * features <= CACHED_ANGLES and int(positions.min()) >= 0:
                cos, sin = _table(self, 1 << (end - 1).bit_length(), features, dtype)
                return cos[positions].unsqueeze(-3), sin[positions].unsqueeze(-3)
        cos, sin = self._compute(positions, features, dtype)
        return cos.unsqueeze(-3), sin.unsqueeze(-3)  # one for all heads

    def _compute(
        self, positions: Tensor, features: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        angles = self.angles(positions, features)
        if self.max_length is not None:  # in a graph, where nothing can be raised
            angles = angles.masked_fill(positions[..., None] >= self.max_length, math.nan)
        cos = (self.amplitude * angles.cos()).to(dtype)
        sin = (self.amplitude * angles.sin()).to(dtype)
        if self.layout == "half":
            return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)

    def rotate_by(self, x: Tensor, cos_sin: tuple[Tensor, ...]) -> Tensor:
        """Return x [B, H, T, D] rotated."""
        cos, sin = cos_sin
        features = cos.shape[-1]
        leading = x[..., :features].to(cos.dtype)
        rotated = torch.addcmul(leading * cos, self._partners(leading), sin).to(x.dtype)
        if features == x.shape[-1]:
            return rotated
        return torch.cat([rotated, x[..., features:]], dim=-1)

    def _partners(self, x: Tensor) -> Tensor:
        """Return for each feature the other one of its pair."""
        if self.layout == "half":
            return x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


@dataclass(frozen=True)
class Rope(_Rotary):
    """Rotate feature pair i of a query or key at position p by p * theta^(-2i/D) radians.

    Products then depend on the distance of query and key only. With layout="half" pair i is
    (i, i + D/2), with layout="interleaved" it is (2i, 2i + 1); both rotate the first feature a and
    the second b to (a cos - b sin, a sin + b cos). D is head_dim, or `features`: then the leading
    features of each head are rotated and the others stay. Angles are float64, sines and cosines
    fp32 or better whatever the dtype of x; they are computed, not stored in the module.

    Args:
        theta: base of the wavelengths, > 1.
        layout: "half" as Llama-family and GPT-NeoX weights have it, "interleaved" as in the paper
            and GPT-J. Weights of one layout compute nonsense with the other.
        features: number of leading features of a head that are rotated, even; None rotates all.
        scaling: a `Scaling` that stretches the frequencies for longer input; None keeps them.
        length: the longest text in tokens, for models that rotate longer ones by other frequencies:
            those are refused, and in a compiled graph their outputs are NaN; None allows any.

    Raises:
        ConfigError: if theta is not above 1, layout is unknown, features is odd or below 2, scaling
            is not a Scaling, or length is below 1.
        ShapeError: when called with a position of `length` or above.

    Cost: 6 D operations per position and head; no parameters.
    Example:
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> Rope().rotate(x, torch.arange(3))[0, 0, :, 0]
        tensor([ 1.0000,  0.5403, -0.4161])

    Source: Su et al. 2021, arXiv:2104.09864, equation 15. No difference with
    layout="interleaved"; "half" is a fixed permutation of the features.
    """

    theta: float = 10_000.0
    layout: str = "half"
    features: int | None = None
    scaling: Scaling | None = None
    length: int | None = None

    max_length = derived(lambda self: self.length)

    def __post_init__(self) -> None:
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            legal = ", ".join(sorted(Scaling.table))
            raise ConfigError(f"Rope(scaling={self.scaling!r}): give an instance of {legal}.")
        super().__post_init__()
        if not self.theta > 1.0:
            raise ConfigError(f"Rope(theta={self.theta}): give a base above 1, such as 10000.")
        check_known("layout of Rope", self.layout, LAYOUTS)
        if self.features is not None and (self.features < 2 or self.features % 2):
            raise ConfigError(
                f"Rope(features={self.features}): features rotate in pairs; give an even number "
                "from 2, or None for all."
            )
        if self.length is not None and self.length < 1:
            raise ConfigError(f"Rope(length={self.length}): give at least 1, or None for any.")

    def to_json(self) -> dict[str, Any]:
        """Leave out a length that is not there: specs without one are those of before."""
        data = super().to_json()
        if self.length is None:
            del data["length"]
        return data

    def conflicts(self, head_dim: int) -> list[str]:
        """Refuse head widths that are odd, or narrower than `features`."""
        if self.features is not None and self.features > head_dim:
            return [
                f"Rope(features={self.features}) rotates more than the features of a head, "
                f"head_dim={head_dim}; give fewer."
            ]
        pairs = (self.features or head_dim) // 2
        if isinstance(self.scaling, PairScaling) and len(self.scaling.factors) != pairs:
            return [
                f"PairScaling has {len(self.scaling.factors)} factors for {pairs} rotated pairs of "
                "a head; give one for each."
            ]
        if self.features is None and head_dim % 2:
            return [f"Rope rotates features in pairs: head_dim={head_dim} is odd; make it even."]
        return []

    @property
    def amplitude(self) -> float:
        """The scaling's."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def angles(self, positions: Tensor, features: int) -> Tensor:
        """Return position times frequency."""
        if self.scaling is None:
            frequencies = plain_frequencies(self.theta, features)
        else:
            frequencies = self.scaling.frequencies(self.theta, features)
        return positions.to(torch.float64)[..., None] * frequencies.to(positions.device)

    @classmethod
    def samples(cls) -> tuple[Position, ...]:
        """Return both layouts, some of the features, and each scaling."""
        return (
            cls(),
            cls(100.0, layout="interleaved"),
            cls(features=2, scaling=LinearScaling(2.0)),
            cls(scaling=NTKScaling(4.0)),
            cls(scaling=FastPairs(0.5)),
            cls(scaling=Llama3Scaling(4.0, length=16)),
            cls(layout="interleaved", scaling=YarnScaling(4.0, length=64, fast=4.0)),
            cls(features=2, scaling=PairScaling((3.0,), attention_factor=1.25)),
            cls(length=1 << 16),
        )


@dataclass(frozen=True)
class AxialRope(_Rotary):
    """Rotate features by the row and the column of a cell of an image.

    The cell at position p is in row (p - first) // columns and column (p - first) % columns. With
    u_t = theta^(-4t/D), pair (4t, 4t + 1) of the D features of a head is rotated by u_t times the
    column and pair (4t + 2, 4t + 3) by u_t times the row. Products then depend on how far apart
    two cells lie in each direction. What stands before the grid, such as a class token, is not
    rotated.

    Args:
        columns: columns of the grid, at least 1.
        theta: base of the wavelengths, > 1; smaller than a text's, as images have few rows.
        first: positions before the grid.

    Raises:
        ConfigError: if theta is not above 1, or columns or first is not a whole number in its
            range; in a spec, if 4 does not divide head_dim.

    Cost: 6 D operations per position and head; no parameters.
    Example:
        >>> x = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 4, 4)
        >>> AxialRope(columns=2).rotate(x, torch.arange(4))[0, 0, :, ::2]
        tensor([[1.0000, 1.0000],
                [0.5403, 1.0000],
                [1.0000, 0.5403],
                [0.5403, 0.5403]])

    Source: Heo et al. 2024, arXiv:2403.13298, section 3.2, "axial frequency". Differs: cells before
        the grid.
    """

    layout = "interleaved"
    features = None

    columns: int
    theta: float = 100.0
    first: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.columns, least=1) or not is_whole(self.first, least=0):
            raise ConfigError(
                f"{self!r}: give columns as a whole number of at least 1, first of at least 0."
            )
        if not self.theta > 1.0:
            raise ConfigError(f"{self!r}: give a base above 1, such as 100.")

    def conflicts(self, head_dim: int) -> list[str]:
        """Refuse head widths that hold no pair for each direction."""
        if head_dim % 4 == 0:
            return []
        return [
            f"AxialRope rotates pairs by rows and by columns: head_dim={head_dim} is not a "
            "multiple of 4; change it to one."
        ]

    def angles(self, positions: Tensor, features: int) -> Tensor:
        """Return column and row times frequency, one after the other."""
        cells = (positions - self.first).clamp(min=0).to(torch.float64)
        rows = torch.div(cells, self.columns, rounding_mode="floor")
        places = torch.stack([cells - rows * self.columns, rows], dim=-1)
        frequencies = plain_frequencies(self.theta, features // 2).to(positions.device)
        return (frequencies[:, None] * places[..., None, :]).flatten(-2)

    @classmethod
    def samples(cls) -> tuple[Position, ...]:
        """Return a narrow grid, and one behind a class token."""
        return (cls(3), cls(4, theta=10.0, first=1))


@lru_cache(maxsize=16)
def _table(
    rope: _Rotary, positions: int, features: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # a cached tensor must serve training calls too
        return rope._compute(torch.arange(positions), features, dtype)
