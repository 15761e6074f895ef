"""Predicts what a composition loses from its parts, over the tasks of finished comparisons.

A composition is Standard with other parts: an encoder, a kernel, a pattern, fewer key/value heads.
Its difference to Standard on a task is the sum of what its parts make, and of what the composition
makes beyond them; both have a mean over tasks and differ between tasks. All four are random effects
around zero, so a part that few tasks have seen is expected to change little, with a wide interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from suffice.advise.evidence import Evidence, Scope, data_of, packaged, scope_of
from suffice.measure import Results
from suffice.measure.statistics import Pairing, pair, t_quantile
from suffice.models.composition import STANDARD, Composition
from suffice.patterns import Pattern
from suffice.recipes import recipe
from suffice.recipes.atlas import RECALL
from suffice.spec import AXES, AttentionSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

Parts = tuple[tuple[str, float], ...]
"""Parts by name, each with the share of the layers that have it, or with doublings."""

FEWEST = 2  # tasks that have every part, for an interval
LEVEL = 0.95
PRIOR = 4  # degrees of freedom of the table's spread over seeds in that of each composition
GRID = np.geomspace(1e-4, 0.5, 13)  # standard deviations that are tried
SWEEPS = 3  # of the coordinates
SMALLEST = 1e-4  # standard deviation over seeds, below which accuracies of finite tests do not tell


def parts(specs: Sequence[AttentionSpec], plain: Sequence[AttentionSpec], length: int) -> Parts:
    """Return how the layers of a model differ from those of Standard.

    Args:
        specs: of the layers.
        plain: of the same layers with Standard.
        length: tokens of an input; a window counts as the doublings from it to the input.

    Example:
        >>> plain = [AttentionSpec(d_model=64, num_heads=4)] * 2
        >>> parts([replace(plain[0], num_kv_heads=1), plain[1]], plain, 32)
        (('shared heads', 1.0),)
    """
    total: dict[str, float] = {}
    for spec, standard in zip(specs, plain, strict=True):
        for name, amount in _of_layer(spec, standard, length):
            total[name] = total.get(name, 0.0) + amount / len(specs)
    return tuple(sorted((name, round(amount, 6)) for name, amount in total.items() if amount))


def _of_layer(
    spec: AttentionSpec, plain: AttentionSpec, length: int
) -> Iterable[tuple[str, float]]:
    for axis in AXES:
        value, usual = getattr(spec, axis), getattr(plain, axis)
        if axis != "pattern" and value != usual:
            yield f"{axis} {type(value).__name__}", 1.0
    for leaf in _leaves(spec.pattern):
        if leaf == plain.pattern:
            continue
        if leaf.reach is None:
            yield f"pattern {type(leaf).__name__}", 1.0
        else:
            yield "doublings out of reach", max(0.0, log2(length / leaf.reach))
    if spec.shares is not None:
        yield "shared layers", 1.0
    yield "shared heads", log2(spec.num_heads / spec.kv_heads)


def _leaves(pattern: Pattern) -> Iterable[Pattern]:
    """Yield the patterns that a pattern is made of by "and" and "or"."""
    several: Sequence[Pattern] = getattr(pattern, "parts", ())
    if not several:
        yield pattern
    for part in several:
        yield from _leaves(part)


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The differences to Standard of one finished comparison.

    Args:
        source: file of the results.
        task: the data; tables of several sizes share it.
        recalls: whether the task is drawn and asks for recall.
        scope: tokens of an input, and parameters with Standard.
        heads: of all of them.
        names: of the compositions, as the comparison has them.
        rows: their parts.
        differences: [N], in test accuracy, the mean over shared seeds.
        errors: [N, N], covariance of their errors over seeds. Compositions of equal seeds share the
            trainings of Standard, and so half of their variance.
        costs: [N], FLOPs over Standard's.
    """

    source: str
    task: str
    recalls: bool
    scope: Scope
    heads: int
    names: tuple[str, ...]
    rows: tuple[Parts, ...]
    differences: NDArray[np.float64]
    errors: NDArray[np.float64]
    costs: NDArray[np.float64]

    def where(self, keep: Sequence[int]) -> Table:
        """Return some of the rows."""
        places = list(keep)
        return replace(
            self,
            names=tuple(self.names[i] for i in places),
            rows=tuple(self.rows[i] for i in places),
            differences=self.differences[places],
            errors=self.errors[np.ix_(places, places)],
            costs=self.costs[places],
        )


