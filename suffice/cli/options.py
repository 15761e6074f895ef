"""Options of a mechanism on the command line: `--set window=16`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Quantised, Rolling, Static
from suffice.presets import PRESETS

OWN = {
    "d_model": "--d-model",
    "num_heads": "--heads",
    "causal": "--causal",
    "length": "--length",
    "layer": "--layer",
}


def settings(mechanism: str, given: list[str]) -> dict[str, Any]:
    """Return the options of a mechanism from words such as "window=16".

    A mechanism refuses those it does not know; here they are only read.

    Args:
        mechanism: its name.
        given: NAME=VALUE; a value is a number, true, false, null or a word.

    Raises:
        ConfigError: for words of another form, a value of another kind than the option's, or an
            option that has a flag of its own.

    Example:
        >>> settings("longformer", ["window=16", "bias=false"])
        {'window': 16, 'bias': False}
    """
    found = written(given, OWN)
    for words in given:
        name = words.partition("=")[0]
        _check(mechanism, words, name, found[name])
    return found


def written(given: list[str], own: dict[str, str]) -> dict[str, Any]:
    """Return the values of words such as "window=16".

    Args:
        given: NAME=VALUE; a value is JSON or a word.
        own: names that have an option of their own, and that option.

    Raises:
        ConfigError: for words of another form, a name given twice, or one of `own`.
    """
    found: dict[str, Any] = {}
    for words in given:
        name, equals, value = words.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--set {words}: write NAME=VALUE, such as window=16.")
        if name in own:
            raise ConfigError(f"--set {words}: give {own[name]} instead.")
        if name in found:
            raise ConfigError(f"--set {words}: {name} is set twice; give it once.")
        found[name] = _value(value)
    return found


def _value(written: str) -> Any:
    try:
        return json.loads(written)
    except json.JSONDecodeError:
        return written


def _check(mechanism: str, words: str, name: str, value: object) -> None:
    """Refuse a value of another kind than the option has by default; unset ones are sizes."""
    options = inspect.signature(PRESETS[mechanism]).parameters if mechanism in PRESETS else {}
    if name not in options:
        return
    default = options[name].default
    kind = type(default) if isinstance(default, (bool, float, str)) else int
    fits = {
        bool: isinstance(value, bool),
        str: isinstance(value, str),
        float: isinstance(value, (int, float)) and not isinstance(value, bool),
        int: value is None or (isinstance(value, int) and not isinstance(value, bool)),
    }
    if not fits[kind]:
        legal = {bool: "true or false", str: "a word", float: "a number", int: "a whole number"}
        raise ConfigError(f"--set {words}: {name} of {mechanism} is {legal[kind]}.")


LEGAL = "dynamic, static:N, rolling:W or rolling:W:SINKS"


def memory_of(written: str, bits: int | None) -> Memory:
    """Return the memory that words such as "rolling:256:4" name.

    Args:
        written: what is kept.
        bits: of a number that is kept, 8 or 4; None = as it is.

    Raises:
        ConfigError: for other words or numbers.

    Example:
        >>> memory_of("rolling:256:4", None)
        Rolling(window=256, sinks=4, spare=0)
        >>> memory_of("static:64", 8).inner
        Static(length=64)
    """
    name, *numbers = written.split(":")
    kinds = {"dynamic": (Dynamic, (0,)), "static": (Static, (1,)), "rolling": (Rolling, (1, 2))}
    kind, counts = kinds.get(name, (None, ()))
    if kind is None or len(numbers) not in counts or not all(n.isdecimal() for n in numbers):
        raise ConfigError(f"--memory {written}: write {LEGAL}, whole numbers of tokens.")
    memory = kind(*map(int, numbers))
    return memory if bits is None else Quantised(memory, bits=bits)


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
    from suffice.cli.reproduce import WRITERS
    from suffice.papers import TABLES

    return _begun([*TABLES, *WRITERS], incomplete)


def _begun(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


RUNS = Path("runs")
CHECKPOINT = "Folder that `suffice train`, convert, heal or quantise wrote."
TASK = "digits"
TASKS = (
    "digits, mnist, cifar100, cifar10_jpeg, tiny_imagenet_100, image_folder, imdb, amazon, "
    "womens_clothing, translation_es or table (your own), which are real, or mqar, induction, "
    "copy, two_hop or passkey, which are drawn"
)
MECHANISMS = "standard,optimised,efficient,super_attention"
BASELINE = "standard"
SEEDS = 5
MARGIN = 1.0  # points of test accuracy
DEVICE = "cpu"
