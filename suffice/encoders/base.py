"""Encoders: from x to queries, and to the keys and values that are cached.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D key width, E value width,
M width of the input, W width of a cached tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from suffice.utils.records import Axis

if TYPE_CHECKING:
    from suffice.memory import Memory
    from suffice.positions import Position
    from suffice.utils.protocols import LayerLike, SpecLike


QUERIES, KEYS = "queries", "keys"


class LinearMap(NamedTuple):
    """A learned linear map of an encoder.

    Args:
        inputs: features it reads.
        outputs: features it gives.
        reads: "queries" if it maps every query position, "keys" if every key position.
    """

    inputs: int
    outputs: int
    reads: str = KEYS


@dataclass(frozen=True)
class Factory:
    """The classes an encoder builds its modules from, and where their parameters live.

    Args:
        linear: class called as linear(inputs, outputs, bias=..., device=..., dtype=...).
        rms: class called as rms(width, eps=..., device=..., dtype=...).
        device: device of the parameters.
        dtype: dtype of the parameters.
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

    sums_tokens: ClassVar[bool] = False
    """True if what is cached adds up along a row: documents of one row would meet in the sums."""

    products_only: ClassVar[bool] = False
    """True if the kernel's queries and keys are others than the formula's, of the same products."""

    mixes_values: ClassVar[bool] = True
    """True if values are made before they are cached, so that a mixing can be applied to them."""

    def conflicts(self, spec: SpecLike) -> list[str]:  # noqa: ARG002 - most fit any spec
        """Return the parts of the spec that this encoder cannot serve, a sentence each."""
        return []

    @abstractmethod
    def key_width(self, spec: SpecLike) -> int:
        """Return D, features of a query and of a key."""

    @abstractmethod
    def value_width(self, spec: SpecLike) -> int:
        """Return E, features of a value."""

    def rotary_width(self, spec: SpecLike) -> int:
        """Return how many features of queries and keys rotary positions rotate."""
        return self.key_width(spec)

    def scaled_width(self, spec: SpecLike) -> int:
        """Return the width whose root divides the products, unless the spec has a scale."""
        return self.key_width(spec)

    @abstractmethod
    def cached_widths(self, spec: SpecLike) -> tuple[tuple[int, int], ...]:
        """Return (heads, width) of each tensor that is cached for a token."""

    @abstractmethod
    def maps(self, spec: SpecLike) -> dict[str, LinearMap]:
        """Return each learned linear map by the name of its module."""

    def parameters(self, spec: SpecLike) -> int:
        """Count the learned numbers."""
        maps = self.maps(spec).values()
        return sum(m.inputs * m.outputs + m.outputs * spec.bias for m in maps)

    @abstractmethod
    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the modules of a layer by name."""

    @abstractmethod
    def queries(self, layer: LayerLike, x: Tensor) -> Tensor:
        """Return the queries [B, H, T, D] of x [B, T, M], before any rotation."""

    @abstractmethod
    def cached(self, layer: LayerLike, source: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors to cache of the source [B, S, M], before any rotation.

        Tensors [B, heads, S, W] with the sizes of `cached_widths`; keys first, values last.
        """

    def at_padding(
        self,
        cached: tuple[Tensor, ...],
        valid: Tensor,  # noqa: ARG002 - for encoders that sum over positions
    ) -> tuple[Tensor, ...]:
        """Return tensors to cache in which padding, where valid [B, S] is False, changes no key."""
        return cached

    def refuses_memory(self, memory: Memory) -> str | None:  # noqa: ARG002 - most take any
        """Return why keys cannot be kept by this memory; None if they can."""

    def rotate(
        self,
        layer: LayerLike,  # noqa: ARG002 - for encoders that rotate a part
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
        layer: LayerLike,  # noqa: ARG002 - for encoders that cache something smaller
        cached: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        """Return keys [B, G, S, D] and values [B, G or fewer, S, E] of cached tensors."""
        return cached[0], cached[-1]

    def products(
        self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values whose products, scaled, are the scores.

        The queries [B, H, T, D] are the last T of the cached positions.
        """
        return (q, *self.expand(layer, cached))

    def runs(self, length: int, cached: tuple[Tensor, ...]) -> list[int]:  # noqa: ARG002
        """Return the lengths of runs of queries, one after another, that are computed apart."""
        return [length]

    def absorb(
        self,
        layer: LayerLike,  # noqa: ARG002
        q: Tensor,  # noqa: ARG002
        cached: tuple[Tensor, ...],  # noqa: ARG002
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return queries, keys and values that read the cache unexpanded; None: it is expanded.

        Scores are those of the expanded keys; `restore` makes the outputs theirs, too.
        """
        return None

    def restore(self, layer: LayerLike, out: Tensor) -> Tensor:  # noqa: ARG002
        """Return the outputs [B, H, T, E] from those of absorbed queries."""
        return out


class Columns(nn.Module):
    """The first `width` columns of x [B, T, M], a view: a projection without parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return the view."""
        return x[..., : self.width]

    def extra_repr(self) -> str:
        """Show the width in the printed module."""
        return f"width={self.width}"


class LinearEncoder(Encoder, base=True):
    """Base of the encoders whose queries, keys and values are each one linear map of x.

    A map that is not learned takes the first columns of its input: head g of K and V is a column
    slice of x, and nothing is copied. Modules: q_proj, k_proj and v_proj, and q_norm, k_norm and
    v_norm of the spec's norm.
    """

    def conflicts(self, spec: SpecLike) -> list[str]:
        """Keys and values that are columns of x need the width of x."""
        if self.learns_keys and (self.learns_values or self.shares):
            return []
        columns, source = spec.widths.kv, spec.widths.d_source
        every_head = spec.kv_heads == spec.num_heads
        if columns == source or (columns < source and not every_head):
            return []
        rule = "exactly" if every_head else "at most"
        return [
            f"{type(self).__name__} takes {'values' if self.learns_keys else 'keys and values'} as "
            f"column slices of its input, {rule} {source} columns, but num_kv_heads * head_dim = "
            f"{spec.kv_heads} * {columns // spec.kv_heads} = {columns}; "
            "change head_dim or d_source, or use the Standard encoder."
        ]

    def key_width(self, spec: SpecLike) -> int:
        """Return head_dim, or an equal share of d_model."""
        return spec.head_dim or spec.d_model // (spec.num_heads * spec.combine.maps)

    def value_width(self, spec: SpecLike) -> int:
        """Return the width of a key, for each map that reads the value."""
        return self.key_width(spec) * spec.combine.maps

    def cached_widths(self, spec: SpecLike) -> tuple[tuple[int, int], ...]:
        """Return keys and values; one tensor where both are the same."""
        keys = spec.key_heads, spec.head_width
        return (keys,) if spec.one_tensor else (keys, (spec.kv_heads, spec.value_width))

    def maps(self, spec: SpecLike) -> dict[str, LinearMap]:
        """Return q_proj, and k_proj and v_proj where they are learned and not another layer's."""
        widths = spec.widths
        maps = {"q_proj": LinearMap(widths.d_model, widths.q, QUERIES)}
        if spec.shares is not None:
            return maps
        if self.learns_keys:
            maps["k_proj"] = LinearMap(widths.d_source, widths.kv, KEYS)
        if self.learns_values:
            maps["v_proj"] = LinearMap(widths.d_source, widths.kv, KEYS)
        return maps

    def parameters(self, spec: SpecLike) -> int:
        """Count the maps and the norms of queries and keys."""
        gains = sum(
            spec.norm.parameters(heads, spec.head_width) for heads in _normed(spec).values()
        )
        return super().parameters(spec) + gains

    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the modules."""
        width = spec.widths.kv
        modules: dict[str, nn.Module] = {
            name: factory.map(linear.inputs, linear.outputs, bias=spec.bias)
            for name, linear in self.maps(spec).items()
        }
        for name, heads in _normed(spec).items():
            modules[name] = spec.norm.build(heads, spec.head_width, factory)
        if spec.shares is not None:
            return modules
        modules.setdefault("k_proj", Columns(width))
        values = nn.Identity() if self.shares and self.learns_keys else Columns(width)
        modules.setdefault("v_proj", values)
        modules["v_norm"] = spec.norm.build_values()
        return modules

    def queries(self, layer: LayerLike, x: Tensor) -> Tensor:
        """Return the queries, normalised."""
        q_BTHD = _heads(layer.q_proj(x), layer.query_heads)
        if layer.key_heads != layer.value_heads:  # queries that share a key stand together
            spec = layer.spec
            shared = spec.num_heads // spec.kv_heads
            q_BTHD = q_BTHD.unflatten(2, (spec.kv_heads, shared, spec.combine.maps))
            q_BTHD = q_BTHD.transpose(3, 4).flatten(2, 4)
        return layer.q_norm(q_BTHD).transpose(1, 2)

    def cached(self, layer: LayerLike, source: Tensor) -> tuple[Tensor, ...]:
        """Return keys, normalised, and values; one tensor where both are the same."""
        k_BSW = layer.k_proj(source)
        k = layer.k_norm(_heads(k_BSW, layer.key_heads)).transpose(1, 2)
        if layer.one_tensor:
            return (k,)
        v_BSW = k_BSW if self.shares else layer.v_proj(source)
        return k, layer.v_norm(_heads(v_BSW, layer.value_heads)).transpose(1, 2)


def _normed(spec: SpecLike) -> dict[str, int]:
    keys = {} if spec.shares is not None else {"k_norm": spec.key_heads}
    return {"q_norm": spec.query_heads, **keys}


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads)


@dataclass(frozen=True)
class Standard(LinearEncoder):
    """Q = x W_Q, K = x W_K, V = x W_V.

    The multi-head attention of every Transformer; the yardstick of all others here.

    Cost: 4 (d^2 + d) parameters with biases and the output map W_O; 8 T d^2 FLOPs.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. No difference.
    """


@dataclass(frozen=True)
class Optimised(LinearEncoder):
    """Q = x W_Q, K = x W_K, V = x: W_O alone transforms the values.

    Two linear maps in a row (W_V, then W_O) are one; head i takes the i-th column slice of x.
    With one head it is as expressive as Standard; with more heads W_V could have mixed features
    across slices, which this cannot.

    Cost: 3 (d^2 + d) parameters with biases and W_O; 6 T d^2 FLOPs.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 2. Differs: the paper's text slices
    rows of V where the shapes need columns.
    """

    learns_values = False


@dataclass(frozen=True)
class Efficient(LinearEncoder):
    """Q = x W_Q, K = V = x.

    Keys and values are the same tensor, so the KV cache is x alone: half of Standard's. With one
    head it is as expressive as Standard; it equals multi-head attention whose W_K and W_V are the
    identity.

    Cost: 2 (d^2 + d) parameters with biases and W_O; 4 T d^2 FLOPs.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 3 (one wide head in version 1 of
    the paper, slices from version 2). Differs: columns where the paper's text says rows.
    """

    learns_keys = False
    learns_values = False
    shares = True


@dataclass(frozen=True)
class Latent(LinearEncoder):
    """Q = x W_Q, K = V = c = x W_C.

    The KV cache is c alone, num_kv_heads * head_dim numbers a token. With num_kv_heads=1 every
    query head reads the same c, whose width head_dim is then free to choose: at d_model nothing
    Standard attention without rotary positions computes is lost, below it less is cached. Give
    scale= where a trained layer's products are to keep theirs. `MLA` is the form with rotary
    positions.

    Cost: d (H + 1) r + r d H parameters without biases for one c of width r; cache r.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1, with the maps from the latent back to
    keys and values taken into W_Q and W_O. Differs: no separate rotary keys.
    """

    learns_values = False
    shares = True
