from __future__ import annotations

import pytest

from suffice import patterns
from suffice.mixing import Alignment
from suffice.patterns import Block, Causal, Full, Global, PerHead, Random, Window
from suffice.view import brief, expression
from tests.view.patterns import COMPOSED


@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
def test_an_expression_is_code_for_the_pattern(pattern):
    made = eval(expression(pattern), vars(patterns))  # noqa: S307
    assert expression(made) == expression(pattern)
    assert made.to_json() == pattern.to_json() or "|" in expression(pattern)


@pytest.mark.parametrize(
    ("value", "written", "named"),
    [
        (Random(2), "Random(keys=2)", "Random"),
        (Random(2, length=4, seed=1), "Random(keys=2, length=4, seed=1)", "Random"),
        (Block(4), "Block(size=4)", "Block"),
        (Block(4, Window(2)), "Block(size=4, over=Window(size=2))", "Block(Window)"),
        (
            Block(4, Window(2) | Global(1)),
            "Block(size=4, over=Window(size=2) | Global(tokens=1))",
            "Block(Window | Global)",
        ),
        (
            (Window(2) | Global(1)) & Causal(),
            "(Window(size=2) | Global(tokens=1)) & Causal()",
            "(Window | Global) & Causal",
        ),
        (PerHead((Full(),)), "PerHead(patterns=(Full(),))", "PerHead(Full)"),
        (
            PerHead((Window(2), Causal(), Window(3))),
            "PerHead(patterns=(Window(size=2), Causal(), Window(size=3)))",
            "PerHead(Window, Causal)",
        ),
        (Alignment(9, init="identity"), "Alignment(length=9, init='identity')", "Alignment"),
    ],
    ids=repr,
)
def test_values_are_written_as_one_writes_them(value, written, named):
    assert expression(value) == written
    assert brief(value) == named
