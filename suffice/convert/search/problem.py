"""Which option for each layer: an integer program, and ways to draw and to change a choice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, floor, log10
from random import Random

import numpy as np

from suffice.convert.search.options import Option, contains, parameters, state_bytes
from suffice.convert.search.scoring import NATIVE, TORCH, WAYS, Rows
from suffice.errors import ConfigError, unknown

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


SHARES = {"%": 0.01, "x": 1.0}
BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
UNITS: dict[str, dict[str, float]] = {
    "state": BYTES,
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "parameters": {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9},
    "loss": {"": 1.0},
    "divergence": {"": 1.0},
}
"""What can be bounded, and the units of an absolute bound."""
WORD = re.compile(r"([a-z]+)\s*<=\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([%A-Za-z]*)")
GRAMMAR = (
    "write bounds such as state<=25%, latency<=0.8x, parameters<=90%, loss<=1.05x or "
    "divergence<=0.01, with commas between them"
)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One bound.

    Args:
        name: "state" (bytes that attention keeps of a text), "latency" (of the step of one token),
            "parameters" (of the model), "loss" (on held-out text, nats per token) or "divergence"
            (from the model as it is, nats per token).
        value: of the source's if relative, else bytes, seconds, numbers or nats.
        relative: whether the bound is a share of what the source has.
    """

    name: str
    value: float
    relative: bool

    def of(self, source: float) -> float:
        """Return the bound in absolute terms, for what the source has."""
        return self.value * source if self.relative else self.value

    def __str__(self) -> str:
        """Return the bound in words."""
        return f"{self.name}<={told(self.name, self.value, relative=self.relative)}"


def budget_of(text: str) -> tuple[Limit, ...]:
    """Return the bounds that words name.

    Raises:
        ConfigError: for words that are not legal, naming those that are.

    Example:
        >>> [str(limit) for limit in budget_of("state<=25%, latency <= 0.8x")]
        ['state<=25%', 'latency<=80%']
    """
    limits = [_limit(word.strip(), text) for word in text.split(",")]
    names = [limit.name for limit in limits]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"budget {text!r:.80} bounds {twice[0]} twice; give one bound of it.")
    return tuple(limits)


def told(name: str, value: float, *, relative: bool) -> str:
    """Return a value as one writes it in a budget.

    Example:
        >>> told("state", 0.25, relative=True), told("latency", 0.0021, relative=False)
        ('25%', '2.1ms')
    """
    if relative:
        return f"{100 * value:.4g}%"
    units = UNITS[name]
    fitting = [(size, unit) for unit, size in units.items() if size <= value and "i" not in unit]
    size, unit = max(fitting, default=min((size, unit) for unit, size in units.items()))
    return f"{value / size:.4g}{unit}"


def _limit(word: str, text: str) -> Limit:
    found = WORD.fullmatch(word)
    if found is None:
        raise ConfigError(f"budget {text!r:.80} is not understood at {word!r:.40}; {GRAMMAR}.")
    name, number, unit = found[1], float(found[2]), found[3]
    if name not in UNITS:
        raise unknown("budget", name, UNITS)
    if not 0.0 < number < float("inf"):
        raise ConfigError(f"budget {word!r}: give a number above 0.")
    if unit in SHARES and name != "divergence":
        return Limit(name=name, value=number * SHARES[unit], relative=True)
    if unit not in UNITS[name]:
        shares = [] if name == "divergence" else list(SHARES)
        legal = ", ".join(one or "none" for one in (*shares, *UNITS[name]))
        raise ConfigError(
            f"budget {word!r}: {name} has no unit {unit or 'none'!r}; legal: {legal}."
        )
    return Limit(name=name, value=number * UNITS[name][unit], relative=False)


