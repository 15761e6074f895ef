"""The composition of one attention layer, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

import torch

from suffice.combine import Combine, Concat
from suffice.encoders import Encoder, NoNorm, Norm, Standard
from suffice.errors import ConfigError
from suffice.kernels import Kernel, Softmax
from suffice.kernels.base import why_not_weighed
from suffice.memory import Dynamic, Memory, Rolling
from suffice.memory.past import NoPast, Past
from suffice.mixing import Mixing, NoMixing
from suffice.patterns import Block, Causal, Full, Pattern
from suffice.positions import NoPosition, Position
from suffice.spec.cost import Cost, count
from suffice.spec.lowering import Lowered, lower
from suffice.utils.records import Axis, check_keys, field_errors, is_frozen_dataclass, is_whole

EVERYTHING = Dynamic()

AXES: dict[str, type[Axis]] = {
    "pattern": Pattern,
    "encoder": Encoder,
    "mixing": Mixing,
    "kernel": Kernel,
    "norm": Norm,
    "position": Position,
    "past": Past,
    "combine": Combine,
}
"""The fields of a spec that hold an axis value, and its family."""

RENAMED = {"projections": "encoder", "d_memory": "d_source"}  # fields of older stored specs

KEY_SIDE = ("num_kv_heads", "head_dim", "encoder", "norm", "position")
"""Fields of a spec that determine its keys and values, besides its heads of each map."""

SIZE_NAMES = ("d_model", "num_heads", "num_kv_heads", "head_dim", "d_source")


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Widths of the inputs and outputs of a layer's maps, features."""

    d_model: int
    d_source: int
    q: int
    kv: int
    o: int


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """One attention layer: sizes, and one value on each axis.

    Every illegal combination is refused here, all reasons at once.

    Args:
        d_model: width of x and of the output, features.
        num_heads: query heads.
        num_kv_heads: key/value heads; None: num_heads (MHA), 1 = MQA, between = GQA. Query head
            h reads key/value head h // (num_heads / num_kv_heads).
        head_dim: width of a head; None: d_model / num_heads.
        d_source: width of `source` in cross-attention; None: d_model.
        pattern: keys that each query may see.
        encoder: maps from x to queries, keys and values, and which of these are cached.
        mixing: map of the values along the sequence, before the kernel.
        kernel: function that turns products into weights.
        norm: normalisation of queries and keys, before they are rotated.
        position: encoding of positions: rotations of queries and keys, or a bias on products.
        past: memory of the positions that the pattern leaves out.
        combine: function that turns the outputs of the heads into the layer's output.
        bias: whether the learned maps have biases.
        scale: factor of the products; None: 1 / sqrt(head width).
        dropout: probability of dropping a weight while training.
        shares: number of an earlier layer of the model, from 0, whose keys, values and cache this
            layer reads; it has maps of queries and of the output alone. None: its own.

    Raises:
        ConfigError: naming every rule that is broken.

    Example:
        >>> spec = AttentionSpec(d_model=128, num_heads=4)
        >>> spec.cost(length=64).parameters
        66048
        >>> AttentionSpec.from_json(spec.to_json()) == spec
        True
    """

    d_model: int
    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    d_source: int | None = None
    pattern: Pattern = Full()
    encoder: Encoder = Standard()
    mixing: Mixing = NoMixing()
    kernel: Kernel = Softmax()
    norm: Norm = NoNorm()
    position: Position = NoPosition()
    past: Past = NoPast()
    combine: Combine = Concat()
    bias: bool = True
    scale: float | None = None
    dropout: float = 0.0
    shares: int | None = None

    def __post_init__(self) -> None:
        broken = conflicts(self)
        if broken:
            raise ConfigError(" ".join(broken))
        _ = self.beyond_pairs, self._source_refusals  # so that a forward only reads them

    @property
    def kv_heads(self) -> int:
        """Key/value heads, G."""
        return self.num_kv_heads or self.num_heads

    def refuses_source(self) -> list[str]:
        """Return why keys cannot come from another sequence, a sentence each; [] if they can.

        Example:
            >>> AttentionSpec(d_model=64, num_heads=4, pattern=Causal()).refuses_source()
            ['pattern=Causal() relates queries and keys of one sequence: use Full().']
        """
        return self._source_refusals

    @cached_property
    def _source_refusals(self) -> list[str]:
        values = {axis: getattr(self, axis) for axis in AXES}
        reasons = {axis: value.refuses_source() for axis, value in values.items()}
        return [f"{axis}={values[axis]!r} {text}." for axis, text in reasons.items() if text]

    @property
    def lane(self) -> Literal["pairs", "sums", "recurrence"]:
        """How queries read keys: by weights of pairs, sums of features, or a recurrence."""
        return self.kernel.lane

    @property
    def keeps_documents(self) -> bool:
        """Whether a row may hold several documents, which then do not meet."""
        meets = "past" in self.beyond_pairs or self.encoder.sums_tokens
        return self.mixing.keeps_keys and not meets

    @cached_property
    def beyond_pairs(self) -> dict[str, Any]:
        """The fields that make an output more than weights of pairs of the layer's own values.

        Example:
            >>> from suffice.kernels import Elu
            >>> AttentionSpec(d_model=64, num_heads=4, kernel=Elu()).beyond_pairs
            {'kernel': Elu()}
        """
        present = {
            "past": self.past.reads,
            "kernel": self.lane != "pairs",
            "mixing": self.mixing.mixes,
            "shares": self.shares is not None,
        }
        return {name: getattr(self, name) for name, there in present.items() if there}

    @cached_property
    def query_heads(self) -> int:
        """Heads of queries that the kernel reads: `combine.maps` for each head."""
        return self.num_heads * self.combine.maps

    @cached_property
    def key_heads(self) -> int:
        """Heads of keys that the kernel reads."""
        return self.kv_heads * self.combine.maps

    @cached_property
    def head_width(self) -> int:
        """Features of a query and of a key of one head, D."""
        return self.encoder.key_width(self)

    @cached_property
    def value_width(self) -> int:
        """Features of a value of one head, E."""
        return self.encoder.value_width(self)

    @cached_property
    def widths(self) -> Widths:
        """The widths of x, of the source, and of all heads' queries, keys and outputs."""
        return Widths(
            d_model=self.d_model,
            d_source=self.d_source or self.d_model,
            q=self.query_heads * self.head_width,
            kv=self.key_heads * self.head_width,
            o=self.num_heads * self.value_width,
        )

    @cached_property
    def one_tensor(self) -> bool:
        """True if keys and values, before any mixing, are one tensor."""
        apart = self.position.rotates or self.norm.norms or self.combine.maps > 1
        return self.encoder.shares and not apart

    @cached_property
    def score_scale(self) -> float:
        """The factor of the query-key products."""
        return self.encoder.scaled_width(self) ** -0.5 if self.scale is None else self.scale

    @cached_property
    def cached_widths(self) -> tuple[tuple[int, int], ...]:
        """(heads, width) of each tensor that the kernel reads of a cached token.

        Sums of features, and sums of keys over the whole input, keep no tokens; a layer that
        shares those of another one caches none.
        """
        if not self.mixing.keeps_keys or self.lane != "pairs" or self.shares is not None:
            return ()
        widths = self.encoder.cached_widths(self)
        return (widths[0], (self.kv_heads, self.value_width)) if self.mixing.mixes else widths

    @property
    def unmixed_widths(self) -> tuple[tuple[int, int], ...]:
        """(heads, width) of the unmixed values that are cached for the mixing.

        Nothing where the keys are those values: columns of x that are not rotated.
        """
        mixes = self.mixing.mixes and self.mixing.keeps_keys
        return ((self.kv_heads, self.value_width),) if mixes and not self.keys_are_values else ()

    @property
    def keys_are_values(self) -> bool:
        """True if cached keys are the values before a mixing, at padding too.

        Learned keys hold their bias at padding, where a mixing reads zeros.
        """
        return self.lane == "pairs" and self.one_tensor and not self.encoder.learns_keys

    def memories(self, memory: Memory) -> tuple[Memory, Memory]:
        """Return the memory of the KV cache, and that of values as they were before the mixing."""
        history = self.mixing.history or 0
        if memory.window is None:
            return memory, EVERYTHING
        return memory.widened(history + 1), Rolling(history + 1, spare=memory.spare)

    @property
    def max_length(self) -> int | None:
        """The longest text in tokens; None: unlimited."""
        longest = (axis.max_length for axis in (self.mixing, self.position, self.pattern))
        return min((n for n in longest if n is not None), default=None)

    def _repr_html_(self) -> str:
        # what draws stands above what it draws, and only a notebook asks for it
        catalogue, flow = (import_module(f"suffice.view.{name}") for name in ("catalogue", "flow"))
        title = f"{catalogue.axes(self)}: d_model {self.d_model}, {self.num_heads} heads"
        return flow.flow_svg(flow.flow(self), title)

    def cost(self, length: int, source_length: int | None = None) -> Cost:
        """Return what one sample costs in one forward.

        Args:
            length: positions of x, tokens.
            source_length: positions of the source in cross-attention; None: self-attention.
        """
        return count(self, length, length if source_length is None else source_length)

    def lower(self) -> Lowered | None:
        """Return what the layer computes, for programs that compute it in another way.

        They match on the record's class and refuse those they do not know, None among them.

        Example:
            >>> from suffice.encoders import Efficient
            >>> AttentionSpec(d_model=64, num_heads=4, encoder=Efficient()).lower().values
            'columns'
        """
        return lower(self)

    def state_bytes(
        self, tokens: int, memory: Memory = EVERYTHING, dtype: torch.dtype = torch.float32
    ) -> int:
        """Return the bytes a layer keeps of one text: its KV cache, or its sums of features.

        Room that a memory holds in reserve is not counted.

        Args:
            tokens: number of tokens read so far.
            memory: KV-cache policy.
            dtype: type of keys and values; sums are float32.

        Example:
            >>> from suffice.memory import Rolling
            >>> spec = AttentionSpec(d_model=64, num_heads=4, num_kv_heads=1, pattern=Causal())
            >>> spec.state_bytes(1000, dtype=torch.float16), spec.state_bytes(1000, Rolling(100))
            (64000, 12800)
        """
        cached, unmixed = self.memories(memory)
        return (
            cached.nbytes_of(self.cached_widths, tokens, dtype.itemsize)
            + unmixed.nbytes_of(self.unmixed_widths, tokens, dtype.itemsize)
            + self.cost(1).state_fixed * torch.float32.itemsize
        )

    def attended_positions(self, positions: int, memory: Memory = EVERYTHING) -> int:
        """Return how many of the positions before it the next query of a layer reads.

        Example:
            >>> from suffice.patterns import Window
            >>> spec = AttentionSpec(d_model=64, num_heads=4, pattern=Window(16) & Causal())
            >>> spec.attended_positions(1000), spec.attended_positions(10)
            (16, 10)
        """
        cached = None if memory.window is None else memory.window + memory.sinks
        bounds = (positions, cached, self.pattern.reach)
        return min(bound for bound in bounds if bound is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        data = {
            f.name: value.to_json()
            if (value := getattr(self, f.name)) and f.name in AXES
            else value
            for f in dataclasses.fields(self)
        }
        if self.shares is None:  # stored specs are identified by their JSON
            del data["shares"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AttentionSpec:
        """Rebuild a spec from `to_json`'s data.

        Raises:
            ConfigError: for unknown fields, names or values.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"a spec is stored as a dictionary of its fields, got {data!r}.")
        data = {RENAMED.get(key, key): value for key, value in data.items()}
        fields = [f.name for f in dataclasses.fields(cls)]
        required = ("d_model", "num_heads")
        check_keys(data, fields, required, where="the stored spec", error=ConfigError)
        values: dict[str, Any] = {
            k: AXES[k].from_json(v) if k in AXES else v for k, v in data.items()
        }
        return cls(**values)


def conflicts(spec: AttentionSpec) -> list[str]:
    """Return a sentence for every rule the layer breaks; an empty list is a legal spec."""
    return list(_type_errors(spec)) or [*_head_conflicts(spec), *_axis_conflicts(spec)]


def _type_errors(spec: AttentionSpec) -> Iterator[str]:
    for name, family in AXES.items():
        value = getattr(spec, name)
        if not isinstance(value, family):
            actual = value.family if isinstance(value, Axis) else type(value).__name__
            names = ", ".join(sorted(family.table))
            yield f"{name}={value!r} is a {actual}, not a {name}; legal: {names} (as instances)."
            break
        if not is_frozen_dataclass(type(value)):
            kind = type(value).__name__
            yield f"{name}={kind}() needs its fields: write @dataclass(frozen=True) above {kind}."
            break
    required = ("d_model", "num_heads")
    sizes = {name: getattr(spec, name) for name in SIZE_NAMES}
    stated = {n: size for n, size in sizes.items() if size is not None or n in required}
    legal = {name for name, size in stated.items() if isinstance(size, int) and is_whole(size, 1)}
    if wrong := [f"{name}={size!r}" for name, size in stated.items() if name not in legal]:
        yield f"{', '.join(wrong)}: sizes are whole numbers, at least 1."
    yield from (e for e in field_errors(spec) if e.partition("=")[0] not in SIZE_NAMES)
    if isinstance(spec.shares, int) and not is_whole(spec.shares, 0):
        yield f"shares={spec.shares!r}: give the number of an earlier layer, counted from 0."
    if isinstance(spec.dropout, (int, float)) and not 0.0 <= spec.dropout < 1.0:
        yield f"dropout={spec.dropout} is not a probability below 1; give 0 <= dropout < 1."


def _head_conflicts(spec: AttentionSpec) -> Iterator[str]:
    maps = spec.combine.maps
    if spec.head_dim is None and spec.d_model % (spec.num_heads * maps):
        each = "" if maps == 1 else f" of {maps} maps each"
        legal = [h for h in range(1, min(spec.d_model, 64) + 1) if spec.d_model % (h * maps) == 0]
        use = f"use {_alternatives(legal)} heads, or give head_dim" if legal else "give head_dim"
        yield f"num_heads={spec.num_heads}{each} does not divide d_model={spec.d_model}; {use}."
    if spec.num_heads % spec.kv_heads:
        most = min(spec.num_heads, 4096)  # a number of a file may be any
        legal = [g for g in range(1, most + 1) if spec.num_heads % g == 0]
        yield (
            f"num_kv_heads={spec.kv_heads} does not divide num_heads={spec.num_heads}; "
            f"use {_alternatives(legal)}."
        )
    yield from spec.encoder.conflicts(spec)
    yield from spec.combine.conflicts(spec)
    if spec.pattern.heads not in (None, spec.query_heads):
        yield (
            f"pattern={spec.pattern!r} is made for {spec.pattern.heads} heads, but "
            f"the layer has {spec.query_heads} (num_heads={spec.num_heads}); give PerHead one "
            "pattern for each head, or change num_heads."
        )
    yield from spec.position.conflicts(spec.encoder.rotary_width(spec))


def _axis_conflicts(spec: AttentionSpec) -> Iterator[str]:
    mixing, kernel = type(spec.mixing).__name__, type(spec.kernel).__name__
    if spec.position.biases and not spec.mixing.keeps_keys:
        yield (
            f"position={spec.position!r} weighs keys by where they stand, and {mixing} sums keys "
            "of all positions; use NoPosition, or a mixing that keeps keys."
        )
    elif spec.position.biases and spec.lane != "pairs":
        yield (
            f"position={spec.position!r} adds to the product of each pair, and {kernel} forms no "
            "such products; use Softmax, or Rope."
        )
    if not spec.mixing.keeps_keys and type(spec.pattern) is not Full:
        yield (
            f"{mixing} sums keys of all positions, so pattern={spec.pattern!r} has no keys to "
            "choose from; use Full(), or a mixing that keeps keys."
        )
    if spec.lane == "pairs" and type(spec.kernel) is not Softmax:
        yield from _conflicts_of_weights(spec)
    if not spec.kernel.by_products and spec.encoder.products_only:
        yield (
            f"encoder={spec.encoder!r} keeps the products of queries and keys alone, and "
            f"{kernel}.scores() reads more of them; use Standard()."
        )
    yield from spec.kernel.conflicts(spec.scale)
    yield from spec.kernel.refusals(spec)
    if spec.lane != "pairs":
        yield from _conflicts_of_sums(spec)
    if "past" in spec.beyond_pairs:
        yield from _conflicts_of_past(spec)
    if spec.shares is not None:
        yield from _conflicts_of_sharing(spec)


def _conflicts_of_weights(spec: AttentionSpec) -> Iterator[str]:
    """A kernel of somebody's own is tried once, and its parameters need names of their own."""
    reason = why_not_weighed(spec.kernel, spec.query_heads, spec.head_width, spec.score_scale)
    if reason is not None:
        yield f"kernel={spec.kernel!r}: {reason}."


def _conflicts_of_sums(spec: AttentionSpec) -> Iterator[str]:
    """Sums of features cannot leave single pairs out, nor drop them."""
    kernel = type(spec.kernel).__name__
    if type(spec.pattern) not in (Full, Causal):
        yield (
            f"{kernel} sums over all keys or all earlier ones, so pattern={spec.pattern!r} has no "
            "pairs to choose from; use Full() or Causal(), or Softmax."
        )
    if spec.dropout:
        yield (
            f"{kernel} forms no weights, so dropout={spec.dropout} has nothing to drop; use "
            "dropout=0.0, or Softmax."
        )


def _conflicts_of_past(spec: AttentionSpec) -> Iterator[str]:
    """A memory of earlier segments goes with a causal softmax within a segment."""
    wanted = Block(spec.past.segment) & Causal()
    broken = {
        f"pattern={spec.pattern!r}: give {wanted!r}": spec.pattern != wanted,
        f"kernel={spec.kernel!r}: give Softmax()": "kernel" in spec.beyond_pairs,
        f"mixing={spec.mixing!r}: give NoMixing()": "mixing" in spec.beyond_pairs,
    }
    if any(broken.values()):
        reasons = "; ".join(reason for reason, is_broken in broken.items() if is_broken)
        yield f"past={spec.past!r} needs a softmax within each segment, but {reasons}."


def _conflicts_of_sharing(spec: AttentionSpec) -> Iterator[str]:
    """A layer without its own keys and values makes, mixes, sums and compresses none."""
    broken = {
        f"encoder={spec.encoder!r}, which makes values of the cache by a map of its layer: give "
        "Standard()": not spec.encoder.mixes_values,
        f"kernel={spec.kernel!r}, which keeps sums: give Softmax()": spec.lane != "pairs",
        f"mixing={spec.mixing!r}: give NoMixing(), as values are mixed where they are made": (
            "mixing" in spec.beyond_pairs
        ),
        f"past={spec.past!r}: give NoPast()": "past" in spec.beyond_pairs,
        f"d_source={spec.d_source!r}: leave it out": spec.d_source is not None,
    }
    if any(broken.values()):
        reasons = "; ".join(reason for reason, is_broken in broken.items() if is_broken)
        yield f"shares={spec.shares}: keys and values are those of another layer, but {reasons}."


def check_shares(specs: Sequence[AttentionSpec]) -> None:
    """Raise if a layer shares keys and values that no earlier layer makes for it."""
    for number, spec in enumerate(specs):
        if spec.shares is None:
            continue
        makers = [at for at, earlier in enumerate(specs[:number]) if earlier.shares is None]
        if spec.shares not in makers:
            legal = ", ".join(map(str, makers)) or "none, as no earlier layer makes any"
            raise ConfigError(
                f"block {number} has shares={spec.shares}, which is not an earlier layer with its "
                f"own keys and values; legal: {legal}."
            )
        source = specs[spec.shares]
        if not source.cached_widths:
            raise ConfigError(
                f"block {number} has shares={spec.shares}, whose kernel={source.kernel!r} and "
                f"mixing={source.mixing!r} cache no keys and values; use layers of Softmax."
            )
        pairs = {
            **{name: (getattr(source, name), getattr(spec, name)) for name in KEY_SIDE},
            "num_kv_heads": (source.kv_heads, spec.kv_heads),
            "head_dim": (source.head_width, spec.head_width),
            "maps of a head": (source.combine.maps, spec.combine.maps),
        }
        differing = [f"{n}={b!r}, not {a!r}" for n, (a, b) in pairs.items() if a != b]
        if differing:
            raise ConfigError(
                f"block {number} has shares={spec.shares}, but {'; '.join(differing)}: keys and "
                "values must be of one form; give both layers the same."
            )


def _alternatives(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
