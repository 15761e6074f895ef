"""The Pareto front: what is not beaten at a cost no higher."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Say of each (cost, quality) whether no other is at least as good in both and better in one.

    Example:
        >>> front([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (2.0, 0.9)])
        [True, True, False, True]
    """
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points)
        for cost, quality in points
    ]
