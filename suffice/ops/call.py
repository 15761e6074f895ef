"""The description of one attention call, by which an op is chosen, and its masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache, reduce
from operator import attrgetter, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from suffice.kernels import Kernel, Softmax
from suffice.patterns import Causal, Full, Pattern
from suffice.positions import NoPosition, Position
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import constant_when_traced, readable


def carries_tangents() -> bool:
    """Return True under forward-mode differentiation (`torch.func.jvp`, dual numbers)."""
    return forward_ad._current_level >= 0


# torch before 2.13 cannot trace the call; Dynamo guards on the transforms itself
@constant_when_traced
def transform_depth() -> int:
    return torch._C._functorch.get_dynamic_layer_stack_depth()


def inside_transform() -> bool:
    """Return True inside a transform of `torch.func` and under forward-mode differentiation."""
    return carries_tangents() or transform_depth() > 0


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One attention call, without its tensors.

    The last four default to what holds where the call is described.

    Args:
        queries: T, positions.
        keys: S, positions.
        num_heads: query heads, H.
        num_kv_heads: key/value heads, G; divides H.
        head_dim: width of queries and keys, D.
        value_dim: width of values, E.
        scale: factor of the query-key products.
        pattern: keys that each query may see.
        kernel: function that turns products into weights.
        position: encoding of positions; some add a bias to the products.
        plain: True if no valid, segments, mask or positions restrict the pattern further.
        pairwise: True if data name the allowed pairs one by one (a mask, two sequences' segments).
        padding: True if `valid` alone restricts the pattern further, each key as it lies.
        documents: True if tokens see their document alone, which counts its positions.
        dropping: True if weights are dropped (training with dropout).
        device: device type, "cpu" or "cuda".
        dtype: dtype of queries, keys and values.
        grad: True if gradients are recorded.
        compiling: True while torch traces the call into a graph.
        transformed: True inside a transform of `torch.func` or under forward-mode differentiation.
        tangents: True under forward-mode differentiation.
    """

    queries: int
    keys: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    pattern: Pattern = Full()
    kernel: Kernel = Softmax()
    position: Position = NoPosition()
    plain: bool = True
    pairwise: bool = False
    padding: bool = False
    documents: bool = False
    dropping: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    grad: bool = field(default_factory=torch.is_grad_enabled)
    compiling: bool = field(default_factory=lambda: torch.compiler.is_compiling())
    transformed: bool = field(default_factory=inside_transform)
    tangents: bool = field(default_factory=carries_tangents)

    @classmethod
    def here(cls, **values: Any) -> AttentionCall:
        """Return a call of all fields but the last four, at a fifth of the constructor's cost."""
        if torch.compiler.is_compiling():
            return cls(**values)
        return cls._filled(
            values,
            grad=torch.is_grad_enabled(),
            compiling=False,
            transformed=inside_transform(),
            tangents=carries_tangents(),
        )

    @classmethod
    def of(
        cls,
        spec: AttentionSpec,
        queries: int,
        keys: int,
        *,
        plain: bool = True,
        pairwise: bool = False,
        padding: bool = False,
        documents: bool = False,
        dropping: bool = False,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> AttentionCall:
        """Return the call of a layer of this spec at these lengths."""
        return cls.here(
            queries=queries,
            keys=keys,
            num_heads=spec.query_heads,
            num_kv_heads=spec.key_heads,
            head_dim=spec.head_width,
            value_dim=spec.value_width,
            scale=spec.score_scale,
            pattern=spec.pattern,
            kernel=spec.kernel,
            position=spec.position,
            plain=plain,
            pairwise=pairwise,
            padding=padding,
            documents=documents,
            dropping=dropping,
            device=device,
            dtype=dtype,
        )

    def of_document(self, length: int) -> AttentionCall:
        """Return the call of one document of this call."""
        lengths = {"queries": length, "keys": length}
        return self._filled(self.__dict__, plain=True, documents=False, **lengths)

    def grown(self, keys: int) -> AttentionCall:
        """Return the same call with another number of keys, as each decoded token makes."""
        return self._filled(self.__dict__, keys=keys)

    @classmethod
    def _filled(cls, values: dict[str, Any], **more: Any) -> AttentionCall:
        call = object.__new__(cls)
        call.__dict__.update(values, **more)
        call.__dict__.pop("_hash", None)
        return call

    def __hash__(self) -> int:
        """Return the hash of all fields, computed once: each call of an op looks up its plan."""
        attributes = self.__dict__
        if "_hash" not in attributes:
            attributes["_hash"] = hash(_values_of(self))
        return attributes["_hash"]

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def unrestricted(self) -> bool:
        """True if every query sees every key."""
        last_only = self.queries == 1 and type(self.pattern) is Causal
        return self.plain and (type(self.pattern) is Full or last_only)

    @property
    def triangular(self) -> bool:
        """True if the pattern is the plain lower triangle and nothing is added to the products."""
        square = self.queries == self.keys and not self.position.biases
        return self.plain and type(self.pattern) is Causal and square


_values_of = attrgetter(*(field.name for field in fields(AttentionCall)))


class Restriction(NamedTuple):
    """The mask an op applies, in which rows without any key are opened: a softmax needs one."""

    allowed: Tensor | None  # bool, broadcasts to [B, H, T, S]; None: everything is allowed
    empty: Tensor | None  # bool, broadcasts to [B, H, T, 1]: opened rows, whose output is 0


@dataclass(frozen=True, kw_only=True)
class MaskInputs:
    """The data that restricts a pattern; None does not restrict it.

    Args:
        valid: bool [B, S], True = a real key, False = padding.
        q_segments: int [B, T], document of each query.
        k_segments: int [B, S], document of each key; a query sees keys of its own document.
        mask: bool [B or 1, H or 1, T, S], True = may attend.
        q_positions: int [B, T]; None: the queries stand last among the keys.
        k_positions: int [B, S]; None: 0..S-1.
        q_valid: bool [B, T], False = a padded query, whose output is 0.
    """

    valid: Tensor | None = None
    q_segments: Tensor | None = None
    k_segments: Tensor | None = None
    mask: Tensor | None = None
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    q_valid: Tensor | None = None

    @property
    def plain(self) -> bool:
        """True if there is no restriction."""
        return self.valid is self.k_segments is self.mask is self.q_positions is None

    @property
    def pairwise(self) -> bool:
        """True if the data name the allowed pairs one by one."""
        apart = self.q_segments is not None and self.q_positions is None
        return self.mask is not None or apart

    @property
    def documents(self) -> bool:
        """True if each token of a sequence sees its document alone."""
        alike = self.q_positions is not None and self.q_positions is self.k_positions
        return alike and self.mask is None

    def numbers(self) -> Tensor:
        """Return the document of each token of a sequence, int [B, T]; -1 = padding."""
        if self.k_segments is None:
            return self.valid.long() - 1
        numbers = self.k_segments.long()
        return numbers if self.valid is None else numbers.masked_fill(~self.valid, -1)

    def only_pads(self, pattern: Pattern) -> bool:
        """Return True if `valid` alone restricts the pattern, each key as it lies.

        Positions that skip padding keep the order of a sequence, but not its distances.
        """
        if self.valid is None or not (self.q_segments is self.k_segments is self.mask is None):
            return False
        ordered = self.q_positions is self.k_positions and type(pattern) in (Full, Causal)
        return self.q_positions is None or ordered

    def allowed(self, pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return True where a query may see a key: bool, broadcasts to [B, H, T, S]."""
        if self.q_positions is None or self.k_positions is None:
            allowed = _with_heads(_pattern_mask(pattern, queries, keys, device))
        else:
            allowed = pattern.allowed(
                self.q_positions[:, None, :, None], self.k_positions[:, None, None, :]
            )
        if self.valid is not None:
            allowed = allowed & self.valid[:, None, None, :]
        if self.q_segments is not None and self.k_segments is not None:
            together = self.q_segments[:, None, :, None] == self.k_segments[:, None, None, :]
            allowed = allowed & together
        if self.mask is not None:
            allowed = allowed & self.mask
        return allowed

    def restrict(self, call: AttentionCall, device: torch.device) -> Restriction:
        """Return the mask an op applies."""
        if call.unrestricted:
            return Restriction(None, None)
        if self.plain:
            return _pattern_restriction(call.pattern, call.queries, call.keys, device)
        return _open(self.allowed(call.pattern, call.queries, call.keys, device))

    def bias(self, call: AttentionCall, device: torch.device) -> Tensor | None:
        """Return what the position adds to the scaled products: [1 or B, H, T, S], or None."""
        if not call.position.biases:
            return None
        if self.q_positions is None or self.k_positions is None:
            k = torch.arange(call.keys, device=device)[None]
            q = k[:, call.keys - call.queries :]
        else:
            q, k = self.q_positions, self.k_positions
        return call.position.bias(call.num_heads, q[:, None, :, None], k[:, None, None, :])

    def cut(self, queries: int, keys: int, of: int) -> MaskInputs:
        """Return the data of the first `keys` of all keys, and of the `queries` that end there."""
        if self.plain and self.q_valid is None:
            return self
        rows, columns = slice(keys - of - queries, keys - of or None), slice(keys)
        parts = {"q": rows, "k": columns, "valid": columns}
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return MaskInputs(
            **{
                name: x[..., rows, columns] if name == "mask" else x[:, parts[name.split("_")[0]]]
                for name, x in data.items()
                if x is not None
            }
        )

    def zero_padded(self, out: Tensor) -> Tensor:
        """Return outputs [B, H, T, E] with those of padded queries set to 0."""
        if self.q_valid is None:
            return out
        return out.masked_fill(~self.q_valid[:, None, :, None], 0.0)

    def clean(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Zero the keys and values [B, G, S, *] that no query may see: 0 * NaN would be NaN."""
        if self.valid is self.k_segments is self.mask is None:
            return k, v
        hidden = reduce(or_, self._hidden(k.shape[1]))[..., None]
        return k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)

    def _hidden(self, groups: int) -> Iterator[Tensor]:
        """Yield masks of keys that no query may see: bool, broadcasts to [B, G, S]."""
        if self.valid is not None:
            yield ~self.valid[:, None]
        if self.q_segments is not None and self.k_segments is not None:
            together = self.q_segments[:, :, None] == self.k_segments[:, None, :]
            yield ~together.any(dim=1)[:, None]
        if self.mask is not None:
            read = self.mask.any(dim=-2)  # [B or 1, H or 1, S]
            if read.shape[1] > 1:
                read = read.unflatten(1, (groups, -1)).any(dim=2)
            yield ~read


CACHED_PAIRS = 1 << 22  # masks of up to 4 MiB are cached


def _pattern_mask(pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor:
    if not readable() or queries * keys > CACHED_PAIRS:
        return pattern.mask(queries, keys, device=device)
    return _cached_mask(pattern, queries, keys, device)


@lru_cache(maxsize=64)
def _cached_mask(pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a cached tensor must serve training calls too
        return pattern.mask(queries, keys, device=device)


def _pattern_restriction(
    pattern: Pattern, queries: int, keys: int, device: torch.device
) -> Restriction:
    if not readable() or queries * keys > CACHED_PAIRS:
        return _open(_with_heads(pattern.mask(queries, keys, device=device)))
    return _cached_restriction(pattern, queries, keys, device)


@lru_cache(maxsize=64)
def _cached_restriction(
    pattern: Pattern, queries: int, keys: int, device: torch.device
) -> Restriction:
    with torch.inference_mode(False):
        allowed, empty = _open(_with_heads(pattern.mask(queries, keys, device=device)))
        named = device.type == "meta" or bool(empty.any())  # without content nothing is known
        return Restriction(allowed.contiguous(), empty if named else None)


def _open(allowed: Tensor) -> Restriction:
    empty = ~allowed.any(dim=-1, keepdim=True)
    return Restriction(allowed | empty, empty)


def _with_heads(mask: Tensor) -> Tensor:
    """Return a mask [T, S] or [H, T, S] as [1, 1 or H, T, S]."""
    return mask[None] if mask.dim() == 3 else mask[None, None]
