"""Evidence of a mechanism's quality: finished comparisons, the package's and the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import resources
from math import log2
from pathlib import Path
from statistics import median

from suffice.advise.request import KINDS
from suffice.errors import ConfigError
from suffice.files import read_json
from suffice.measure import Comparison, Results, judge
from suffice.measure.plan import MARGIN
from suffice.measure.results import read_results
from suffice.measure.sentence import decision, interval, margin_points
from suffice.models import LMConfig
from suffice.models.composition import Composition
from suffice.recipes import ATLAS, SCALES, recipe
from suffice.recipes.atlas import RECALL

SUFFICES, LOST = "suffices", "does not suffice"  # verdicts
FILE = "results.json"  # in the folder of a comparison

DOUBLINGS = {"tokens": 2.0, "parameters": 4.0}
"""A comparison is near what is asked if neither differs by more doublings."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a comparison was of, and what is asked for.

    Args:
        tokens: of an input.
        parameters: of the model with Standard.

    Example:
        >>> Scope(tokens=64, parameters=300_000).near(Scope(tokens=256, parameters=3_000_000))
        True
        >>> Scope(tokens=64, parameters=300_000).near(Scope(tokens=1024, parameters=300_000))
        False
    """

    tokens: int
    parameters: int

    def apart(self, other: Scope) -> tuple[float, float]:
        """Return the doublings between the tokens, and between the parameters."""
        return (
            abs(log2(self.tokens / other.tokens)),
            abs(log2(self.parameters / other.parameters)),
        )

    def near(self, other: Scope) -> bool:
        """Return whether a verdict on one may stand for the other."""
        return all(a <= b for a, b in zip(self.apart(other), DOUBLINGS.values(), strict=True))

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens and {self.parameters / 1e6:.1f}M parameters"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One finished comparison of a mechanism with Standard.

    Args:
        source: file of the results.
        title: title of the task.
        num_heads: heads of both.
        seeds: seeds that both were trained from.
        difference: in test accuracy, in points with its interval.
        margin: loss of accuracy that is acceptable, a fraction.
        verdict: "suffices", "does not suffice" or "undecided" and what would decide.
        far: what it was of, where that is another length or size than is asked for; "" = it is
            near, or the user's own.
    """

    source: str
    title: str
    num_heads: int
    seeds: int
    difference: str
    margin: float
    verdict: str
    far: str = ""

    @property
    def shows(self) -> bool:
        """Whether it shows that the mechanism suffices where it is asked for."""
        return self.verdict == SUFFICES and not self.far

    @property
    def sentence(self) -> str:
        """All of it as a sentence."""
        return (
            f"{self.verdict} at {margin_points(self.margin)} points: {self.difference}, "
            f"{self.seeds} seeds, {self.num_heads} heads; {self.title} ({self.source})"
            + (f", which is of {self.far}" if self.far else "")
        )


class Library:
    """The finished comparisons of a task with Standard, judged at a margin.

    Args:
        task: see `Request`.
        folders: of `suffice compare`, read in addition to the package's results.
        margin: loss of accuracy that is acceptable; None = a hundredth.
        asked: what is asked for, to which the package's comparisons are near or far; None = all
            are near.
        recalls: of drawn tasks that ask for recall, instead of the others.
        without: data whose comparisons are left out, see `data_of`.
    """

    def __init__(
        self,
        task: str,
        folders: Sequence[str] = (),
        margin: float | None = None,
        asked: Scope | None = None,
        *,
        recalls: bool = False,
        without: str | None = None,
    ) -> None:
        self.asked, self.own = asked, frozenset(folders)
        self.margin = MARGIN if margin is None else margin
        results = {}
        for folder in folders:
            path = Path(folder)
            results[folder] = read_results(path / FILE if path.is_dir() else path)
        results |= sorted(packaged().items(), key=_rank)
        self.results = {
            name: r
            for name, r in results.items()
            if task_of(r, recalls=recalls) == task and data_of(r) != without
        }

    def find(self, composition: Composition) -> tuple[Evidence, ...]:
        """Return the evidence of a composition, the user's first, then the nearest."""
        found = [
            Evidence(
                source=source,
                title=results.title,
                num_heads=comparison.num_heads,
                seeds=len(comparison.pairing.seeds),
                difference=interval(comparison.difference),
                margin=self.margin,
                verdict=decision(comparison),
                far=self._far(source, results),
            )
            for source, (results, comparisons) in sorted(self._judged.items(), key=self._distance)
            for comparison in comparisons
            if comparison.mechanism == composition.name and comparison.difference
        ]
        return tuple(sorted(found, key=lambda one: bool(one.far)))

    def _distance(self, judged: tuple[str, tuple[Results, tuple[Comparison, ...]]]) -> float:
        """Return how far a comparison is from what is asked; the user's own are nearest."""
        source, (results, _) = judged
        if self.asked is None or source in self.own:
            return 0.0
        apart = zip(scope_of(results).apart(self.asked), DOUBLINGS.values(), strict=True)
        return sum(doublings / most for doublings, most in apart)

    def _far(self, source: str, results: Results) -> str:
        if self.asked is None or source in self.own:
            return ""
        scope = scope_of(results)
        return "" if scope.near(self.asked) else str(scope)

    def loss(self, composition: Composition) -> str | None:
        """Return the evidence that a composition does not suffice; None where there is none.

        What does not suffice alone does not with further changes either, except where some of its
        layers are standard instead.
        """
        found = self.find(composition)
        for evidence in [one for one in found if not one.far] or found:
            if evidence.verdict == LOST:
                return evidence.sentence
        if not composition.changes or composition.softmax:
            return None
        alone = self.loss(Composition(mechanism=composition.mechanism))
        return alone and f"{composition.mechanism} alone {alone}"

    @cached_property
    def _judged(self) -> dict[str, tuple[Results, tuple[Comparison, ...]]]:
        return {
            name: (results, comparisons(results, self.margin))
            for name, results in self.results.items()
            if results.baseline == "standard"
        }


