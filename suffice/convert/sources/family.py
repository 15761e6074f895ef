"""What reading an architecture of transformers needs to know, and the names of a block's parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError

DEEPEST = 1 << 10  # layers; a hostile number would be built block by block


class Given:
    """A configuration.

    Args:
        entries: the content of its file.
        where: the file, for errors.
    """

    def __init__(self, entries: dict[str, Any], where: object) -> None:
        self.entries, self.where = entries, where

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            ConfigError: if it is none.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise ConfigError(
                f"{self.where}: {name}={found!r:.40} is no whole number of at least 1."
            )
        return found

    def depth(self, name: str) -> int:
        """Return a number of layers.

        Raises:
            ConfigError: if it is none, or more than any model has.
        """
        found = self.size(name)
        if found > DEEPEST:
            raise ConfigError(
                f"{self.where}: {name}={found!r:.40} layers are more than the {DEEPEST:,} that are "
                "read."
            )
        return found

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            ConfigError: if it is none.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if not _is_finite(found):
            raise ConfigError(f"{self.where}: {name}={found!r:.40} is no finite number.")
        return float(found)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether something is on.

        Raises:
            ConfigError: if it is neither true nor false.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if not isinstance(found, bool):
            raise ConfigError(f"{self.where}: {name}={found!r:.40} is neither true nor false.")
        return found

    def only(self, name: str, *legal: Any) -> Any:
        """Return an entry that may hold certain values alone; the first is the default.

        Raises:
            ConfigError: if it holds another, which no model here computes.
        """
        found = self.entries.get(name)
        found = legal[0] if found is None else found
        if found not in legal:
            told = " or ".join(map(repr, legal))
            raise ConfigError(
                f"{self.where}: {name}={found!r:.60} is nothing that a model here computes; only "
                f"{told} is."
            )
        return found


def _is_finite(found: object) -> bool:
    try:
        return type(found) in (int, float) and math.isfinite(found)
    except OverflowError:  # a whole number of hundreds of digits
        return False


TOLD = 4  # names in one sentence


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tensor of theirs and what it holds.

    Args:
        theirs: its name; "" = they have none, and ours is zero.
        ours: the names of ours, whose rows follow each other in it.
        transposed: whether it is stored with inputs first.
        shape: in which it is stored, where that is more than rows and columns; None = as ours.
        plus: a table of theirs whose first row is added to every row of ours; on the way back ours
            holds the sum and the table is zero.
        plus_rows: of that table.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    shape: tuple[int, ...] | None = None
    plus: str = ""
    plus_rows: int = 0


def state_of(
    parts: Iterable[Part], tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], where: object
) -> dict[str, Tensor]:
    """Return our tensors, made of theirs.

    Args:
        parts: every tensor of ours, once.
        tensors: theirs.
        own: ours as they should be; their values do not matter.
        where: of theirs, for errors.

    Raises:
        CheckpointError: if one of theirs is missing, more than was expected, or of another shape.
    """
    parts = list(parts)
    wanted = {name for part in parts for name in (part.theirs, part.plus) if name}
    if wanted != set(tensors):
        raise CheckpointError(f"{where} does not fit its config.json: {_misfit(wanted, tensors)}.")
    if odd := sorted(name for name in wanted if not tensors[name].is_floating_point()):
        raise CheckpointError(
            f"{where}: {odd[0]!r:.80} holds {tensors[odd[0]].dtype}, and weights are floating "
            "point; give the model as it was before it was packed."
        )
    state = {}
    for part in parts:
        sizes = [own[name].shape for name in part.ours]
        if not part.theirs:
            state |= {name: torch.zeros(size) for name, size in zip(part.ours, sizes, strict=True)}
            continue
        given = tensors[part.theirs]
        shape = torch.Size((sum(size[0] for size in sizes), *sizes[0][1:]))
        _check_shape(
            given, part.theirs, part.shape or shape[:: -1 if part.transposed else 1], where
        )
        rows = (given.T if part.transposed else given).reshape(shape)
        if part.plus:
            _check_shape(tensors[part.plus], part.plus, (part.plus_rows, shape[-1]), where)
            rows = rows + tensors[part.plus][0]
        pieces = rows.split([size[0] for size in sizes])
        state |= {n: piece.clone() for n, piece in zip(part.ours, pieces, strict=True)}
    return state


def tensors_of(parts: Iterable[Part], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return their tensors, made of ours.

    Raises:
        ConfigError: if ours hold what theirs have no place for.
    """
    tensors = {}
    for part in parts:
        if not part.theirs:
            if odd := [name for name in part.ours if bool(state[name].any())]:
                raise ConfigError(
                    f"{odd[0]} is not zero, and the other library's model has no place for it."
                )
            continue
        rows = torch.cat([state[name] for name in part.ours])
        rows = rows.T if part.transposed else rows
        tensors[part.theirs] = rows.reshape(part.shape or rows.shape).contiguous()
        if part.plus:
            tensors[part.plus] = rows.new_zeros(part.plus_rows, rows.shape[-1])
    return tensors


def _check_shape(given: Tensor, name: str, wanted: Sequence[int], where: object) -> None:
    if list(given.shape) != list(wanted):
        raise CheckpointError(
            f"{where}: {name!r:.80} has shape {list(given.shape)}, and its config.json asks for "
            f"{list(wanted)}."
        )


def _misfit(wanted: set[str], held: Iterable[str]) -> str:
    lacks, more = sorted(wanted - set(held)), sorted(set(held) - wanted)
    told = [f"{name!r:.80} is missing" for name in lacks[:TOLD]]
    told += [f"{name!r:.80} is not expected" for name in more[:TOLD]]
    hidden = len(lacks) + len(more) - len(told)
    return ", ".join(told) + (f", and {hidden} more" if hidden else "")


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture.

    Args:
        model_type: its name in a config.json.
        architecture: the class whose weights are read.
        build: makes our model, on "meta", of a configuration.
        parts: names every tensor of such a model of a configuration.
        prefix: which names have where the head is saved with them, and lack where it is not.
        derived: ends of names of tensors that follow from the sizes and are not read.
    """

    model_type: str
    architecture: str
    build: Callable[[Given], nn.Module]
    parts: Callable[[nn.Module, Given], list[Part]]
    prefix: str
    derived: tuple[str, ...] = ()


def linear(
    theirs: str, ours: str | tuple[str, ...], *, bias: bool | None = True, transposed: bool = False
) -> list[Part]:
    """Return the parts of a map.

    Args:
        theirs: name of its module.
        ours: names of ours, one after the other in theirs.
        bias: whether theirs and ours have one; False = ours has one and theirs does not; None =
            neither has.
        transposed: whether theirs stores inputs first.
    """
    names = (ours,) if isinstance(ours, str) else ours
    weights, biases = (tuple(f"{name}.{kind}" for name in names) for kind in ("weight", "bias"))
    parts = [Part(theirs=f"{theirs}.weight", ours=weights, transposed=transposed)]
    if bias is not None:
        parts.append(Part(theirs=f"{theirs}.bias" if bias else "", ours=biases))
    return parts


def norm(theirs: str, ours: str, *, bias: bool) -> list[Part]:
    """Return the parts of a norm."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Part(theirs=f"{theirs}.{kind}", ours=(f"{ours}.{kind}",)) for kind in kinds]
