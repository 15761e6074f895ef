"""The plan of a comparison: checked before anything runs, and kept with its results."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.comparison.metrics import MARGIN, METRICS
from suffice.comparison.results import check_margin
from suffice.comparison.sufficiency import FIRST
from suffice.data.files import digest, resolve
from suffice.errors import ConfigError, check_known
from suffice.utils.files import RunFolder, changed_settings, flatten, read_record

if TYPE_CHECKING:
    from suffice.train.recipes import Recipe

FILE = "plan.json"
RAN = "ran.json"  # in the same folder, of a table of the papers
RESULTS = ("results.json", "winner.json", "report.html")
CELLS = "cells"
MIN_RATES, MAX_RATES = 3, 9  # learning rates of a tuning
LISTED_CHANGES = 3  # that a message spells out


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One comparison: every mechanism with every number of heads from every seed."""

    recipe: Recipe
    mechanisms: tuple[str, ...]  # the baseline among them
    heads: tuple[int, ...]  # mechanisms are compared at equal heads
    seeds: int  # 0 .. seeds - 1
    baseline: str  # the mechanism that all others are compared with
    margin: float = MARGIN  # loss of the metric that still suffices, a fraction
    metric: str = "accuracy"
    auto: bool = False  # add seeds one by one where a verdict is open, at most `seeds`
    device: str = "cpu"  # or "cuda"
    tune: int | None = None  # learning rates around the recipe's to choose among first
    # parts of a table's rows: seed s trains on all but part s % folds, and is tested on it
    folds: int | None = None

    def __post_init__(self) -> None:
        for name, values in (("mechanisms", self.mechanisms), ("heads", self.heads)):
            if not values or len(set(values)) < len(values):
                listed = ", ".join(map(str, values)) or "none"
                raise ConfigError(f"{name}: {listed}; name at least one, each once.")
        _check_ranges(self)
        if self.baseline not in self.mechanisms:
            raise ConfigError(
                f"the baseline {self.baseline!r} is not among the mechanisms "
                f"{', '.join(self.mechanisms)}; add it, or name one of them with --baseline."
            )
        if self.auto and self.seeds < FIRST:
            raise ConfigError(f"seeds=auto:{self.seeds}; give at least auto:{FIRST}.")
        check_known("metric", self.metric, METRICS)
        if self.tune is not None:
            check_rates(self.tune)
        if self.folds is not None:
            self._check_folds()
        for mechanism, heads in self.pairs:
            self.recipe.specs(mechanism, heads)

    def _check_folds(self) -> None:
        from suffice.data.table import HELD_OUT, check_folds
        from suffice.train.recipes.own_data import TABLE

        options = dict(self.recipe.task_options)
        if self.recipe.task != TABLE:
            raise ConfigError(
                f"folds={self.folds}: task {self.recipe.task} has a test part; leave folds out, or "
                "compare on a table of your own."
            )
        if self.tune is not None:
            raise ConfigError(
                f"folds={self.folds} and tune={self.tune}: a rate that is chosen on any rows was "
                "chosen on rows that some fold tests; leave one of the two out (--folds 0)."
            )
        test, validation = (options.get(name, HELD_OUT) for name in ("test", "validation"))
        check_folds(self.folds, test, validation)

    def data_options(self, seed: int) -> dict[str, Any]:
        """Return the options of the data that one seed is trained and tested on."""
        from suffice.train.recipes.own_data import loadable

        options = loadable(dict(self.recipe.task_options))
        return options if self.folds is None else options | {"folds": self.folds, "fold": seed}

    @property
    def pairs(self) -> list[tuple[str, int]]:
        """Every (mechanism, heads), grouped by heads."""
        return [(mechanism, heads) for heads in self.heads for mechanism in self.mechanisms]

    @property
    def cells(self) -> list[tuple[str, int, int]]:
        """Every (mechanism, heads, seed), all mechanisms of a seed before the next seed."""
        return [(*pair, seed) for seed in range(self.seeds) for pair in self.pairs]

    def claim(self, folder: Path, *, resume: bool, command: str | None = None) -> None:
        """Write plan.json, unless the folder belongs to another comparison.

        A resumed comparison may name other mechanisms, heads and seeds; the recipe and the device
        of the finished cells must be the same.

        Args:
            folder: folder of the comparison.
            resume: whether it may have been begun.
            command: command that asked for it; kept behind the earlier ones.

        Raises:
            ConfigError: if the folder holds another comparison, or one and resume is False, or
                files of the user's have changed since.
            DataError: if the folder cannot be written, or its plan.json or the files not be read.
        """
        run = run_folder(folder)
        if not run.exists() and os.path.isdir(folder / CELLS) and os.listdir(folder / CELLS):
            raise ConfigError(
                f"{folder} holds cells but no {FILE} that describes them; choose another folder "
                "with --out."
            )
        before = read_plan(folder).commands if run.exists() else ()
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "recipe": describe(self.recipe),
            "mechanisms": list(self.mechanisms),
            "heads": list(self.heads),
            "data": data_digest(self.recipe),
            "commands": list(dict.fromkeys([*before, *([] if command is None else [command])])),
        }
        run.claim(settings, resume=resume, check=lambda: self._check_same(folder))

    def _check_same(self, folder: Path) -> None:
        saved = read_plan(folder)
        # a setting that is younger than plan.json had what is now its default
        before = {**_defaults(self.recipe), **flatten(saved.recipe), "device": saved.device}
        now = {**flatten(describe(self.recipe)), "device": self.device}
        for name in ("tune", "folds"):
            before[name], now[name] = getattr(saved, name), getattr(self, name)
        changes = changed_settings(before, now)
        changes.sort(key=lambda change: not change.startswith("scale "))
        if changes:
            rest = len(changes) - LISTED_CHANGES
            more = f" and {rest} more differences" if rest > 0 else ""
            raise ConfigError(
                f"{folder} holds a comparison of another recipe: "
                f"{', '.join(changes[:LISTED_CHANGES])}{more}; "
                "give the same settings, or another folder with --out."
            )
        if saved.data is not None:
            check_data(folder, saved.data, self.recipe)


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    recipe: dict[str, Any]
    mechanisms: tuple[str, ...]
    heads: tuple[int, ...]
    seeds: int
    baseline: str
    margin: float
    device: str
    data: str | None = None
    metric: str = "accuracy"
    auto: bool = False
    tune: int | None = None
    folds: int | None = None
    better: str | None = None
    relative: bool = False
    commands: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self)


