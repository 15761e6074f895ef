"""What the page can ask, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suffice.errors import ConfigError
from suffice.studio.advised import advice
from suffice.studio.attended import Maps
from suffice.studio.calculator import calculate
from suffice.studio.drawn import pattern_answer
from suffice.studio.folders import Folders

Answer = Callable[[Any], dict[str, Any]]


def answers(folders: Folders) -> dict[str, Answer]:
    """Return the functions that answer, each given a request as plain data."""
    maps = Maps(folders.checkpoints)
    return {
        "calculate": calculate,
        "pattern": pattern_answer,
        "comparisons": lambda _: _comparisons(folders),
        "comparison": lambda request: _comparison(folders, request),
        "checkpoints": maps.listed,
        "checkpoint": maps.about,
        "maps": maps.overview,
        "map": maps.layer,
        "advise": advice,
    }


def _comparisons(folders: Folders) -> dict[str, Any]:
    from suffice.studio.compared import found

    return {"found": [one.to_json() for one in found(folders.results)]}


def _comparison(folders: Folders, request: Any) -> dict[str, Any]:
    from suffice.studio.compared import read, told

    if not isinstance(request, dict):
        raise ConfigError("a comparison is asked for with its folder and its name.")
    results = read(folders.results, request.get("root"), request.get("name"))
    return told(results, request.get("cost") or "flops", request.get("margin"))
