"""Chooses an option for each layer within a budget: bounds, costs, and an integer program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, floor, log10
from random import Random

import numpy as np

from suffice.convert.search.options import Option, contains, memory_of, parameters, state_bytes
from suffice.convert.search.scoring import Key, RowScores
from suffice.convert.search.timing import BACKENDS, NATIVE, TORCH
from suffice.errors import ConfigError, check_known
from suffice.memory import Dynamic
from suffice.utils.grammar import BYTES, COUNTS, SECONDS, SHARES, format_quantity, split_quantity

UNITS: dict[str, dict[str, float]] = {
    "state": BYTES,
    "latency": SECONDS,
    "parameters": COUNTS,
    "loss": {"": 1.0},
    "divergence": {"": 1.0},
}
"""The quantities that can be bounded, and the units of absolute bounds."""
COSTS = ("state", "latency", "parameters")
GRAMMAR = (
    "write bounds such as state<=25%, latency<=0.8x, parameters<=90%, loss<=1.05x or "
    "divergence<=0.01, with commas between them"
)
SLACK = 1e-9  # of a bound, for rounding of sums
SOLVER_SLACK = 1e-5  # of a bound, by which the solver may miss it
TRIES = 200

Choice = tuple[int, ...]
"""The number of the option of each layer."""
Place = tuple[int, int]
"""The number of a layer and of one of its options."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One bound of a budget."""

    # "state" (bytes that attention keeps of a text), "latency" (of decoding one token),
    # "parameters" (of the model), "loss" (on held-out text, nats per token) or "divergence" (from
    # the original model, nats per token)
    name: str
    value: float  # share of the original's if relative, else bytes, seconds, a number or nats
    relative: bool  # whether the bound is a share of the original's

    def of(self, source: float) -> float:
        """Return the absolute bound, given the original's value."""
        return self.value * source if self.relative else self.value

    def __str__(self) -> str:
        if self.relative:
            return f"{self.name}<={100 * self.value:.4g}%"
        return f"{self.name}<={format_quantity(self.value, UNITS[self.name])}"


def budget_of(text: str) -> tuple[Limit, ...]:
    """Return the bounds of a budget.

    Raises:
        ConfigError: for text that is not a budget, naming the legal words.

    Example:
        >>> [str(limit) for limit in budget_of("state<=25%, latency <= 0.8x")]
        ['state<=25%', 'latency<=80%']
    """
    limits = [_limit(word.strip(), text) for word in text.split(",")]
    names = [limit.name for limit in limits]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"budget {text!r:.80} bounds {repeated[0]} twice; give one bound of it.")
    return tuple(limits)


