"""Patterns written as one writes them: `(Window(size=8) | Global(tokens=1)) & Causal()`."""

from __future__ import annotations

import dataclasses

from suffice.axis import Axis
from suffice.patterns import And, Or, Pattern

SIGNS: dict[type[Pattern], str] = {And: " & ", Or: " | "}


def expression(value: Axis) -> str:
    """Return the code of an axis value, without the fields that are as they are by default.

    Example:
        >>> from suffice.patterns import Causal, Full
        >>> expression((Full() | Causal()) & Causal())
        '(Full() | Causal()) & Causal()'
    """
    if type(value) in SIGNS:
        return SIGNS[type(value)].join(map(_operand, flat(value)))  # type: ignore[arg-type]
    given = [
        f"{field.name}={_written(item)}"
        for field in dataclasses.fields(value)  # type: ignore[arg-type]
        if field.repr and (item := getattr(value, field.name)) != field.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def brief(value: Axis) -> str:
    """Return an axis value by the names of the classes it is made of.

    Example:
        >>> from suffice.patterns import Causal, Full
        >>> brief((Full() | Causal()) & Causal())
        '(Full | Causal) & Causal'
    """
    if type(value) in SIGNS:
        named = [
            f"({brief(part)})" if type(part) in SIGNS else brief(part)
            for part in flat(value)  # type: ignore[arg-type]
        ]
        return SIGNS[type(value)].join(dict.fromkeys(named))
    made_of: list[Axis] = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        items = item if isinstance(item, tuple) else (item,)
        made_of += [part for part in items if isinstance(part, Axis) and item != field.default]
    inner = ", ".join(dict.fromkeys(map(brief, made_of)))
    return f"{type(value).__name__}({inner})" if inner else type(value).__name__


def flat(pattern: Pattern) -> list[Pattern]:
    """Return what `&` or `|` joins, the joined parts of a part of the same kind among them."""
    parts: list[Pattern] = []
    for part in pattern.parts:  # type: ignore[attr-defined]
        parts += flat(part) if type(part) is type(pattern) else [part]
    return parts


def _operand(part: Pattern) -> str:
    written = expression(part)
    return f"({written})" if type(part) in SIGNS else written


def _written(item: object) -> str:
    if isinstance(item, Axis):
        return expression(item)
    if isinstance(item, tuple):
        return f"({', '.join(map(_written, item))}{',' * (len(item) == 1)})"
    return repr(item)
