"""Bytes of the KV cache, weights and activations of a decoder with any attention."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import torch

from suffice.encoders import MLA, Efficient, Encoder, Latent, Optimised, Standard
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
LATENT = "MLA"
PROJECTIONS = (*ENCODERS, LATENT)
KERNELS: dict[str, Kernel] = {type(value).__name__: value for value in (Softmax(), Elu())}
MIXINGS: dict[str, type[Mixing]] = {
    value.__name__: value for value in (NoMixing, Alignment, ToeplitzAlignment)
}
BITS = (32, 16, 8, 4)
EXPERT_BITS = (0, 32, 16, 8, 4.25, 4)  # MXFP4: 4 bits, and 8 of a scale for 32 numbers
QUANTISED_BITS = 8  # and below
SUM_BYTES = 4  # of a number that a recurrence carries on
BLOCK, RECENT = Quantised().block, Quantised().recent
LARGEST = 1 << 32  # any size; products are still exact in JavaScript
LENGTHS = tuple(1 << n for n in range(7, 21))  # tokens, of the curve
LONGEST = 1 << 30  # tokens


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """The sizes of a decoder, and the composition of its attention."""

    name: str = "model"
    d_model: int = 2048
    layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 0  # 0 = as many as query heads
    head_dim: int = 0  # 0 = d_model / num_heads
    projections: str = "Standard"  # one of PROJECTIONS
    rank: int = 0  # of MLA: numbers of the latent of keys and values; so are the next three
    rotary_dim: int = 0  # features of the rotary key that all heads share
    value_dim: int = 0  # features of a value; 0 = head_dim
    query_rank: int = 0  # numbers of the latent of queries; 0 = queries are one map of x
    kernel: str = "Softmax"  # a key of KERNELS; Elu is linear attention
    mixing: str = "NoMixing"  # a key of MIXINGS; Alignment is Super Attention
    mixing_size: int = 0  # the longest input of an Alignment, the width of a ToeplitzAlignment
    rotary: bool = False
    window: int = 0  # positions attended to and cached; 0 = all
    sinks: int = 0  # first positions cached beside a window
    full_every: int = 0  # n = every n-th layer is full softmax attention; 0 = none
    full_count: int = 0  # or the number of such layers, where they stand by no rule
    recurrent_numbers: int = 0  # state of each other layer, if that is a recurrence (Mamba, delta)
    recurrent_parameters: int = 0  # learned numbers of such a layer, without its MLP
    gate: bool = False  # a map of x as wide as the heads multiplies the output of attention
    bias: bool = False  # on the maps of the attention
    vocabulary: int = 0  # 0 = no embedding and no head
    mlp_width: int = 0  # 0 = no MLP
    gated: bool = True  # a third map in the MLP (SwiGLU, GeGLU)
    mlp_bias: bool = False
    experts: int = 0  # routed experts in place of the MLP; 0 = none
    expert_width: int = 0  # hidden features of one expert
    shared_experts: int = 0  # experts of the same width that read every token
    active_experts: int = 0  # routed experts that read a token
    dense_layers: int = 0  # first layers with the MLP all the same
    tied: bool = False  # the head shares the weights of the embedding
    positions: int = 0  # rows of learned positions
    norms: int = 2  # in a block; one more stands before the head
    norm_bias: bool = False
    qk_norm: bool = False  # one weight for each feature of a head
    trained: int = 0  # tokens of the longest text it was trained on; 0 = unknown
    batch: int = 1
    chunk: int = 512  # tokens of a text that are read at once; 0 = all
    weight_bits: int = 16
    expert_bits: float = 0.0  # of a routed expert's weight, its scales included; 0 = weight_bits
    state_bits: int = 16  # of a number in the KV cache

    def __post_init__(self) -> None:
        check_fields(self)
        for field in fields(self):
            value = getattr(self, field.name)
            least = int(field.name in ("d_model", "layers", "num_heads", "batch"))
            if type(value) is int and not least <= value <= LARGEST:
                raise ConfigError(f"{field.name}={value}: give {least} to {LARGEST:,}.")
        names = {"projections": PROJECTIONS, "kernel": KERNELS, "mixing": MIXINGS}
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
        self._check_full_layers()
        self._check_latent_and_experts()
        self.specs()

    def _check_full_layers(self) -> None:
        if self.full_count and (self.full_every or self.full_count > self.layers):
            raise ConfigError(
                f"full_count={self.full_count} with full_every={self.full_every} in {self.layers} "
                "layers: give one of the two, and no more than there are."
            )
        if bool(self.recurrent_numbers) != bool(self.recurrent_parameters):
            raise ConfigError("recurrent_numbers and recurrent_parameters: give both, or none.")
        plain = (self.kernel, self.mixing, self.window) == ("Softmax", "NoMixing", 0)
        if self.recurrent_numbers and not plain:
            raise ConfigError(
                "recurrent_numbers are the state of layers without attention: give no window, "
                "mixing or other kernel."
            )

    def _check_latent_and_experts(self) -> None:
        sizes = {name: getattr(self, name) for name in ("rank", "rotary_dim")}
        other = self.value_dim or self.query_rank
        if self.projections == LATENT and not all(sizes.values()):
            raise ConfigError(f"MLA with {_listed(sizes)}: give a rank and a rotary_dim.")
        if self.projections != LATENT and (other or any(sizes.values())):
            raise ConfigError(f"{_listed(sizes)} belong to MLA, not to {self.projections}; give 0.")
        if bool(self.experts) != bool(self.expert_width and self.active_experts):
            raise ConfigError(
                f"experts={self.experts} with expert_width={self.expert_width} and "
                f"active_experts={self.active_experts}: give all three, or none."
            )
        if self.expert_bits not in EXPERT_BITS:
            raise ConfigError(f"expert_bits={self.expert_bits}: give 0, 32, 16, 8, 4.25 or 4.")
        if not self.experts and (self.shared_experts or self.dense_layers):
            raise ConfigError("shared_experts and dense_layers go with experts; give 0.")
        if self.active_experts > self.experts or self.dense_layers > self.layers:
            raise ConfigError(
                f"active_experts={self.active_experts} of {self.experts}, dense_layers="
                f"{self.dense_layers} of {self.layers}: give no more than there are."
            )

    def spec(self, full: bool = False) -> AttentionSpec:
        """Return the spec of a layer, or of a full layer."""
        return _spec(self, full)

    def specs(self) -> list[AttentionSpec]:
        """Return the spec of each block; full layers that follow no rule come last."""
        if self.full_count:
            others = self.layers - self.full_count
            return [self.spec(full=number >= others) for number in range(self.layers)]
        every = self.full_every or self.layers + 1
        return [self.spec(full=number % every == 0) for number in range(1, self.layers + 1)]

    def memory(self, full: bool = False) -> Memory:
        """Return the cache policy of a layer, or of a full layer."""
        windowed = self.window and not full
        memory = Rolling(self.window, sinks=self.sinks) if windowed else Dynamic()
        quantised = self.state_bits <= QUANTISED_BITS
        return Quantised(memory, bits=self.state_bits) if quantised else memory

    @property
    def full_layers(self) -> int:
        """Number of full layers."""
        return self.layers // self.full_every if self.full_every else self.full_count

    @property
    def attention_layers(self) -> int:
        """Number of layers that are no recurrence."""
        return self.full_layers if self.recurrent_numbers else self.layers

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> DecoderSizes:
        """Return sizes from plain data; absent fields have their defaults."""
        if not isinstance(data, dict):
            raise ConfigError(f"a model is a dictionary of its sizes, got {data!r:.80}.")
        legal = [field.name for field in fields(cls)]
        check_keys(data, legal, where="the model", error=ConfigError)
        return cls(**data)


def _listed(sizes: dict[str, int]) -> str:
    return " and ".join(f"{name}={size}" for name, size in sizes.items())


def _encoder(model: DecoderSizes) -> Encoder:
    if model.projections != LATENT:
        return ENCODERS[model.projections]
    return MLA(
        rank=model.rank,
        rotary_dim=model.rotary_dim,
        value_dim=model.value_dim or None,
        query_rank=model.query_rank or None,
    )


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
        encoder=_encoder(model),
        mixing=MIXINGS[model.mixing](model.mixing_size) if mixes else NoMixing(),
        kernel=Softmax() if full else KERNELS[model.kernel],
        position=Rope() if model.rotary else NoPosition(),
        bias=model.bias,
    )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Numbers of learned parameters."""

    attention: int
    mlp: int
    norms: int
    embedding: int  # of tokens and positions
    head: int  # 0 if tied
    resting: int = 0  # of the experts that do not read a token
    experts: int = 0  # of the matrices of all routed experts

    @property
    def total(self) -> int:
        """All parameters."""
        return self.attention + self.mlp + self.norms + self.embedding + self.head

    @property
    def active(self) -> int:
        """Parameters that a token passes: all but those of experts that rest."""
        return self.total - self.resting


