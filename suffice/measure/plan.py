"""What a comparison is going to do, checked before anything runs and kept beside its results."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError, DataError
from suffice.measure.results import check_margin
from suffice.measure.storage import write_atomic
from suffice.recipes import Recipe

FILE = "plan.json"


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
            self.recipe.spec(mechanism, heads)

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

        A resumed comparison may add mechanisms, heads and seeds; what the finished cells share
        (the recipe) must be the same.

        Raises:
            ConfigError: if the folder holds another comparison, or one and resume is False.
            DataError: if the folder cannot be written or its plan.json not be read.
        """
        path = folder / FILE
        recipe = describe(self.recipe)
        if path.exists():
            if not resume:
                raise ConfigError(
                    f"{folder} already holds a comparison; go on with it by --resume, or choose "
                    "another folder with --out."
                )
            _refuse_another(path, recipe)
        content = {
            "recipe": recipe,
            "mechanisms": list(self.mechanisms),
            "heads": list(self.heads),
            "seeds": self.seeds,
            "baseline": self.baseline,
            "margin": self.margin,
            "device": self.device,
        }
        write_atomic(path, json.dumps(content, indent=1) + "\n")


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data, the same after a round trip through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _refuse_another(path: Path, recipe: dict[str, Any]) -> None:
    """Raise unless the plan on disk has this recipe."""
    try:
        found = json.loads(path.read_bytes())["recipe"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); choose another folder with --out, or delete it if "
            "you know that its cells are of the same recipe."
        ) from error
    there, here = _flat(found), _flat(recipe)
    changed = sorted(k for k in there.keys() | here.keys() if there.get(k) != here.get(k))
    if changed:
        told = ", ".join(f"{k} was {there.get(k)!r} and is {here.get(k)!r}" for k in changed[:3])
        raise ConfigError(
            f"{path.parent} holds a comparison of another recipe: {told}; "
            "give the same settings, or another folder with --out."
        )


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, keys joined by dots."""
    if not isinstance(data, dict):
        return {prefix: data}
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
