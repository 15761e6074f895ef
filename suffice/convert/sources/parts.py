"""Which tensor of another library is which of ours, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import CheckpointError, ConfigError

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
