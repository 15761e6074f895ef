"""Every published mechanism as a pattern to draw, at the lengths the page offers."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any

from suffice.errors import ConfigError
from suffice.presets import PRESETS, preset, takes_length
from suffice.view import expression, instead

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
D_MODEL, HEADS = 64, 4


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """One mechanism at one length.

    Args:
        expression: its pattern as code.
        keys: that its kernel reads.
        line: the Python line that makes its spec.
        notes: what a drawing of pairs does not show.
        pairs: whether its kernel computes pairs at all.
    """

    expression: str
    keys: int
    line: str
    notes: tuple[str, ...]
    pairs: bool


@cache
def sketches() -> dict[str, dict[str, Any]]:
    """Return each mechanism's summary and sketches by "length" and "length causal".

    What a mechanism cannot be, causal most often, is absent.

    Example:
        >>> sketches()["longformer"]["sketches"]["64 causal"]["expression"]
        '(Window(size=8) | Global(tokens=1)) & Causal()'
    """
    return {
        name: {"summary": _summary(name), "sketches": dict(_sketches(name))} for name in PRESETS
    }


def _sketches(name: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for length, causal in product(LENGTHS, (False, True)):
        sketch = _sketch(name, length, causal)
        if sketch is not None:
            found.append((f"{length}{' causal' * causal}", asdict(sketch)))
    return found


def _sketch(name: str, length: int, causal: bool) -> Sketch | None:
    """Return one sketch, None where a mechanism looks ahead always, or never."""
    options: dict[str, Any] = {"length": length} if takes_length(name) else {}
    options |= {"causal": causal}
    try:
        spec = preset(name, D_MODEL, HEADS, **options)
    except ConfigError:  # of a mechanism that cannot be so
        return None
    told = "".join(f", {key}={value}" for key, value in options.items() if value is not False)
    return Sketch(
        expression=expression(spec.pattern),
        keys=spec.mixing.reads(length),
        line=f'suffice.preset("{name}", {D_MODEL}, {HEADS}{told})',
        notes=tuple(instead(spec, length)),
        pairs=spec.kernel.weighs_pairs,
    )


def _summary(name: str) -> str:
    """Return the first sentence of what a mechanism says of itself."""
    words = (inspect.getdoc(PRESETS[name]) or "").split("\n\n")[0]
    return " ".join(words.split())
