"""What is known of a mechanism's quality: finished comparisons, the package's and the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from suffice.advise.candidates import Composition
from suffice.advise.request import KINDS
from suffice.errors import ConfigError, DataError
from suffice.measure import Comparison, Results, judge
from suffice.measure.plan import MARGIN
from suffice.measure.results import read_results
from suffice.measure.sentence import decision, interval, margin_points
from suffice.models import LMConfig
from suffice.recipes import SCALES, recipe

FILE = "results.json"  # of a comparison's folder
RECIPE = {"lm": "lm_small"}  # whose comparison judges a task; of the others the model's own


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One comparison of a mechanism with Standard.

    Args:
        source: file it stands in.
        title: of what was trained.
        num_heads: of both.
        seeds: that both share.
        difference: of test accuracy, in points with its interval.
        margin: that may be lost, a fraction.
        verdict: "suffices", "does not suffice" or "undecided" and what would decide.
    """

    source: str
    title: str
    num_heads: int
    seeds: int
    difference: str
    margin: float
    verdict: str

    @property
    def told(self) -> str:
        """All of it in a sentence."""
        return (
            f"{self.verdict} at {margin_points(self.margin)} points: {self.difference}, "
            f"{self.seeds} seeds, {self.num_heads} heads; {self.title} ({self.source})"
        )


class Library:
    """Finished comparisons of a task.

    Args:
        task: see `Request`.
        folders: of `suffice compare`, to look in as well.
        margin: at which verdicts are made.

    Raises:
        DataError: if a file is absent, truncated or altered.
    """

    def __init__(self, task: str, folders: Sequence[str] = (), margin: float | None = None) -> None:
        self.margin = MARGIN if margin is None else margin
        ours = {path.name: found for path in _packaged() if (found := _read(path)) is not None}
        theirs = {folder: read_results(_file(Path(folder))) for folder in folders}
        strongest = dict(sorted(ours.items(), key=_weakness))
        self.results = {
            name: one for name, one in (theirs | strongest).items() if _task(one.recipe) == task
        }
        self._judged: dict[str, tuple[Comparison, ...]] = {}

    def of(self, one: Composition) -> tuple[Evidence, ...]:
        """Return what is known of a composition; of a mechanism as published only.

        The user's own comparisons come first, then the package's: the paper's size before a small
        scale, many trainings before few.
        """
        if one.changes:
            return ()
        found = []
        for source, results in self.results.items():
            for comparison in self._comparisons(source, results):
                if comparison.mechanism == one.mechanism and comparison.difference is not None:
                    found.append(self._evidence(source, results, comparison))
        return tuple(found)

    def _comparisons(self, source: str, results: Results) -> tuple[Comparison, ...]:
        if source not in self._judged:
            self._judged[source] = ()
            if results.baseline == "standard":
                self._judged[source] = judge(results, margin=self.margin).comparisons
        return self._judged[source]

    def _evidence(self, source: str, results: Results, one: Comparison) -> Evidence:
        return Evidence(
            source=source,
            title=results.title,
            num_heads=one.num_heads,
            seeds=len(one.pairing.seeds),
            difference=interval(one.difference),
            margin=self.margin,
            verdict=decision(one),
        )


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path


def _packaged() -> list[Path]:
    return sorted(Path(str(resources.files("suffice").joinpath("results"))).glob("*.json"))


def _read(path: Path) -> Results | None:
    """Return the comparison in a file of the package; None where it holds something else."""
    return _decoded(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _decoded(path: Path, stamp: int) -> Results | None:  # noqa: ARG001 - a changed file is read anew
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path.name} of the package cannot be read ({error}); install the package anew."
        ) from error
    if not isinstance(given, dict) or "cells" not in given.get("results", {}):
        return None
    return Results.from_json(given["results"], where=path.name)


def _weakness(named: tuple[str, Results]) -> tuple[bool, int]:
    """Order results: the paper's size first, then most trainings."""
    return named[1].scale != SCALES[0], -len(named[1].cells)


def _task(name: str) -> str | None:
    """Return the adviser's task that a recipe is of; None for none."""
    try:
        model = recipe(name).model
    except ConfigError:  # of another version
        return None
    kinds = {**KINDS, "lm": LMConfig}
    return next((task for task, kind in kinds.items() if isinstance(model, kind)), None)


def missing(one: Composition, task: str, model: str) -> str:
    """Return what to run where nothing is known of a composition.

    Example:
        >>> missing(Composition.parse("efficient"), "lm", "15m")
        'none: run `suffice compare --recipe lm_small --mechanisms standard,efficient`'
    """
    near = _published(one)
    if near is None:
        bits = one.weights or one.memory
        return f"none: `suffice quantise DIR --bits {bits}` measures what a trained model loses"
    named = RECIPE.get(task, model)
    told = f"`suffice compare --recipe {named} --mechanisms standard,{near}`"
    if not one.changes:
        return f"none: run {told}"
    return f"none of the whole: {told} is the nearest that is published"


def _published(one: Composition) -> str | None:
    """Return the published mechanism nearest to a composition; None for Standard in few bits."""
    if one.mechanism != "standard":
        return one.mechanism
    if one.window is not None:
        return "sliding_window"
    if one.kv is not None:
        return "mqa" if one.kv == 1 else "gqa"
    return None
