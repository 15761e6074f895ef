"""What the calculator says of one composition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from suffice.cost import Cost
from suffice.encoders import Efficient, Encoder, Latent, Optimised, Standard
from suffice.errors import ConfigError, SufficeError, unknown
from suffice.kernels import Elu, Kernel, Softmax
from suffice.memory import Quantised
from suffice.mixing import Alignment, Mixing, NoMixing, ToeplitzAlignment
from suffice.patterns import Causal, Pattern, Window
from suffice.positions import NoPosition, Rope
from suffice.records import check_fields
from suffice.spec import AttentionSpec

CODED = Quantised()
RANGE = 8  # bytes: a least number and a step
EXACT, HALF = 4, 2  # bytes of a float32, of a float16


@lru_cache(maxsize=256)
def counted(spec: AttentionSpec) -> Cost:
    """Return the costs of a layer that no length changes: parameters and numbers of the state."""
    return spec.cost(1)


def state_bytes(spec: AttentionSpec, tokens: int, bits: int) -> int:
    """Return the bytes of what a layer keeps of so many tokens.

    Args:
        spec: of the layer.
        tokens: positions that are kept.
        bits: of a number: 32, 16, 8 or 4.

    Example:
        >>> from suffice import preset
        >>> state_bytes(preset("standard", 2048, 32, causal=True), 2048, 16)
        16777216
    """
    cost = counted(spec)
    fixed = cost.state_fixed * EXACT
    if bits > CODED.bits:
        return fixed + cost.state_numbers * tokens * bits // 8
    coded = max(tokens - CODED.recent, 0) // CODED.block * CODED.block
    plain = (tokens - coded) * cost.state_numbers * HALF
    return fixed + plain + coded // CODED.block * block_bytes(spec, bits)


def token_bytes(spec: AttentionSpec, bits: int) -> float:
    """Return the bytes that each further token adds where all are kept."""
    if bits > CODED.bits:
        return counted(spec).state_numbers * bits / 8
    return block_bytes(spec, bits) / CODED.block


def block_bytes(spec: AttentionSpec, bits: int) -> int:
    """Return the bytes of a coded block: codes, and ranges of the first tensor and the others."""
    numbers, width = counted(spec).state_numbers, spec.widths.kv
    if not numbers:
        return 0
    others = numbers // width - 1
    groups = -(-spec.head_width // CODED.group) * spec.kv_heads
    ranges = RANGE * (width + others * CODED.block * groups)
    return numbers * CODED.block * bits // 8 + ranges


PROJECTIONS: dict[str, Encoder] = {
    type(value).__name__: value for value in (Standard(), Optimised(), Efficient(), Latent())
}
KERNELS: dict[str, Kernel] = {type(value).__name__: value for value in (Softmax(), Elu())}
MIXINGS: dict[str, type[Mixing]] = {
    value.__name__: value for value in (NoMixing, Alignment, ToeplitzAlignment)
}
BITS = (32, 16, 8, 4)
LARGEST = 1 << 32  # of any size: what follows from it is still exact in a page


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The sizes of a decoder and what its attention is made of.

    Args:
        name: for people.
        d_model: features.
        layers: blocks.
        num_heads: query heads.
        num_kv_heads: key/value heads; 0 = as many as query heads.
        head_dim: width of a head; 0 = d_model / num_heads.
        projections: Standard, Optimised, Efficient or Latent.
        kernel: Softmax, or Elu for sums of features (linear attention).
        mixing: NoMixing, Alignment (Super Attention) or ToeplitzAlignment.
        rotary: positions turn queries and keys.
        mixing_size: the longest input of an Alignment, the width of a ToeplitzAlignment.
        window: latest positions that are seen and kept; 0 = all.
        sinks: first positions that are kept beside a window.
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
        state_bits: of a number that is kept: 32, 16, 8 or 4.

    Raises:
        ConfigError: for sizes, names or bits that are not legal.

    Example:
        >>> Composition(name="small", d_model=64, num_heads=4, layers=2).specs()[0].kv_heads
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
        self._check_sizes()
        for field, legal in (
            ("projections", PROJECTIONS),
            ("kernel", KERNELS),
            ("mixing", MIXINGS),
        ):
            if getattr(self, field) not in legal:
                raise unknown(field, getattr(self, field), legal)
        if wrong := [n for n in ("weight_bits", "state_bits") if getattr(self, n) not in BITS]:
            raise ConfigError(f"{wrong[0]}={getattr(self, wrong[0])}: give 32, 16, 8 or 4.")
        self._check_rules()
        self.specs()

    def _check_sizes(self) -> None:
        """Refuse sizes below their least, or too large to count with."""
        least = dict.fromkeys(("d_model", "layers", "num_heads", "batch"), 1)
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and not least.get(field.name, 0) <= value <= LARGEST:
                raise ConfigError(
                    f"{field.name}={value}: give {least.get(field.name, 0)} to {LARGEST:,}."
                )

    def _check_rules(self) -> None:
        """Refuse what two fields say together."""
        if (self.mixing == "NoMixing") != (self.mixing_size == 0):
            raise ConfigError(
                f"mixing={self.mixing} with mixing_size={self.mixing_size}: give a size of at "
                "least 1 to Alignment and ToeplitzAlignment, and 0 to NoMixing."
            )
        if self.sinks and not self.window:
            raise ConfigError(
                f"sinks={self.sinks} without a window: everything is kept already; give a window."
            )
        if self.window and self.mixing == "Alignment":
            raise ConfigError(
                f"window={self.window} with Alignment, which reads all earlier values: nothing "
                "would be forgotten; use ToeplitzAlignment, or no window."
            )

    def spec(self, full: bool = False) -> AttentionSpec:
        """Return the spec of a layer, or of one of those that are full instead."""
        return _spec(self, full)

    def specs(self) -> list[AttentionSpec]:
        """Return the spec of each block."""
        most, full = self.spec(), self.spec(full=True)
        return [full if self.is_full(layer) else most for layer in range(self.layers)]

    def is_full(self, layer: int) -> bool:
        """Return whether a layer, from 0, is one of those that are full instead."""
        return self.full_every > 0 and (layer + 1) % self.full_every == 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Composition:
        """Rebuild a composition from plain data; fields left out are as by default.

        Raises:
            ConfigError: for data that is no dictionary, unknown fields, or values not legal.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"a composition is a dictionary of its fields, got {data!r:.80}.")
        names = {field.name for field in fields(cls)}
        for key in data:
            if key not in names:
                raise unknown("field of a composition", key, names)
        return cls(**data)


