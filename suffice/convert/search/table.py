"""What options score and cost, as the programs that choose among them, one for each way to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10

from suffice.convert.search.budget import Limit, told
from suffice.convert.search.costs import parameters, state_bytes
from suffice.convert.search.decoding import NATIVE, TORCH, WAYS
from suffice.convert.search.judge import Rows
from suffice.convert.search.library import Option, contains
from suffice.convert.search.problem import Picks, Problem
from suffice.errors import ConfigError

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
