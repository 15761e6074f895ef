"""A decoder whose step of one token is one call of native code.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from suffice.encoders import HeadRMS, NoNorm
from suffice.errors import ConfigError
from suffice.kernels import Softmax
from suffice.layers import Dropout
from suffice.layers.next import Next
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear
from suffice.memory import Memory
from suffice.mixing.value_map import ValueMap
from suffice.models.lm import LM, LMConfig
from suffice.models.state import ModelState
from suffice.ops.linear import Linear
from suffice.ops.native import cache, library, matrix
from suffice.ops.native import library as of
from suffice.ops.native.cache import Mixing
from suffice.ops.native.matrix import KINDS, told
from suffice.patterns import Causal, Global, Pattern, Window
from suffice.patterns.combined import And, Or
from suffice.positions import Alibi, NoPosition, Rope
from suffice.records import Axis
from suffice.spec import AttentionSpec

WIDEST, MOST_QUERIES = 512, 128  # of suffice/csrc: features of a head, heads that share keys
POSITIONS = (Alibi, NoPosition, Rope)
NORMS = (HeadRMS, NoNorm)
MAPS = (Linear, nn.Embedding)  # which a packed matrix may stand for
PACKED = (PackedLinear, PackedEmbedding)  # those the kernels read; torchao has its own
FUSABLE_ACTIVATIONS = ("gelu", "relu", "swiglu")


def why_not(lm: object, memory: Memory) -> str:
    """Return why native code cannot step through a model, or "" if it can.

    Args:
        lm: any model.
        memory: of the states it would step with.
    """
    if type(lm) is not LM:
        return f"{type(lm).__name__} is no LM as it is"
    if not library.available():
        return library.why_not()
    if lm.config.activation not in FUSABLE_ACTIVATIONS:
        return f"kernels know no {lm.config.activation}"
    if lm.device.type != "cpu":
        return f"the model lies on {lm.device}"
    reasons = (
        f"layer {number}: {reason}"
        for number, spec in enumerate(lm.specs)
        if (reason := _why_not_layer(spec, memory) or cache.why_not(memory, spec.head_width))
    )
    return next(reasons, "") or next(_strangers(lm), "")


def _why_not_layer(spec: AttentionSpec, memory: Memory) -> str:
    """Return what of a composition native code does not know, or ""."""
    if not spec.kernel.weighs_pairs:
        return f"{type(spec.kernel).__name__} keeps sums of features"
    if spec.mixing.mixes and not spec.mixing.keeps_keys:
        return f"{type(spec.mixing).__name__} sums keys"
    if spec.mixing.mixes and memory.rounds:
        return f"{type(spec.mixing).__name__} reads values that {type(memory).__name__} rounds"
    if spec.encoder.shares and spec.encoder.learns_keys:
        return f"{type(spec.encoder).__name__} reads values from the map of the keys"
    if spec.past.reads:
        return f"{type(spec.past).__name__} compresses the past"
    for value, known, does in _of_ones_own(spec):
        if type(value) not in known:
            return f"{type(value).__name__} {does} in its own way"
    shared = spec.num_heads // spec.kv_heads
    if spec.head_width > WIDEST or shared > MOST_QUERIES:
        return f"heads of {spec.head_width} features, {shared} on each key, are too large"
    try:
        window, sinks = seen_of(spec.pattern)
    except ConfigError as error:
        return str(error)
    return cache.why_not_sinks(memory, window, sinks)


def _of_ones_own(spec: AttentionSpec) -> Iterator[tuple[Axis, tuple[type, ...], str]]:
    """Give values that somebody else may have written, the known ones, and what they do."""
    yield spec.kernel, (Softmax,), "weighs pairs"
    yield spec.norm, NORMS, "divides queries and keys"
    yield spec.position, POSITIONS, "counts positions"


@dataclass(frozen=True)
class _Usual:
    """A module as a config builds it: class, what it says of itself, shapes of its own tensors."""

    kind: type[nn.Module]
    told: str
    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, module: nn.Module) -> _Usual:
        """Describe a module."""
        own = module._parameters.items()
        return cls(type(module), module.extra_repr(), {n: p.shape for n, p in own if p is not None})


@lru_cache(maxsize=16)
def _as_built(config: LMConfig, specs: tuple[AttentionSpec, ...]) -> dict[str, _Usual]:
    """Return every module of a model, by name, as it is before anybody changes it."""
    built = config.build(specs, device="meta")
    return {name: _Usual.of(module) for name, module in built.named_modules()}


def _strangers(lm: LM) -> Iterator[str]:
    """Give modules that do more, or hold other numbers, than native code would read of them."""
    built = _as_built(lm.config, tuple(lm.specs))
    for name, module in lm.named_modules():
        usual = built.get(name)
        packed = type(module) in PACKED and usual is not None and usual.kind in MAPS
        if not packed and (usual is None or type(module) is not usual.kind):
            yield f"{name} is a {type(module).__name__}, which the model was not built with"
        elif told := _changed(module, usual):
            yield f"{name} {told}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            yield f"{name} has hooks, which would not be called"
        cache = [*module.parameters(recurse=False), *(module.buffers() if packed else ())]
        for tensor in cache:
            if tensor.device.type != "cpu":
                yield f"{name} lies on {tensor.device}"
            if not packed and tensor.dtype not in KINDS and not isinstance(module, ValueMap):
                yield f"{name} is {tensor.dtype}; kernels read float32, float16 and bfloat16"


def _changed(module: nn.Module, usual: _Usual) -> str:
    """Return what a module of the right class is that the one in its place was not, or ""."""
    if isinstance(module, Packed):
        told = module.told()  # refuses buffers that do not belong together
        shape = (module.outputs, module.inputs) if told is None else (told.rows, told.columns)
        return "" if shape == usual.shapes["weight"] else f"is a matrix of {list(shape)}"
    now = _Usual.of(module)
    if now.told != usual.told and not isinstance(module, Dropout):  # which is off in every step
        return f"is {type(module).__name__}({now.told}), not ({usual.told})"
    for name, shape in now.shapes.items():
        if shape != usual.shapes.get(name):
            return f"has a {name} of {list(shape)}, not of its config"
    return ""


def seen_of(pattern: Pattern) -> tuple[int | None, int]:
    """Return how many last positions a query sees, None = all, and how many first ones beside.

    Raises:
        ConfigError: for a pattern of another form.

    Example:
        >>> seen_of(Window(8) & Causal()), seen_of((Window(8) | Global(2)) & Causal())
        ((8, 0), (8, 2))
    """
    parts = pattern.parts if isinstance(pattern, And) else ()
    near = [part for part in parts if not isinstance(part, Causal)]
    if len(near) != 1 or len(near) == len(parts) or not isinstance(near[0], Or):
        return window_of(pattern), 0
    windows = [part.size for part in near[0].parts if isinstance(part, Window)]
    hubs = [part.tokens for part in near[0].parts if isinstance(part, Global)]
    if not windows or not hubs or len(windows) + len(hubs) < len(near[0].parts):
        return window_of(pattern), 0
    return max(windows), max(hubs)


def window_of(pattern: Pattern) -> int | None:
    """Return how many last positions a query sees; None = all.

    Raises:
        ConfigError: for a pattern of another form.

    Example:
        >>> window_of(Window(8) & Causal())
        8
    """
    if isinstance(pattern, Causal):
        return None
    if isinstance(pattern, And) and all(isinstance(p, (Causal, Window)) for p in pattern.parts):
        return min((p.size for p in pattern.parts if isinstance(p, Window)), default=None)
    raise ConfigError(f"{pattern!r} is neither causal nor a causal window")


ACTIVATIONS = {"gelu": of.GELU, "relu": of.RELU, "swiglu": of.SWIGLU}
TURNS = {"half": of.HALVES, "interleaved": of.PAIRS}
SPAN = 1024  # positions for which room to work in is made at once


class Fused:
    """An LM whose steps of one token for each row run in one native call.

    Everything else is the model's. It reads the model's own weights, which must stay where they
    are meanwhile, and its states. Arithmetic is float32 whatever the weights are stored in.

    Args:
        lm: the model.
        memory: of the states it steps with.

    Raises:
        ConfigError: if native code cannot; see `why_not`.

    Example:
        >>> from suffice import preset
        >>> from suffice.memory import Dynamic
        >>> from suffice.models import LMConfig, fusable
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=8, depth=1, mlp_width=8)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 8, 2, causal=True)).eval()
        >>> fast = lm if fusable.why_not(lm, Dynamic()) else Fused(lm, Dynamic())
        >>> with torch.inference_mode():
        ...     state, one = lm.state(), torch.tensor([3])
        ...     logits = fast.step(one, state), fast.step(one, state)
        >>> (logits[1].shape, state.length)
        (torch.Size([1, 9]), 2)
    """

    def __init__(self, lm: LM, memory: Memory) -> None:
        reason = why_not(lm, memory)
        if reason:
            raise ConfigError(f"no native step: {reason}.")
        self.lm, self.config, self.specs, self.device = lm, lm.config, lm.specs, lm.device
        self.state, self.features, self.logits = lm.state, lm.features, lm.logits
        self.train = lm.train
        self.library = library.library()
        self.kept: list[Tensor] = []  # what structures point at
        self.depth = len(lm.blocks)
        self.layers = (of.Layer * self.depth)(*map(self._layer, lm.blocks))
        self.model = self._model()
        self.held = (of.Held * self.depth)()
        seen = [seen_of(spec.pattern) for spec in lm.specs]
        self.hubs = any(sinks for _, sinks in seen)
        self.holdings = [
            cache.Holding(one, memory, window, spec.head_width, sinks)
            for one, spec, (window, sinks) in zip(self.held, lm.specs, seen, strict=True)
        ]
        self.mixes = (of.Mix * self.depth)()
        self.mixings = [
            self._mixing(mix, block.attention.mixing) if spec.mixing.mixes else None
            for mix, block, spec in zip(self.mixes, lm.blocks, lm.specs, strict=True)
        ]
        self.memory = memory
        self.met: weakref.ref[ModelState] | None = None  # the state that was stepped last
        self.least = max(memory.sinks, 1)  # positions that are read before the first step
        self.reached = 0  # positions that tables are for
        self.room = torch.empty(0, dtype=torch.uint8)
        self.sized: tuple[int, int, int] | None = None

    @property
    def training(self) -> bool:
        """Whether dropout is on, which native steps leave out."""
        return self.lm.training

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Return the logits [B, V] behind one more token [B] of each row.

        The first tokens of a text, from which sizes are known and which sinks keep, are read by
        the model itself; so are padded rows, where a pattern has first tokens that all see: which
        those are differs by row.

        Raises:
            ConfigError: if the model is training, gradients are wanted, an id is no token, the
                state is of another model or memory, or padding stands behind a real token.
            ShapeError: for another number of rows than before, or beyond learned positions.
        """
        if state.length < self.least:
            return self.lm.step(tokens, state)
        if self.training or torch.is_grad_enabled():
            raise ConfigError(
                "native steps have no dropout and no gradients; call eval(), and step under "
                "torch.inference_mode() or torch.no_grad()."
            )
        self._check(tokens, state)
        rows = len(tokens)
        new = state.next(tokens[:, None])
        if self.hubs and new.places is not None:
            return self.lm.step(tokens, state)
        _check_padding(new)
        places = new.rows.positions.expand(rows, 1).to(torch.int64).contiguous()
        self._reach(int(places.max()) + 1)
        longest = self._take(state, new, places)
        padding = torch.zeros(rows, dtype=torch.int64)
        if new.places is not None:
            padding += state.length - 1 - places[:, 0]
        self._make_room(rows, longest)
        logits = torch.empty(rows, self.config.vocabulary_size)
        tokens = tokens.to(torch.int64).contiguous()
        self.library.suffice_step(
            self.model,
            self.held,
            self.mixes,
            tokens.data_ptr(),
            places.data_ptr(),
            padding.data_ptr(),
            rows,
            longest,
            logits.data_ptr(),
            self.room.data_ptr(),
            torch.get_num_threads(),
        )
        return logits

    def _check(self, tokens: Tensor, state: ModelState) -> None:
        """Refuse what native code would read beyond: ids, and states of other sizes."""
        low, high = map(int, tokens.aminmax())
        if low < 0 or high >= self.config.vocabulary_size:
            raise ConfigError(
                f"tokens hold id {low if low < 0 else high}; give ids of 0 to "
                f"{self.config.vocabulary_size - 1}."
            )
        if self.met is not None and self.met() is state:
            return
        theirs = [(layer.spec, layer.memory) for layer in state.layers]
        if theirs != [(spec, self.memory) for spec in self.specs]:
            raise ConfigError(
                f"a state with {theirs[0][1]!r} of {len(theirs)} layers of some model is stepped "
                f"with {self.memory!r}; make it by state({self.memory!r}) of the same model."
            )
        self.met = weakref.ref(state)

    def _take(self, state: ModelState, new: Next, places: Tensor) -> int:
        """Tell what layers hold; return the most positions that are read of one span."""
        longest, rows = 0, places[:, 0].tolist()
        for mixing in self.mixings:
            if mixing is not None:
                mixing.place(rows)  # before anything is claimed: it may be out of reach
        for layer, holding, mixing in zip(state.layers, self.holdings, self.mixings, strict=True):
            claim = layer.claim(new)
            longest = max(longest, holding.take(claim))
            if mixing is not None:
                mixing.take(claim.raw)
        return longest

    def _mixing(self, mix: of.Mix, mixing: ValueMap) -> Mixing:
        bias = None if mixing.bias is None else self._number(mixing.bias)
        return Mixing(mix, mixing, self._number(mixing.weight), bias)

    def _make_room(self, rows: int, longest: int) -> None:
        sizes = (rows, -(-longest // SPAN) * SPAN, torch.get_num_threads())
        if sizes != self.sized:
            need = self.library.suffice_step_room(self.model, *sizes)
            self.room, self.sized = torch.empty(need, dtype=torch.uint8), sizes

    def _reach(self, positions: int) -> None:
        """Make tables of turns and of what positions add long enough."""
        if positions <= self.reached:
            return
        self.lm.embedding.check_length(positions)
        self.reached = max(1 << (positions - 1).bit_length(), SPAN)
        at = torch.arange(self.reached)
        for spec, layer in zip(self.specs, self.layers, strict=True):
            if spec.position.rotates:
                turns = spec.position.turns(at, spec.head_width, torch.float32)
                layer.cosines, layer.sines = (self._pointer(t.flatten(0, -3)) for t in turns)
        if self.config.positions == "learned":
            self.reached = self.config.length
        if self.config.positions != "none":
            table = self.lm.embedding.table(self.reached, self.lm.norm.weight)
            self.model.positions = self._pointer(table)

    def _number(self, tensor: Tensor) -> Tensor:
        """Return a tensor in float32 in one piece, kept as long as this."""
        tensor = tensor.detach().to(torch.float32).contiguous()
        self.kept.append(tensor)
        return tensor

    def _pointer(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self._number(tensor).data_ptr()

    def _norm(self, norm: nn.Module) -> of.Norm:
        return of.Norm(self._pointer(norm.weight), self._pointer(getattr(norm, "bias", None)))

    def _matrix(self, linear: nn.Module) -> of.Matrix:
        if isinstance(linear, Packed):
            numbers, scales = linear.parts()
            self.kept += linear.buffers()
            bias = None if linear.bias is None else self._number(linear.bias)
            return told(numbers, scales, bias, linear.scheme.bits, linear.outputs)
        weight = getattr(linear, "weight", None)
        if weight is None:
            return of.Matrix(kind=of.ABSENT)
        bias = getattr(linear, "bias", None)
        weight = weight.detach().contiguous()
        self.kept.append(weight)
        return matrix.structure_of(weight, None if bias is None else self._number(bias))

    def _layer(self, block: nn.Module) -> of.Layer:
        attention, mlp = block.attention, block.mlp
        spec = attention.spec
        maps = {name: getattr(attention, f"{name}_proj") for name in "qkvo"}
        maps |= {"up": mlp.up, "down": mlp.down, "gate": getattr(mlp, "gate", None)}
        position, slopes = spec.position, None
        if position.biases:
            one, zero = torch.tensor([[1]]), torch.tensor([[0]])
            slopes = -position.bias(spec.num_heads, one, zero).flatten()
        return of.Layer(
            attention_norm=self._norm(block.attention_norm),
            mlp_norm=self._norm(block.mlp_norm),
            **{name: self._matrix(linear) for name, linear in maps.items()},
            heads=spec.num_heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_width,
            scale=spec.score_scale,
            turn=TURNS[position.layout] if position.rotates else of.STAY,
            turning=(position.features or spec.head_width) if position.rotates else 0,
            slopes=self._pointer(slopes),
            q_gains=self._pointer(getattr(attention.q_norm, "weight", None)),
            k_gains=self._pointer(getattr(attention.k_norm, "weight", None)),
            gain_eps=getattr(attention.q_norm, "eps", 0.0),
        )

    def _model(self) -> of.Model:
        lm = self.lm
        config = lm.config
        embedding = self._matrix(lm.embedding.tokens)
        return of.Model(
            depth=self.depth,
            d_model=config.d_model,
            width=config.mlp_width,
            vocabulary=config.vocabulary_size,
            root_mean_square=config.norm == "rms",
            activation=ACTIVATIONS[config.activation],
            eps=config.eps,
            layers=self.layers,
            embedding=embedding,
            head=embedding if lm.head is None else self._matrix(lm.head),
            norm=self._norm(lm.norm),
        )


def _check_padding(new: Next) -> None:
    """Refuse padding that native code would not know of: it counts what stands before a row.

    Raises:
        ConfigError: saying where padding may stand.
    """
    cache = new.before
    if cache is not None and bool((cache[:, 1:] < cache[:, :-1]).any()):
        raise ConfigError(
            "padding stands behind a real token of a row: native steps know it at the beginning "
            "alone; pad on the left, or step with the model itself."
        )
