"""What a comparison is going to do, checked before anything runs and kept beside its results."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.data.files import digest, found
from suffice.errors import ConfigError, DataError
from suffice.measure.results import check_margin, write_atomic
from suffice.recipes import Recipe
from suffice.recipes.own_data import path_of
from suffice.records import decode

FILE = "plan.json"
CELLS = "cells"
SHOWN = 3  # differences told one by one


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One comparison: every mechanism with every number of heads from every seed.

    Args:
        recipe: what all cells share.
        mechanisms: names, the baseline among them.
        heads: numbers of heads; mechanisms are compared at equal heads.
        seeds: how many, 0 .. seeds - 1.
        baseline: the mechanism all others are held against.
        margin: how much test accuracy may be lost and still suffice, a fraction.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: if something is unknown, does not fit the recipe, or is named twice.
    """

    recipe: Recipe
    mechanisms: tuple[str, ...]
    heads: tuple[int, ...]
    seeds: int
    baseline: str
    margin: float = 0.01
    device: str = "cpu"

    def __post_init__(self) -> None:
        for what, given in (("mechanisms", self.mechanisms), ("heads", self.heads)):
            if not given or len(set(given)) < len(given):
                listed = ", ".join(map(str, given)) or "none"
                raise ConfigError(f"{what}: {listed}; name at least one, each once.")
        if self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds}; give at least 1, and 5 for a verdict.")
        if self.baseline not in self.mechanisms:
            raise ConfigError(
                f"the baseline {self.baseline!r} is not among the mechanisms "
                f"{', '.join(self.mechanisms)}; add it, or name one of them with --baseline."
            )
        check_margin(self.margin)
        for mechanism, heads in self.pairs:
            self.recipe.specs(mechanism, heads)

    @property
    def pairs(self) -> list[tuple[str, int]]:
        """Every (mechanism, heads), heads first, so that equals run next to each other."""
        return [(mechanism, heads) for heads in self.heads for mechanism in self.mechanisms]

    @property
    def cells(self) -> list[tuple[str, int, int]]:
        """Every (mechanism, heads, seed), all mechanisms of a seed before the next seed."""
        return [(*pair, seed) for seed in range(self.seeds) for pair in self.pairs]

    def claim(self, folder: Path, *, resume: bool) -> None:
        """Make the folder this plan's: write plan.json, or find that it fits the one there.

        A resumed comparison may ask for other mechanisms, heads and seeds; what the finished
        cells share (the recipe and the device) must be the same.

        Raises:
            ConfigError: if the folder holds another comparison, or one and resume is False, or
                files of the user's have changed since.
            DataError: if the folder cannot be written, or its plan.json or the files not be read.
        """
        path = folder / FILE
        if os.path.exists(path):
            if not resume:
                raise ConfigError(
                    f"{folder} already holds a comparison; go on with it by --resume, or choose "
                    "another folder with --out."
                )
            self._refuse_another(folder)
        elif os.path.isdir(folder / CELLS) and os.listdir(folder / CELLS):
            raise ConfigError(
                f"{folder} holds cells but no {FILE}, which says what they are of; choose another "
                "folder with --out."
            )
        content = {
            "recipe": describe(self.recipe),
            "mechanisms": list(self.mechanisms),
            "heads": list(self.heads),
            "seeds": self.seeds,
            "baseline": self.baseline,
            "margin": self.margin,
            "device": self.device,
            "data": data_of(self.recipe),
        }
        write_atomic(path, json.dumps(content, indent=1) + "\n")

    def _refuse_another(self, folder: Path) -> None:
        """Raise unless the plan on disk has this recipe and device."""
        kept = read_kept(folder)
        # a plan from before a setting was there was run with what is now its default
        there = {**_defaults(self.recipe), **flat(kept.recipe), "device": kept.device}
        here = {**flat(describe(self.recipe)), "device": self.device}
        told = [
            f"{key} was {_value(there, key)} and is {_value(here, key)}"
            for key in dict.fromkeys(["scale", *here, *there])
            if _value(there, key) != _value(here, key)
        ]
        if told:
            more = f" and {len(told) - SHOWN} more differences" if len(told) > SHOWN else ""
            raise ConfigError(
                f"{folder} holds a comparison of another recipe: {', '.join(told[:SHOWN])}{more}; "
                "give the same settings, or another folder with --out."
            )
        if kept.data is not None and kept.data != data_of(self.recipe):
            raise ConfigError(
                f"the cells in {folder} were trained on other data: what lies at "
                f"{path_of(self.recipe)} has changed since; give the files as they were, or "
                "another folder with --out."
            )


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What plan.json tells of a comparison that was begun.

    Args:
        recipe: as `describe` gave it.
        mechanisms: names.
        heads: numbers of heads.
        seeds: how many.
        baseline: name of the mechanism the others are held against.
        margin: a fraction.
        device: "cpu" or "cuda".
        data: digest of the files of the user's that are read, None for the task's own.
    """

    recipe: dict[str, Any]
    mechanisms: tuple[str, ...]
    heads: tuple[int, ...]
    seeds: int
    baseline: str
    margin: float
    device: str
    data: str | None = None


def read_kept(folder: Path) -> Kept:
    """Read the plan of a comparison that was begun.

    Raises:
        DataError: if there is none, or it is truncated or altered.
    """
    path = folder / FILE
    advice = "name the folder of a comparison with --out, or start another one."
    try:
        given = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); {advice}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is truncated or not JSON ({error}); {advice}") from error
    try:
        return decode(Kept, given, where=str(path))
    except DataError as error:
        raise DataError(f"{str(error).rstrip('.')}; {advice}") from error


def data_of(recipe: Recipe) -> str | None:
    """Return the digest of the files of the user's that a recipe reads, None if it reads none.

    Raises:
        DataError: if they are not there or cannot be read.
    """
    path = path_of(recipe)
    return None if path is None else digest(found(path))


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data, the same after a round trip through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _defaults(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe that have a default, flat, with it."""
    found: dict[str, Any] = {}
    for prefix, part in (("", recipe), ("model.", recipe.model), ("training.", recipe.training)):
        for field in dataclasses.fields(part):
            if field.default is not dataclasses.MISSING:
                found[prefix + field.name] = field.default
    return json.loads(json.dumps(found))


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, keys joined by dots.

    Example:
        >>> flat({"name": "a", "model": {"depth": 2}})
        {'name': 'a', 'model.depth': 2}
    """
    if not isinstance(data, dict):
        return {prefix: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def _value(settings: dict[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "absent"
