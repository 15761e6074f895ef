"""`suffice convert`: a model in, one with cheaper attention out, and what it says of that."""

from __future__ import annotations

import json
import re

import pytest

from suffice import AttentionSpec, preset
from suffice.convert.certificate import Certificate
from suffice.convert.folder import save
from suffice.convert.sources import Source
from suffice.errors import CheckpointError, ConfigError
from suffice.models import ViTConfig, folder
from suffice.patterns import Causal
from tests.cli.models import written

SPEC = AttentionSpec(d_model=16, num_heads=4, pattern=Causal())


@pytest.fixture
def run(tmp_path):
    return written(tmp_path, SPEC)


def test_a_model_is_fitted_written_and_reported(suffice, run, tmp_path):
    result = suffice("convert", "run", "--to", "mqa,window:9+sinks:2", "--quiet", "--tokens", 500)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        "blocks.0 ",
        " window:9+sinks:2 ",
        "492 tokens",
        "up to 9 tokens",
        "220 tokens in 20 rows",
    ):
        assert words in result.stdout
    out = tmp_path / "run-mqa-window-9-sinks-2"
    certificate = json.loads((out / "certificate.json").read_text())
    assert (certificate["kind"], certificate["naive"]) == ("approximate", False)
    (layer,) = certificate["layers"]
    assert (layer["exact"], layer["exact_up_to"], layer["chosen"]) == (False, 9, "closed form")
    lm, tokenizer, facts = folder.load(out)
    assert lm.specs[0].kv_heads == 1
    assert tokenizer.fingerprint == folder.load("run")[1].fingerprint
    assert facts["converted"] == {
        "from": "suffice",
        "to": "mqa,window:9+sinks:2",
        "kind": "approximate",
    }
    assert suffice("generate", out, "--prompt", "to", "--tokens", 5).exit_code == 0
    judged = suffice("evaluate", out, "--data", "text.txt", "--limit", 5, "--json", "--quiet")
    assert json.loads(judged.stdout)["items"] == 5


def test_layers_that_change_alike_are_one_row(suffice, tmp_path):
    written(tmp_path, SPEC, depth=4)
    (tmp_path / "plan.json").write_text('{"layers": ["gqa:2", "gqa:2", "mqa", "gqa:2"]}')
    result = suffice(
        "convert", "run", "--to", "plan.json", "--out", "x", "--quiet", "--tokens", 500
    )
    layers = json.loads((tmp_path / "x" / "certificate.json").read_text())["layers"]
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[1:3])
    assert list(rows) == ["blocks.0-1,3", "blocks.2"]
    largest = max(layers[index]["measured"] for index in (0, 1, 3))
    assert f" {largest:.1%} " in rows["blocks.0-1,3"]


def test_an_exact_one_says_so(suffice, run, tmp_path):
    result = suffice("convert", "run", "--to", "input", "--out", "x", "--json", "--quiet")
    found = json.loads(result.stdout)
    assert found["kind"] == "exact"
    assert found["layers"][0]["difference"] < 1e-12
    assert abs(found["loss"]["change"]) < 1e-5
    again = suffice("convert", "run", "--to", "input", "--out", "x", "--quiet")
    assert re.search(r"exact, within \de-\d\d ", again.stdout)
    assert "predicted" not in again.stdout
    assert "exact: every layer computes the same function" in again.stdout


def test_a_plan_and_the_usual_starts(suffice, run, tmp_path):
    (tmp_path / "half.json").write_text('{"layers": ["gqa:2"]}')
    result = suffice("convert", "run", "--to", "half.json", "--naive", "--quiet")
    assert "nothing was fitted" in result.stdout
    assert folder.load("run-half")[0].specs[0].kv_heads == 2
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config.pop("corpus")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    result = suffice("convert", "run", "--to", "mqa", "--naive", "--quiet")
    assert "held-out" not in result.stdout
    assert "average" in result.stdout


WRONG = {
    "source": (["--to", "mqa", "--out", "run"], "--out run is the source itself, which would be"),
    "corpus": (["--to", "mqa", "--calibration", "nowhere"], "unknown corpus 'nowhere'"),
    "short": (["--to", "mqa", "--calibration", "short.txt"], "less than one batch of 8 rows of 12"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input_is_refused_in_one_sentence(case, suffice, run, tmp_path):
    (tmp_path / "short.txt").write_text("to be or not " * 8)
    words, said = WRONG[case]
    before = {path.name for path in tmp_path.iterdir()}
    result = suffice("convert", "run", *words, "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.message
    assert {path.name for path in tmp_path.iterdir()} - before <= {"cache"}


def test_the_source_is_checked(suffice, run, tmp_path):
    result = suffice("convert", "nothing", "--to", "mqa")
    assert (
        result.exit_code,
        "no such file or folder: nothing" in result.message,
    ) == (2, True)
    (tmp_path / "run" / "model.safetensors").write_bytes(b"x" * 40)
    result = suffice("convert", "run", "--to", "mqa", "--quiet")
    assert result.exit_code == 2
    assert not (tmp_path / "run-mqa").exists()


def picture(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")


def test_a_model_of_pictures(suffice, tmp_path):
    picture(tmp_path)
    result = suffice("convert", "vit", "--to", "efficient", "--quiet")
    assert result.exit_code == 0
    assert "exact: every layer" in result.stdout
    stored = json.loads((tmp_path / "vit-efficient" / "config.json").read_text())
    assert stored["kind"] == "image classifier"
    assert (tmp_path / "vit-efficient" / "model.safetensors").is_file()
    result = suffice("convert", "vit", "--to", "efficient", "--calibration", "stdlib", "--quiet")
    assert (
        "--calibration stdlib: a vit model reads no text here; leave it out, or" in result.message
    )


def test_a_folder_needs_a_tokenizer_and_a_disk(run, tmp_path, monkeypatch):
    one = Certificate(layers=())
    with pytest.raises(ConfigError, match="this llama model has no tokenizer"):
        save(tmp_path / "x", run, Source(model=run, kind="llama"), one)
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("")
    config = ViTConfig(image_size=4, patch_size=2, num_classes=2, d_model=4, depth=1, mlp_width=4)
    vit = config.build(preset("standard", 4, 1))
    with pytest.raises(CheckpointError, match=r"file.x"):
        save(tmp_path / "file" / "x", vit, Source(model=vit, kind="vit"), one)
