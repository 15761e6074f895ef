"""Architectures of transformers: their configurations, and how their tensors map to ours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError
from suffice.models.lm import LM
from suffice.spec import AttentionSpec

MAX_DEPTH = 1 << 10  # layers; models are built block by block
NAMES_SHOWN = 4  # in one message

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
"""The activations of MLPs without gates, by their names in transformers."""
ACTIVATION_NAMES = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""The names that are written: of two, the first."""


class ConfigReader:
    """Reads and checks the entries of a config.json; an entry that is null counts as absent."""

    def __init__(self, entries: dict[str, Any], where: object) -> None:
        self.entries, self.where = entries, where

    def size(self, name: str, default: int | None = None) -> int:
        """Return an integer of at least 1; raises ConfigError."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"{self.where}: {name}={value!r:.40} is not a whole number of at least 1."
            )
        return value

    def depth(self, name: str) -> int:
        """Return a number of layers; raises ConfigError."""
        depth = self.size(name)
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{self.where}: {name}={depth!r:.40} layers are more than the {MAX_DEPTH:,} that "
                "are read."
            )
        for name in ("layer_types", "mlp_layer_types"):
            types = self._value(name, [None] * depth)
            if not isinstance(types, list) or len(types) != depth:
                raise ConfigError(f"{self.where}: {name}={types!r:.80} is not for {depth} layers.")
        return depth

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        try:
            finite = type(value) in (int, float) and math.isfinite(value)
        except OverflowError:  # an integer of hundreds of digits
            finite = False
        if not finite:
            raise ConfigError(f"{self.where}: {name}={value!r:.40} is not a finite number.")
        return float(value)

    def positive(self, name: str, default: float) -> float:
        """Return a finite number above 0; raises ConfigError."""
        value = self.number(name, default)
        if value <= 0.0:
            raise ConfigError(f"{self.where}: {name}={value} is not above 0.")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {name}={value!r:.40} is neither true nor false.")
        return value

    def one_of(self, name: str, *legal: Any) -> Any:
        """Return one of the legal values, of which the first is the default; raises ConfigError."""
        value = self._value(name, legal[0])
        if value not in legal:
            raise ConfigError(
                f"{self.where}: {name}={value!r:.60} is not supported; only "
                f"{' or '.join(dict.fromkeys(map(repr, legal)))} is."
            )
        return value

    def heads(self, heads: str, width: str) -> tuple[int, int]:
        """Return a number of heads and the width that it divides; raises ConfigError."""
        count, size = self.size(heads), self.size(width)
        if size % count:
            raise ConfigError(f"{self.where}: {heads}={count} does not divide {width}={size}.")
        return count, size

    def _value(self, name: str, default: Any) -> Any:
        value = self.entries.get(name)
        return default if value is None else value


LENGTH = "max_position_embeddings"
SIZES = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "depth",
    "intermediate_size": "mlp_width",
}
"""The sizes that most architectures have, theirs and ours."""
GGUF_SIZES = {
    "context_length": "length",
    "embedding_length": "d_model",
    "block_count": "depth",
    "feed_forward_length": "mlp_width",
}
"""The sizes in the metadata of a GGUF file, theirs and ours."""


def read_sizes(
    reader: ConfigReader, names: Mapping[str, str], **defaults: int | None
) -> dict[str, Any]:
    """Return our fields of a config from the entries of a table, theirs and ours."""
    return {
        ours: reader.depth(theirs) if ours == "depth" else reader.size(theirs, defaults.get(ours))
        for theirs, ours in names.items()
    }


def write_sizes(config: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the entries of a table, theirs and ours, from our config."""
    return {theirs: getattr(config, ours) for theirs, ours in names.items()}


@dataclass(frozen=True, kw_only=True)
class TensorMapping:
    """Maps one tensor of transformers to one or more of ours; two maps of one tensor copy it."""

    theirs: str  # its name; "" = they have none, and ours is zero
    ours: tuple[str, ...]  # names of our tensors, whose rows are concatenated in theirs
    transposed: bool = False  # whether theirs is stored with inputs first
    shape: tuple[int, ...] | None = None  # of theirs, where it has further dimensions
    plus: str = ""  # a table of theirs whose first row is added to ours; zero on the way back
    plus_rows: int = 0
    factor: float = 1.0  # ours is (theirs + offset) * factor
    offset: float = 0.0
    skipped: int = 0  # leading rows of theirs that are never read; zero on the way back
    stacked: tuple[int, int] | None = None  # (i, n): theirs is the i-th of n along a first axis
    groups: int = 1  # of rows: theirs are the first group of each of ours, the second, ...
    row: int | None = None  # theirs is this row of ours alone
    gathered: tuple[int, ...] = ()  # of theirs, one for each row of ours; () = all, in order


