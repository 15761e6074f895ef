"""Patterns read from code, drawn as data, listed by mechanism."""

from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Full,
    Global,
    Pattern,
    PerHead,
    Random,
    Strided,
    Window,
)
from suffice.presets import PRESETS
from suffice.studio.drawings import LENGTHS, drawn, pattern_answer, read, sketches
from suffice.view import draw, expression

WRITTEN = {
    "Full()": Full(),
    "Window(3) & Causal()": Window(3) & Causal(),
    "Window(size=3) | Global(tokens=1) & Causal()": Window(3) | (Global(1) & Causal()),
    "(Window(3) | Global(1)) & Causal()": (Window(3) | Global(1)) & Causal(),
    "Random(2, length=None, seed=-3)": Random(2, seed=-3),
    "Block(4, over=Window(1) | Global(1))": Block(4, Window(1) | Global(1)),
    "PerHead((Window(2), Strided(2)))": PerHead((Window(2), Strided(2))),
    "PerHead([Dilated(2, 2)])": PerHead((Dilated(2, 2),)),
    " Full() ": Full(),
}


@pytest.mark.parametrize("code", WRITTEN)
def test_code_is_read_as_python_reads_it(code):
    assert read(code) == WRITTEN[code]


@pytest.mark.parametrize(
    "pattern",
    [
        one
        for kind in Pattern.table.values()
        if kind.__module__.startswith("suffice.")
        for one in kind.samples()
    ],
    ids=expression,
)
def test_what_is_written_is_read_again(pattern):
    assert read(expression(pattern)) == pattern


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (None, "write a pattern, such as"),
        ("  ", "write a pattern, such as"),
        ("Window(", "cannot be read"),
        ("3", "3 is no pattern; write such as"),
        ("Window(3" + " " * 2000 + ")", "at most 2,000"),
        ("Full()" + " & (Full()" * 60 + ")" * 60, "nested deeper than 40"),
        ("Window(2.5)", "2.5 is no pattern and no whole number"),
        ("Window('a')", "is no pattern and no whole number"),
        ("Window(-Full())", "is no pattern and no whole number"),
        ("Window(10**9)", "is no pattern and no whole number"),
        ("Window(99999999999)", "is more than 1,073,741,824"),
        ("Full() + Full()", "is no pattern and no whole number"),
        ("Full() & 3", "is no pattern and no whole number"),
        ("__import__('os').system('true')", "is no pattern and no whole number"),
        ("open('x')", "unknown pattern 'open'"),
        ("Widow(3)", "unknown pattern 'Widow'; did you mean 'Window'"),
        ("Window(length=3)", "unknown field of Window 'length'"),
        ("Window(3, 4)", "Window takes size; give each"),
        ("Window()", "Window takes size; give each"),
        ("Window(3, size=3)", "Window takes size; give each"),
        ("Window(**{})", "is no pattern and no whole number"),
        ("Window(**Full())", "unknown field of Window None"),
        ("Window(0)", "Window.size=0. holds no key"),
        ("lambda: 0", "is no pattern and no whole number"),
    ],
)
def test_wrong_code_is_refused(code, told):
    with pytest.raises(ConfigError, match=told):
        read(code)


@pytest.mark.parametrize("pattern", WRITTEN.values(), ids=expression)
def test_runs_hold_every_cell(pattern):
    told = drawn(pattern, 7, 9)
    for panel, found in zip(told["panels"], draw(pattern, 7, 9).panels, strict=True):
        rows = [
            [number for number, long in zip(row[::2], row[1::2], strict=True) for _ in range(long)]
            for row in panel["rows"]
        ]
        assert torch.equal(torch.tensor(rows), found.cells)
        assert (panel["visible"], panel["computed"]) == (found.visible, found.computed)


def test_drawings_are_refused_in_words():
    with pytest.raises(ConfigError, match="asked for with an expression"):
        pattern_answer([])
    with pytest.raises(ConfigError, match="'9' positions cannot be drawn"):
        pattern_answer({"expression": "Full()", "queries": "9"})
    with pytest.raises(ConfigError, match="True positions cannot be drawn"):
        pattern_answer({"expression": "Full()", "queries": 9, "keys": True})
    with pytest.raises(ConfigError, match="100 heads cannot be drawn; give at most 64"):
        drawn(PerHead((Full(),) * 100), 3)


def test_every_mechanism_is_sketched():
    found = sketches()
    assert set(found) == set(PRESETS)
    for name, one in found.items():
        assert one["summary"].endswith("."), name
        for key, sketch in one["sketches"].items():
            length = int(key.split()[0])
            assert length in LENGTHS
            pattern = read(sketch["expression"])
            assert pattern.causal == key.endswith("causal"), (name, key)
    assert found["linformer"]["sketches"]["64"]["keys"] < 64
    assert "64 causal" not in found["linformer"]["sketches"]
    assert not found["performer"]["sketches"]["64"]["pairs"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_line_of_a_sketch_makes_its_pattern(name):
    import suffice

    key, sketch = next(iter(sketches()[name]["sketches"].items()))
    spec = eval(sketch["line"], {"suffice": suffice})  # the page's own promise
    assert expression(spec.pattern) == sketch["expression"], key
