"""FLOPs of attention layers counted twice: by equation 24 of the paper, and as executed.

Both are of a forward and a backward pass of one sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from suffice.cost import PAPER_CONSTANTS, paper_flops
from suffice.presets import preset, takes_length

MECHANISMS = tuple(PAPER_CONSTANTS)
HEADS = (1, 2, 4, 8)
POWERS = tuple(2**power for power in range(4, 15))  # tokens and features of the heatmaps
PASSES = 3  # a forward and a backward, which costs twice as much
PUBLISHED = (30, 25, 20, 16)  # average percentages, in the order of the paper's text
IN_ORDER, REVERSED = HEADS, HEADS[::-1]  # heads they belong to: by appendix B.2, by figure 6 of v3


def executed(mechanism: str, *, length: int, d_model: int, num_heads: int) -> int:
    """Return the FLOPs of the matrix products of a forward and a backward pass.

    Example:
        >>> executed("standard", length=64, d_model=128, num_heads=4)
        31457280
    """
    options = {"length": length} if takes_length(mechanism) else {}
    return PASSES * preset(mechanism, d_model, num_heads, **options).cost(length).flops


@dataclass(frozen=True, kw_only=True)
class Count:
    """One way to count.

    Args:
        title: what figures and tables call it.
        of: FLOPs of (mechanism, length=, d_model=, num_heads=).
    """

    title: str
    of: Callable[..., int]


COUNTS = {
    "paper": Count(title="equation 24", of=paper_flops),
    "executed": Count(title="true FLOPs", of=executed),
}


def extra(count: Count, mechanism: str, num_heads: int) -> list[list[float]]:
    """Return how much more Standard needs than a mechanism, as a share of what that one needs.

    Shapes:
        a list for each d_model of POWERS, in it a number for each length of POWERS
    """
    return [
        [
            count.of("standard", length=length, d_model=d_model, num_heads=num_heads)
            / count.of(mechanism, length=length, d_model=d_model, num_heads=num_heads)
            - 1
            for length in POWERS
        ]
        for d_model in POWERS
    ]


def average(grid: list[list[float]]) -> float:
    """Return the mean of a grid's numbers.

    Example:
        >>> [round(100 * average(extra(COUNTS["paper"], "efficient", h)), 1) for h in HEADS]
        [29.7, 24.9, 20.3, 16.2]
    """
    numbers = [number for row in grid for number in row]
    return sum(numbers) / len(numbers)


def right_order(averages: dict[int, float]) -> tuple[int, ...] | None:
    """Return the heads that the published averages belong to, by averages computed; None = neither.

    Args:
        averages: shares by number of heads.
    """
    for order in (IN_ORDER, REVERSED):
        pairs = zip(PUBLISHED, order, strict=True)
        if all(round(100 * averages[heads]) == percent for percent, heads in pairs):
            return order
    return None
