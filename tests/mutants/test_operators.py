"""Systematic bugs: each is one edit that compiles, and texts are left alone."""

from __future__ import annotations

import ast

from tests.mutants.operators import ROOT, edits, mutants, mutated, rank

FILE = ROOT / "suffice" / "generate" / "sampling.py"


def edited(code):
    """The texts of the edits of an expression's own node."""
    (statement,) = ast.parse(code).body
    node = statement.value if isinstance(statement, ast.Expr) else statement
    return [
        "pass" if new is None else ast.unparse(ast.fix_missing_locations(new))
        for _, new in edits(node)
    ]


def test_edits_by_kind_of_node():
    assert edited("a < b") == ["a <= b"]
    assert edited("a == b != c") == ["a != b != c", "a == b == c"]
    assert edited("3") == ["4", "2"]
    assert edited("0") == ["1"]
    assert edited("a + b") == ["a", "b"]
    assert edited("a / b") == ["a"]
    assert edited("'x' + b") == []
    assert edited("a and b") == ["a or b", "b", "a"]
    assert edited("not a") == ["a"]
    assert edited("x[0]") == ["x[-1]"]
    assert edited("x[i]") == ["x[0]"]
    assert edited("min(a, b)") == ["max(a, b)", "b", "a"]
    assert edited("x.any(dim=1)") == ["x.all(dim=1)", "x.any()"]
    assert edited("if a:\n    raise b") == ["pass"]
    assert edited("if a:\n    b = c") == []
    assert edited("a if b else c") == ["a", "c"]
    assert edited("for a in b:\n    c") == ["for a in list(b)[:1]:\n    c"]


def test_every_edit_of_a_file_compiles_and_is_one_edit():
    source = FILE.read_text("utf-8")
    plain, seen = ast.unparse(ast.parse(source)), set()
    for mutant in mutants(FILE):
        code = ast.unparse(mutated(source, mutant))
        compile(code, str(FILE), "exec")
        assert code != plain, mutant
        assert abs(len(code.splitlines()) - len(plain.splitlines())) <= 8, mutant
        assert mutant.name not in seen
        seen.add(mutant.name)
    assert len(seen) > 100
    assert len({rank(mutant, 1) for mutant in mutants(FILE)}) == len(seen)


def test_texts_and_messages_are_left_alone():
    source = FILE.read_text("utf-8").splitlines()
    for mutant in mutants(FILE):
        assert not mutant.before.startswith(("'", '"', "f'", 'f"'))
        if mutant.operator != "removed guard":
            assert "raise " not in source[mutant.lines[0] - 1]
