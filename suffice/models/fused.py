"""A decoder's step of one token as one call of native code.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers.packed import Packed
from suffice.memory import Memory
from suffice.models.lm import LM
from suffice.models.state import ModelState
from suffice.native import held, library, matrix
from suffice.native import structures as of
from suffice.patterns import Causal, Pattern, Window
from suffice.patterns.combined import And
from suffice.positions import Rope

ACTIVATIONS = {"gelu": of.GELU, "relu": of.RELU, "swiglu": of.SWIGLU}
TURNS = {"half": of.HALVES, "interleaved": of.PAIRS}
WIDEST, MOST_QUERIES = 512, 128  # of suffice/csrc: features of a head, heads that share keys
SPAN = 1024  # positions for which room to work in is made at once


def why_not(lm: LM, memory: Memory) -> str:
    """Return why native code cannot step through this model, or "" if it can."""
    if not library.available():
        return library.why_not()
    if lm.device.type != "cpu":
        return f"the model lies on {lm.device}"
    for number, block in enumerate(lm.blocks):
        spec = block.attention.spec
        reason = _why_not_layer(spec) or held.why_not(memory, spec.head_width)
        if reason:
            return f"layer {number}: {reason}"
    return ""


def _why_not_layer(spec) -> str:  # noqa: ANN001
    if not spec.kernel.weighs_pairs:
        return f"{type(spec.kernel).__name__} keeps sums of features"
    if spec.mixing.mixes:
        return f"{type(spec.mixing).__name__} mixes values"
    if spec.past.reads:
        return f"{type(spec.past).__name__} compresses the past"
    if spec.position.biases is False and spec.position.rotates and type(spec.position) is not Rope:
        return f"{type(spec.position).__name__} turns in its own way"
    if spec.head_width > WIDEST or spec.num_heads // spec.kv_heads > MOST_QUERIES:
        return f"heads of {spec.head_width} features, {spec.num_heads // spec.kv_heads} on one key"
    try:
        window_of(spec.pattern)
    except ConfigError as error:
        return str(error)
    return ""


def window_of(pattern: Pattern) -> int | None:
    """Return how many last positions a query sees; None = all.

    Raises:
        ConfigError: for a pattern of another form.
    """
    if isinstance(pattern, Causal):
        return None
    if isinstance(pattern, And) and all(isinstance(p, (Causal, Window)) for p in pattern.parts):
        return min(p.size for p in pattern.parts if isinstance(p, Window))
    raise ConfigError(f"{pattern!r} is neither causal nor a causal window")


class Fused:
    """An LM whose steps of one token for each row run in one native call.

    It reads the model's own weights, which must stay where they are, and the same states as the
    model. Arithmetic is float32 whatever the weights are stored in.

    Args:
        lm: the model.

    Raises:
        ConfigError: if native code cannot; see `why_not`.
    """

    def __init__(self, lm: LM, memory: Memory) -> None:
        reason = why_not(lm, memory)
        if reason:
            raise ConfigError(f"no native step: {reason}.")
        self.lm = lm
        self.library = library.library()
        self.kept: list[Tensor] = []  # what structures point at
        self.depth = len(lm.blocks)
        self.layers = (of.Layer * self.depth)(*map(self._layer, lm.blocks))
        self.model = self._model()
        self.held = (of.Held * self.depth)()
        specs = [block.attention.spec for block in lm.blocks]
        self.holdings = [
            held.Holding(one, memory, window_of(spec.pattern), spec.head_width)
            for one, spec in zip(self.held, specs, strict=True)
        ]
        self.turned = 0  # positions that tables of turns are for
        self.room = torch.empty(0, dtype=torch.uint8)
        self.sized: tuple[int, int, int] | None = None

    def __call__(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Return logits [B, V] behind one more token [B] of each row; the state is moved on."""
        rows = len(tokens)
        new = state.next(tokens[:, None])
        places = new.rows.positions.expand(rows, 1).to(torch.int64).contiguous()
        self._reach(int(places.max()) + 1)
        pairs = zip(self.holdings, state.layers, strict=True)
        longest = max(holding.take(layer.claim(new)) for holding, layer in pairs)
        padding = torch.zeros(rows, dtype=torch.int64)
        if new.places is not None:
            padding += state.length - 1 - places[:, 0]
        self._make_room(rows, longest)
        logits = torch.empty(rows, self.lm.config.vocabulary_size)
        tokens = tokens.to(torch.int64).contiguous()
        self.library.suffice_step(
            self.model,
            self.held,
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

    def _make_room(self, rows: int, longest: int) -> None:
        sizes = (rows, -(-longest // SPAN) * SPAN, torch.get_num_threads())
        if sizes != self.sized:
            need = self.library.suffice_step_room(self.model, *sizes)
            self.room, self.sized = torch.empty(need, dtype=torch.uint8), sizes

    def _reach(self, positions: int) -> None:
        """Make tables of turns long enough."""
        if positions <= self.turned:
            return
        self.turned = max(1 << (positions - 1).bit_length(), SPAN)
        for block, layer in zip(self.lm.blocks, self.layers, strict=True):
            spec = block.attention.spec
            if not spec.position.rotates:
                continue
            at = torch.arange(self.turned)
            tables = spec.position.turns(at, spec.head_width, torch.float32)
            cosines, sines = (self._number(table.flatten(0, -3)) for table in tables)
            layer.cosines, layer.sines = cosines.data_ptr(), sines.data_ptr()

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
            self.kept += linear.buffers()
            return linear.told()
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
        )

    def _model(self) -> of.Model:
        lm = self.lm
        config = lm.config
        positions = None
        if config.positions != "none":
            positions = lm.embedding._table(config.length, lm.norm.weight)
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
            positions=self._pointer(positions),
        )