def _limit(word: str, text: str) -> Limit:
    name, sign, bound = word.partition("<=")
    name, quantity = name.strip(), split_quantity(bound)
    if not sign or quantity is None:
        raise ConfigError(f"budget {text!r:.80} is not understood at {word!r:.40}; {GRAMMAR}.")
    number, unit = quantity
    check_known("budget", name, UNITS)
    if not 0.0 < number < float("inf"):
        raise ConfigError(f"budget {word!r}: give a number above 0.")
    shares = {} if name == "divergence" else SHARES
    if unit not in shares | UNITS[name]:
        legal = ", ".join(one or "none" for one in (*shares, *UNITS[name]))
        raise ConfigError(
            f"budget {word!r}: {name} has no unit {unit or 'none'!r}; legal: {legal}."
        )
    scale = (shares | UNITS[name])[unit]
    return Limit(name=name, value=number * scale, relative=unit in shares)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Layers with options, each of which adds to a score and to costs."""

    scores: Sequence[Sequence[float]]  # of the options of each layer; their sum is minimised
    costs: Mapping[str, Sequence[Sequence[float]]]  # by name, of the options of each layer
    base: Mapping[str, float]  # of each cost, without the layers
    bounds: Mapping[str, float]  # absolute, of costs by name
    needs: Mapping[Place, Place] = field(default_factory=dict)  # options that go with another one

    def score(self, choice: Choice) -> float:
        return _sum(self.scores, choice)

    def cost(self, name: str, choice: Choice) -> float:
        return self.base[name] + _sum(self.costs[name], choice)

    def meets(self, choice: Choice) -> bool:
        """Return whether a choice meets all bounds, and its options go together."""
        return self._together(choice) and all(
            self.cost(name, choice) <= self._limit(name) for name in self.bounds
        )

    def _together(self, choice: Choice) -> bool:
        return all(
            choice[layer] != option or choice[other] == needed
            for (layer, option), (other, needed) in self.needs.items()
        )

    def stretch(self, choice: Choice) -> float:
        """Return the largest cost of a choice as a multiple of its bound."""
        return max(self.cost(name, choice) / bound for name, bound in self.bounds.items())

    def solve(self) -> Choice | None:
        """Return the choice of the least score that meets all bounds; None if there is none."""
        scale = max(max(map(max, self.scores)), 1e-30)
        objective = [[1e3 * score / scale for score in row] for row in self.scores]
        choice = self._milp(objective)
        if choice is not None and not self.meets(choice):  # the solver rounds
            choice = self._milp(objective, within=1.0 - SOLVER_SLACK)
        return choice if choice is not None and self.meets(choice) else None

    def nearest(self) -> Choice:
        """Return the choice whose costs are the smallest multiple of their bounds."""
        choice = self._milp([[0.0] * len(row) for row in self.scores], stretched=True)
        return choice or tuple(0 for _ in self.scores)

    def neighbours(self, choice: Choice, count: int) -> list[Choice]:
        """Return choices that meet all bounds and differ in one layer or two, best scores first."""
        near: set[Choice] = set()
        for layers in combinations(range(len(self.scores)), min(2, len(self.scores))):
            near.update(self._exchanged(choice, layers, count))
        near.discard(choice)
        return sorted(near, key=lambda one: (self.score(one), one))[:count]

    def random(self, draws: Random) -> Choice | None:
        """Return a random choice that meets all bounds, repaired if needed; None if none is."""
        for _ in range(TRIES):
            choice = self._draw(draws)
            if self.meets(choice):
                return choice
        for _ in range(TRIES):
            choice = self._draw(draws)
            for _ in range(TRIES):
                if self.meets(choice):
                    return choice
                layer = draws.randrange(len(choice))
                option = draws.randrange(len(self.scores[layer]))
                other = (*choice[:layer], option, *choice[layer + 1 :])
                if self._excess(other) <= self._excess(choice):
                    choice = other
        return None

    def _limit(self, name: str) -> float:
        return self.bounds[name] + SLACK * abs(self.bounds[name])

    def _milp(
        self, objective: list[list[float]], *, within: float = 1.0, stretched: bool = False
    ) -> Choice | None:
        """Solve within a share of the bounds, or minimise the multiple of the bounds."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        sizes = [len(row) for row in self.scores]
        count = sum(sizes)
        one_each = np.repeat(np.eye(len(sizes)), sizes, axis=1)
        one_each = np.pad(one_each, ((0, 0), (0, int(stretched))))
        constraints = [LinearConstraint(one_each, 1.0, 1.0)]
        for name, bound in self.bounds.items():
            row = np.concatenate([np.asarray(one, dtype=float) for one in self.costs[name]])
            row, base = row / abs(bound), self.base[name] / abs(bound)
            row = np.append(row, -1.0) if stretched else row
            limit = (0.0 if stretched else within) - base
            constraints.append(LinearConstraint(row[None], -np.inf, limit))
        starts = np.cumsum([0, *sizes[:-1]])
        for (layer, option), (other, needed) in self.needs.items():
            row = np.zeros(count + int(stretched))
            row[starts[layer] + option], row[starts[other] + needed] = 1.0, -1.0
            constraints.append(LinearConstraint(row[None], -np.inf, 0.0))
        weights = np.concatenate([np.asarray(one, dtype=float) for one in objective])
        integral, upper = np.ones(count), np.ones(count)
        if stretched:
            weights, integral = np.append(weights, 1.0), np.append(integral, 0.0)
            upper = np.append(upper, np.inf)
        solution = milp(
            weights,
            constraints=constraints,
            integrality=integral,
            bounds=Bounds(0.0, upper),
            options={"mip_rel_gap": 0.0},
        )
        if solution.x is None:
            return None
        parts = np.split(solution.x[:count], np.cumsum(sizes)[:-1])
        return tuple(int(part.argmax()) for part in parts)

    def _exchanged(self, choice: Choice, layers: tuple[int, ...], count: int) -> list[Choice]:
        grid = np.meshgrid(*(range(len(self.scores[at])) for at in layers), indexing="ij")

        def sums(values: Sequence[Sequence[float]]) -> np.ndarray:
            others = [at for at in range(len(choice)) if at not in layers]
            rest = sum(values[at][choice[at]] for at in others)
            pairs = zip(layers, grid, strict=True)
            return rest + sum(np.asarray(values[at], dtype=float)[index] for at, index in pairs)

        fits = np.ones(grid[0].shape, dtype=bool)
        for name in self.bounds:
            fits &= sums(self.costs[name]) <= self._limit(name) - self.base[name]
        scores = np.where(fits, sums(self.scores), np.inf).ravel()
        choices = []
        for place in np.argsort(scores, kind="stable"):
            if not np.isfinite(scores[place]) or len(choices) > count:
                break
            other = list(choice)
            for layer, index in zip(layers, grid, strict=True):
                other[layer] = int(index.ravel()[place])
            if self._together(tuple(other)):
                choices.append(tuple(other))
        return choices

    def _draw(self, draws: Random) -> Choice:
        return tuple(draws.randrange(len(row)) for row in self.scores)

    def _excess(self, choice: Choice) -> float:
        return sum(
            max(self.cost(name, choice) / bound - 1.0, 0.0) for name, bound in self.bounds.items()
        )