def _check_ranges(plan: Plan | SavedPlan) -> None:
    if plan.seeds < 1:
        raise ConfigError(f"seeds={plan.seeds}; give at least 1, and 5 for a verdict.")
    in_own_unit = isinstance(plan, SavedPlan) and plan.better is not None and not plan.relative
    check_margin(plan.margin, own_unit=in_own_unit)


def check_several(mechanisms: Collection[str]) -> None:
    if len(mechanisms) < 2:  # noqa: PLR2004
        raise ConfigError(
            f"mechanisms: {', '.join(mechanisms) or 'none'}; name at least two to compare, such as "
            "standard,efficient."
        )


def check_rates(count: int) -> None:
    """Refuse a number of rates that has no middle, or is too small or large for a grid."""
    if not MIN_RATES <= count <= MAX_RATES or count % 2 == 0:
        raise ConfigError(
            f"tune={count} learning rates; give 3, 5, 7 or 9, so that the recipe's is in the "
            "middle."
        )


def run_folder(folder: Path) -> RunFolder:
    return RunFolder(folder, FILE, "comparison", results=RESULTS)


def read_plan(folder: Path) -> SavedPlan:
    """Read the plan of a comparison that was begun."""
    advice = "Name the folder of a comparison with --out, or start another one."
    return read_record(SavedPlan, folder / FILE, advice=advice)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Machine, versions and settings behind the cells of a working folder."""

    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    command: str
    started: str
    threads: int
    data: str | None = None


def read_provenance(folder: Path) -> Provenance | None:
    """Read what a working folder ran on; None if nothing has run there, or by `suffice compare`."""
    path = folder / RAN
    return read_record(Provenance, path, advice="Delete it to go on.") if path.exists() else None


def data_digest(recipe: Recipe) -> str | None:
    """Return the digest of the user's own files that a recipe reads, None if it reads none."""
    from suffice.train.recipes.own_data import files_of

    digests = [digest(resolve(path)) for path in files_of(recipe)]
    return " ".join(digests) or None


def check_data(folder: Path, expected: str | None, recipe: Recipe) -> None:
    """Refuse a folder whose cells were trained on other files of the user's."""
    from suffice.train.recipes.own_data import files_of

    if expected != data_digest(recipe):
        raise ConfigError(
            f"the cells in {folder} were trained on other data: {', '.join(files_of(recipe))} "
            "changed since; restore them, or name another folder with --out."
        )


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data, the same after a round trip through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def describe_for_others(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as `describe` does, with the names and a digest of the user's own files.

    This is what goes into the folder of a model, which is made to be passed on: where the files lay
    is nobody else's business, and which files they were can still be checked by their digest.
    """
    from suffice.train.recipes.own_data import files_of

    files, described = set(files_of(recipe)), describe(recipe)
    described["task_options"] = [
        [name, Path(value).name if isinstance(value, str) and value in files else value]
        for name, value in described["task_options"]
    ]
    return described | ({"data": data_digest(recipe)} if files else {})


def _defaults(recipe: Recipe) -> dict[str, Any]:
    parts = (("", recipe), ("model.", recipe.model), ("training.", recipe.training))
    defaults = {
        prefix + field.name: field.default
        for prefix, part in parts
        for field in dataclasses.fields(part)
        if field.default is not dataclasses.MISSING
    }
    return json.loads(json.dumps(defaults))


UNCOMPARED = ("title",)  # of a recipe: a new wording does not make it another training


def same_training(saved: dict[str, Any], recipe: Recipe) -> bool:
    """Return whether saved settings are those of a recipe, where both have them.

    The folder of a model holds the names of own files, a plan their paths.
    """
    return any(
        _same(saved, as_described(recipe)) for as_described in (describe, describe_for_others)
    )


def _same(saved: dict[str, Any], described: dict[str, Any]) -> bool:
    before, now = flatten(saved), flatten(described)
    shared = [key for key in before.keys() & now.keys() if key not in UNCOMPARED]
    return all(before[key] == now[key] for key in shared) and not (
        _deeper(before, now) or _deeper(now, before)
    )


def _deeper(one: dict[str, Any], other: dict[str, Any]) -> bool:
    groups = {key.rpartition(".")[0] for key in other}
    return any(key in groups for key in one)
