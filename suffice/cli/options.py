"""Options of a mechanism on the command line: `--set window=16`."""

from __future__ import annotations

import inspect
import json
from typing import Any

from suffice.errors import ConfigError
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
