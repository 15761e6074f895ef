"""What the calculator says of one composition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from suffice.errors import ConfigError, SufficeError
from suffice.studio.calculator.composition import Composition
from suffice.studio.calculator.kept import counted, state_bytes, token_bytes
from suffice.studio.calculator.weights import Weights, weights_of

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
    shapes = spec.projections.shapes(spec.widths)
    heads = spec.widths.q + sum(shapes[n][1] for n in ("q_proj", "k_proj", "v_proj") if n in shapes)
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
