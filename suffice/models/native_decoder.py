"""Decoding of a language model, one token or a short piece of text in one call of native code.

Letters: B rows, T tokens of each, M d_model, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from suffice.encoders import HeadLayerNorm, HeadRMS, ProjectionRMS
from suffice.errors import ConfigError
from suffice.layers import Dropout
from suffice.layers.inputs import check_rows
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear
from suffice.layers.positions import StepPositions
from suffice.memory import Memory, Slot
from suffice.mixing.value_map import ValueMap
from suffice.models.lm import LM, LMConfig
from suffice.models.state import ModelState
from suffice.ops.linear import Linear
from suffice.ops.native import cache
from suffice.ops.native import library as native
from suffice.ops.native.cache import MixingDescriptor
from suffice.ops.native.decode import EVERYTHING
from suffice.ops.native.matrix import KINDS, structure_of, structure_of_parts
from suffice.patterns import Band
from suffice.spec import AttentionSpec
from suffice.spec.lowering import (
    KEYS,
    BoundedSoftmax,
    DenseSoftmax,
    DifferentialSoftmax,
    FeatureSum,
    SharedSoftmax,
    not_dense,
)

MAX_HEAD_DIM, MAX_QUERIES = 576, 128  # of suffice/csrc: features of a head, heads that share keys
ACTIVATIONS = {
    "gelu": native.GELU,
    "gelu_tanh": native.GELU_TANH,
    "relu": native.RELU,
    "tanh": native.TANH,
    "swiglu": native.SWIGLU,
    "geglu": native.GEGLU,
    "geglu_tanh": native.GEGLU_TANH,
}
RESIDUALS = {"pre": native.PRE, "both": native.PRE, "out": native.OUT, "parallel": native.PARALLEL}
HEAD_NORMS = {
    HeadRMS: native.HEAD_RMS,
    HeadLayerNorm: native.HEAD_LAYER,
    ProjectionRMS: native.PROJECTION_RMS,
}
DECODED = (DenseSoftmax, BoundedSoftmax, SharedSoftmax, DifferentialSoftmax)
LAYOUTS = {"half": native.HALVES, "interleaved": native.PAIRS}
IDS = (torch.int64, torch.int32)
SPAN = 1024  # positions for which buffers and tables are allocated at once
# of a piece that is read in one native call: its tokens, and pairs of a token and a position of the
# text; torch's products, and the kernels of whole sequences, are faster beyond
MAX_TOKENS, MAX_PAIRS = 128, 1 << 17


class NativeDecoder:
    """A language model that decodes one token of each row, or a short piece, in one native call.

    It reads the model's weights, which must not move meanwhile, and its states. Arithmetic is
    float32, whatever the weights are stored in. `checked`: whether `unsupported` has been asked.
    """

    def __init__(self, lm: LM, memory: Memory, *, checked: bool = False) -> None:
        if reason := None if checked else unsupported(lm, memory):
            raise ConfigError(f"no native decoding: {reason}.")
        self.lm, self.config, self.specs, self.device = lm, lm.config, lm.specs, lm.device
        self.state, self.logits = lm.state, lm.logits
        self.train = lm.train
        self.library = native.library()
        self.memory = memory
        self.depth = len(lm.blocks)
        self.lowered: list[Any] = [spec.lower() for spec in lm.specs]
        self.tensors: list[Tensor] = []  # that the structures point at
        self.layers = (native.Layer * self.depth)(*map(self._layer, lm.blocks, self.lowered))
        self.model = self._model()
        self.dtype = lm.norm.weight.dtype
        bands = [layer.band for layer in self.lowered]
        self.has_sinks = any(band.sinks for band in bands)
        self.kv_caches = (native.KVCache * self.depth)()
        self.caches = [
            cache.CacheDescriptor(kv_cache, memory, _window(band), layer.value_width, band.sinks)
            for kv_cache, layer, band in zip(self.kv_caches, self.lowered, bands, strict=True)
        ]
        for layer, descriptor in zip(self.layers, self.caches, strict=True):
            layer.before = EVERYTHING if descriptor.window is None else descriptor.window - 1
        self.mixes = (native.Mixing * self.depth)()
        self.mixings = [
            self._mixing(mix, block.attention.mixing) if layer.mixing else None
            for mix, block, layer in zip(self.mixes, lm.blocks, self.lowered, strict=True)
        ]
        self.last_state: weakref.ref[ModelState] | None = None  # which needs no check again
        self.prefill = max(memory.sinks, 1)  # positions that the model itself has to read
        self.piece = 0  # tokens of a row that may be read in one call
        if all(_reads_pieces(spec, memory) for spec in lm.specs):
            self.piece = min(MAX_TOKENS, memory.window or MAX_TOKENS)
        self.table_length = 0  # positions of the tables of rotations and embeddings
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.buffer_sizes: tuple[int, int, int] | None = None

    @property
    def training(self) -> bool:
        return self.lm.training

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Return the logits [B, V] after one more token [B] of each row.

        The model itself reads the first tokens of a text, from which sizes are known and which
        sinks keep, and padded rows where a pattern has sinks, whose positions differ by row.
        """
        if state.length < self.prefill:
            return self.lm.step(tokens, state)
        if self.training or torch.is_grad_enabled():
            raise ConfigError(
                "native decoding has no dropout and no gradients; call eval(), and step under "
                "torch.inference_mode() or torch.no_grad()."
            )
        ids = self._check(tokens, state)
        step = state.next(tokens[:, None])
        if step.places is not None:
            if self.has_sinks:
                return self.lm.step(tokens, state)
            if not _padded_on_the_left(step):
                raise ConfigError(
                    "padding follows a real token of a row: native decoding takes it on the left "
                    "alone; pad on the left, or step with the model itself."
                )
        logits = torch.empty(len(ids), self.config.vocabulary_size)
        self._run(ids, step, state, logits=logits)
        return logits

    def features(self, tokens: Tensor, *, valid: Tensor | None = None, state: ModelState) -> Tensor:
        short = tokens.dim() == 2 and tokens.shape[1] <= self.piece  # noqa: PLR2004 - [B, T]
        readable = short and 0 < tokens.numel() <= MAX_TOKENS and tokens.dtype in IDS
        readable = readable and tokens.numel() * (state.length + tokens.shape[1]) <= MAX_PAIRS
        if not readable or self.training or torch.is_grad_enabled():
            return self.lm.features(tokens, valid=valid, state=state)
        check_rows("tokens", tokens, valid)
        ids = self._check(tokens, state)
        step = state.next(tokens, valid)
        if step.places is not None and not _padded_on_the_left(step):
            return self.lm.features(tokens, valid=valid, state=state)
        features = torch.empty(*tokens.shape, self.config.d_model)
        self._run(ids, step, state, features=features)
        return features.to(self.dtype)

    def _run(
        self,
        ids: list[int],
        step: StepPositions,
        state: ModelState,
        *,
        features: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> None:
        """Read the ids of B T tokens, and write what is asked for."""
        rows, padding = step.batch, [0] * step.batch
        if step.places is not None:
            padding = (step.start + step.length - 1 - step.rows.positions[:, -1]).tolist()
        positions = [step.start - padded for padded in padding]  # of the first tokens
        self._extend_tables(max(positions) + step.length)
        longest = self._append(state, step, positions)
        threads = torch.get_num_threads()
        self._allocate(len(ids), longest, threads)
        numbers = native.INT * rows
        self.library.suffice_step(
            self.model,
            self.kv_caches,
            self.mixes,
            (native.INT * len(ids))(*ids),
            numbers(*positions),
            numbers(*padding),
            rows,
            step.length,
            longest,
            None if features is None else features.data_ptr(),
            None if logits is None else logits.data_ptr(),
            self.buffer.data_ptr(),
            threads,
        )

    def _check(self, tokens: Tensor, state: ModelState) -> list[int]:
        """Return the ids; raise for ids and states that native code would read out of bounds."""
        ids = tokens.flatten().tolist()
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.config.vocabulary_size:
            raise ConfigError(
                f"tokens hold id {low if low < 0 else high}; give ids of 0 to "
                f"{self.config.vocabulary_size - 1}."
            )
        if self.last_state is not None and self.last_state() is state:
            return ids
        theirs = [(layer.spec, layer.memory) for layer in state.layers]
        if theirs != [(spec, self.memory) for spec in self.specs]:
            raise ConfigError(
                f"the state has {len(theirs)} layers of {theirs[0][1]!r} and the decoder "
                f"{self.depth} of {self.memory!r}; make it by state({self.memory!r}) of the same "
                "model."
            )
        self.last_state = weakref.ref(state)
        return ids

    def _append(self, state: ModelState, step: StepPositions, positions: list[int]) -> int:
        """Reserve positions in every cache; return the most positions that a layer reads."""
        longest = 0
        for mixing in self.mixings:
            if mixing is not None:
                # raises beyond its length, before any cache has changed
                mixing.set_positions(positions)
        slots: list[Slot] = []
        for layer, descriptor, mixing in zip(state.layers, self.caches, self.mixings, strict=True):
            if layer.spec.shares is None:
                slots.append(layer.reserve(step, self.dtype))
            else:
                layer.follow(step)
                slots.append(slots[layer.spec.shares])
            slot = slots[-1]
            longest = max(longest, descriptor.update(slot, step.length))
            if mixing is not None:
                mixing.update(slot.unmixed)
        return longest

    def _allocate(self, rows: int, longest: int, threads: int) -> None:
        sizes = (rows, -(-longest // SPAN) * SPAN, threads)
        if sizes != self.buffer_sizes:
            nbytes = self.library.suffice_step_room(self.model, *sizes)
            self.buffer, self.buffer_sizes = torch.empty(nbytes, dtype=torch.uint8), sizes

    def _extend_tables(self, positions: int) -> None:
        if positions <= self.table_length:
            return
        self.lm.embedding.check_length(positions)
        self.table_length = max(1 << (positions - 1).bit_length(), SPAN)
        at, tables = torch.arange(self.table_length), {}
        for lowered, layer in zip(self.lowered, self.layers, strict=True):
            if lowered.rotary:
                key = lowered.rotary, lowered.key_width
                if key not in tables:  # layers that turn alike share them
                    known = at[: lowered.rotary.max_length]  # a longer text has been refused
                    pair = lowered.rotary.cos_sin(known, lowered.key_width, torch.float32)
                    tables[key] = [self._pointer(t.flatten(0, -3)) for t in pair]
                layer.cosines, layer.sines = tables[key]
        if self.config.positions == "learned":
            self.table_length = self.config.length
        if self.config.positions != "none":
            table = self.lm.embedding.table(self.table_length, self.lm.norm.weight)
            self.model.positions = self._pointer(table)

    def _float32(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor in float32, which lives as long as the decoder."""
        tensor = tensor.detach().to(torch.float32).contiguous()
        self.tensors.append(tensor)
        return tensor

    def _pointer(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self._float32(tensor).data_ptr()

    def _norm(self, norm: nn.Module) -> native.Norm:
        return native.Norm(
            *(self._pointer(getattr(norm, name, None)) for name in ("weight", "bias"))
        )

    def _gains(self, norm: nn.Module | None) -> int | None:
        """Return where the only parameter of a norm of queries or keys lies, if it has one."""
        return self._pointer(next(norm.parameters(), None) if norm else None)

    def _matrix(self, linear: nn.Module | None) -> native.Matrix:
        weight, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
        bias = None if bias is None else self._float32(bias)
        if isinstance(linear, Packed):
            codes, scales = linear.stored()
            self.tensors += linear.buffers()
            if (known := linear.native_matrix()) is not None:
                return known
            return structure_of_parts(codes, scales, bias, linear.scheme.bits, linear.outputs)
        if weight is None:
            return native.Matrix(kind=native.ABSENT)
        weight = weight.detach().contiguous()
        self.tensors.append(weight)
        return structure_of(weight, bias)

    def _mixing(self, mix: native.Mixing, mixing: ValueMap) -> MixingDescriptor:
        bias = None if mixing.bias is None else self._float32(mixing.bias)
        return MixingDescriptor(mix, mixing, self._float32(mixing.weight), bias)

    def _layer(self, block: nn.Module, lowered: Any) -> native.Layer:
        attention, mlp = block.attention, block.mlp
        rotary, slopes = lowered.rotary, None
        maps = {name: getattr(attention, f"{name}_proj", None) for name in "qkvo"}
        maps |= {"up": mlp.up, "down": mlp.down, "gate": getattr(mlp, "gate", None)}
        if lowered.alibi:
            query, key = torch.tensor([[1]]), torch.tensor([[0]])
            slopes = -lowered.alibi.bias(attention.spec.query_heads, query, key).flatten()
        layer = native.Layer(
            attention_norm=self._norm(block.attention_norm),
            mlp_norm=self._norm(block.mlp_norm),
            attention_out_norm=self._norm(block.attention_out_norm),
            mlp_out_norm=self._norm(block.mlp_out_norm),
            **{name: self._matrix(linear) for name, linear in maps.items()},
            heads=lowered.heads,
            kv_heads=lowered.kv_heads,
            head_dim=lowered.key_width,
            value_dim=lowered.value_width,
            maps=1,
            scale=lowered.scale,
            turn=LAYOUTS[rotary.layout] if rotary else native.STAY,
            turning=(rotary.features or lowered.key_width) if rotary else 0,
            slopes=self._pointer(slopes),
            q_gains=self._gains(attention.q_norm),
            k_gains=self._gains(getattr(attention, "k_norm", None)),
            gain_eps=lowered.qk_norm.eps if lowered.qk_norm else 0.0,
            head_norm=HEAD_NORMS[type(lowered.qk_norm)] if lowered.qk_norm else native.HEAD_RMS,
            reads_another=isinstance(lowered, SharedSoftmax),
        )
        if isinstance(lowered, BoundedSoftmax):
            layer.cap, layer.logits = lowered.cap or 0.0, self._pointer(attention.parts().sinks)
        if isinstance(lowered, DifferentialSoftmax):
            self._subtract(layer, attention.difference)
        return layer

    def _subtract(self, layer: native.Layer, difference: Any) -> None:
        """Describe a layer of pairs of maps, which its record counts and the structure splits."""
        layer.maps, layer.heads, layer.kv_heads = 2, 2 * layer.heads, 2 * layer.kv_heads
        layer.difference_eps = difference.norm.eps
        setattr(layer, "lambda", float(difference.factor()))
        gains = difference.norm.weight.detach().float() * (1.0 - difference.start)
        layer.difference_gains = self._pointer(gains)

    def _model(self) -> native.Model:
        lm, config = self.lm, self.lm.config
        embedding = self._matrix(lm.embedding.tokens)
        return native.Model(
            depth=self.depth,
            d_model=config.d_model,
            width=config.mlp_width,
            vocabulary=config.vocabulary_size,
            root_mean_square=config.norm == "rms",
            activation=ACTIVATIONS[config.activation],
            residual=RESIDUALS[config.residual],
            eps=config.eps,
            logit_cap=config.logit_cap or 0.0,
            layers=self.layers,
            embedding=embedding,
            head=embedding if lm.head is None else self._matrix(lm.head),
            norm=self._norm(lm.norm),
        )


def _window(band: Band) -> int | None:
    return None if band.before is None else band.before + 1


def _padded_on_the_left(step: StepPositions) -> bool:
    """Return whether no padding follows a real token, and rows end with one."""
    places = torch.cat([step.before, step.places], dim=1)
    return bool((places[:, 1:] >= places[:, :-1]).all() and (places[:, -1] >= 0).all())


def unsupported(lm: object, memory: Memory) -> str | None:
    """Return why native code cannot decode with a model and a memory, or None if it can."""
    if type(lm) is not LM:
        return f"{type(lm).__name__} is not an LM"
    if lm.config.experts is not None:
        return "mixtures of experts are not supported by native decoding"
    if not native.available():
        return native.why_not()
    if lm.config.activation not in ACTIVATIONS:
        return f"activation {lm.config.activation!r} is not supported by native decoding"
    if lm.device.type != "cpu":
        return f"the model is on {lm.device}"
    for spec in dict.fromkeys(lm.specs):
        reason = _unsupported_layer(spec, memory) or cache.why_not(
            memory, spec.head_width, spec.value_width
        )
        if reason:
            return f"layer {lm.specs.index(spec)}: {reason}"
    return next(_changed_modules(lm), None)


def _unsupported_layer(spec: AttentionSpec, memory: Memory) -> str | None:
    lowered = spec.lower()
    if (axis := not_dense(spec)) and type(lowered) not in DECODED:
        value = type(getattr(spec, axis)).__name__
        if isinstance(lowered, FeatureSum):
            return f"{value} keeps sums of features"
        return f"{axis} {value} is not supported by native decoding"
    mixing, shared = type(spec.mixing).__name__, lowered.heads // lowered.kv_heads
    if lowered.mixing and not lowered.mixing.keeps_keys:
        return f"{mixing} sums keys"
    if lowered.mixing and memory.lossy:
        return f"{mixing} reads values, which {type(memory).__name__} rounds"
    if lowered.values == KEYS:
        return f"{type(spec.encoder).__name__} computes values from learned keys"
    if lowered.infini:
        return "Infini compresses the past"
    if max(lowered.key_width, lowered.value_width) > MAX_HEAD_DIM or shared > MAX_QUERIES:
        return f"heads of {lowered.key_width} features, {shared} on each key, are too large"
    band = lowered.band
    if band is None or band.after != 0:
        return f"{spec.pattern!r} is neither causal nor a causal window"
    return cache.why_not_sinks(memory, _window(band), band.sinks) or None


def _reads_pieces(spec: AttentionSpec, memory: Memory) -> bool:
    """Return whether native code reads several tokens of a row in one call."""
    lowered: Any = spec.lower()
    # mixing reads the values of the piece, and sinks differ from token to token of it
    return not (lowered.mixing or memory.sinks or lowered.band.sinks)


@dataclass(frozen=True)
class _Module:
    """A module as a config builds it: its class, its options and the shapes of its parameters."""

    kind: type[nn.Module]
    options: str
    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, module: nn.Module) -> _Module:
        shapes = {n: p.shape for n, p in module._parameters.items() if p is not None}
        return cls(type(module), module.extra_repr(), shapes)


@lru_cache(maxsize=16)
def _as_built(config: LMConfig, specs: tuple[AttentionSpec, ...]) -> dict[str, _Module]:
    lm = config.build(specs, device="meta")
    return {name: _Module.of(module) for name, module in lm.named_modules()}


def _changed_modules(lm: LM) -> Iterator[str]:
    """Yield how modules differ from those the config builds, which native code assumes."""
    as_built = _as_built(lm.config, tuple(lm.specs))
    for name, module in lm.named_modules():
        built: Any = as_built.get(name)
        packed = (
            type(module) in (PackedLinear, PackedEmbedding)  # others may multiply by torchao
            and built is not None
            and built.kind in (Linear, nn.Embedding)
        )
        if not packed and (built is None or type(module) is not built.kind):
            yield f"{name} is a {type(module).__name__}, which the model was not built with"
        elif change := _change(module, built):
            yield f"{name} {change}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            yield f"{name} has hooks, which would not be called"
        for tensor in (*module._parameters.values(), *(module._buffers.values() if packed else ())):
            if tensor is None:
                continue
            if tensor.device.type != "cpu":
                yield f"{name} is on {tensor.device}"
            if not packed and tensor.dtype not in KINDS and not isinstance(module, ValueMap):
                yield f"{name} is {tensor.dtype}; kernels read float32, float16 and bfloat16"


def _change(module: nn.Module, built: _Module) -> str | None:
    if isinstance(module, Packed):
        structure = module.native_matrix()  # raises if its buffers do not fit together
        shape = (module.outputs, module.inputs)
        if structure is not None:
            shape = (structure.rows, structure.columns)
        return None if shape == built.shapes["weight"] else f"is a matrix of {list(shape)}"
    now = _Module.of(module)
    if now.options != built.options and not isinstance(module, Dropout):  # off while decoding
        return f"is {type(module).__name__}({now.options}), not ({built.options})"
    for name, shape in now.shapes.items():
        if shape != built.shapes.get(name):
            return f"has a {name} of {list(shape)}, not of its config"
    return None
