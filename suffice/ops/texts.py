"""Values as the text that a registered operator takes in their place."""

from __future__ import annotations

import json

import torch

from suffice.axis import Axis

_known: dict[tuple[str, str], Axis] = {}  # what the texts given to operators stand for


def text_of(value: Axis) -> str:
    """Return the value as JSON."""
    if not torch.compiler.is_compiling():
        _known[value.family, value.text] = value
    return value.text


def value_of(family: type, text: str):  # noqa: ANN201 - a value of the family
    """Return the value of a text."""
    return _known.get((family.family, text)) or family.from_json(json.loads(text))
