"""Systematic bugs: every small edit of a file's syntax tree that could change a result.

`mutants(path)` lists them; `mutated(...)` returns the tree with one of them. Left out by rule:
texts (docstrings, f-strings, the messages of errors and of printing), `__repr__`, annotations,
decorators, assertions, blocks for type checkers, code for a GPU, and the keywords in `UNSEEN`,
whose removal no test on one machine could see.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SWAPPED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
TERMS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
OPPOSITES = {"min": "max", "any": "all", "amin": "amax", "argmin": "argmax", "minimum": "maximum"}
OPPOSITES |= {opposite: name for name, opposite in OPPOSITES.items()}
# methods that return something of the same shape, so that the call can be left out
LEFT_OUT = {
    "masked_fill",
    "clamp",
    "clamp_min",
    "clamp_max",
    "double",
    "float",
    "to",
    "type",
    "sort",
}
LEFT_OUT |= {"strip", "lower", "abs", "exp", "log", "sqrt", "square", "flip", "tril", "triu"}
PRINTING = {
    "print",
    "_print",
    "say",
    "_say",
    "echo",
    "warn",
    "debug",
    "info",
    "warning",
    "print_json",
}
# keywords without an effect that a test on one machine could see, and those of drawing
UNSEEN = {
    "strict",
    "device",
    "non_blocking",
    "encoding",
    "stacklevel",
    "timeout",
    "maxsize",
    "frozen",
}
UNSEEN |= {
    "repr",
    "daemon",
    "flush",
    "width",
    "style",
    "title",
    "help",
    "justify",
    "no_wrap",
    "name",
}
UNSEEN |= {
    "advice",
    "copy",
    "inplace",
    "max_workers",
    "memory_format",
    "category",
    "parents",
    "exist_ok",
}
GPU = {"triton"}  # a module that imports it, and functions under its decorators


@dataclass(frozen=True)
class Mutant:
    """One edit.

    Args:
        file: path of the source file, from the root of the project.
        node: number of the node in `ast.walk` of the file.
        edit: number of the edit among those of the node.
        lines: first and last line of the code that changes, from 1.
        scope: dotted name of the enclosing function or class; "" in the module itself.
        at_import: whether the code runs when the module is imported.
        operator: kind of edit.
        before: the code.
        after: the edited code.
        count: how many equal edits of equal code the scope has before this one.
    """

    file: str
    node: int
    edit: int
    lines: tuple[int, int]
    scope: str
    at_import: bool
    operator: str
    before: str
    after: str
    count: int

    @property
    def name(self) -> str:
        """What stays the same when other code of the file changes."""
        return "|".join((self.file, self.scope, self.before, self.after, str(self.count)))

    def __str__(self) -> str:
        return f"{self.file}:{self.lines[0]} {self.operator}: {self.before}  ->  {self.after}"


@cache
def mutants(path: Path) -> tuple[Mutant, ...]:
    """List the edits of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    numbers = {node: number for number, node in enumerate(ast.walk(tree))}
    file, counts = path.relative_to(ROOT).as_posix(), {}
    result = []
    if any(GPU & set(_imported(node)) for node in tree.body):
        return ()
    for node, scope, at_import, statement in _visited(tree, (), True, tree):
        for number, (operator, replacement) in enumerate(edits(node)):
            texts = _text(node), "pass" if replacement is None else _text(replacement)
            same = (scope, *texts)
            counts[same] = counts.get(same, -1) + 1
            lines = _lines(node, statement)
            names = ".".join(scope)
            edit = Mutant(
                file, numbers[node], number, lines, names, at_import, operator, *texts, counts[same]
            )
            result.append(edit)
    return tuple(result)


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return the syntax tree of a source with one edit."""
    tree = ast.parse(source)
    target = list(ast.walk(tree))[mutant.node]
    replacement = edits(target)[mutant.edit][1]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is target:
                return ast.copy_location(ast.Pass() if replacement is None else replacement, node)
            return self.generic_visit(node)

    return ast.fix_missing_locations(Replace().visit(tree))


def rank(mutant: Mutant, seed: int) -> str:
    """Return what a sample is sorted by: edits of other code hardly change the sample."""
    return hashlib.sha256(f"{seed}|{mutant.name}".encode()).hexdigest()


def edits(node: ast.AST) -> list[tuple[str, ast.AST | None]]:
    """Return the edits of a node itself: the operator and the new node, None to leave it out."""
    make = _EDITS.get(type(node))
    return [] if make is None else list(make(node))


def _compare(node: ast.Compare) -> Iterator[tuple[str, ast.AST | None]]:
    for place, operator in enumerate(node.ops):
        ops = [*node.ops]
        ops[place] = SWAPPED[type(operator)]()
        yield "swapped comparison", ast.Compare(node.left, ops, node.comparators)


def _constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node.value, bool):
        yield "flipped constant", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "off by one", ast.Constant(node.value + 1)
        if node.value > 0:
            yield "off by one", ast.Constant(node.value - 1)


def _binary(node: ast.BinOp) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node.op, TERMS) and not any(map(_is_text, (node.left, node.right))):
        yield "dropped term", node.left
        if isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
            yield "dropped term", node.right


def _boolean(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST | None]]:
    yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for place in range(len(node.values)):
        values = [value for number, value in enumerate(node.values) if number != place]
        yield "dropped condition", values[0] if len(values) == 1 else ast.BoolOp(node.op, values)


def _unary(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node.op, ast.Not):
        yield "dropped not", node.operand
    elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "dropped sign", node.operand


def _subscript(node: ast.Subscript) -> Iterator[tuple[str, ast.AST | None]]:
    if not isinstance(node.ctx, ast.Load):
        return
    index = node.slice
    for text, opposite in (("0", -1), ("-1", 0)):
        if ast.unparse(index) == text:
            yield "first for last", ast.Subscript(node.value, ast.Constant(opposite), node.ctx)
    if isinstance(index, ast.Name) and len(index.id) == 1:
        yield "constant index", ast.Subscript(node.value, ast.Constant(0), node.ctx)


def _slice(node: ast.Slice) -> Iterator[tuple[str, ast.AST | None]]:
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is not None and not isinstance(bound, ast.Constant):
            for sign in (ast.Add(), ast.Sub()):
                parts = {"lower": node.lower, "upper": node.upper, "step": node.step}
                parts[name] = ast.BinOp(bound, sign, ast.Constant(1))
                yield "slice off by one", ast.Slice(**parts)


def _call(node: ast.Call) -> Iterator[tuple[str, ast.AST | None]]:
    function = node.func
    name = _called(node)
    if name in OPPOSITES:
        other = OPPOSITES[name]
        new = (
            ast.Attribute(function.value, other, ast.Load())
            if isinstance(function, ast.Attribute)
            else ast.Name(other, ast.Load())
        )
        yield (
            "min for max" if name[0] == "m" else f"{other} for {name}",
            ast.Call(new, node.args, node.keywords),
        )
    if name in ("min", "max") and isinstance(function, ast.Name) and len(node.args) > 1:
        for place in range(len(node.args)):
            rest = [arg for number, arg in enumerate(node.args) if number != place]
            yield "dropped bound", rest[0] if len(rest) == 1 else ast.Call(function, rest, [])
    if name in LEFT_OUT and isinstance(function, ast.Attribute):
        yield "dropped call", function.value
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in UNSEEN:
            rest = [other for other in node.keywords if other is not keyword]
            yield f"removed {keyword.arg}=", ast.Call(function, node.args, rest)


def _if(node: ast.If) -> Iterator[tuple[str, ast.AST | None]]:
    last = node.body[-1]
    if not node.orelse and isinstance(last, (ast.Raise, ast.Return, ast.Continue, ast.Break)):
        yield "removed guard", None


def _conditional(node: ast.IfExp) -> Iterator[tuple[str, ast.AST | None]]:
    if not (_is_text(node.body) or _is_text(node.orelse)):
        yield "one branch", node.body
        yield "one branch", node.orelse


def _for(node: ast.For) -> Iterator[tuple[str, ast.AST | None]]:
    yield "first element only", ast.For(node.target, _first(node.iter), node.body, node.orelse)


def _comprehension(node: ast.comprehension) -> Iterator[tuple[str, ast.AST | None]]:
    yield (
        "first element only",
        ast.comprehension(node.target, _first(node.iter), node.ifs, node.is_async),
    )
    for condition in node.ifs:
        rest = [other for other in node.ifs if other is not condition]
        yield "dropped filter", ast.comprehension(node.target, node.iter, rest, node.is_async)


def _statement(node: ast.Expr) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node.value, ast.Call) and _called(node.value) not in PRINTING:
        yield "dropped statement", None


def _augmented(node: ast.AugAssign) -> Iterator[tuple[str, ast.AST | None]]:
    yield "dropped statement", None


_EDITS = {
    ast.Compare: _compare,
    ast.Constant: _constant,
    ast.BinOp: _binary,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Call: _call,
    ast.If: _if,
    ast.IfExp: _conditional,
    ast.For: _for,
    ast.comprehension: _comprehension,
    ast.Expr: _statement,
    ast.AugAssign: _augmented,
}


def _first(iterable: ast.expr) -> ast.expr:
    items = ast.Call(ast.Name("list", ast.Load()), [iterable], [])
    return ast.Subscript(items, ast.Slice(None, ast.Constant(1), None), ast.Load())


def _visited(
    node: ast.AST, scope: tuple[str, ...], at_import: bool, statement: ast.AST
) -> Iterator[tuple[ast.AST, tuple[str, ...], bool, ast.AST]]:
    """Yield the nodes that may be edited, with their scope and the statement that holds them."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _skipped(node, name, child):
                continue
            inner, imports = scope, at_import
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = (*scope, child.name)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                imports = at_import and name != "body"
            holder = child if isinstance(child, ast.stmt) else statement
            yield child, inner, imports, holder
            yield from _visited(child, inner, imports, holder)


