from __future__ import annotations

import pytest

from suffice import preset
from suffice.cli.list import axes
from suffice.presets import PRESETS, needs_length


def spec_of(name, **options):
    length = {"length": 256} if needs_length(name) else {}
    return preset(name, 256, 4, **length, **options)


def lines_of(told):
    """The table's line of each mechanism."""
    table = told.out.partition("Per layer")[0].splitlines()[2:]
    return {line.split()[0]: line for line in table}


@pytest.mark.parametrize("width", [20, 34, 60, 80, 100, 120, 160])
def test_names_are_whole_at_every_width(suffice, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    told = suffice("list")
    assert (told.code, told.err) == (0, "")
    assert list(lines_of(told)) == list(PRESETS)
    assert "…" not in told.out
    if width >= 34:
        assert max(len(line.rstrip()) for line in told.out.splitlines()) <= width
    for name, line in lines_of(told).items():
        cost, base = spec_of(name).cost(256), spec_of("standard").cost(256)
        assert f"{cost.parameters / base.parameters:.2f}x" in line
        assert f"{cost.flops / base.flops:.2f}x" in line


def test_80_columns_have_room_for_the_arxiv_number(suffice):
    found = lines_of(suffice("list"))
    assert "Efficient, Alignment" in found["super_attention"]
    assert found["super_attention"].split()[-2:] == ["512", "arXiv:2403.01643"]
    assert found["gqa"].split()[-2:] == ["256", "arXiv:2305.13245"]
    assert "2 KV heads" in found["gqa"]
    assert "1 KV head " in found["mqa"]


def test_120_columns_have_room_for_counts_and_authors(suffice, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    found = lines_of(suffice("list"))
    assert "263,168 (1.00x)" in found["standard"]
    assert "201.3M (1.00x)" in found["standard"]
    assert found["mqa"].rstrip().endswith("Shazeer 2019, arXiv:1911.02150")
    monkeypatch.setenv("COLUMNS", "160")
    found = lines_of(suffice("list"))
    assert found["mqa"].rstrip().endswith("Shazeer 2019, arXiv:1911.02150, section 3")


def test_axes_that_differ_are_named():
    assert axes(spec_of("standard")) == "Standard"
    assert axes(spec_of("standard", causal=True)) == "Standard, Causal"
    assert axes(spec_of("mqa")) == "Standard, 1 KV head"
    assert axes(spec_of("super_attention", causal=True)) == "Efficient, Causal, Alignment"
