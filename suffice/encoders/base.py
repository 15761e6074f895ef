"""How x becomes queries, and what is cached of a token so that later queries can attend to it.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D key width, E value width,
M width of the input, W width of a cached tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from suffice.records import Axis

if TYPE_CHECKING:
    from suffice.positions import Position
    from suffice.spec import AttentionSpec

QUERIES, KEYS = "queries", "keys"


class LinearMap(NamedTuple):
    """A learned linear map of an encoder.

    Args:
        inputs: features it reads.
        outputs: features it gives.
        reads: "queries" if it is applied to every query position, "keys" if to every key position.
    """

    inputs: int
    outputs: int
    reads: str = KEYS


@dataclass(frozen=True)
class Factory:
    """The classes an encoder builds its modules from, and where their parameters live.

    Args:
        linear: made as linear(inputs, outputs, bias=..., device=..., dtype=...).
        rms: made as rms(width, eps=..., device=..., dtype=...).
        device: of the parameters.
        dtype: of the parameters.
    """

    linear: type[nn.Linear]
    rms: type[nn.Module]
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    def map(self, inputs: int, outputs: int, *, bias: bool) -> nn.Module:
        """Return a linear map, Glorot-uniform, its bias zero."""
        linear = self.linear(inputs, outputs, bias=bias, device=self.device, dtype=self.dtype)
        nn.init.xavier_uniform_(linear.weight)
        if bias:
            nn.init.zeros_(linear.bias)
        return linear

    def norm(self, width: int, eps: float) -> nn.Module:
        """Return an RMS norm with gains of 1."""
        return self.rms(width, eps=eps, device=self.device, dtype=self.dtype)


class Encoder(Axis, ABC, family="encoder"):
    """Base of the encoders.

    An encoder owns no tensors: `build` gives the modules of one layer, which keeps them by name,
    and every other method is called with that layer.
    """

    learns_keys: ClassVar[bool] = True
    """True if keys are made by a learned map, False if they are columns of the input."""

    learns_values: ClassVar[bool] = True
    """True if values are made by a learned map of their own."""

    shares: ClassVar[bool] = False
    """True if keys, before any rotation, and values are one tensor."""

    mixes_values: ClassVar[bool] = True
    """True if values are made before they are cached, so that a mixing can be applied to them."""

    def conflicts(self, spec: AttentionSpec) -> list[str]:  # noqa: ARG002 - most fit any spec
        """Return what of the spec this encoder cannot serve, a sentence each."""
        return []

    @abstractmethod
    def key_width(self, spec: AttentionSpec) -> int:
        """Return D, features of a query and of a key."""

    @abstractmethod
    def value_width(self, spec: AttentionSpec) -> int:
        """Return E, features of a value."""

    def rotary_width(self, spec: AttentionSpec) -> int:
        """Return how many features of queries and keys rotary positions rotate."""
        return self.key_width(spec)

    @abstractmethod
    def cached_widths(self, spec: AttentionSpec) -> tuple[tuple[int, int], ...]:
        """Return (heads, width) of each tensor that is cached for a token."""

    @abstractmethod
    def maps(self, spec: AttentionSpec) -> dict[str, LinearMap]:
        """Return each learned linear map by the name of its module."""

    def parameters(self, spec: AttentionSpec) -> int:
        """Count the learned numbers."""
        maps = self.maps(spec).values()
        return sum(m.inputs * m.outputs + m.outputs * spec.bias for m in maps)

    @abstractmethod
    def build(self, spec: AttentionSpec, factory: Factory) -> dict[str, nn.Module]:
        """Return the modules of a layer by name."""

    @abstractmethod
    def queries(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return the queries [B, H, T, D] of x [B, T, M], before any rotation."""

    @abstractmethod
    def cached(self, layer: nn.Module, source: Tensor) -> tuple[Tensor, ...]:
        """Return what a KV cache keeps of the source [B, S, M], before any rotation.

        Tensors [B, heads, S, W] with the sizes of `cached_widths`; keys first, values last.
        """

    def rotate(
        self,
        layer: nn.Module,  # noqa: ARG002 - for encoders that rotate a part
        position: Position,
        q: Tensor,
        cached: tuple[Tensor, ...],
        cos_sin: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return queries and cached tensors with their rotary features rotated."""
        k, *rest = cached
        if q.shape[2] == 1 == k.shape[2]:  # one call for both: calls are what costs there
            heads = q.shape[1], k.shape[1]
            q, k = position.rotate_by(torch.cat([q, k], dim=1), cos_sin).split(heads, dim=1)
        else:
            q, k = position.rotate_by(q, cos_sin), position.rotate_by(k, cos_sin)
        return q, (k, *rest)

    def expand(
        self,
        layer: nn.Module,  # noqa: ARG002 - for encoders that cache something smaller
        cached: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        """Return keys [B, G, S, D] and values [B, G or fewer, S, E] of cached tensors."""
        return cached[0], cached[-1]

    def absorb(
        self,
        layer: nn.Module,  # noqa: ARG002
        q: Tensor,  # noqa: ARG002
        cached: tuple[Tensor, ...],  # noqa: ARG002
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return queries, keys and values that read the cache as it is; None = it is expanded.

        Scores are those of the expanded keys; `restore` makes the outputs theirs, too.
        """
        return None

    def restore(self, layer: nn.Module, out: Tensor) -> Tensor:  # noqa: ARG002
        """Return the outputs [B, H, T, E] of what absorbed queries read."""
        return out
