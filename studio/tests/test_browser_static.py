"""The exported page: its answers are those of Python, and it loads nothing."""

from __future__ import annotations

import itertools

import pytest
import torch

from suffice import patterns
from suffice.patterns import Pattern
from suffice.view import draw, expression
from suffice.view.drawing import cell_styles
from suffice_studio.bundle import PATTERN_LENGTHS, sketches

CAUSAL_DRAWS = "Block(size=4, over=Window(2) | Random(3) | Global(1)) & Causal()"
PATTERNS = (
    "Full()",
    "Causal()",
    "Window(5)",
    "Dilated(size=4, dilation=3) & Causal()",
    "Dilated(3, 4) | Window(6)",
    "Strided(7) | Window(7)",
    "(Strided(7) & Dilated(4, 2)) | Fixed(9, tail=2)",
    "Fixed(stride=8, tail=3) & Causal() | Block(8) & Causal()",
    "Global(3) & Window(40)",
    "Random(3)",
    "Random(4, length=90, seed=-5)",
    "Random(keys=2, seed=123456789) | Window(2)",
    CAUSAL_DRAWS,
    "Block(8, over=Fixed(3)) | Strided(5)",
    "PerHead((Window(4), Strided(4), Window(4), Global(1) | Window(2))) & Causal()",
    "PerHead((Full(),))",
    "Block(3, PerHead((Window(2), Causal())))",
    "((Window(9) | Global(2)) & (Causal() | Window(3)))",
)


@pytest.fixture
def alone(page, static):
    page.goto(static.as_uri())
    return page


def python_drawing(pattern, queries, keys):
    """Return what the page should draw, from the pattern's own masks and counts."""
    drawing = draw(pattern, queries, keys)
    colours = [style.colour for style in cell_styles(drawing.parts)]
    panels = [
        {
            "heads": list(panel.heads),
            "visible": panel.visible,
            "computed": panel.computed,
            "rows": [
                torch.stack(torch.unique_consecutive(row, return_counts=True), 1).flatten().tolist()
                for row in panel.cells
            ],
        }
        for panel in drawing.panels
    ]
    return {
        "expression": drawing.expression,
        "queries": queries,
        "keys": queries if keys is None else keys,
        "causal": pattern.causal,
        "parts": [
            {"name": part.name, "kind": part.kind, "colour": colour}
            for part, colour in zip(drawing.parts, colours, strict=True)
        ],
        "panels": panels,
    }


def test_the_page_draws_what_python_draws(alone):
    published = {
        (sketch["expression"], int(key.split()[0]), sketch["keys"])
        for mechanism in sketches().values()
        for key, sketch in mechanism["sketches"].items()
        if int(key.split()[0]) in PATTERN_LENGTHS[:3]
    }
    samples = {
        (expression(sample), 9, None)
        for kind in Pattern.table.values()
        if kind.__module__.startswith("suffice.")
        for sample in kind.samples()
    }
    composed = {(code, 75, 90) for code in PATTERNS} | {(CAUSAL_DRAWS, 200, None)}
    names = ("expression", "queries", "keys")
    requests = [dict(zip(names, one, strict=True)) for one in published | samples | composed]
    drawings = alone.evaluate("(all) => all.map((one) => window.studio.pattern(one))", requests)
    for request, drawing in zip(requests, drawings, strict=True):
        pattern = eval(request["expression"], vars(patterns))
        assert drawing == python_drawing(pattern, request["queries"], request["keys"])


WRONG = (
    "", "Windw(3)", "Window()", "Window(0)", "Window(3", "3", "Window(3) + Causal()", "Window(3,4)",
    "Window(size=3, size=4)", "Window('a')", "Random(2, length=4)", "__import__('os')", "Full().x",
    "PerHead((Full(), PerHead((Full(),))))", "Block(2, over=3)", "Window(3) & 4", "Causal() |",
    "PerHead((Full(), Full())) & PerHead((Full(),))", "Fixed(2, tail=5)", "Global(-1)",
    "Window(3" + " " * 2000 + ")", "Window(99999999999)", "Window(2.5)", "Window(**{})",
    "lambda: 0", f"PerHead(({'Full(),' * 65}))",
)  # fmt: skip


def test_wrong_patterns_are_refused(alone):
    ask = """(all) => all.map((expression) => {
        try { window.studio.pattern({expression, queries: 9, keys: null}); return null; }
        catch (error) { return error.constructor.name + ": " + error.message; }
    })"""
    for code, message in zip(WRONG, alone.evaluate(ask, list(WRONG)), strict=True):
        assert message is not None, code
        assert message.startswith("Error: "), (code, message)  # not an error of the language itself


def test_the_receptive_field_is_a_power_of_the_mask(alone):
    for code, query in itertools.product((PATTERNS[3], PATTERNS[5], "Window(2)"), (3, 40)):
        request = {"expression": code, "queries": 48, "keys": None}
        layers = alone.evaluate(
            "([request, query]) => window.studio.reach(window.studio.pattern(request), query)",
            [request, query],
        )
        mask = eval(code, vars(patterns)).mask(48, 48).float()
        reached = mask[query]
        for layer in layers:
            assert layer == (reached > 0).int().tolist()
            reached = (reached @ mask).clamp(max=1)


def test_static_page_loads_nothing(static):
    text = static.read_text("utf-8")
    for word in ("http://", "https://", "src=", "@import", "url("):
        rest = text.replace("http://www.w3.org/2000/svg", "")
        assert word not in rest, word
