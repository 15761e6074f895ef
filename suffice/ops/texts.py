"""Values as the text that a registered operator takes in their place."""

from __future__ import annotations

import json

import torch

from suffice.patterns import Pattern
from suffice.positions import Position

_known: dict[str, Pattern | Position] = {}  # what the texts given to operators stand for


def text_of(value: Pattern | Position) -> str:
    """Return the value as JSON."""
    if not torch.compiler.is_compiling():
        _known[value.text] = value
    return value.text


def value_of(family: type, text: str):  # noqa: ANN201 - a value of the family
    """Return the value of a text."""
    return _known.get(text) or family.from_json(json.loads(text))
