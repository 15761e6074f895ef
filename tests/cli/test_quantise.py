"""`suffice quantise`: a folder in, a smaller one out, and what it says of it."""

from __future__ import annotations

import json

import pytest

from suffice import AttentionSpec
from suffice.models import folder
from suffice.models.packed import schemes_of
from suffice.ops.native import library
from suffice.patterns import Causal
from tests.cli.models import written

SPEC = AttentionSpec(d_model=16, num_heads=2, pattern=Causal())
KERNEL = library.instructions() if library.available() else "torch"


@pytest.fixture
def run(tmp_path):
    return written(tmp_path, SPEC, depth=2, facts={"measured": {"step": 3}})


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_a_packed_model_is_written_and_reported(suffice, run, tmp_path, bits):
    result = suffice("quantise", "run", "--bits", bits, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    scheme = {16: "float16", 8: "int8/16", 4: "int4/16"}[bits]
    lines = result.stdout.splitlines()
    report = json.loads((tmp_path / f"run-{bits}bit" / "quantise.json").read_text())
    maps = [one for one in report["layers"] if one["name"].endswith("mlp.down")]
    sizes = [f"{sum(m[f'bytes_{when}'] for m in maps) / 1e3:,.1f}" for when in ("before", "after")]
    (line,) = [line.split() for line in lines if "mlp.down" in line]
    error = f"{max(m['error'] for m in maps):.2%}"
    assert line == ["2", "blocks.*.mlp.down", scheme, KERNEL, *sizes, error]
    assert max(map(len, lines[:9])) <= 80
    assert "not packed: 1 x embedding.positions, positions are added to tokens" in result.stdout
    assert "tokens/s" not in result.stdout  # two measurements minutes apart tell nothing
    lm, _, facts = folder.load(f"run-{bits}bit")
    assert {str(one) for one in schemes_of(lm).values()} == {scheme}
    assert "measured" not in facts
    assert facts["measured_before_packing"] == {"step": 3}
    assert report["bits"] == bits
    assert report["change"]["tokens"] > 50
    assert suffice("generate", f"run-{bits}bit", "--prompt", "to", "--tokens", 5).exit_code == 0
    judged = suffice("evaluate", f"run-{bits}bit", "--data", "text.txt", "--limit", 5, "--json")
    assert json.loads(judged.stdout)["items"] == 5


def test_options(suffice, run, tmp_path):
    words = ("--group", 8, "--skip", "embedding.*", "--skip", "*.up", "--calibration", "none")
    result = suffice("quantise", "run", *words, "--out", "small", "--json", "--quiet")
    report = json.loads(result.stdout)
    assert report["change"] is None
    assert report["calibration_tokens"] == 0
    skipped = [one["name"] for one in report["layers"] if one["skipped"] == "as asked"]
    ups = ["blocks.0.mlp.up", "blocks.1.mlp.up"]
    assert skipped == ["embedding.tokens", "embedding.positions", *ups]
    assert {one["scheme"] for one in report["layers"]} == {"int8/8", "float32"}
    result = suffice("quantise", "run", "--calibration", "none", "--out", "plain")
    assert "no text was read: rounded without calibration" in result.stdout


def test_without_kernels_it_says_so(suffice, run, no_kernels):
    result = suffice("quantise", "run", "--quiet", "--calibration", "none")
    assert result.exit_code == 0
    assert "no native kernels: they were not built; torch unpacks every matrix" in result.stdout


def test_what_is_wrong_is_said_in_a_sentence(suffice, run, tmp_path, monkeypatch):
    def refused(*words):
        result = suffice("quantise", *words, "--quiet")
        assert result.exit_code == 2
        return result.message

    assert "--out run is the checkpoint itself" in refused("run", "--out", "run")
    assert refused("run", "--bits", 7) == "error: bits=7: give 16, 8 or 4."
    group = refused("run", "--group", 6, "--calibration", "none")
    assert group.count("group=6 for 16 inputs in 8 bits: give a multiple of 4") == 1
    assert "(embedding.tokens: group=6 for 16" in group
    assert "there is no corpus at no/where" in refused("run", "--calibration", "no/where")
    assert "no such file or folder: elsewhere" in refused("elsewhere")
    suffice("quantise", "run", "--quiet", "--calibration", "none")
    assert "packed already" in refused("run-8bit", "--out", "again")
    (tmp_path / "taken" / "quantise.json").mkdir(parents=True)
    assert "--out taken exists and holds" in refused("run", "--out", "taken")
    _, tokenizer, _ = folder.load("run")
    folder.save("bare", run, tokenizer)
    assert "bare does not record its corpus; name a text with --calibration" in refused("bare")