def table_of(results: Results, source: str) -> Table | None:
    """Return the differences of a comparison; None where nothing is paired with Standard twice."""
    chosen = recipe(results.recipe, scale=results.scale)
    heads = _heads(results, chosen.num_heads)
    of = {name: results.select(name, heads) for name, h in results.pairs() if h == heads}
    plain = {cell.seed: cell.test_accuracy for cell in of.pop(STANDARD, ())}
    found = []
    for name, cells in of.items():
        mechanism = Composition.parse(name)
        accuracies = {cell.seed: cell.test_accuracy for cell in cells}
        pairing = pair(accuracies, plain)
        if mechanism.draw is None and len(pairing.seeds) > 1:
            found.append((name, pairing))
    if not found:
        return None
    model, standard = chosen.model, chosen.specs(STANDARD, heads)
    first = results.select(STANDARD, heads)[0]
    rows = [parts(chosen.specs(name, heads), standard, model.length) for name, _ in found]
    usual = max(first.flops, 1)
    return Table(
        source=source,
        task=data_of(results) or results.task,
        recalls=chosen.task in RECALL,
        scope=scope_of(results),
        heads=heads,
        names=tuple(name for name, _ in found),
        rows=tuple(rows),
        differences=np.array([np.mean(pairing.differences) for _, pairing in found]),
        errors=_errors([pairing for _, pairing in found]),
        costs=np.array([of[name][0].flops / usual for name, _ in found]),
    )


def tables() -> tuple[Table, ...]:
    """Return the tables of the comparisons that come with the package."""
    found = (table_of(results, name) for name, results in packaged().items())
    return tuple(table for table in found if table is not None)


def near(asked: Scope, *, recalls: bool = False, without: str | None = None) -> tuple[Table, ...]:
    """Return the package's tables near a scope, those of some data left out."""
    return tuple(
        table
        for table in tables()
        if table.recalls is recalls and table.task != without and table.scope.near(asked)
    )


def _heads(results: Results, usual: int) -> int:
    heads = {heads for _, heads in results.pairs()}
    return usual if usual in heads else max(heads)


def _errors(pairings: Sequence[Pairing]) -> NDArray[np.float64]:
    """Return the covariance of mean differences over seeds.

    The variance of each composition is drawn to the table's median, which is known much better.
    """
    freedom = np.array([len(one.seeds) - 1 for one in pairings])
    own = np.array([np.var(one.differences, ddof=1) for one in pairings])
    usual = max(float(np.median(own)), SMALLEST**2)
    variance = (freedom * own + PRIOR * usual) / (freedom + PRIOR)
    count = np.array([len(one.seeds) for one in pairings])
    shared = np.array([[len({*a.seeds} & {*b.seeds}) for b in pairings] for a in pairings])
    covariance = usual / 2 * shared / np.outer(count, count)
    np.fill_diagonal(covariance, variance / count)
    return covariance


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The difference of a composition to Standard on a task that it was not compared on.

    Args:
        mean: in test accuracy.
        low: lower end of the 95% interval of a new task; None below two tasks.
        high: upper end.
        tasks: that have each of its parts, of the part that fewest have.
    """

    mean: float
    low: float | None
    high: float | None
    tasks: int

    @property
    def sentence(self) -> str:
        """The prediction in words."""
        tasks = f"{self.tasks} task{'s' * (self.tasks != 1)}"
        points = f"{100 * self.mean:+.1f} points"
        if self.low is None or self.high is None:
            return f"{points} by its parts, on {tasks}: too few for an interval"
        ends = f"[{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        return f"{points} {ends} by its parts, on {tasks}"

    def suffices(self, margin: float) -> bool:
        """Return whether the whole interval is within the margin, and rests on enough tasks."""
        return self.low is not None and self.low > -margin


def known_by(found: Sequence[Evidence], prediction: Prediction | None, margin: float) -> str:
    """Return by what a composition is known to suffice: "a comparison", "its parts" or "".

    A near comparison that shows it is not enough where all tables together expect a greater loss:
    of dozens of compositions some suffice somewhere by chance.
    """
    expected = prediction is None or prediction.mean > -margin
    if expected and any(one.shows for one in found):
        return "a comparison"
    return "its parts" if prediction is not None and prediction.suffices(margin) else ""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the random effects, in accuracy.

    Args:
        part: of what a part makes on average over tasks.
        whole: of what a composition makes beyond its parts.
        part_by_task: of how that of a part differs between tasks.
        whole_by_task: of how that of a composition does.
    """

    part: float
    whole: float
    part_by_task: float
    whole_by_task: float


