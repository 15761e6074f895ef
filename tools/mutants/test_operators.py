"""Systematic bugs: each is one edit that compiles, and texts are left alone."""

from __future__ import annotations

import ast
import hashlib
import math
import os
import subprocess

import pytest

from tools.mutants.operators import ROOT, edits, mutants, mutated, rank
from tools.mutants.sample import RIM, TIMES, arrival, changed, sources, weights_of

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


@pytest.mark.parametrize("drawn", [300, 3000, 9000])
def test_new_code_and_the_rim_are_drawn_three_times_as_often(drawn):
    """Of 4,000 often and 8,000 seldom ones, by time t all but exp(-weight t) have come."""
    every = [(hashlib.sha256(b"%d" % n).hexdigest(), 1 if n % 3 else 3) for n in range(12000)]
    first = sorted(every, key=lambda one: arrival(*one))[:drawn]
    often = sum(weight == 3 for _, weight in first)
    low, high = 0.0, 20.0
    while high - low > 1e-9:
        time = (low + high) / 2
        come = 4000 * (1 - math.exp(-3 * time)), 8000 * (1 - math.exp(-time))
        low, high = (time, high) if sum(come) < drawn else (low, time)
    assert abs(often - come[0]) < 3 * math.sqrt(min(come[0], 4000 - come[0]))


def test_a_quarter_of_the_files_is_new_and_the_rim_is_drawn_as_often():
    files = sources()
    dates = {path: float(place) for place, path in enumerate(files)}
    weights = weights_of(dates)
    assert len(weights) == len(files) == len(set(files))
    names = [f"suffice/{name}" for name in RIM.split()]
    for place, path in enumerate(files):
        name = path.relative_to(ROOT).as_posix()
        often = name.startswith(tuple(names)) or place >= len(files) - round(len(files) / 4)
        assert weights[name] == (TIMES if often else 1), name


def test_the_date_of_a_file_is_the_median_of_its_lines(tmp_path):
    def git(*words, date=0):
        names = ("-c", "user.name=a", "-c", "user.email=a")
        dated = {"GIT_COMMITTER_DATE": f"@{date} +0000", "GIT_AUTHOR_DATE": "@5 +0000"}
        subprocess.run(("git", "-C", tmp_path, *names, *words), check=True, env=os.environ | dated)

    git("init", "-q")
    for text, date in (("a\nb\n", 100), ("a\nb\nc\n", 300), ("a\nb\nc\nd\ne\n", 700)):
        (tmp_path / "x.py").write_text(text)
        git("add", "x.py", date=date)
        git("commit", "-q", "-m", "x", date=date)
    assert changed(tmp_path / "x.py") == 300