Specs = AttentionSpec | Sequence[AttentionSpec]


@dataclass(frozen=True, kw_only=True)
class GGUFForm:
    """What llama.cpp does in its own way for a general.architecture with the weights of a class."""

    name: str
    layout: str = "half"  # order of rotary pairs: "interleaved", "half", or "" without rotation
    fused: bool = False  # whether q, k and v are one tensor, and the MLP's gate and up another
    windowed: bool = False  # whether the file's window holds in every layer
    # window and rotation are stored by layer, next to a sink per head, which gets no weight here
    by_layer: bool = False
    untied: bool = False  # whether the head is written also where it is the embedding


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture of transformers: its config.json and its tensors, and ours."""

    model_type: str  # its name in a config.json
    class_name: str  # the class whose weights are read
    bare_name: str = ""  # the class without the head, read where the embedding is the head
    ties: bool = False  # default of tie_word_embeddings
    size_names: Mapping[str, str] = field(default_factory=lambda: SIZES | {LENGTH: "length"})
    sizes: Callable[[ConfigReader], tuple[Any, Specs]]  # our config and attention, from its entries
    entries: Callable[[Any], dict[str, Any]] | None = None  # for our model; None is read alone
    model: type[nn.Module] = LM  # the kind of ours
    mappings: Callable[[Any, ConfigReader], list[TensorMapping]]  # of every tensor
    head: str = "lm_head.weight"  # the head's tensor
    prefix: str = ""  # of all tensors but the head's; absent in a model saved without a head
    nested: str = ""  # the prefix instead, in a model taken out of one with pictures
    derived: tuple[str, ...] = ()  # suffixes of tensors that follow from the sizes and are not read
    gguf: tuple[GGUFForm, ...] = ()  # in files of llama.cpp
    drafts: str = (
        ""  # entry with the number of blocks behind the last, which draft and are not read
    )

    def build(self, reader: ConfigReader) -> Any:
        """Return our model of a configuration, on "meta"."""
        config, specs = self.sizes(reader)
        with torch.device("meta"):
            return config.build(specs)


Row = tuple[str, str | tuple[str, ...]]
"""A module or tensor of theirs, and ours: "*" is the number of a block, "#" that of an expert."""


def map_rows(
    rows: Iterable[Row],
    model: Any,
    *,
    without_bias: tuple[str, ...] = (),
    blocks: Sequence[int] | None = None,
) -> list[TensorMapping]:
    """Return the mappings of the rows whose tensors a model has, in `blocks` or all.

    Several of our tensors are concatenated in theirs. `without_bias` ends the names of our modules
    whose bias they lack.
    """
    state, mappings = model.state_dict(), []
    blocks = range(len(model.blocks)) if blocks is None else blocks
    experts = getattr(model.config, "experts", None)
    for theirs, ours in rows:
        parts = (ours,) if isinstance(ours, str) else ours
        numbers = range(experts.num_experts) if experts and "#" in theirs else (0,)
        for block, expert in product(blocks if "*" in theirs else (0,), numbers):
            their_name, *names = (
                name.replace("*", str(block)).replace("#", str(expert)) for name in (theirs, *parts)
            )
            for end in ("", ".weight", ".bias"):
                tensors = tuple(f"{name}{end}" for name in names)
                if tensors[0] not in state:
                    continue
                lacking = end == ".bias" and names[0].endswith(without_bias or ("\0",))
                mappings.append(
                    TensorMapping(theirs="" if lacking else f"{their_name}{end}", ours=tensors)
                )
    return mappings


def our_state(
    mappings: Sequence[TensorMapping],
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    where: object,
) -> dict[str, Tensor]:
    """Return the state dict of our model; CheckpointError if their tensors do not fit it."""
    _check_tensors(mappings, tensors, where)

    def check_shape(name: str, shape: Sequence[int]) -> None:
        if list(tensors[name].shape) != list(shape):
            raise CheckpointError(
                f"{where}: {name!r:.80} has shape {list(tensors[name].shape)}, and its config.json "
                f"asks for {list(shape)}."
            )

    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    single, others = _single_rows(mappings)
    state: dict[str, Tensor] = {}
    for one in single:
        [name] = one.ours
        check_shape(one.theirs, shapes[name][1:])
        rows = state.setdefault(name, tensors[one.theirs].new_empty(shapes[name]))
        rows[one.row] = tensors[one.theirs]
    for one in others:
        if not one.theirs:
            state |= {name: torch.zeros(shapes[name]) for name in one.ours}
            continue
        row_counts = [shapes[name][0] for name in one.ours]
        shape = (1 + max(one.gathered, default=sum(row_counts) - 1), *shapes[one.ours[0]][1:])
        stored = (shape[0] + one.skipped, *shape[1:])
        wanted = one.shape or stored[:: -1 if one.transposed else 1]
        tensor = tensors[one.theirs]
        if one.stacked is None:
            check_shape(one.theirs, wanted)
        else:
            number, count = one.stacked
            check_shape(one.theirs, (count, *wanted))
            tensor = tensor[number]
        tensor = tensor[one.skipped :]
        rows = (tensor.T if one.transposed else tensor).reshape(shape)
        if one.plus:
            check_shape(one.plus, (one.plus_rows, shape[-1]))
            rows = rows + tensors[one.plus][0]
        if one.offset or one.factor != 1.0:
            rows = (rows + one.offset) * one.factor
        rows = rows[list(one.gathered) or slice(None)]
        counts = [count // one.groups for count in row_counts]
        parts = rows.unflatten(0, (one.groups, -1)).split(counts, dim=1)
        state |= {n: part.flatten(0, 1).clone() for n, part in zip(one.ours, parts, strict=True)}
    return state


def their_tensors(
    mappings: Iterable[TensorMapping], state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return their tensors from our state dict."""
    single, others = _single_rows(mappings)
    tensors = {one.theirs: state[one.ours[0]][one.row].clone() for one in single}
    stacks: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for one in others:
        if not one.theirs:
            if odd := [name for name in one.ours if bool(state[name].any())]:
                raise ConfigError(f"{odd[0]} is not zero, and transformers has no place for it.")
            continue
        parts = [state[name].unflatten(0, (one.groups, -1)) for name in one.ours]
        rows = _once(torch.cat(parts, dim=1).flatten(0, 1), one)
        if one.offset or one.factor != 1.0:
            rows = rows / one.factor - one.offset
        if one.skipped:
            rows = torch.cat([rows.new_zeros(one.skipped, *rows.shape[1:]), rows])
        rows = rows.T if one.transposed else rows
        tensor = rows.reshape(one.shape or rows.shape).contiguous()
        if one.stacked is not None:
            stacks[one.theirs][one.stacked[0]] = tensor
            continue
        if not torch.equal(tensors.get(one.theirs, tensor), tensor):
            raise ConfigError(
                f"{one.ours[0]} differs from another tensor, and transformers has one for both."
            )
        tensors[one.theirs] = tensor
        if one.plus:
            tensors[one.plus] = rows.new_zeros(one.plus_rows, rows.shape[-1])
    for name, parts in stacks.items():
        tensors[name] = torch.stack([parts[number] for number in sorted(parts)])
    return tensors