class Effects:
    """The random effects of parts, fitted to tables.

    Args:
        tables: of tasks like the one in question.
        spread: of the effects; None = of the largest likelihood.
    """

    def __init__(self, tables: Sequence[Table], spread: Spread | None = None) -> None:
        self.tables = tuple(tables)
        self.rows = [row for table in tables for row in table.rows]
        self.tasks = [table.task for table in tables for _ in table.rows]
        self.columns = {
            name: i for i, name in enumerate(sorted({n for r in self.rows for n, _ in r}))
        }
        self.spread = self._likeliest() if spread is None else spread

    def predict(self, row: Parts) -> Prediction | None:
        """Return the difference on a task of no table; None where a part was never tried."""
        tasks = min((len(self._tasks_of.get(name, ())) for name, _ in row), default=0)
        if not tasks:
            return None
        spread = self.spread
        x = self._vector(row)
        equal = np.array([float(row == other) for other in self.rows])
        near = spread.part**2 * self._design @ x + spread.whole**2 * equal
        mean = float(near @ self._weights)
        known = float(near @ np.linalg.solve(self._covariance(spread), near))
        size = float(x @ x)
        between = spread.part_by_task**2 * size + spread.whole_by_task**2
        variance = spread.part**2 * size + spread.whole**2 - known + between
        if tasks < FEWEST:
            return Prediction(mean=mean, low=None, high=None, tasks=tasks)
        half = t_quantile(LEVEL, tasks - 1) * max(variance, 0.0) ** 0.5
        return Prediction(mean=mean, low=mean - half, high=mean + half, tasks=tasks)

    @cached_property
    def _tasks_of(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for row, task in zip(self.rows, self.tasks, strict=True):
            for name, _ in row:
                found.setdefault(name, set()).add(task)
        return found

    @cached_property
    def _design(self) -> NDArray[np.float64]:
        return np.array([self._vector(row) for row in self.rows])

    @cached_property
    def _differences(self) -> NDArray[np.float64]:
        return np.concatenate([table.differences for table in self.tables])

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        return np.linalg.solve(self._covariance(self.spread), self._differences)

    @cached_property
    def _layers(self) -> tuple[NDArray[np.float64], ...]:
        """The covariances of the four effects at a deviation of one, and that of the errors."""
        by_part = self._design @ self._design.T
        equal = np.array([[float(a == b) for b in self.rows] for a in self.rows])
        together = np.array([[float(a == b) for b in self.tasks] for a in self.tasks])
        errors = np.zeros_like(equal)
        start = 0
        for table in self.tables:
            end = start + len(table.rows)
            errors[start:end, start:end] = table.errors
            start = end
        return by_part, equal, by_part * together, equal * together, errors

    def _covariance(self, spread: Spread) -> NDArray[np.float64]:
        *layers, errors = self._layers
        sizes = (spread.part, spread.whole, spread.part_by_task, spread.whole_by_task)
        total = errors + SMALLEST**2 * np.eye(len(errors))
        for size, layer in zip(sizes, layers, strict=True):
            total = total + size**2 * layer
        return total

    def _vector(self, row: Parts) -> NDArray[np.float64]:
        x = np.zeros(len(self.columns))
        for name, amount in row:
            x[self.columns[name]] = amount
        return x

    def _likeliest(self) -> Spread:
        """Return the spread of the largest likelihood, by coordinates over a grid."""
        best = [0.01, 0.01, 0.01, 0.01]
        score = self._likelihood(Spread(*best))
        for _, place in product(range(SWEEPS), range(len(best))):
            for size in GRID:
                tried = [*best[:place], float(size), *best[place + 1 :]]
                new = self._likelihood(Spread(*tried))
                if new > score:
                    best, score = tried, new
        return Spread(*best)

    def _likelihood(self, spread: Spread) -> float:
        factor = np.linalg.cholesky(self._covariance(spread))
        whitened = np.linalg.solve(factor, self._differences)
        return float(-np.log(np.diag(factor)).sum() - whitened @ whitened / 2)
