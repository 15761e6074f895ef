"""What a language model keeps, weighs and holds at once, for any composition of attention."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import torch

from suffice.encoders import Efficient, Encoder, Latent, Optimised, Standard
from suffice.errors import ConfigError, unknown
from suffice.kernels import Elu, Kernel, Softmax
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.mixing import Alignment, Mixing, NoMixing, ToeplitzAlignment
from suffice.patterns import Causal, Pattern, Window
from suffice.positions import NoPosition, Rope
from suffice.records import check_fields, check_keys, is_whole
from suffice.spec import AttentionSpec

ENCODERS: dict[str, Encoder] = {
    type(value).__name__: value for value in (Standard(), Optimised(), Efficient(), Latent())
}
KERNELS: dict[str, Kernel] = {type(value).__name__: value for value in (Softmax(), Elu())}
MIXINGS: dict[str, type[Mixing]] = {
    value.__name__: value for value in (NoMixing, Alignment, ToeplitzAlignment)
}
BITS = (32, 16, 8, 4)
QUANTISED_BITS = 8  # and below
BLOCK, RECENT = Quantised().block, Quantised().recent
LARGEST = 1 << 32  # of any size: what follows from it is still exact in a page
LENGTHS = tuple(1 << n for n in range(7, 21))  # of the curve, tokens
LONGEST = 1 << 30  # tokens; further no memory is tried


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """The sizes of a decoder and what its attention is composed of.

    Args:
        name: for people.
        d_model: features.
        layers: blocks.
        num_heads: query heads.
        num_kv_heads: key/value heads; 0 = as many as query heads.
        head_dim: width of a head; 0 = d_model / num_heads.
        projections: the encoder: Standard, Optimised, Efficient or Latent.
        kernel: Softmax, or Elu for sums of features (linear attention).
        mixing: NoMixing, Alignment (Super Attention) or ToeplitzAlignment.
        rotary: queries and keys are rotated.
        mixing_size: the longest input of an Alignment, the width of a ToeplitzAlignment.
        window: latest positions that are attended to and cached; 0 = all.
        sinks: first positions that are cached beside a window.
        full_every: every so many layers is full softmax attention instead; 0 = none.
        bias: biases on the maps of the attention.
        vocabulary: tokens; 0 = no embedding and no head.
        mlp_width: features inside a block's MLP; 0 = no MLP.
        gated: a third map in the MLP (SwiGLU, GeGLU).
        mlp_bias: biases on its maps.
        tied: the head's weights are the tokens' rows.
        positions: rows of learned positions.
        norms: norms in a block; one more stands before the head.
        norm_bias: biases on them.
        qk_norm: norms of queries and keys, one number for each feature of a head.
        batch: texts at once.
        chunk: tokens of a text that are read at once; 0 = all of them.
        weight_bits: of a weight: 32, 16, 8 or 4.
        state_bits: of a cached number: 32, 16, 8 or 4.

    Raises:
        ConfigError: for sizes, names or bits that are not legal.

    Example:
        >>> DecoderSizes(name="small", d_model=64, num_heads=4, layers=2).specs()[0].kv_heads
        4
    """

    name: str = "model"
    d_model: int = 2048
    layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 0
    head_dim: int = 0
    projections: str = "Standard"
    kernel: str = "Softmax"
    mixing: str = "NoMixing"
    mixing_size: int = 0
    rotary: bool = False
    window: int = 0
    sinks: int = 0
    full_every: int = 0
    bias: bool = False
    vocabulary: int = 0
    mlp_width: int = 0
    gated: bool = True
    mlp_bias: bool = False
    tied: bool = False
    positions: int = 0
    norms: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    batch: int = 1
    chunk: int = 512
    weight_bits: int = 16
    state_bits: int = 16

    def __post_init__(self) -> None:
        check_fields(self)
        for field in fields(self):
            value = getattr(self, field.name)
            least = int(field.name in ("d_model", "layers", "num_heads", "batch"))
            if type(value) is int and not least <= value <= LARGEST:
                raise ConfigError(f"{field.name}={value}: give {least} to {LARGEST:,}.")
        names = {"projections": ENCODERS, "kernel": KERNELS, "mixing": MIXINGS}
        for name, legal in names.items():
            if getattr(self, name) not in legal:
                raise unknown(name, getattr(self, name), legal)
        for name in ("weight_bits", "state_bits"):
            if getattr(self, name) not in BITS:
                raise ConfigError(f"{name}={getattr(self, name)}: give 32, 16, 8 or 4.")
        if (self.mixing == "NoMixing") != (self.mixing_size == 0):
            raise ConfigError(
                f"mixing={self.mixing} with mixing_size={self.mixing_size}: give a size of at "
                "least 1 to Alignment and ToeplitzAlignment, and 0 to NoMixing."
            )
        if self.sinks and not self.window:
            raise ConfigError(
                f"sinks={self.sinks} without a window: everything is cached anyway; give a window."
            )
        if self.window and self.mixing == "Alignment":
            raise ConfigError(
                f"window={self.window} with Alignment, which reads all earlier values: nothing "
                "could be dropped; use ToeplitzAlignment, or no window."
            )
        self.specs()

    def spec(self, full: bool = False) -> AttentionSpec:
        """Return the spec of a layer, or of one of those that are full instead."""
        return _spec(self, full)

    def specs(self) -> list[AttentionSpec]:
        """Return the spec of each block."""
        every = self.full_every or self.layers + 1
        return [self.spec(full=number % every == 0) for number in range(1, self.layers + 1)]

    def memory(self, full: bool = False) -> Memory:
        """Return the memory of such a layer."""
        windowed = self.window and not full
        memory = Rolling(self.window, sinks=self.sinks) if windowed else Dynamic()
        quantised = self.state_bits <= QUANTISED_BITS
        return Quantised(memory, bits=self.state_bits) if quantised else memory

    @property
    def full_layers(self) -> int:
        """Layers that are full instead."""
        return self.layers // self.full_every if self.full_every else 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> DecoderSizes:
        """Rebuild sizes from plain data; fields that are absent have their defaults.

        Raises:
            ConfigError: for data that is no dictionary, unknown fields, or values not legal.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"a model is a dictionary of its sizes, got {data!r:.80}.")
        legal = [field.name for field in fields(cls)]
        check_keys(data, legal, where="the model", error=ConfigError)
        return cls(**data)