def _sum(values: Sequence[Sequence[float]], choice: Choice) -> float:
    return float(sum(row[option] for row, option in zip(values, choice, strict=True)))


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Options, and what is known of their costs and scores so far."""

    options: Sequence[Sequence[Option]]  # of each layer, in order; the first keeps it
    length: int  # tokens of the text behind which costs count
    others: int  # parameters of the model outside its attention
    latency: Mapping[str, Mapping[Key, float]] | None = None  # seconds an option adds to a step
    steps: Mapping[str, float] | None = None  # seconds of a step of the original, by backend
    rows: Mapping[Key, RowScores] | None = None  # by option, its scores; None: not scored yet

    def source(self, name: str) -> float:
        """Return a quantity of the original."""
        originals = [of_layer[0] for of_layer in self.options]
        if name == "state":
            return sum(state_bytes(one.change.spec, self.length) for one in originals)
        if name == "parameters":
            return self.others + sum(parameters(one.change.spec) for one in originals)
        if name == "latency":
            return min(self.steps.values())
        return _mean(self.rows[originals[0].key].loss) if name == "loss" else 0.0

    def base(self, name: str, backend: str) -> float:
        """Return a quantity without what the options add."""
        if name == "parameters":
            return float(self.others)
        if name == "latency":
            return self.steps[backend]
        return self.source("loss") if name == "loss" else 0.0

    def cost(self, name: str, option: Option, backend: str) -> float:
        """Return what an option adds to a quantity."""
        spec = option.change.spec
        if name == "state":
            return float(state_bytes(spec, self.length, rolls=backend == TORCH))
        if name == "parameters":
            return float(parameters(spec))
        if name == "latency":
            return self.latency[backend][option.key]
        if self.rows is None:
            return 0.0
        scores = self.rows[option.key]
        if name == "loss":
            return _mean(scores.loss) - self.source("loss")
        return max(_mean(scores.divergence), 0.0)

    def knows(self, name: str) -> bool:
        measured = {"latency": self.latency, "loss": self.rows, "divergence": self.rows}
        return measured.get(name, ()) is not None

    def minimises_state(self, limits: Sequence[Limit]) -> bool:
        """Return whether quality alone is bounded, so that the state is minimised."""
        return not any(limit.name in COSTS for limit in limits)

    def programs(self, limits: Sequence[Limit]) -> dict[str, tuple[Program, list[list[Option]]]]:
        """Return each backend's program and options; one program without a bound of the latency."""
        known = [limit for limit in limits if self.knows(limit.name)]
        backends = [TORCH]
        if any(limit.name == "latency" for limit in known):
            backends = [backend for backend in BACKENDS if backend in self.steps]
        return {backend: self._program(backend, known) for backend in backends}

    def _program(self, backend: str, limits: Sequence[Limit]) -> tuple[Program, list[list[Option]]]:
        def usable(option: Option) -> bool:
            timed = self.latency is None or option.key in self.latency[backend]
            return timed and (self.rows is None or option.key in self.rows)

        options = [list(filter(usable, of_layer)) for of_layer in self.options]

        def table(name: str) -> list[list[float]]:
            return [[self.cost(name, one, backend) for one in of_layer] for of_layer in options]

        costs = {name: table(name) for name in {*(limit.name for limit in limits), "state"}}
        scores = costs["state"] if self.minimises_state(limits) else table("divergence")
        program = Program(
            scores=scores,
            costs=costs,
            base={name: self.base(name, backend) for name in costs},
            bounds={limit.name: limit.of(self.source(limit.name)) for limit in limits},
            needs=_needs(options),
        )
        return program, options

    def without_dominated(self, limits: Sequence[Limit]) -> CostTable:
        """Return the table without options that another one contains at no higher bounded cost."""
        names = [limit.name for limit in limits if limit.name in COSTS] or ["state"]

        def dominated(option: Option, of_layer: Sequence[Option]) -> bool:
            backends = [one for one, known in self.latency.items() if option.key in known]
            return option.change.maps is None and any(
                contains(other.change.spec, option.change.spec)
                and all(
                    self.cost(name, other, backend) <= self.cost(name, option, backend)
                    for name in names
                    for backend in backends
                )
                for other in of_layer
            )

        return replace(
            self, options=[[one for one in row if not dominated(one, row)] for row in self.options]
        )

    def suffices(self, limits: Sequence[Limit]) -> bool:
        return any(program.solve() is not None for program, _ in self.programs(limits).values())

    def choose(self, limits: Sequence[Limit]) -> tuple[str, Program, list[list[Option]], Choice]:
        """Return the backend, the program, its options and the best choice."""
        programs = self.programs(limits)
        solved = [
            (program.score(choice), backend, program, options, choice)
            for backend, (program, options) in programs.items()
            if (choice := program.solve()) is not None
        ]
        if solved:
            _, *best = min(solved, key=lambda one: one[0])
            return tuple(best)
        known = [limit for limit in limits if self.knows(limit.name)]
        nearest = [(program, program.nearest()) for program, _ in programs.values()]
        program, choice = min(nearest, key=lambda one: one[0].stretch(one[1]))
        bounds = []
        for limit in known:
            source = self.source(limit.name)
            value = max(program.cost(limit.name, choice), limit.of(source))
            value = _rounded_up(value / source if limit.relative else value)
            bounds.append(str(replace(limit, value=value)))
        scored = "" if self.rows is None else " of the options scored so far"
        raise ConfigError(
            f"no choice{scored} meets {', '.join(map(str, known))}; the nearest that can be met is "
            f"{', '.join(bounds)}."
        )


def _needs(options: Sequence[Sequence[Option]]) -> dict[Place, Place]:
    return {
        (layer, at): (one.change.spec.shares, 0)  # the first option keeps a layer
        for layer, of_layer in enumerate(options)
        for at, one in enumerate(of_layer)
        if one.change.shares
    }


def backend_of(options: Sequence[Option], latency: Mapping[str, Mapping[Key, float]]) -> str:
    """Return the backend of a model with these options that keeps no more than is in reach."""
    rolls = any(memory_of(option.change.spec) != Dynamic() for option in options)
    native = NATIVE in latency and all(option.key in latency[NATIVE] for option in options)
    return NATIVE if native and not rolls else TORCH


def _rounded_up(value: float) -> float:
    """Return a value rounded up to four digits.

    Example:
        >>> _rounded_up(0.06250), _rounded_up(0.0333333)
        (0.0625, 0.03334)
    """
    scale = 10.0 ** (3 - floor(log10(value)))
    return ceil(value * scale - 1e-6) / scale


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
