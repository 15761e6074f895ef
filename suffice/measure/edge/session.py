"""Several sides write the same text in turn, once all of them compute the same."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from suffice.errors import StateError
from suffice.measure.edge.run import Run, Side

WARM, CHECKED, FOLLOWING = 8, 24, 8
# by bits of the weights, of the logits' length: a state in 16 bits, and rounding that adds up
TOLERANCES = {32: 1e-2, 16: 2e-2, 8: 0.2, 4: 0.8}


def apart(ours: Side, theirs: Side, ids: Tensor) -> float:
    """Return how far logits of two sides are from each other, over the length of ours.

    Args:
        ours: one side.
        theirs: the other one.
        ids: a prompt [T]; some of it is read at once, some one by one.
    """
    first = ids[: min(CHECKED, len(ids) - 1)]
    rest = ids[len(first) :][:FOLLOWING]
    want, got = (side.logits(first, rest).double() for side in (ours, theirs))
    return ((got - want).norm() / want.norm()).item()


def check_alike(ours: Side, theirs: Side, ids: Tensor, bits: int = 32) -> None:
    """Refuse to time a side that computes something else.

    Args:
        ours: a model in 32 bits.
        theirs: the other side.
        ids: a prompt [T].
        bits: of the other side's weights.

    Raises:
        StateError: if its logits are not ours.
    """
    tolerance = TOLERANCES[bits]
    with torch.inference_mode():
        error = apart(ours, theirs, ids)
    if not error <= tolerance:
        raise StateError(
            f"{theirs.name}: logits of the same weights are {error:.1e} of their length apart "
            f"from those of {ours.name}, more than {tolerance:.0e}; nothing is timed. Compare the "
            "versions of both."
        )


def session(sides: list[Side], ids: Tensor, new: int, rounds: int) -> dict[str, list[Run]]:
    """Let each side write once a round, in an order that turns.

    Args:
        sides: of different names.
        ids: the prompt [T].
        new: tokens each writes, at least 2.
        rounds: texts of each.
    """
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    for side in sides:
        side.write(ids, min(new, WARM))
    for number in range(rounds):
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            runs[side.name].append(side.write(ids, new))
    return runs


def gain(ours: list[Run], theirs: list[Run], rate: str) -> float:
    """Return our rate over theirs, the median over the rounds.

    Args:
        ours: our runs.
        theirs: as many.
        rate: "prefill" or "decode".
    """
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(getattr(a, rate) / getattr(b, rate) for a, b in pairs)
