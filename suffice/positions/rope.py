"""Rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from suffice.axis import Axis
from suffice.errors import ConfigError, unknown
from suffice.finite import readable
from suffice.positions.base import Position
from suffice.positions.scaling import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Scaling,
    YarnScaling,
    plain_frequencies,
)

LAYOUTS = ("half", "interleaved")
KEPT_ANGLES = 1 << 19  # tables up to 4 MiB in fp32 are kept between calls


@dataclass(frozen=True)
class Rope(Position):
    """Turn feature pair i of a query or key at position p by p * theta^(-2i/D) radians.

    Products then depend on the distance of query and key only. With layout="half" pair i is
    (i, i + D/2), with layout="interleaved" it is (2i, 2i + 1); both turn the first feature a and
    the second b to (a cos - b sin, a sin + b cos). D is head_dim, or `features`: then the leading
    features of each head turn and the others stay. Angles are float64, sines and cosines fp32 or
    better whatever the dtype of x; they follow from the positions and are no part of the module.

    Args:
        theta: base of the wavelengths, > 1.
        layout: "half" as Llama-family and GPT-NeoX weights have it, "interleaved" as in the paper
            and GPT-J. Weights of one layout compute nonsense with the other.
        features: how many leading features of a head turn, even; None = all.
        scaling: a `Scaling` that stretches the frequencies for longer input; None = as above.

    Raises:
        ConfigError: if theta is not above 1, layout is unknown, features is odd or below 2, or
            scaling is no Scaling.

    Cost: 6 D operations per position and head; no parameters.
    Example:
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> Rope().rotate(x, torch.arange(3))[0, 0, :, 0]
        tensor([ 1.0000,  0.5403, -0.4161])

    Source: Su et al. 2021, arXiv:2104.09864, equation 15. No difference with
    layout="interleaved"; "half" is a fixed permutation of the features.
    """

    rotates = True
    nested: ClassVar[dict[str, type[Axis]]] = {"scaling": Scaling}

    theta: float = 10_000.0
    layout: str = "half"
    features: int | None = None
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            legal = ", ".join(sorted(Scaling.table))
            raise ConfigError(f"Rope(scaling={self.scaling!r}): give an instance of {legal}.")
        super().__post_init__()
        if not self.theta > 1.0:
            raise ConfigError(f"Rope(theta={self.theta}): give a base above 1, such as 10000.")
        if self.layout not in LAYOUTS:
            raise unknown("layout of Rope", self.layout, LAYOUTS)
        if self.features is not None and (self.features < 2 or self.features % 2):
            raise ConfigError(
                f"Rope(features={self.features}): features turn in pairs; give an even number "
                "from 2, or None for all."
            )

    def conflicts(self, head_dim: int) -> list[str]:
        """Refuse head widths that are odd, or narrower than what turns."""
        if self.features is not None and self.features > head_dim:
            return [
                f"Rope(features={self.features}) turns more than the head_dim={head_dim} features "
                "a head has; give fewer."
            ]
        if self.features is None and head_dim % 2:
            return [f"Rope turns features in pairs: head_dim={head_dim} is odd; make it even."]
        return []

    def turns(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return what a feature and its partner are multiplied by: [..., 1, T, features] each."""
        features = head_dim if self.features is None else self.features
        exact = torch.promote_types(dtype, torch.float32)
        cos, sin = self._factors(positions, features, exact)
        return cos.unsqueeze(-3), sin.unsqueeze(-3)  # one for all heads

    def turn(self, x: Tensor, turns: tuple[Tensor, ...]) -> Tensor:
        """Return x [B, H, T, D] turned."""
        cos, sin = turns
        features = cos.shape[-1]
        turning = x[..., :features].to(cos.dtype)
        turned = torch.addcmul(turning * cos, self._partners(turning), sin).to(x.dtype)
        if features == x.shape[-1]:
            return turned
        return torch.cat([turned, x[..., features:]], dim=-1)

    def _partners(self, x: Tensor) -> Tensor:
        """Return for each feature the other one of its pair."""
        if self.layout == "half":
            return x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

    def _factors(
        self, positions: Tensor, features: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return what a feature and its partner are multiplied by: [..., T, features] each."""
        if readable(positions) and positions.numel():
            end = int(positions.max()) + 1
            if end * features <= KEPT_ANGLES and int(positions.min()) >= 0:
                cos, sin = _table(self, 1 << (end - 1).bit_length(), features, dtype)
                return cos[positions], sin[positions]
        return self._computed(positions, features, dtype)

    def _computed(
        self, positions: Tensor, features: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if self.scaling is None:
            frequencies, amplitude = plain_frequencies(self.theta, features), 1.0
        else:
            frequencies = self.scaling.frequencies(self.theta, features)
            amplitude = self.scaling.amplitude
        angles = positions.to(torch.float64)[..., None] * frequencies.to(positions.device)
        cos = (amplitude * angles.cos()).to(dtype)
        sin = (amplitude * angles.sin()).to(dtype)
        if self.layout == "half":
            return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)

    @classmethod
    def samples(cls) -> tuple[Position, ...]:
        """Return both layouts, some of the features, and each scaling."""
        return (
            cls(),
            cls(100.0, layout="interleaved"),
            cls(features=2, scaling=LinearScaling(2.0)),
            cls(scaling=NTKScaling(4.0)),
            cls(scaling=Llama3Scaling(4.0, length=16)),
            cls(layout="interleaved", scaling=YarnScaling(4.0, length=64, fast=4.0)),
        )


@lru_cache(maxsize=16)
def _table(rope: Rope, positions: int, features: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # a kept tensor must serve training calls too
        return rope._computed(torch.arange(positions), features, dtype)