def _skipped(parent: ast.AST, field: str, child: ast.AST) -> bool:
    """Return whether a rule of the module leaves this out."""
    if field in ("annotation", "returns", "decorator_list", "msg", "bases"):
        return True
    if isinstance(child, (ast.JoinedStr, ast.Raise, ast.Assert)):
        return True
    if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
        gpu = any(word in ast.unparse(d) for word in GPU for d in child.decorator_list)
        return gpu or child.name in ("__repr__", "__str__", "__rich__")
    if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
        return True
    if isinstance(child, ast.keyword) and child.arg in UNSEEN:
        return True
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True  # a docstring
    return isinstance(child, ast.Call) and _called(child) in PRINTING


def _imported(node: ast.AST) -> list[str]:
    names = [alias.name for n in ast.walk(node) if isinstance(n, ast.Import) for alias in n.names]
    names += [n.module or "" for n in ast.walk(node) if isinstance(n, ast.ImportFrom)]
    return [name.split(".")[0] for name in names]


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr)


def _lines(node: ast.AST, statement: ast.AST) -> tuple[int, int]:
    """Return the first and last line that run when the edited code runs."""
    if isinstance(node, ast.If):
        node = node.test
    if isinstance(node, (ast.For, ast.comprehension)):
        node = node.iter
    if not hasattr(node, "lineno"):  # a slice always has one, other parts of expressions may not
        node = statement
    return node.lineno, node.end_lineno


def _text(node: ast.AST) -> str:
    """Return the code of a node in one line of at most 90 characters."""
    if isinstance(node, ast.comprehension):
        ifs = "".join(f" if {ast.unparse(test)}" for test in node.ifs)
        text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}{ifs}"
    elif isinstance(node, ast.For):
        text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}:"
    else:
        text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text
