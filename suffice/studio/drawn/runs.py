"""A drawing as plain data: each row as runs of equal cells.

Letters: T queries, S keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns import Pattern
from suffice.studio.drawn.read import read
from suffice.view import Drawing, Panel, draw
from suffice.view.looks import looks

HEADS = 64  # at most, of patterns that differ by head


def drawn(pattern: Pattern, queries: int, keys: int | None = None) -> dict[str, Any]:
    """Return who sees whom as plain data.

    Args:
        pattern: what to draw.
        queries: positions, tokens.
        keys: positions, tokens; None = as many.

    Raises:
        ConfigError: for sizes that cannot be drawn.

    Example:
        >>> from suffice.patterns import Causal
        >>> drawn(Causal(), 2)["panels"][0]["rows"]
        [[1, 1, 0, 1], [1, 2]]
    """
    if pattern.heads is not None and pattern.heads > HEADS:
        raise ConfigError(f"{pattern.heads} heads cannot be drawn; give at most {HEADS}.")
    drawing = draw(pattern, queries, keys)
    return {
        "expression": drawing.expression,
        "queries": queries,
        "keys": queries if keys is None else keys,
        "causal": pattern.causal,
        "parts": _parts(drawing),
        "panels": [_panel(panel) for panel in drawing.panels],
    }


def pattern_answer(request: Any) -> dict[str, Any]:
    """Answer a request of the page.

    Args:
        request: {"expression": code, "queries": tokens, "keys": tokens or None}.

    Raises:
        ConfigError: for a request of another form, a text that says no pattern, or sizes that
            cannot be drawn.
    """
    if not isinstance(request, dict):
        raise ConfigError("a drawing is asked for with an expression and a number of queries.")
    sizes = [request.get("queries"), request.get("keys")]
    for size in sizes[: 1 if sizes[1] is None else 2]:
        if isinstance(size, bool) or not isinstance(size, int):
            raise ConfigError(f"{size!r:.40} positions cannot be drawn; give a whole number.")
    return drawn(read(request.get("expression")), *sizes)


def _parts(drawing: Drawing) -> list[dict[str, str]]:
    looking = looks(drawing.parts)
    return [
        {"name": part.name, "kind": part.kind, "colour": look.colour}
        for part, look in zip(drawing.parts, looking, strict=True)
    ]


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "heads": list(panel.heads),
        "visible": panel.visible,
        "computed": panel.computed,
        "rows": [_runs(row) for row in panel.cells],
    }


def _runs(row: Tensor) -> list[int]:
    """Return number, length, number, length, ... of the runs of a row [S]."""
    numbers, lengths = torch.unique_consecutive(row, return_counts=True)
    return torch.stack([numbers, lengths], dim=1).flatten().tolist()