def _check_tensors(
    mappings: Iterable[TensorMapping], tensors: Mapping[str, Tensor], where: object
) -> None:
    expected = {name for one in mappings for name in (one.theirs, one.plus) if name}
    if expected != set(tensors):
        problem = _name_mismatch(expected, tensors)
        raise CheckpointError(f"{where} does not fit its config.json: {problem}.")
    if odd := sorted(name for name in expected if not tensors[name].is_floating_point()):
        raise CheckpointError(
            f"{where}: {odd[0]!r:.80} holds {tensors[odd[0]].dtype}, and weights are floating "
            "point; give the model as it was before it was quantised."
        )


def _single_rows(
    mappings: Iterable[TensorMapping],
) -> tuple[list[TensorMapping], list[TensorMapping]]:
    """Return the maps of single rows, and the others."""
    mappings = list(mappings)
    single = [one for one in mappings if one.row is not None]
    return single, [one for one in mappings if one.row is None]


def _once(rows: Tensor, one: TensorMapping) -> Tensor:
    """Return their rows from ours, of which copies must be equal."""
    if not one.gathered:
        return rows
    places = list(one.gathered)
    theirs = rows.new_empty(max(places) + 1, *rows.shape[1:])
    theirs[places] = rows
    if not torch.equal(theirs[places], rows):
        raise ConfigError(
            f"{one.ours[0]} differs between heads that share it, and transformers has one for all."
        )
    return theirs


def _name_mismatch(expected: set[str], names: Iterable[str]) -> str:
    missing, extra = sorted(expected - set(names)), sorted(set(names) - expected)
    shown = [f"{name!r:.80} is missing" for name in missing[:NAMES_SHOWN]]
    shown += [f"{name!r:.80} is not expected" for name in extra[:NAMES_SHOWN]]
    hidden = len(missing) + len(extra) - len(shown)
    return ", ".join(shown) + (f", and {hidden} more" if hidden else "")