@lru_cache(maxsize=256)
def _spec(model: DecoderSizes, full: bool) -> AttentionSpec:
    pattern: Pattern = Causal()
    if model.window and not full:
        pattern = Window(model.window) & Causal()
    mixes = not full and model.mixing_size > 0
    return AttentionSpec(
        d_model=model.d_model,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads or None,
        head_dim=model.head_dim or None,
        pattern=pattern,
        encoder=ENCODERS[model.projections],
        mixing=MIXINGS[model.mixing](model.mixing_size) if mixes else NoMixing(),
        kernel=Softmax() if full else KERNELS[model.kernel],
        position=Rope() if model.rotary else NoPosition(),
        bias=model.bias,
    )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Learned numbers.

    Args:
        attention: of all attention layers.
        mlp: of all MLPs.
        norms: of all norms.
        embedding: rows of tokens and positions.
        head: of a head that is not tied.
    """

    attention: int
    mlp: int
    norms: int
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.attention + self.mlp + self.norms + self.embedding + self.head


def count_weights(model: DecoderSizes) -> Weights:
    """Count what a model learns.

    Example:
        >>> count_weights(DecoderSizes(d_model=64, num_heads=4, layers=2, norms=0)).attention
        32768
    """
    layer, full_layer = (model.spec(full).cost(1).parameters for full in (False, True))
    maps = 3 if model.gated else 2
    mlp_biases = model.mlp_bias * ((maps - 1) * model.mlp_width + model.d_model)
    mlp = maps * model.d_model * model.mlp_width + mlp_biases if model.mlp_width else 0
    norms = model.layers * model.norms + min(model.norms, 1)
    qk_norms = model.layers * model.qk_norm * 2 * model.spec().head_width
    return Weights(
        attention=(model.layers - model.full_layers) * layer + model.full_layers * full_layer,
        mlp=model.layers * mlp,
        norms=norms * model.d_model * (1 + model.norm_bias) + qk_norms,
        embedding=(model.vocabulary + model.positions) * model.d_model,
        head=0 if model.tied else model.vocabulary * model.d_model,
    )


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The layers of one kind.

    Args:
        kind: "full", "window" or "sums".
        count: how many.
        kept: positions that one of them caches at this length.
        state: bytes of one of them for one text.
        per_token: bytes that one more token adds to one of them at this length.
    """

    kind: str
    count: int
    kept: int
    state: int
    per_token: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Bytes, of the whole batch unless said otherwise.

    Args:
        name: of the model.
        length: tokens of each text.
        layers: each kind of layer.
        per_token: what one more token of one text adds, all layers.
        state: KV caches and sums of features.
        weights: learned numbers.
        weight_bytes: theirs.
        activations: most that one block holds at once while it reads a chunk.
        scores: the numbers of one layer's query-key matrix, where an op would keep it.
        longest: tokens of each text that fit into the memory, 0 = not one; None = any number, or
            no memory was given.
        curve: the state at `LENGTHS`; None where the model cannot read so much.
        total: weights, state and activations.
    """

    name: str
    length: int
    layers: tuple[Layer, ...]
    per_token: float
    state: int
    weights: Weights
    weight_bytes: int
    activations: int
    scores: int
    longest: int | None
    curve: tuple[int | None, ...]
    total: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"weights": {**asdict(self.weights), "total": self.weights.total}}


def calculate(model: DecoderSizes, length: int, memory: int | None = None) -> Answer:
    """Return what a model takes.

    Args:
        model: its sizes.
        length: tokens of each text.
        memory: bytes there are; None = the longest text that fits is not looked for.

    Raises:
        ConfigError: for a length it cannot read, or a memory below 1 byte.

    Example:
        >>> answer = calculate(DecoderSizes(d_model=2048, num_heads=32, layers=32), 2048)
        >>> answer.state, answer.layers[0].state, answer.layers[0].per_token
        (536870912, 16777216, 8192.0)
    """
    for name, value in (("length", length), ("memory", memory)):
        if not is_whole(value, least=1) and not (name == "memory" and value is None):
            raise ConfigError(f"{name}={value!r}: give a whole number of at least 1.")
    if length > LONGEST:
        raise ConfigError(f"length={length}: give at most {LONGEST:,} tokens.")
    if length > _max_length(model):
        raise ConfigError(
            f"{model.mixing} is made for {model.mixing_size:,} tokens and cannot read {length:,}; "
            "give it a longer mixing_size, or less to read."
        )
    layers = tuple(_layer(model, full, count, length) for full, count in _kinds(model))
    weights = count_weights(model)
    state, activations = state_bytes(model, length), activation_bytes(model, length)
    weight_bytes = -(-weights.total * model.weight_bits // 8)  # without scales of few bits
    return Answer(
        name=model.name,
        length=length,
        layers=layers,
        per_token=sum(layer.count * layer.per_token for layer in layers),
        state=state,
        weights=weights,
        weight_bytes=weight_bytes,
        activations=activations,
        scores=model.batch * model.num_heads * length * length * _activation_itemsize(model),
        longest=None if memory is None else _longest(model, memory - weight_bytes),
        curve=tuple(state_bytes(model, n) if n <= _max_length(model) else None for n in LENGTHS),
        total=weight_bytes + state + activations,
    )


def _layer(model: DecoderSizes, full: bool, count: int, length: int) -> Layer:
    spec, memory, dtype = model.spec(full), model.memory(full), _dtype(model)
    room = length
    if memory.window is not None:
        room = spec.memories(memory)[0].window + memory.sinks
    grows = memory.window is None or length < room
    everything = Quantised(bits=model.state_bits) if memory.lossy else Dynamic()
    before, after = (
        spec.state_bytes(tokens, everything, dtype) for tokens in (LONGEST, LONGEST + BLOCK)
    )
    sums = spec.cost(1).state_numbers == 0
    return Layer(
        kind="window" if memory.window is not None else "sums" if sums else "full",
        count=count,
        kept=0 if sums else min(length, room),
        state=spec.state_bytes(length, memory, dtype),
        per_token=(after - before) / BLOCK if grows else 0.0,
    )


def _kinds(model: DecoderSizes) -> list[tuple[bool, int]]:
    """Return (whether they are full, how many) of each kind of layer there is."""
    kinds = ((False, model.layers - model.full_layers), (True, model.full_layers))
    return [(full, count) for full, count in kinds if count]


def state_bytes(model: DecoderSizes, length: int) -> int:
    """Return the bytes of KV caches and sums of features, of a batch of texts."""
    return model.batch * sum(
        count * model.spec(full).state_bytes(length, model.memory(full), _dtype(model))
        for full, count in _kinds(model)
    )


def activation_bytes(model: DecoderSizes, length: int) -> int:
    """Return the most bytes that one block holds at once while it reads a chunk of each text.

    Beside the input and its norm, either queries, learned keys and values and the heads' outputs,
    or what the MLP makes: hidden features before and after the activation, and with a gate their
    product. Scores are not kept.
    """
    spec = model.spec()
    heads = spec.widths.o + sum(m.outputs for m in spec.encoder.maps(spec).values())
    hidden = (3 if model.gated else 2) * model.mlp_width
    features = 2 * model.d_model + max(heads, hidden)
    tokens = min(length, model.chunk or length)
    return model.batch * tokens * features * _activation_itemsize(model)


def _longest(model: DecoderSizes, memory: int) -> int | None:
    """Return how many tokens of each text fit beside the weights; None = any number."""

    def fits(length: int) -> bool:
        # positions wait in 16 bits until a block is full, so the state may be larger before
        fullest = max(length - (length - RECENT + 1) % BLOCK, 0)
        state = max(state_bytes(model, length), state_bytes(model, fullest))
        return state + activation_bytes(model, length) <= memory

    limit = _max_length(model)
    if fits(limit):
        return None if limit == LONGEST else limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _max_length(model: DecoderSizes) -> int:
    return min(model.spec().max_length or LONGEST, LONGEST)


def _dtype(model: DecoderSizes) -> torch.dtype:
    return torch.float32 if model.state_bits == torch.finfo(torch.float32).bits else torch.float16


def _activation_itemsize(model: DecoderSizes) -> int:
    return 4 if model.weight_bits == 32 else 2  # noqa: PLR2004


__all__ = [
    "LENGTHS",
    "Answer",
    "DecoderSizes",
    "Layer",
    "Weights",
    "calculate",
    "count_weights",
]
