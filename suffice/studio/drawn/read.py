"""A pattern from the code people write: `(Window(8) | Global(1)) & Causal()`.

The text is taken apart as Python's grammar has it and only names of patterns, whole numbers,
tuples, `&` and `|` are understood; nothing is executed.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import NoReturn

from suffice.errors import ConfigError, unknown
from suffice.patterns import Pattern

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
