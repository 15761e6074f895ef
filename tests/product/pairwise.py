"""A small table of cases in which every pair of values of two factors occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any

Case = dict[str, Any]
TRIES = 60  # random completions of a pair; one that nothing makes legal is taken to be impossible


def pairs_of(case: Case) -> set[tuple]:
    """Return the pairs of values that a case holds, each with the names of its factors."""
    return set(combinations(case.items(), 2))


def pairwise(
    factors: Mapping[str, Sequence[Any]], legal: Callable[[Case], bool] = lambda _: True
) -> list[Case]:
    """Return cases that together hold every pair of values which legal cases can hold.

    The same for the same factors: the random completions are those of one seed. The pairs of the
    first two factors come first.

    Args:
        factors: hashable values by the name of the factor.
        legal: tells whether a combination means something.

    Example:
        >>> table = pairwise({"a": (1, 2), "b": (1, 2), "c": (1, 2)})
        >>> len(table) < 8, table == pairwise({"a": (1, 2), "b": (1, 2), "c": (1, 2)})
        (True, True)
    """
    draw = random.Random(0)
    missing = {
        pair: None
        for first, second in combinations(factors, 2)
        for pair in product(
            ((first, one) for one in factors[first]), ((second, two) for two in factors[second])
        )
    }
    chosen: list[Case] = []
    for _ in range(2):  # what is rarely legal is found beside cases that were chosen later
        impossible = {}
        while missing:
            pair = next(iter(missing))
            drawn = (
                {name: draw.choice(values) for name, values in factors.items()}
                for _ in range(TRIES)
            )
            near = [
                case
                for name, value in pair
                for case in [case for case in chosen if case[name] == value][:TRIES]
            ]
            candidates = [case | dict(pair) for case in chain(drawn, near)]
            candidates = [case for case in candidates if legal(case)]
            if not candidates:
                impossible[pair] = missing.pop(pair)
                continue
            best = max(candidates, key=lambda case: len(pairs_of(case) & missing.keys()))
            chosen.append(best)
            for held in pairs_of(best) & missing.keys():
                del missing[held]
        missing = impossible
    return chosen