def count_weights(model: DecoderSizes) -> Weights:
    """Count the parameters of a model."""
    gate = model.gate * model.d_model * model.num_heads * model.spec().head_width
    layer, full_layer = (model.spec(full).cost(1).parameters + gate for full in (False, True))
    layer = model.recurrent_parameters or layer
    maps = 3 if model.gated else 2
    mlp_biases = model.mlp_bias * ((maps - 1) * model.mlp_width + model.d_model)
    mlp = maps * model.d_model * model.mlp_width + mlp_biases if model.mlp_width else 0
    expert_biases = model.mlp_bias * ((maps - 1) * model.expert_width + model.d_model)
    matrices = maps * model.d_model * model.expert_width
    expert = matrices + expert_biases
    router = model.experts * (model.d_model + model.mlp_bias)
    routed = model.layers - model.dense_layers if model.experts else 0
    experts = (model.experts + model.shared_experts) * expert + router
    norms = model.layers * model.norms + min(model.norms, 1)
    qk_norms = model.attention_layers * model.qk_norm * 2 * model.spec().head_width
    return Weights(
        attention=(model.layers - model.full_layers) * layer + model.full_layers * full_layer,
        mlp=(model.layers - routed) * mlp + routed * experts,
        resting=routed * (model.experts - model.active_experts) * expert,
        experts=routed * model.experts * matrices,
        norms=norms * model.d_model * (1 + model.norm_bias) + qk_norms,
        embedding=(model.vocabulary + model.positions) * model.d_model,
        head=0 if model.tied else model.vocabulary * model.d_model,
    )


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The layers of one kind; bytes are of one layer for one text."""

    kind: str  # "full", "window" or "sums"
    count: int
    kept: int  # cached positions
    state: int  # bytes
    per_token: float  # bytes that one more token adds


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A model's memory, in bytes for the whole batch unless noted otherwise."""

    name: str
    length: int  # tokens of each text
    layers: tuple[Layer, ...]
    per_token: float  # bytes that one more token of one text adds
    state: int  # KV caches and sums of features
    weights: Weights
    weight_bytes: int
    activations: int  # maximum within one block while it reads a chunk
    scores: int  # the query-key matrix of one layer, for an op that stores it
    longest: int | None  # tokens of each text that fit the memory; None = any, or no memory known
    curve: tuple[int | None, ...]  # state at LENGTHS; None beyond the longest input
    total: int  # weights, state and activations

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        weights = {"total": self.weights.total, "active": self.weights.active}
        return asdict(self) | {"weights": {**asdict(self.weights), **weights}}


