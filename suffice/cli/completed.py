"""Names that the shell completes: `suffice show lin` and Tab.

Each function is given what was typed and returns the names that begin so.
"""

from __future__ import annotations

from collections.abc import Iterable

from suffice.presets import PRESETS


def mechanisms(incomplete: str) -> list[str]:
    """Return mechanisms; of several with commas between them, the last is completed.

    Example:
        >>> mechanisms("lin"), mechanisms("standard,mq")
        (['linear', 'linformer'], ['standard,mqa'])
    """
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _begun(PRESETS, last)]


def tasks(incomplete: str) -> list[str]:
    """Return tasks of `suffice compare`."""
    from suffice.recipes import TASK_RECIPES

    return _begun(TASK_RECIPES, incomplete)


def recipes(incomplete: str) -> list[str]:
    """Return recipes of `suffice compare`."""
    from suffice.recipes import RECIPES

    return _begun(RECIPES, incomplete)


def every_recipe(incomplete: str) -> list[str]:
    """Return recipes of `suffice plan`: all of them, those of language models among them."""
    from suffice.recipes import LM_RECIPES, RECIPES

    return _begun([*LM_RECIPES, *RECIPES], incomplete)


def language_recipes(incomplete: str) -> list[str]:
    """Return recipes of `suffice train`."""
    from suffice.recipes import LM_RECIPES

    return _begun(LM_RECIPES, incomplete)


def tables(incomplete: str) -> list[str]:
    """Return the tables and figures of `suffice reproduce`."""
    from suffice.cli.reproduced import WRITERS
    from suffice.reproduce import TABLES

    return _begun([*TABLES, *WRITERS], incomplete)


def _begun(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]
