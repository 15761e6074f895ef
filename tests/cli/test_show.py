from __future__ import annotations

import json

import pytest

from suffice import Attention, AttentionSpec, preset
from suffice.presets import PRESETS, needs_length

CASES = [(name, causal) for name in PRESETS for causal in (False, True)]


def spec_of(name, causal=False, *, d_model=256, heads=4, length=64):
    options = {"length": length} if needs_length(name) else {}
    return preset(name, d_model, heads, causal=causal, **options)


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_the_json_is_the_spec(suffice, name, causal):
    told = suffice("show", name, "--json", *(["--causal"] if causal else []))
    assert (told.code, told.err) == (0, "")
    assert AttentionSpec.from_json(json.loads(told.out)) == spec_of(name, causal)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("name", "causal"), CASES)
def test_a_mechanism_is_shown(suffice, monkeypatch, name, causal, width):
    monkeypatch.setenv("COLUMNS", str(width))
    told = suffice("show", name, *(["--causal"] if causal else []))
    assert (told.code, told.err) == (0, "")
    assert max(map(len, told.out.splitlines())) <= width
    said, spec = words(told.out), spec_of(name, causal)
    cost, base = spec.cost(64), spec_of("standard", causal).cost(64)
    for wanted in (
        f"parameters {cost.parameters:,} ({cost.parameters / base.parameters:.2f}x standard)",
        f"FLOPs {cost.flops:,} ({cost.flops / base.flops:.2f}x standard)",
        f"of visible pairs {cost.visible_flops:,}",
        f"streaming state {cost.state_numbers:,} numbers per token",
        f"pattern {spec.pattern!r}",
        f"projections {spec.projections!r}",
        f"mixing {spec.mixing!r}",
        f"num_kv_heads {spec.kv_heads}",
        "source " + words(PRESETS[name].__doc__.split("Source:")[1].split("\n\n")[0]).rstrip("."),
        "cost " + words(PRESETS[name].__doc__.split("Cost:")[1].split("Source:")[0]),
        words(PRESETS[name].__doc__.split("Cost:")[0].split("Args:")[0]),
        words(Attention(spec, device="meta").eval().explain(64, batch=1)),
    ):
        assert wanted in said
    for unwanted in ("Args:", "Raises:", "ConfigError"):
        assert unwanted not in said


def test_paragraphs_fill_the_width(suffice):
    lines = suffice("show", "super_attention").out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Choose it"))
    for line, following in zip(lines[at:], lines[at + 1 :], strict=False):
        if not following:
            break
        assert len(line) + 1 + len(following.split()[0]) > 80, "the next word would have fitted"


def test_sizes_are_those_asked_for(suffice):
    told = suffice(
        *("show", "super_attention", "--d-model", 32, "--heads", 2, "--length", 32, "--batch", 7)
    )
    assert "parameters 3,168 (0.75x standard)" in words(told.out)
    assert "one sample of 32 tokens" in told.out
    assert "op plan for 7 of 32 tokens" in told.out
    assert "length=32" in told.out


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["super_atention"], "unknown mechanism 'super_atention'; did you mean 'super_attention'"),
        (["standard", "--heads", 3], "num_heads=3"),
        (["gqa", "--heads", 1], "gqa shares key/value heads among query heads; num_heads=1"),
        (["standard", "--d-model", 0], "d_model=0"),
        (["mqa", "--length", 0], "--length 0 --batch 1: give at least 1 of each."),
        (["mqa", "--batch", -1], "--length 64 --batch -1: give at least 1 of each."),
    ],
)
def test_what_cannot_be_shown_is_told(suffice, options, wanted):
    told = suffice("show", *options)
    assert (told.code, told.out) == (2, "")
    assert told.said.startswith("error: ")
    assert wanted in told.said
    assert len(told.err.splitlines()) == 1