def calculate(model: DecoderSizes, length: int, memory: int | None = None) -> Answer:
    """Return what a model takes at a length, and the longest texts that fit a memory in bytes.

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
    weight_bytes = _weight_bytes(model, weights)
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


def _weight_bytes(model: DecoderSizes, weights: Weights) -> int:
    """Return the bytes of the weights; the scales of 8 and 4 bits are not counted."""
    bits = (weights.total - weights.experts) * model.weight_bits
    return math.ceil((bits + weights.experts * (model.expert_bits or model.weight_bits)) / 8)


def _layer(model: DecoderSizes, full: bool, count: int, length: int) -> Layer:
    spec, memory, dtype = model.spec(full), model.memory(full), _dtype(model)
    if model.recurrent_numbers and not full:
        state = _layer_bytes(model, full, length)
        return Layer(kind="sums", count=count, kept=0, state=state, per_token=0.0)
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
        state=_layer_bytes(model, full, length),
        per_token=(after - before) / BLOCK if grows else 0.0,
    )


def _kinds(model: DecoderSizes) -> list[tuple[bool, int]]:
    """Return whether the layers are full, and their number, for each kind of layer."""
    kinds = ((False, model.layers - model.full_layers), (True, model.full_layers))
    return [(full, count) for full, count in kinds if count]


def state_bytes(model: DecoderSizes, length: int) -> int:
    """Return the bytes of KV caches and sums of features for the batch."""
    return model.batch * sum(
        count * _layer_bytes(model, full, length) for full, count in _kinds(model)
    )


def _layer_bytes(model: DecoderSizes, full: bool, length: int) -> int:
    if model.recurrent_numbers and not full:
        return SUM_BYTES * model.recurrent_numbers
    return model.spec(full).state_bytes(length, model.memory(full), _dtype(model))


def activation_bytes(model: DecoderSizes, length: int) -> int:
    """Return the peak bytes of one block while it reads a chunk of each text, scores not stored.

    These are the input and its norm, and the larger of the attention's and the MLP's features.
    """
    spec = model.spec()
    heads = spec.widths.o + sum(m.outputs for m in spec.encoder.maps(spec).values())
    reading = model.active_experts + model.shared_experts
    widest = max(model.mlp_width, reading * model.expert_width)
    hidden = (3 if model.gated else 2) * widest
    features = 2 * model.d_model + max(heads, hidden)
    tokens = min(length, model.chunk or length)
    return model.batch * tokens * features * _activation_itemsize(model)


def _longest(model: DecoderSizes, memory: int) -> int | None:
    """Return how many tokens of each text fit beside the weights; None = any number."""

    def fits(length: int) -> bool:
        # recent positions have 16 bits until a block is full, so a shorter text may take more
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
