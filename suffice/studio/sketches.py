"""Every published mechanism as a pattern to draw, at the lengths the page offers."""

from __future__ import annotations

import inspect
from functools import cache
from itertools import product
from typing import Any

from suffice.errors import ConfigError
from suffice.presets import PRESETS, preset, takes_length
from suffice.view import expression, instead

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
D_MODEL, HEADS = 64, 4


@cache
def sketches() -> dict[str, dict[str, Any]]:
    """Return each mechanism's summary and sketches by "length" and "length causal".

    A sketch has the pattern as code ("expression"), how many "keys" the kernel reads, the Python
    "line" that makes the spec, "notes" of what a drawing of pairs does not show, and whether the
    kernel computes "pairs" at all. What a mechanism cannot be, causal most often, is absent.

    Example:
        >>> sketches()["longformer"]["sketches"]["64 causal"]["expression"]
        '(Window(size=8) | Global(tokens=1)) & Causal()'
    """
    return {name: {"summary": _summary(name), "sketches": _sketches_of(name)} for name in PRESETS}


def _summary(name: str) -> str:
    first = (inspect.getdoc(PRESETS[name]) or "").split("\n\n")[0]
    return " ".join(first.split())


def _sketches_of(name: str) -> dict[str, dict[str, Any]]:
    by_key = {}
    for length, causal in product(LENGTHS, (False, True)):
        options = {"length": length} if takes_length(name) else {}
        try:
            spec = preset(name, D_MODEL, HEADS, **options, causal=causal)
        except ConfigError:  # of a mechanism that always attends to later keys, or never
            continue
        arguments = [f"{key}={value}" for key, value in options.items()] + ["causal=True"] * causal
        line = ", ".join([f'"{name}"', str(D_MODEL), str(HEADS), *arguments])
        by_key[f"{length}{' causal' * causal}"] = {
            "expression": expression(spec.pattern),
            "keys": spec.mixing.reads(length),
            "line": f"suffice.preset({line})",
            "notes": list(instead(spec, length)),
            "pairs": spec.kernel.weighs_pairs,
        }
    return by_key
