"""From the words of a command line to a plan; a resumed comparison keeps what is not said anew."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from suffice.cli.options import BASELINE, DEVICE, MARGIN, MECHANISMS, RUNS, SEEDS, TASK
from suffice.errors import ConfigError, DataError, unknown
from suffice.files import flatten
from suffice.measure.plan import FILE, Plan, SavedPlan
from suffice.recipes import SCALES, TASK_RECIPES, Recipe, recipe, recipe_of_task
from suffice.recipes.own_data import TABLE, of_user


def with_data(
    chosen: Recipe, data: str | None, kept: SavedPlan | None, columns: str | None = None
) -> Recipe:
    """Return a recipe that reads the files at a path.

    Args:
        chosen: the recipe.
        data: where the files lie; None = the task's own, or those of `kept`.
        kept: what the folder of a resumed comparison says.
        columns: of a table, see `of_user`; None = the default's, or those of `kept`.

    Raises:
        ConfigError: if the task reads no files of the user's, needs one, or reads no columns.
        DataError: if what the folder says of the task was altered.
    """
    if kept is not None:
        options = _options(kept)
        data = options.get("path") if data is None else data
        columns = options.get("columns") if columns is None else columns
    if data is not None:
        return of_user(chosen, data, columns)
    if columns is not None:
        raise ConfigError(f"--columns {columns}: name the table, too, by --data.")
    if chosen.task == TABLE:
        raise ConfigError("--task table: name the .csv, .tsv or .jsonl, by --data.")
    return chosen


def _options(kept: SavedPlan) -> dict[str, Any]:
    """Return the options of the task of a comparison that was begun."""
    given = kept.recipe.get("task_options", ())
    try:
        return dict(given)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the comparison's plan.json has task_options {given!r:.60}, which are no pairs of "
            "names and values; start another one."
        ) from error


STAMP = "%Y%m%d-%H%M%S"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line says about a comparison; None where it says nothing.

    Args:
        task: name of a data set.
        recipe: name of a recipe.
        scale: "paper" or "small".
        mechanisms: names, separated by commas.
        heads: numbers, separated by commas.
        seeds: how many.
        epochs: of each training.
        margin: points of test accuracy.
        baseline: name of a mechanism.
        device: "cpu" or "cuda".
        data: where files of the user's lie; without a task or a recipe, a table's.
        columns: of a table: those of the texts and of the classes.
    """

    task: str | None = None
    recipe: str | None = None
    scale: str | None = None
    mechanisms: str | None = None
    heads: str | None = None
    seeds: int | None = None
    epochs: int | None = None
    margin: float | None = None
    baseline: str | None = None
    device: str | None = None
    data: str | None = None
    columns: str | None = None

    def plan(self, kept: SavedPlan | None = None) -> Plan:
        """Return the plan; what is not said comes from `kept`, or is the default.

        Raises:
            ConfigError: if something is unknown or does not fit.
        """
        chosen = self._recipe(kept)
        names = words(self.mechanisms or MECHANISMS)
        heads: tuple[int, ...] = (chosen.num_heads,)
        seeds, margin, device, baseline = SEEDS, fraction(MARGIN), DEVICE, None
        if kept is not None:
            names, heads, baseline = kept.mechanisms, kept.heads, kept.baseline
            seeds, margin, device = kept.seeds, kept.margin, kept.device
        if self.mechanisms is not None:
            names = words(self.mechanisms)
        if self.heads is not None:
            heads = tuple(map(number_of_heads, words(self.heads)))
        return Plan(
            recipe=chosen,
            mechanisms=names,
            heads=heads,
            seeds=seeds if self.seeds is None else self.seeds,
            baseline=self.baseline or baseline or _baseline(names),
            margin=margin if self.margin is None else fraction(self.margin),
            device=self.device or device,
        )

    def _recipe(self, kept: SavedPlan | None) -> Recipe:
        scale = self.scale
        if scale is None:
            scale = "paper" if kept is None else str(kept.recipe.get("scale", "paper"))
        if self.recipe is not None:
            chosen = recipe(self.recipe, scale=scale)
        elif self.task is not None or kept is None:
            usual = TASK if self.data is None else TABLE
            chosen = recipe_of_task(self.task or usual, scale=scale)
        else:
            chosen = recipe(str(kept.recipe.get("name")), scale=scale)
        if self.task is not None and chosen.task != self.task:
            raise ConfigError(
                f"--recipe {self.recipe} is on {chosen.task}, not on --task {self.task}; give one "
                "of the two."
            )
        chosen = with_data(chosen, self.data, kept, self.columns)
        epochs = self.epochs
        if epochs is None and kept is not None:
            epochs = flatten(kept.recipe).get("training.epochs")
        if epochs is None:
            return chosen
        return replace(chosen, training=replace(chosen.training, epochs=epochs))


def new_folder(chosen: Recipe) -> Path:
    """Return where a new comparison goes: runs/RECIPE-TIME, or runs/RECIPE-small-TIME."""
    return RUNS / f"{chosen.name}{mark(chosen.scale)}-{datetime.now():{STAMP}}"


def latest_folder(asked: Asked) -> Path:
    """Return the folder of the latest comparison under runs/, of what is asked for if anything is.

    Raises:
        ConfigError: if there is none, or the task or the scale is unknown.
    """
    name, scale = asked.recipe, asked.scale
    if name is None and asked.task is not None:
        recipe_of_task(asked.task)
        name = TASK_RECIPES[asked.task]
    folders = folders_of(name, scale, FILE)
    if not folders:
        told = f" of {name}" if name else ""
        told += f" at scale {scale}" if scale else ""
        raise ConfigError(
            f"there is no run{told} under {RUNS}/ to resume; name its folder with --out, or "
            "start one without --resume."
        )
    return folders[-1]


def folders_of(name: str | None, scale: str | None, file: str) -> list[Path]:
    """Return the folders under runs/ that hold a file, of a recipe and a scale if any, by time.

    Raises:
        ConfigError: for an unknown scale.
    """
    if scale is not None and scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    marks = "|".join(mark(one) for one in (SCALES if scale is None else (scale,)))
    wanted = re.compile(rf"{re.escape(name) if name else '[^-]+'}({marks})-\d+-\d+")
    found = (path.parent for path in RUNS.glob(f"*/{file}"))
    return sorted((path for path in found if wanted.fullmatch(path.name)), key=_stamp)


def mark(scale: str) -> str:
    """Return what the name of a folder says of a scale: nothing of the paper's."""
    return "" if scale == "paper" else f"-{scale}"


def words(listed: str) -> tuple[str, ...]:
    """Split a list at its commas.

    Example:
        >>> words("standard, efficient,")
        ('standard', 'efficient')
    """
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def number_of_heads(word: str) -> int:
    """Read a number of heads.

    Raises:
        ConfigError: if it is none.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,5}", word):
        raise ConfigError(f"--heads {word!r} is not a number of heads; give such as 1,2,4.")
    return int(word)


def fraction(points: float) -> float:
    """Return a margin in points as a fraction.

    Raises:
        ConfigError: if it is below 0 or not below 100.
    """
    if not 0.0 <= points < 100.0:
        raise ConfigError(
            f"--margin {points:g} is no number of points of accuracy; give at least 0 and below "
            "100, for example 1."
        )
    return points / 100


def _baseline(names: tuple[str, ...]) -> str:
    return BASELINE if BASELINE in names else (names or ("",))[0]


def _stamp(folder: Path) -> tuple[str, ...]:
    """Return what orders folders by time: the date and the time in their names."""
    return tuple(folder.name.split("-")[-2:])
