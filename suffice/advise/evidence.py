"""Evidence of a mechanism's quality: finished comparisons, the package's and the user's."""

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
    def sentence(self) -> str:
        """All of it."""
        return (
            f"{self.verdict} at {margin_points(self.margin)} points: {self.difference}, "
            f"{self.seeds} seeds, {self.num_heads} heads; {self.title} ({self.source})"
        )


class Library:
    """Finished comparisons of a task.

    Args:
        task: see `Request`.
        folders: of `suffice compare`, read as well.
        margin: at which verdicts are made.

    Raises:
        DataError: if a file is absent, truncated or altered.
    """

    def __init__(self, task: str, folders: Sequence[str] = (), margin: float | None = None) -> None:
        self.margin = MARGIN if margin is None else margin
        packaged = {path.name: _read(path) for path in _packaged()}
        packaged = {name: results for name, results in packaged.items() if results is not None}
        packaged = dict(sorted(packaged.items(), key=_weakness))
        paths = {folder: Path(folder) for folder in folders}
        chosen = {
            folder: read_results(path / FILE if path.is_dir() else path)
            for folder, path in paths.items()
        }
        self.results = {
            name: results
            for name, results in (chosen | packaged).items()
            if _task(results.recipe) == task
        }
        self._judged: dict[str, tuple[Comparison, ...]] = {}

    def find(self, composition: Composition) -> tuple[Evidence, ...]:
        """Return the evidence of a composition, which only mechanisms without changes have.

        The user's own comparisons come first, then the package's: the paper's size before a small
        scale, many trainings before few.
        """
        if composition.changes:
            return ()
        evidence = []
        for source, results in self.results.items():
            for comparison in self._comparisons(source, results):
                if comparison.mechanism == composition.mechanism and comparison.difference:
                    evidence.append(
                        Evidence(
                            source=source,
                            title=results.title,
                            num_heads=comparison.num_heads,
                            seeds=len(comparison.pairing.seeds),
                            difference=interval(comparison.difference),
                            margin=self.margin,
                            verdict=decision(comparison),
                        )
                    )
        return tuple(evidence)

    def _comparisons(self, source: str, results: Results) -> tuple[Comparison, ...]:
        if source not in self._judged:
            self._judged[source] = ()
            if results.baseline == "standard":
                self._judged[source] = judge(results, margin=self.margin).comparisons
        return self._judged[source]


def _packaged() -> list[Path]:
    return sorted(Path(str(resources.files("suffice").joinpath("results"))).glob("*.json"))


def _read(path: Path) -> Results | None:
    """Return the comparison in a file of the package; None where it holds something else."""
    return _decoded(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _decoded(path: Path, stamp: int) -> Results | None:  # noqa: ARG001 - a changed file is read anew
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path.name} of the package cannot be read ({error}); install the package anew."
        ) from error
    if not isinstance(data, dict) or "cells" not in data.get("results", {}):
        return None
    return Results.from_json(data["results"], where=path.name)


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


def missing(composition: Composition, task: str, model: str) -> str:
    """Return the command that would give evidence of a composition.

    Example:
        >>> missing(Composition.parse("efficient"), "lm", "15m")
        'none: run `suffice compare --recipe lm_small --mechanisms standard,efficient`'
    """
    nearest = _published(composition)
    if nearest is None:
        bits = composition.weights or composition.memory
        return f"none: `suffice quantise DIR --bits {bits}` measures what a trained model loses"
    recipe = RECIPE.get(task, model)
    command = f"`suffice compare --recipe {recipe} --mechanisms standard,{nearest}`"
    if not composition.changes:
        return f"none: run {command}"
    return f"none of the whole: {command} is the nearest that is published"


def _published(one: Composition) -> str | None:
    """Return the published mechanism nearest to a composition; None for Standard in few bits."""
    if one.mechanism != "standard":
        return one.mechanism
    if one.window is not None:
        return "sliding_window"
    if one.kv is not None:
        return "mqa" if one.kv == 1 else "gqa"
    return None
