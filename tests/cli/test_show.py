from __future__ import annotations

import json
import re

import pytest

from suffice import Attention, AttentionSpec, preset
from suffice.cli.options import mechanism_settings
from suffice.errors import ConfigError
from suffice.presets import PRESETS, takes_length
from suffice.view import expression, text


def spec_of(name, causal=False, *, d_model=256, heads=4, length=64, **options):
    if takes_length(name):
        options["length"] = length
    return preset(name, d_model, heads, causal=causal, **options)


def legal(name, causal):
    """Whether a mechanism can be causal; the low-rank one cannot."""
    try:
        spec_of(name, causal)
    except ConfigError:
        return False
    return True


CASES = [(name, causal) for name in PRESETS for causal in (False, True) if legal(name, causal)]


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_the_json_is_the_spec(suffice, name, causal):
    result = suffice("show", name, "--json", *(["--causal"] if causal else []))
    assert (result.exit_code, result.stderr) == (0, "")
    assert AttentionSpec.from_json(json.loads(result.stdout)) == spec_of(name, causal)


@pytest.mark.parametrize(
    ("name", "causal", "width"),
    [*((*case, 60) for case in CASES), ("longformer", False, 120), ("linformer", False, 80)],
)
def test_a_mechanism_is_described(suffice, monkeypatch, name, causal, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = suffice("show", name, *(["--causal"] if causal else []))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= width
    printed, spec = words(result.stdout), spec_of(name, causal)
    plan = Attention(spec, device="meta").eval().explain(64, batch=1).splitlines()
    cost, base = spec.cost(64), spec_of("standard", causal).cost(64)
    for wanted in (
        f"parameters {cost.parameters:,} ({cost.parameters / base.parameters:.2f}x standard)",
        f"FLOPs {cost.flops:,} ({cost.flops / base.flops:.2f}x standard)",
        f"of visible pairs {cost.visible_flops:,}",
        f"pattern {expression(spec.pattern)}",
        f"encoder {spec.encoder!r}",
        f"mixing {spec.mixing!r}",
        f"kernel {spec.kernel!r}",
        f"position {spec.position!r}",
        f"num_kv_heads {spec.kv_heads}",
        "source " + words(PRESETS[name].__doc__.split("Source:")[1].split("\n\n")[0]).rstrip("."),
        "cost " + words(PRESETS[name].__doc__.split("Cost:")[1].split("Source:")[0]),
        words(PRESETS[name].__doc__.split("Cost:")[0].split("Args:")[0]),
        *(words(line) for line in plan if not line.startswith("not ")),
        "explain(64) says why none of the",
    ):
        assert wanted in printed
    assert not [line for line in plan if line.startswith("not ") and words(line) in printed]
    for unwanted in ("Args:", "Raises:", "ConfigError"):
        assert unwanted not in printed


@pytest.mark.parametrize(
    ("name", "width"),
    [("standard", 60), ("longformer", 80), ("bigbird", 120), ("sparse_fixed", 60), ("mistral", 80)],
)
def test_who_sees_whom_is_drawn(suffice, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = suffice("show", name).stdout
    spec = spec_of(name)
    rows = 16 if spec.pattern.dense else 32
    drawn = text(spec.pattern, 64, num_heads=4, width=width - 2, rows=rows)
    assert "\n".join(f"  {line}".rstrip() for line in drawn.splitlines()) in result


def test_a_terminal_gets_colours(suffice, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    result = suffice("show", "longformer").stdout
    assert "\x1b[38;2;26;98;165m████" in result  # the window
    plain = re.sub("\x1b\\[[0-9;]*m", "", result)
    monkeypatch.delenv("FORCE_COLOR")
    assert words(plain) == words(suffice("show", "longformer").stdout)


def test_the_picture_is_written_and_named(suffice, tmp_path):
    result = suffice("show", "longformer", "--svg", "l.svg", "--length", 32)
    assert result.exit_code == 0
    assert result.stdout.endswith("picture: l.svg\n")
    drawn = (tmp_path / "l.svg").read_text()
    assert "longformer: Window(size=4) | Global(tokens=1)" in drawn
    assert "\nGlobal(tokens=1): " in drawn.replace(">", "\n")


def test_the_data_flow_is_told_and_drawn(suffice, tmp_path):
    result = suffice("show", "gqa", "--flow", "g.svg")
    assert "keys x -> W_K 256 × 128 [cached] -> 2 heads, each read by 2" in words(result.stdout)
    assert result.stdout.endswith("picture: g.svg\n")
    assert (tmp_path / "g.svg").read_text().startswith("<svg ")
    assert suffice("show", "gqa", "--flow", "g.png").exit_code == 2


def test_segments_are_drawn_at_least_three_times(suffice):
    result = suffice("show", "infini", "--set", "segment=16", "--length", 8, "--causal")
    assert "Queries down, keys across; a cell stands for 2 x 2 pairs" in words(result.stdout)
    assert "408 of 2,304 pairs visible" in words(result.stdout)  # three triangles of 16


def test_json_stays_json_beside_a_picture(suffice, tmp_path):
    result = suffice("show", "longformer", "--json", "--svg", "l.svg")
    assert AttentionSpec.from_json(json.loads(result.stdout)) == spec_of("longformer")
    assert result.stderr == "picture: l.svg\n"
    assert (tmp_path / "l.svg").exists()


def test_sizes_are_options(suffice):
    result = suffice(*("show", "super_attention", "--d-model", 32, "--heads", 2, "--length", 32))
    assert "parameters 3,168 (0.75x standard)" in words(result.stdout)
    assert "one sample of 32 tokens" in result.stdout
    assert "op plan for one input of 32 tokens" in result.stdout
    assert "length=32" in result.stdout


def test_options_of_a_mechanism_are_set(suffice):
    result = suffice("show", "mistral", "--set", "full_every=2", "--set", "window=5", "--layer", 2)
    assert "pattern           Window(size=5)\n" in result.stdout
    result = suffice("show", "mistral", "--set", "full_every=2", "--set", "window=5", "--layer", 3)
    assert "pattern           Full()\n" in result.stdout
    result = suffice("show", "super_attention", "--set", "init=identity", "--set", "dropout=0.5")
    assert "init='identity'" in result.stdout
    assert "dropout           0.5\n" in result.stdout


@pytest.mark.parametrize(
    ("assignments", "wanted"),
    [
        (["window"], "--set window: write NAME=VALUE, such as window=16."),
        (["=3"], "--set =3: write NAME=VALUE"),
        (["window="], "--set window=: write NAME=VALUE"),
        (["causal=true"], "--set causal=true: give --causal instead."),
        (["length=9"], "--set length=9: give --length instead."),
        (["window=1", "window=2"], "--set window=2: window is set twice; give it once."),
        (["window=x"], "--set window=x: window of longformer must be a whole number."),
        (["window=1.5"], "--set window=1.5: window of longformer must be a whole number."),
        (["window=true"], "--set window=True: window of longformer must be a whole number."),
        (["bias=1"], "--set bias=1: bias of longformer must be true or false."),
        (["dropout=no"], "--set dropout=no: dropout of longformer must be a number."),
        (["dropout=true"], "--set dropout=True: dropout of longformer must be a number."),
    ],
)
def test_unreadable_options_are_refused(assignments, wanted):
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        mechanism_settings("longformer", assignments)


def test_words_are_words():
    with pytest.raises(ConfigError, match="--set init=3: init of super_attention must be a word."):
        mechanism_settings("super_attention", ["init=3"])
    assert mechanism_settings("super_attention", ["init=identity"]) == {"init": "identity"}
    assert mechanism_settings("longformer", ["window=null", "dropout=1"]) == {
        "window": None,
        "dropout": 1,
    }
    assert mechanism_settings("of nobody", ["x=[1]"]) == {"x": [1]}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["super_atention"], "unknown mechanism 'super_atention'; did you mean 'super_attention'"),
        (["nothing", "--layer", 1, "--set", "a=b"], "unknown mechanism 'nothing'"),
        (["gqa", "--heads", 1], "gqa shares key/value heads among query heads; num_heads=1"),
        (["mqa", "--layer", 1], "--layer 1: every layer of mqa is the same; leave it out."),
        (["longformer", "--set", "windw=3"], "unknown option of longformer 'windw'; did you mean"),
        (["linformer", "--causal"], "LowRank sums keys of all positions, so pattern=Causal()"),
        (["mqa", "--svg", "p.png"], "a picture cannot be written to p.png: name a .svg file."),
        (["mqa", "--svg", "none/p.svg"], "a picture cannot be written to none/p.svg: No such file"),
    ],
)
def test_wrong_options_are_refused(suffice, options, wanted, tmp_path):
    result = suffice("show", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.message.startswith("error: ")
    assert wanted in result.message
    assert len(result.stderr.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}  # matplotlib's