COSTS = ("state", "latency", "parameters")
Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Options, and what is known of them so far.

    Args:
        options: of each layer, in order; the first keeps it.
        length: tokens of the text behind which costs count.
        others: parameters of the model beside its attention.
        latency: by way, what each option adds to the seconds of a step; None = not measured yet.
        steps: by way, the seconds of a step of the source.
        rows: by option, what it changes; None = not scored yet.
    """

    options: Sequence[Sequence[Option]]
    length: int
    others: int
    latency: Mapping[str, Mapping[Key, float]] | None = None
    steps: Mapping[str, float] | None = None
    rows: Mapping[Key, Rows] | None = None

    def source(self, name: str) -> float:
        """Return what the source has of a quantity."""
        keep = [of_layer[0] for of_layer in self.options]
        if name == "state":
            return sum(state_bytes(one.change.spec, self.length) for one in keep)
        if name == "parameters":
            return self.others + sum(parameters(one.change.spec) for one in keep)
        if name == "latency":
            return min(self.steps.values())
        return _mean(self.rows[keep[0].key].loss) if name == "loss" else 0.0

    def knows(self, name: str) -> bool:
        """Return whether a quantity can be told already."""
        known = {"latency": self.latency, "loss": self.rows, "divergence": self.rows}
        return known.get(name, ()) is not None

    def programs(self, limits: Sequence[Limit]) -> dict[str, tuple[Problem, list[list[Option]]]]:
        """Return the programs by way, with the options each chooses among.

        Where the latency is not bounded, there is one that leaves open how the model steps.
        """
        bounded = [limit for limit in limits if self.knows(limit.name)]
        ways = [TORCH]
        if any(limit.name == "latency" for limit in bounded):
            ways = [way for way in WAYS if way in self.steps]
        return {way: self._program(way, bounded) for way in ways}

    def _program(self, way: str, limits: Sequence[Limit]) -> tuple[Problem, list[list[Option]]]:
        options = [[one for one in of_layer if self._usable(one, way)] for of_layer in self.options]
        names = [limit.name for limit in limits]
        costs = {
            name: [[self.cost(name, one, way) for one in of_layer] for of_layer in options]
            for name in {*names, "state"}
        }
        scores = [[self.cost("divergence", one, way) for one in of_layer] for of_layer in options]
        if self.aims_at_state(limits):
            scores = costs["state"]
        bounds = {limit.name: limit.of(self.source(limit.name)) for limit in limits}
        base = {name: self.base(name, way) for name in costs}
        return Problem(scores=scores, costs=costs, base=base, bounds=bounds), options

    def aims_at_state(self, limits: Sequence[Limit]) -> bool:
        """Return whether quality is bounded alone: then the least state is looked for."""
        return not any(limit.name in COSTS for limit in limits)

    def base(self, name: str, way: str) -> float:
        """Return what there is of a cost beside what options add."""
        if name == "parameters":
            return float(self.others)
        if name == "latency":
            return self.steps[way]
        return self.source("loss") if name == "loss" else 0.0

    def cost(self, name: str, one: Option, way: str) -> float:
        """Return what an option adds to a quantity."""
        spec = one.change.spec
        if name == "state":
            return float(state_bytes(spec, self.length, rolls=way == TORCH))
        if name == "parameters":
            return float(parameters(spec))
        if name == "latency":
            return self.latency[way][one.key]
        if self.rows is None:
            return 0.0
        found = self.rows[one.key]
        if name == "loss":
            return _mean(found.loss) - self.source("loss")
        return max(_mean(found.divergence), 0.0)

    def _usable(self, one: Option, way: str) -> bool:
        if self.latency is not None and one.key not in self.latency[way]:
            return False
        return self.rows is None or one.key in self.rows

    def needed(self, limits: Sequence[Limit]) -> Table:
        """Return the table without options that another one beats before any text is read.

        That one can be whatever they can, and costs no more of what is bounded.
        """
        names = [limit.name for limit in limits if limit.name in COSTS] or ["state"]

        def beaten(one: Option, row: Sequence[Option]) -> bool:
            return one.change.maps is None and any(
                contains(other.change.spec, one.change.spec)
                and all(
                    self.cost(name, other, way) <= self.cost(name, one, way)
                    for name in names
                    for way in self.latency
                    if one.key in self.latency[way]
                )
                for other in row
            )

        rows = [[one for one in row if not beaten(one, row)] for row in self.options]
        return replace(self, options=rows)

    def suffices(self, limits: Sequence[Limit]) -> bool:
        """Return whether some choice of what is known meets all bounds."""
        return any(one.solve() is not None for one, _ in self.programs(limits).values())

    def choose(self, limits: Sequence[Limit]) -> tuple[str, Problem, list[list[Option]], Picks]:
        """Return the way, the program, its options and the best choice.

        Raises:
            ConfigError: if nothing meets the bounds, naming the nearest that can be met.
        """
        programs = self.programs(limits)
        solved = [
            (problem.score(picks), way, problem, options, picks)
            for way, (problem, options) in programs.items()
            if (picks := problem.solve()) is not None
        ]
        if not solved:
            raise ConfigError(self._refusal(limits, programs))
        _, *best = min(solved, key=lambda one: one[0])
        return tuple(best)

    def _refusal(
        self, limits: Sequence[Limit], programs: Mapping[str, tuple[Problem, list[list[Option]]]]
    ) -> str:
        known = [limit for limit in limits if self.knows(limit.name)]
        nearest = [(problem, problem.nearest()) for problem, _ in programs.values()]
        problem, picks = min(nearest, key=lambda one: _stretch(*one))
        words = []
        for limit in known:
            value = max(problem.cost(limit.name, picks), limit.of(self.source(limit.name)))
            value = value / self.source(limit.name) if limit.relative else value
            words.append(f"{limit.name}<={told(limit.name, _up(value), relative=limit.relative)}")
        scored = "" if self.rows is None else " of the options scored so far"
        return (
            f"no choice{scored} meets {', '.join(map(str, known))}; the nearest that can be met is "
            f"{', '.join(words)}."
        )


def way_of(picked: Sequence[Option], latency: Mapping[str, Mapping[Key, float]]) -> str:
    """Return how a model of some options steps such that it keeps only what it sees."""
    rolls = any(
        state_bytes(one.change.spec, 1 << 40) != state_bytes(one.change.spec, 1 << 40, rolls=False)
        for one in picked
    )
    natively = NATIVE in latency and all(one.key in latency[NATIVE] for one in picked)
    return NATIVE if natively and not rolls else TORCH


def _stretch(problem: Problem, picks: Picks) -> float:
    return max(problem.cost(name, picks) / bound for name, bound in problem.bounds.items())


def _up(value: float) -> float:
    """Return a value rounded up to four digits.

    Example:
        >>> _up(0.06250), _up(0.0333333)
        (0.0625, 0.03334)
    """
    size = 10.0 ** (3 - floor(log10(value)))
    return ceil(value * size - 1e-6) / size


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
