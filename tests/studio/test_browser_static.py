"""The exported page: its formulas beside Python's, and that it needs nobody."""

from __future__ import annotations

import itertools
import json

import pytest

from suffice.studio.calculator import KNOWN, Composition, calculate
from suffice.studio.drawings import LENGTHS, pattern_answer, sketches

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
    "PerHead([Full()])",
    "Block(3, PerHead((Window(2), Causal())))",
    "((Window(9) | Global(2)) & (Causal() | Window(3)))",
)
MODELS = (
    *(known.model for known in KNOWN),
    Composition(d_model=96, num_heads=4, layers=5, projections="Efficient", state_bits=32),
    Composition(d_model=96, num_heads=4, layers=5, projections="Optimised", bias=True),
    Composition(d_model=96, num_heads=4, num_kv_heads=2, projections="Efficient", state_bits=8),
    Composition(d_model=128, num_heads=2, head_dim=100, projections="Latent", state_bits=4),
    Composition(d_model=128, num_heads=8, num_kv_heads=2, state_bits=4, weight_bits=4, batch=3),
    Composition(d_model=128, num_heads=8, kernel="Elu", full_every=4, layers=9, norms=0),
    Composition(d_model=64, num_heads=2, mixing="Alignment", mixing_size=4096, chunk=0),
    Composition(d_model=64, num_heads=2, mixing="ToeplitzAlignment", mixing_size=9, window=33),
    Composition(d_model=64, num_heads=2, kernel="Elu", mixing="ToeplitzAlignment", mixing_size=4),
    Composition(d_model=64, num_heads=2, window=300, sinks=4, state_bits=8, full_every=3),
)


@pytest.fixture
def alone(page, static):
    page.goto(static.as_uri())
    return page


def test_the_page_computes_what_python_computes(alone):
    asks = ((1, None), (130, 10**8), (4096, 8 * 10**9), (100_000, 24 << 30))
    for (length, memory), models in itertools.product(asks, (MODELS[:10], MODELS[10:])):
        asked = {
            "compositions": [model.to_json() for model in models],
            "length": length,
            "memory": memory,
        }
        theirs = alone.evaluate("(asked) => window.studio.answers.calculate(asked)", asked)
        ours = json.loads(json.dumps(calculate(asked)))
        for mine, other in zip(ours["answers"], theirs["answers"], strict=True):
            assert ("error" in mine) == ("error" in other)
            assert mine == other or "error" in mine
        assert ours["lengths"] == theirs["lengths"]


REFUSED = (
    {"num_heads": 3, "d_model": 64},
    {"num_kv_heads": 3},
    {"layers": 0},
    {"batch": -1},
    {"sinks": 4},
    {"window": 8, "kernel": "Elu"},
    {"window": 8, "mixing": "Alignment", "mixing_size": 9999},
    {"mixing": "Alignment"},
    {"mixing_size": 3},
    {"projections": "Efficient", "head_dim": 100},
    {"mixing": "Alignment", "mixing_size": 8},
)


def test_the_page_refuses_what_python_refuses(alone):
    asked = {"compositions": list(REFUSED), "length": 64, "memory": None}
    theirs = alone.evaluate("(asked) => window.studio.answers.calculate(asked)", asked)
    for answers in (calculate(asked)["answers"], theirs["answers"]):
        assert [set(one) for one in answers] == [{"error"}] * len(REFUSED)


def test_the_page_draws_what_python_draws(alone):
    published = [
        {"expression": one["expression"], "queries": int(key.split()[0]), "keys": one["keys"]}
        for sketched in sketches().values()
        for key, one in sketched["sketches"].items()
        if int(key.split()[0]) in LENGTHS[:3]
    ]
    own = [{"expression": code, "queries": 75, "keys": 90} for code in PATTERNS]
    wide = [{"expression": CAUSAL_DRAWS, "queries": 200, "keys": None}]
    asked = list({json.dumps(one): one for one in published + own + wide}.values())
    theirs = alone.evaluate("(all) => all.map((one) => window.studio.answers.pattern(one))", asked)
    for one, other in zip(asked, theirs, strict=True):
        assert json.loads(json.dumps(pattern_answer(one))) == other


WRONG = (
    "", "Windw(3)", "Window()", "Window(0)", "Window(3", "3", "Window(3) + Causal()", "Window(3,4)",
    "Window(size=3, size=4)", "Window('a')", "Random(2, length=4)", "__import__('os')", "Full().x",
    "PerHead((Full(), PerHead((Full(),))))", "Block(2, over=3)", "Window(3) & 4", "Causal() |",
    "PerHead((Full(), Full())) & PerHead((Full(),))", "Fixed(2, tail=5)", "Global(-1)",
)  # fmt: skip


def test_wrong_patterns_are_refused_in_words(alone):
    ask = """(all) => all.map((expression) => {
        try { window.studio.answers.pattern({expression, queries: 9, keys: null}); return null; }
        catch (error) { return error.constructor.name + ": " + error.message; }
    })"""
    for code, told in zip(WRONG, alone.evaluate(ask, list(WRONG)), strict=True):
        assert told is not None, code
        assert told.startswith("Error: "), (code, told)  # and no error of the language itself


def test_the_receptive_field_is_a_power_of_the_mask(alone):
    from suffice.studio.drawings import read

    for code, query in itertools.product((PATTERNS[3], PATTERNS[5], "Window(2)"), (3, 40)):
        asked = {"expression": code, "queries": 48, "keys": None}
        found = alone.evaluate(
            "([asked, query]) => window.studio.reach(window.studio.answers.pattern(asked), query)",
            [asked, query],
        )
        mask = read(code).mask(48, 48).float()
        heard = mask[query]
        for layer in found:
            assert layer == (heard > 0).int().tolist()
            heard = (heard @ mask).clamp(max=1)


def test_the_page_stands_alone(static):
    text = static.read_text("utf-8")
    for word in ("http://", "https://", "src=", "@import", "url("):
        rest = text.replace("http://www.w3.org/2000/svg", "")
        assert word not in rest, word
