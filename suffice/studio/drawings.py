"""Every published mechanism as a pattern to draw, at the lengths the page offers."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any, NoReturn

import torch
from torch import Tensor

from suffice.errors import ConfigError, unknown
from suffice.patterns import Pattern
from suffice.presets import PRESETS, preset, takes_length
from suffice.view import Drawing, Panel, draw, expression, instead
from suffice.view.drawing import looks

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


LONGEST = 2000  # characters
DEEPEST = 40  # calls, signs and brackets inside each other
LARGEST = 1 << 30  # a size; positions are whole numbers of 64 bits


def read(written: object) -> Pattern:
    """Return the pattern that a text says.

    Args:
        written: such as "Window(size=8) & Causal()".

    Raises:
        ConfigError: for a text that says no pattern, or values a pattern refuses.

    Example:
        >>> read("(Window(8) | Global(1)) & Causal()").causal
        True
    """
    if not isinstance(written, str) or not written.strip():
        raise ConfigError("write a pattern, such as Window(size=8) & Causal().")
    if len(written) > LONGEST:
        raise ConfigError(f"a pattern of {len(written):,} characters; write at most {LONGEST:,}.")
    try:
        tree = ast.parse(written.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"{written:.80} cannot be read ({getattr(error, 'msg', error)}); write such as "
            "(Window(size=8) | Global(tokens=1)) & Causal()."
        ) from error
    pattern = _value(tree.body, 0)
    if not isinstance(pattern, Pattern):
        raise ConfigError(f"{written:.80} is no pattern; write such as Window(size=8) & Causal().")
    return pattern


def _value(node: ast.expr, depth: int) -> object:
    """Return what a piece of the text says."""
    if depth > DEEPEST:
        raise ConfigError(f"a pattern nested deeper than {DEEPEST} cannot be read; write less.")
    if isinstance(node, ast.BinOp):
        return _joined(node, depth)
    if isinstance(node, ast.Call):
        return _called(node, depth)
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_value(part, depth + 1) for part in node.elts)
    return _number(node)


def _number(node: ast.expr) -> object:
    """Return a whole number, None, True or False."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand)
        return -number if isinstance(number, int) else _refuse(node)
    if not isinstance(node, ast.Constant):
        _refuse(node)
    value = node.value
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{value:.3e} is more than {LARGEST:,}; write a smaller number.")
    return value if isinstance(value, int) or value is None else _refuse(node)


def _joined(node: ast.BinOp, depth: int) -> Pattern:
    left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
    if not (isinstance(left, Pattern) and isinstance(right, Pattern)):
        _refuse(node)
    if isinstance(node.op, ast.BitAnd):
        return left & right
    return left | right if isinstance(node.op, ast.BitOr) else _refuse(node)


def _called(node: ast.Call, depth: int) -> Pattern:
    if not isinstance(node.func, ast.Name):
        _refuse(node)
    name = node.func.id
    if name not in Pattern.table:
        raise unknown("pattern", name, Pattern.table)
    kind = Pattern.table[name]
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    given = dict(zip(fields, (_value(part, depth + 1) for part in node.args), strict=False))
    named = {word.arg: _value(word.value, depth + 1) for word in node.keywords}
    for field in named:
        if field not in fields:
            raise unknown(f"field of {name}", field, fields)
    try:
        if len(node.args) > len(fields) or set(named) & set(given):
            raise TypeError
        return kind(**given, **named)  # type: ignore[return-value]
    except TypeError as error:
        raise ConfigError(
            f"{ast.unparse(node):.80}: {name} takes {', '.join(fields) or 'nothing'}; give each "
            "that has no default once."
        ) from error


def _refuse(node: ast.expr) -> NoReturn:
    raise ConfigError(
        f"{ast.unparse(node):.80} is no pattern and no whole number; write such as "
        "(Window(size=8) | Global(tokens=1)) & Causal()."
    )


RUNS_HEADS = 64  # at most, of patterns that differ by head


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
    if pattern.heads is not None and pattern.heads > RUNS_HEADS:
        raise ConfigError(f"{pattern.heads} heads cannot be drawn; give at most {RUNS_HEADS}.")
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


__all__ = ["LENGTHS", "Sketch", "drawn", "pattern_answer", "read", "sketches"]