@lru_cache(maxsize=256)
def _spec(model: Composition, full: bool) -> AttentionSpec:
    """Return the spec of a layer; a page asks for the same one at many lengths."""
    pattern: Pattern = Causal()
    if model.window and not full:
        pattern = Window(model.window) & Causal()
    mixed = not full and model.mixing_size > 0
    return AttentionSpec(
        d_model=model.d_model,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads or None,
        head_dim=model.head_dim or None,
        pattern=pattern,
        encoder=PROJECTIONS[model.projections],
        mixing=MIXINGS[model.mixing](model.mixing_size) if mixed else NoMixing(),
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


def weights_of(model: Composition) -> Weights:
    """Count what a model learns; the attention's numbers are its specs' own.

    Example:
        >>> weights_of(Composition(d_model=64, num_heads=4, layers=2, norms=0)).attention
        32768
    """
    most, full = (counted(model.spec(full)).parameters for full in (False, True))
    fulls = model.layers // model.full_every if model.full_every else 0
    return Weights(
        attention=(model.layers - fulls) * most + fulls * full,
        mlp=model.layers * _mlp(model),
        norms=_norms(model),
        embedding=(model.vocabulary + model.positions) * model.d_model,
        head=0 if model.tied else model.vocabulary * model.d_model,
    )


def _mlp(model: Composition) -> int:
    """Count the MLP of a block."""
    if not model.mlp_width:
        return 0
    maps = 3 if model.gated else 2
    biases = (maps - 1) * model.mlp_width + model.d_model
    return maps * model.d_model * model.mlp_width + model.mlp_bias * biases


def _norms(model: Composition) -> int:
    """Count the norms of all blocks and the last one."""
    last = min(model.norms, 1)
    plain = (model.layers * model.norms + last) * model.d_model * (1 + model.norm_bias)
    return plain + model.layers * model.qk_norm * 2 * model.spec().head_width


LENGTHS = tuple(1 << n for n in range(7, 21))  # of the curve, tokens
LONGEST = 1 << 30  # tokens; further no memory is asked
MOST = 12  # compositions in one request


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The layers of one kind.

    Args:
        kind: "full", "window" or "sums".
        count: how many.
        kept: positions that one of them keeps at this length.
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
        name: of the composition.
        length: tokens of each text.
        layers: each kind of layer.
        per_token: what one more token of one text adds, all layers.
        state: what streaming keeps.
        weights: learned numbers.
        weight_bytes: theirs.
        activations: most that one block holds at once while it reads a chunk.
        scores: the numbers of one layer's query-key matrix, where an op would keep it.
        longest: tokens of each text that fit into the memory asked about, 0 = not one; None =
            any number, or no memory was given.
        curve: the state at `LENGTHS`; None where the composition cannot read so much.
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

    @property
    def total(self) -> int:
        """Weights, state and activations."""
        return self.weight_bytes + self.state + self.activations

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return (
            asdict(self)
            | {"weights": {**asdict(self.weights), "total": self.weights.total}}
            | {"total": self.total}
        )


def answer(model: Composition, length: int, memory: int | None = None) -> Answer:
    """Return what a composition takes.

    Args:
        model: the composition.
        length: tokens of each text.
        memory: bytes there are; None = it is not asked what fits.

    Raises:
        ConfigError: for a length it cannot read, or a memory below 1 byte.

    Example:
        >>> found = answer(Composition(d_model=2048, num_heads=32, layers=32), 2048)
        >>> found.state, found.layers[0].state, found.layers[0].per_token
        (536870912, 16777216, 8192.0)
    """
    _check(model, length, memory)
    layers = _layers(model, length)
    weights = weights_of(model)
    return Answer(
        name=model.name,
        length=length,
        layers=layers,
        per_token=sum(layer.count * layer.per_token for layer in layers),
        state=state(model, length),
        weights=weights,
        weight_bytes=weight_bytes(model),
        activations=activations(model, length),
        scores=model.batch * model.num_heads * length * length * _activation_bytes(model),
        longest=None if memory is None else longest(model, memory),
        curve=tuple(state(model, n) if _reads(model, n) else None for n in LENGTHS),
    )


def calculate(request: Any) -> dict[str, Any]:
    """Answer a request of the page: each composition by itself, a refusal in words beside them.

    Args:
        request: {"compositions": [...], "length": tokens, "memory": bytes or None}.

    Raises:
        ConfigError: for a request of another form.
    """
    if not isinstance(request, dict) or not isinstance(request.get("compositions"), list):
        raise ConfigError("the calculator is asked about a list of compositions and a length.")
    if len(request["compositions"]) > MOST:
        raise ConfigError(f"at most {MOST} compositions are compared at once; take some away.")
    answers = []
    for data in request["compositions"]:
        try:
            model = Composition.from_json(data)
            found = answer(model, request.get("length"), request.get("memory"))
            answers.append(found.to_json())
        except SufficeError as error:
            answers.append({"error": str(error)})
    return {"answers": answers, "lengths": list(LENGTHS)}


def state(model: Composition, length: int) -> int:
    """Return the bytes that streaming keeps of a batch of texts."""
    return model.batch * sum(layer.count * layer.state for layer in _layers(model, length))


def weight_bytes(model: Composition) -> int:
    """Return the bytes of the weights; scales of weights in few bits are not counted."""
    return -(-weights_of(model).total * model.weight_bits // 8)


def activations(model: Composition, length: int) -> int:
    """Return the most bytes that one block holds at once while it reads a chunk of each text.

    Beside the input and its norm, either queries, learned keys and values and the heads' outputs,
    or what the MLP makes: hidden features before and after the activation, and with a gate their
    product. Scores are not kept.
    """
    spec = model.spec()
    heads = spec.widths.o + sum(m.outputs for m in spec.encoder.maps(spec).values())
    hidden = (3 if model.gated else 2) * model.mlp_width
    features = 2 * model.d_model + max(heads, hidden)
    read = min(length, model.chunk or length)
    return model.batch * read * features * _activation_bytes(model)


def longest(model: Composition, memory: int) -> int | None:
    """Return how many tokens of each text fit; None = any number."""

    def fits(length: int) -> bool:
        held = weight_bytes(model) + state(model, length) + activations(model, length)
        return held <= memory

    limit = model.spec().max_length or LONGEST
    if fits(limit):
        return None if limit == LONGEST else limit
    return _last(fits, limit)


def _last(fits: Callable[[int], bool], limit: int) -> int:
    """Return the last number from 0 that fits; those that fit come first."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _layers(model: Composition, length: int) -> tuple[Layer, ...]:
    fulls = model.layers // model.full_every if model.full_every else 0
    kinds = [(False, model.layers - fulls), (True, fulls)]
    return tuple(_layer(model, full, count, length) for full, count in kinds if count)


def _layer(model: Composition, full: bool, count: int, length: int) -> Layer:
    spec, bits = model.spec(full), model.state_bits
    window = 0 if full else model.window
    room = window + model.sinks if window else length
    grows = not window or length < room
    sums = counted(spec).state_numbers == 0
    return Layer(
        kind="window" if window else "sums" if sums else "full",
        count=count,
        kept=0 if sums else min(length, room),
        state=state_bytes(spec, min(length, room), bits),
        per_token=token_bytes(spec, bits) if grows else 0.0,
    )


def _activation_bytes(model: Composition) -> int:
    return 4 if model.weight_bits == 32 else 2  # noqa: PLR2004


def _reads(model: Composition, length: int) -> bool:
    limit = model.spec().max_length
    return limit is None or length <= limit


def _check(model: Composition, length: object, memory: object) -> None:
    for name, value in (("length", length), ("memory", memory)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and value >= 1) and not (name == "memory" and value is None):
            raise ConfigError(f"{name}={value!r}: give a whole number of at least 1.")
    if length > LONGEST:  # type: ignore[operator]
        raise ConfigError(f"length={length}: give at most {LONGEST:,} tokens.")
    if not _reads(model, length):  # type: ignore[arg-type]
        raise ConfigError(
            f"{model.mixing} is made for {model.mixing_size:,} tokens and cannot read {length:,}; "
            "give it a longer mixing_size, or less to read."
        )