def _rank(packaged: tuple[str, Results]) -> tuple[bool, int, int]:
    """Return the order of a comparison: the paper's size first, then most seeds and trainings."""
    _, results = packaged
    seeds = {cell.seed for cell in results.cells}
    return results.scale != SCALES[0], -len(seeds), -len(results.cells)


def comparisons(results: Results, margin: float) -> tuple[Comparison, ...]:
    """Return the comparisons of results, judged together; of the atlas each by itself."""
    if results.recipe not in ATLAS:
        return judge(results, margin=margin).comparisons
    plain = [cell for cell in results.cells if cell.mechanism == results.baseline]
    alone = (
        replace(results, cells=(*plain, *results.select(*pair)))
        for pair in results.pairs()
        if pair[0] != results.baseline
    )
    return tuple(one for pair in alone for one in judge(pair, margin=margin).comparisons)


def packaged() -> dict[str, Results]:
    """Return the comparisons that come with the package, by file."""
    read = {path.name: _read(path, path.stat().st_mtime_ns) for path in _packaged()}
    return {name: results for name, results in read.items() if results is not None}


def _packaged() -> list[Path]:
    return sorted(Path(str(resources.files("suffice").joinpath("results"))).glob("*.json"))


@lru_cache(maxsize=64)
def _read(path: Path, stamp: int) -> Results | None:  # noqa: ARG001 - a changed file is read again
    """Return the comparison in a file of the package; None where the file holds no comparison."""
    data = read_json(path, advice="Reinstall the package.")
    if not isinstance(data, dict) or "cells" not in data.get("results", {}):
        return None
    return Results.from_json(data["results"], where=path.name)


def task_of(results: Results, *, recalls: bool = False) -> str | None:
    """Return the adviser's task of a comparison; None where it recalls and is not to, or is old."""
    try:
        chosen = recipe(results.recipe)
    except ConfigError:  # of another version
        return None
    if (chosen.task in RECALL) is not recalls:
        return None
    kinds = {**KINDS, "lm": LMConfig}
    return next((task for task, kind in kinds.items() if isinstance(chosen.model, kind)), None)


def data_of(results: Results) -> str | None:
    """Return the name of the data, whatever the size of the model; None if it is not known.

    Example:
        >>> sorted({data_of(one) for one in packaged().values()})[:2]
        ['amazon', 'cifar10_jpeg']
    """
    try:
        chosen = recipe(results.recipe)
    except ConfigError:
        return None
    corpus = dict(chosen.task_options).get("corpus")
    return chosen.task if corpus is None else f"{chosen.task} {corpus}"


def scope_of(results: Results) -> Scope:
    """Return the tokens of an input and the parameters of the model with Standard."""
    sizes = [c.parameters_model for c in results.cells if c.mechanism == results.baseline]
    model = recipe(results.recipe, scale=results.scale).model
    return Scope(tokens=model.length, parameters=round(median(sizes)))
