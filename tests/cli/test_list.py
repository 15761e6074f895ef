from __future__ import annotations

import pytest

from docs.catalogue import D_MODEL, GROUPS, HEADS, group, mean_cost
from suffice import AttentionSpec, preset
from suffice.mixing import Alignment
from suffice.patterns import Causal, Full, PerHead, Window
from suffice.positions import Rope
from suffice.presets import PRESETS, takes_length
from suffice.view.catalogue import axes

LENGTH = 1024


def spec_of(name, **options):
    length = {"length": LENGTH} if takes_length(name) else {}
    return preset(name, 256, 4, **length, **options)


def lines_of(told):
    """The table's line of each mechanism."""
    table = told.stdout.partition("Per layer")[0].splitlines()
    first = {line.partition(" ")[0]: line for line in table}
    return {name: line for name, line in first.items() if name in PRESETS}


@pytest.mark.parametrize("width", [20, 34, 60, 80, 100, 120, 160])
def test_names_are_whole_at_every_width(suffice, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = suffice("list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert set(lines_of(result)) == set(PRESETS)
    assert "…" not in result.stdout
    assert "\x1b" not in result.stdout
    if width >= 34:
        assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= width
    base = spec_of("standard").cost(LENGTH)
    for name, line in lines_of(result).items():
        cost = mean_cost(name, D_MODEL, HEADS, length=LENGTH)
        assert f"{cost.parameters / base.parameters:.2f}x" in line
        assert f"{cost.flops / base.flops:.2f}x" in line


def test_mechanisms_stand_in_groups(suffice):
    result = suffice("list").stdout.splitlines()
    heads = [name for name in GROUPS if name in result]
    assert heads[0] == result[0] == "Every pair"
    under = {}
    for line in result:
        if line in heads:
            current = line
        elif line.partition(" ")[0] in PRESETS:
            under[line.partition(" ")[0]] = current
    assert under == {name: group(spec_of(name)) for name in PRESETS}


def test_axes_that_differ_are_named():
    assert axes(spec_of("standard")) == "Standard"
    assert axes(spec_of("standard", causal=True)) == "Causal"
    assert axes(spec_of("mqa")) == "1 KV head"
    assert axes(spec_of("super_attention", causal=True)) == "Efficient, Causal, Alignment"
    assert axes(spec_of("longformer", causal=True)) == "(Window | Global) & Causal"
    assert axes(spec_of("mistral")) == "Window, 1 KV head, Rope"
    assert axes(spec_of("linear")) == "Elu"
    heads = PerHead((Window(2), Full() & Causal(), Window(2), Full() & Causal()))
    spec = AttentionSpec(
        d_model=64, num_heads=4, pattern=heads, position=Rope(), mixing=Alignment(9)
    )
    assert axes(spec) == "PerHead(Window, Full & Causal), Alignment, Rope"
