"""Which option for each layer: an integer program, and ways to draw and to change a choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

import numpy as np

Picks = tuple[int, ...]  # the number of the option of each layer
SLACK = 1e-9  # of a bound: rounding of sums
ROUNDED = 1e-5  # of a bound: what the solver may miss it by
TRIES = 200


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Layers with options, each of which adds to a score and to costs.

    Args:
        scores: of the options of each layer; their sum is to be least.
        costs: by name, of the options of each layer.
        base: of each cost, what there is beside the layers.
        bounds: of costs by name, in absolute terms.
    """

    scores: Sequence[Sequence[float]]
    costs: Mapping[str, Sequence[Sequence[float]]]
    base: Mapping[str, float]
    bounds: Mapping[str, float]

    def score(self, picks: Picks) -> float:
        """Return the sum of the scores of a choice."""
        return _sum(self.scores, picks)

    def cost(self, name: str, picks: Picks) -> float:
        """Return one cost of a choice."""
        return self.base[name] + _sum(self.costs[name], picks)

    def meets(self, picks: Picks) -> bool:
        """Return whether a choice meets all bounds."""
        return all(self.cost(name, picks) <= self._most(name) for name in self.bounds)

    def solve(self) -> Picks | None:
        """Return the choice of the least score that meets all bounds; None if there is none."""
        scale = max(max(map(max, self.scores)), 1e-30)
        aims = [[1e3 * one / scale for one in row] for row in self.scores]
        found = self._program(aims)
        if found is not None and not self.meets(found):  # the solver rounds
            found = self._program(aims, within=1.0 - ROUNDED)
        return found if found is not None and self.meets(found) else None

    def nearest(self) -> Picks:
        """Return the choice whose costs are the smallest multiple of their bounds."""
        found = self._program([[0.0] * len(row) for row in self.scores], stretched=True)
        return found or tuple(0 for _ in self.scores)

    def _most(self, name: str) -> float:
        return self.bounds[name] + SLACK * abs(self.bounds[name])

    def _program(
        self, objective: list[list[float]], *, within: float = 1.0, stretched: bool = False
    ) -> Picks | None:
        """Solve the program within a share of the bounds, or within a multiple to be found."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        sizes = [len(row) for row in self.scores]
        count = sum(sizes)
        one_each = np.repeat(np.eye(len(sizes)), sizes, axis=1)
        one_each = np.pad(one_each, ((0, 0), (0, int(stretched))))
        rules = [LinearConstraint(one_each, 1.0, 1.0)]
        for name, bound in self.bounds.items():
            row = np.concatenate([np.asarray(one, dtype=float) for one in self.costs[name]])
            row, base = row / abs(bound), self.base[name] / abs(bound)
            row = np.append(row, -1.0) if stretched else row
            rules.append(
                LinearConstraint(row[None], -np.inf, (0.0 if stretched else within) - base)
            )
        aims = np.concatenate([np.asarray(one, dtype=float) for one in objective])
        whole, top = np.ones(count), np.ones(count)
        if stretched:
            aims, whole, top = np.append(aims, 1.0), np.append(whole, 0.0), np.append(top, np.inf)
        found = milp(
            aims,
            constraints=rules,
            integrality=whole,
            bounds=Bounds(0.0, top),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            return None
        parts = np.split(found.x[:count], np.cumsum(sizes)[:-1])
        return tuple(int(part.argmax()) for part in parts)

    def neighbours(self, picks: Picks, most: int) -> list[Picks]:
        """Return choices that meet all bounds and differ in one layer or two, best scores first."""
        found: set[Picks] = set()
        for layers in self._places():
            found.update(self._exchanged(picks, layers, most))
        found.discard(picks)
        return sorted(found, key=lambda one: (self.score(one), one))[:most]

    def _places(self) -> Iterator[tuple[int, ...]]:
        yield from combinations(range(len(self.scores)), min(2, len(self.scores)))

    def _exchanged(self, picks: Picks, layers: tuple[int, ...], most: int) -> Iterator[Picks]:
        """Give the best choices with other options in some layers."""
        grid = np.meshgrid(*(range(len(self.scores[at])) for at in layers), indexing="ij")
        fits = np.ones(grid[0].shape, dtype=bool)
        for name, costs in self.costs.items():
            if name in self.bounds:
                left = self._most(name) - self.base[name]
                fits &= _moved(costs, picks, layers, grid) <= left
        scores = np.where(fits, _moved(self.scores, picks, layers, grid), np.inf).ravel()
        for at in np.argsort(scores, kind="stable")[: most + 1]:
            if np.isfinite(scores[at]):
                other = list(picks)
                for layer, options in zip(layers, grid, strict=True):
                    other[layer] = int(options.ravel()[at])
                yield tuple(other)

    def random(self, draws: Random) -> Picks | None:
        """Return a drawn choice that meets all bounds; None if none was found.

        It is drawn whole where that succeeds; else layers are drawn again, one by one, as long as
        that brings the costs nearer to their bounds.
        """
        for _ in range(TRIES):
            picks = self._drawn(draws)
            if self.meets(picks):
                return picks
        for _ in range(TRIES):
            picks = self._drawn(draws)
            for _ in range(TRIES):
                if self.meets(picks):
                    return picks
                at = draws.randrange(len(picks))
                other = (*picks[:at], draws.randrange(len(self.scores[at])), *picks[at + 1 :])
                if self._beyond(other) <= self._beyond(picks):
                    picks = other
        return None

    def _drawn(self, draws: Random) -> Picks:
        return tuple(draws.randrange(len(row)) for row in self.scores)

    def _beyond(self, picks: Picks) -> float:
        """Return by how much a choice misses the bounds, in shares of them."""
        return sum(
            max(self.cost(name, picks) / bound - 1.0, 0.0) for name, bound in self.bounds.items()
        )


def _moved(
    values: Sequence[Sequence[float]],
    picks: Picks,
    layers: tuple[int, ...],
    grid: Sequence[np.ndarray],
) -> np.ndarray:
    """Return the sums of a choice with other options in some layers."""
    still = sum(row[one] for at, (row, one) in enumerate(_rows(values, picks)) if at not in layers)
    pairs = zip(layers, grid, strict=True)
    return still + sum(np.asarray(values[at], dtype=float)[options] for at, options in pairs)


def _rows(values: Sequence[Sequence[float]], picks: Picks) -> Iterator[tuple[Sequence[float], int]]:
    return zip(values, picks, strict=True)


def _sum(values: Sequence[Sequence[float]], picks: Picks) -> float:
    return float(sum(row[one] for row, one in _rows(values, picks)))
