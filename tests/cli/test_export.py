"""`suffice export` and `suffice run`: a model leaves, and writes the same text elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import suffice as library
from suffice.cli.export import export
from suffice.cli.run import run
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.models import folder
from suffice.runtime import Session, Tokenizer, generate, read
from tests.export.models import NEAR, ROTARY, TURNING, language, saved

PROMPT = "to be"
DATA = os.environ.get("SUFFICE_DATA", "")  # the fixture takes it away


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model that sees five tokens, and its export to ONNX."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("made")
    lm = language(replace(TURNING, pattern=NEAR), **ROTARY, depth=1, vocabulary_size=15, seed=7)
    saved(path / "run", lm)
    export(path / "run", "onnx", as_json=True)
    return path


def eager(suffice, path, *words):
    result = suffice("generate", path, "--prompt", PROMPT, "--temperature", 0, *words)
    assert result.exit_code == 0
    return result.stdout


def test_onnx_writes_the_tokens_of_the_model(suffice, made):
    result = suffice("run", made / "run-onnx", "--prompt", PROMPT)
    assert result.exit_code == 0
    assert result.stdout == eager(suffice, made / "run", "--tokens", 32)
    assert len(result.stdout) == len(PROMPT) + 32 + 1
    assert result.message.startswith("32 tokens; prompt ")
    assert result.message.endswith(" tokens/s; onnx")


def test_draws_follow_the_seed(suffice, made):
    words = ("run", made / "run-onnx", "--prompt", PROMPT, "--temperature", 0.9, "--tokens", 20)
    first, again, other = (suffice(*words, "--seed", seed).stdout for seed in (1, 1, 2))
    assert first == again != other


def test_a_cold_draw_is_the_likeliest_token(suffice, made):
    words = ("run", made / "run-onnx", "--prompt", PROMPT)
    for cold in (1e-40, 1e-320):
        assert suffice(*words, "--temperature", cold).stdout == suffice(*words).stdout


def test_a_comparison_is_exported_as_its_best_model(suffice, tmp_path):
    lm = language(replace(TURNING, pattern=NEAR), **ROTARY, depth=1, vocabulary_size=15, seed=7)
    saved(tmp_path / "mine" / "models" / "a", lm)
    (tmp_path / "mine" / "winner.json").write_text('{"model": "models/a"}')
    result = suffice("export", tmp_path / "mine", "--format", "hf", "--out", tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out" / "config.json").is_file()) == (0, True)


def test_hf_command_is_printed_and_runs(suffice, made, tmp_path):
    result = suffice("export", made / "run", "--format", "hf", "--out", "out")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "language model as MistralForCausalLM, weights in float32"
    assert lines[1].split() == [lines[1].split()[0], "kB", "config.json"]
    assert lines[-3].startswith("largest difference of a logit from the model: ")
    assert lines[-2:] == ["export: out", "next: suffice run out"]
    result = suffice("run", "out", "--prompt", PROMPT)
    assert result.stdout == eager(suffice, made / "run", "--tokens", 32)
    assert result.message.endswith(" tokens/s; hf")


BLOCKED = """
import sys, types
sys.modules["torch"] = None  # whoever imports it fails
bare = types.ModuleType("suffice")
bare.__path__ = [sys.argv[1]]  # the package without its __init__, which is for torch
sys.modules["suffice"] = bare
from pathlib import Path
from suffice.runtime import Session, Tokenizer, check_files, generate, read
folder = Path(sys.argv[2])
manifest = read(folder)
check_files(folder, manifest)
tokenizer = Tokenizer(folder, manifest)
ids = tokenizer.ids(sys.argv[3])
print(tokenizer.decode(ids + generate(Session(folder, manifest), manifest, ids, tokens=32)))
assert "torch" not in {name for name, one in sys.modules.items() if one is not None}
"""


def test_it_runs_where_there_is_no_torch(suffice, made):
    package = Path(library.__file__).parent
    words = [sys.executable, "-c", BLOCKED, package, made / "run-onnx", PROMPT]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == eager(suffice, made / "run", "--tokens", 32)


def test_a_long_text_keeps_no_more_than_is_read(made):
    manifest = read(made / "run-onnx")
    session = Session(made / "run-onnx", manifest)
    lengths = []
    call = session.call

    def watched(feeds):
        lengths.append(feeds["past.0.keys"].shape[2])
        assert feeds["past.places"].shape[1] == lengths[-1]
        return call(feeds)

    session.call = watched
    found = generate(session, manifest, [1, 2, 3], tokens=30)
    assert lengths[:3] == [0, 3, 4]
    assert max(lengths) == 4
    unbounded = generate(
        Session(made / "run-onnx", manifest), manifest | {"reach": None}, [1, 2, 3], tokens=30
    )
    assert found == unbounded
    narrow = manifest | {"reach": 1}
    generate(session, narrow, [1, 2, 3], tokens=3)
    assert lengths[-1] == 1
    assert generate(session, manifest, [1, 2, 3], tokens=9, stop=[found[0]]) == []


CHANGES = {
    "graph": ("model.onnx", lambda content: content[:-9] + b"tampered!"),
    "cut": ("model.onnx", lambda content: content[:99]),
    "tokenizer": ("tokenizer.json", lambda content: content.replace(b"be", b"eb") + b" "),
}


def copied(made, tmp_path):
    (tmp_path / "x").mkdir()
    for file in (made / "run-onnx").iterdir():
        (tmp_path / "x" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "x"


def listed(path, **changes):
    """Change a manifest."""
    told = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**told, **changes}))


@pytest.mark.parametrize("case", CHANGES)
def test_what_was_changed_is_not_run(case, suffice, made, tmp_path):
    name, change = CHANGES[case]
    path = copied(made, tmp_path)
    (path / name).write_bytes(change((path / name).read_bytes()))
    result = suffice("run", "x", "--prompt", PROMPT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        f"x/{name} is not the file that was exported (its sha256 differs); copy" in result.message
    )
    with pytest.raises(CheckpointError, match="is not the file that was exported"):
        run(path)


def test_manifests_that_cannot_be_used(made, tmp_path, monkeypatch):
    path = copied(made, tmp_path)
    whole = (path / "manifest.json").read_text()
    files = json.loads(whole)["files"]
    states = [port for port in json.loads(whole)["inputs"] if "becomes" in port]
    for changes, told in (
        ({"content": "other"}, "it is not one of `suffice export`"),
        ({"version": 9}, "its version is 9, and 1 is read"),
        ({"files": [1]}, "it lists no files"),
        ({"files": {"../x": {}}}, "it names '../x', which is not a file of the folder"),
        ({"format": "tflite"}, "it describes a 'language model' in the format 'tflite'"),
        ({"model": None}, "it describes a None in the format 'onnx'"),
        ({"length": 0}, "its length is 0"),
        ({"reach": True}, "its reach is True"),
        ({"tokenizer": {"file": "../x"}}, "its tokenizer is not a file that it lists"),
        ({"tokenizer": {"file": "tokenizer.json", "end": "x"}}, "end token is not a valid id"),
        ({"tokenizer": {"file": []}}, "its tokenizer is not a file that it lists"),
        ({"graph": {}}, "its graph is not a file that it lists"),
        ({"outputs": []}, "an input of its state has no matching output"),
        ({"inputs": states}, "its graph lacks the inputs tokens and valid"),
        ({"graph": "/etc/hosts"}, "its graph is not a file that it lists"),
        ({"inputs": None}, "its inputs are not described"),
        ({"outputs": [{"name": "x", "shape": 4}]}, "its outputs are not described"),
        ({"outputs": [{"name": "x", "shape": [4], "dtype": "O"}]}, "its outputs are not described"),
        ({"files": files | {"more": {"sha256": ""}}}, "x.more is missing; copy the exported fol"),
    ):
        (path / "manifest.json").write_text(whole)
        listed(path, **changes)
        with pytest.raises(CheckpointError, match=told):
            run(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="manifest.json cannot be read .*; export the model"):
        run(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="x holds no manifest.json; give a folder that `suff"):
        run(path)

    def unreadable(*_):
        raise OSError(13, "Permission denied")

    (path / "manifest.json").write_text(whole)
    monkeypatch.setattr("suffice.runtime.digest", unreadable)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\); check its p"):
        run(path)


def with_file(path, name, content):
    """Put another file into an export as if it had been exported."""
    (path / name).write_bytes(content)
    files = json.loads((path / "manifest.json").read_text())["files"]
    files[name]["sha256"] = hashlib.sha256(content).hexdigest()
    listed(path, files=files)


def test_files_that_are_something_else(made, tmp_path):
    path = copied(made, tmp_path)
    with_file(path, "model.onnx", b"no graph")
    with pytest.raises(CheckpointError, match="model.onnx is not a graph"):
        run(path, prompt=PROMPT)
    with_file(path, "tokenizer.json", b"{}")
    with pytest.raises(CheckpointError, match="tokenizer.json is not a tokenizer"):
        run(path, prompt=PROMPT)


def test_a_graph_of_other_ports_is_refused(made, tmp_path):
    path = copied(made, tmp_path)
    inputs = json.loads((path / "manifest.json").read_text())["inputs"]
    listed(path, inputs=[*inputs[1:], inputs[0]])
    with pytest.raises(
        CheckpointError, match="x has a graph whose inputs are not those of its manifest.json"
    ):
        run(path, prompt=PROMPT)


WRONG = {
    "tokens": ({"tokens": 0}, ConfigError, "--tokens 0: give at least 1."),
    "temperature": ({"temperature": -1.0}, ConfigError, "--temperature -1.0: give 0 or a number"),
    "seed": ({"seed": -1}, ConfigError, "--seed -1: give at least 0."),
    "letters": ({"prompt": "Z"}, DataError, "the prompt holds what the tokenizer cannot spell"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_arguments_are_refused(case, made):
    words, kind, told = WRONG[case]
    with pytest.raises(kind, match=told):
        run(made / "run-onnx", **{"prompt": PROMPT, **words})


def test_more_tokens_than_there_are_positions(made):
    manifest = read(made / "run-onnx") | {"length": 8}
    with pytest.raises(
        ConfigError, match="a prompt of 4 and 6 new tokens need 9 positions of a mo"
    ):
        generate(Session(made / "run-onnx", manifest), manifest, [1, 2, 3, 4], tokens=6)


def test_tokens_around_a_text(made):
    manifest = read(made / "run-onnx")
    told = manifest["tokenizer"]
    for around, prompt, ids in (
        ({"begin": 3}, "", [3]),
        ({"end": 5}, "", [5]),
        ({"begin": 3, "end": 5}, "e", None),
    ):
        tokenizer = Tokenizer(made / "run-onnx", manifest | {"tokenizer": told | around})
        found = tokenizer.ids(prompt)
        assert found == ids or (found[0], len(found)) == (3, 2)
    with pytest.raises(ConfigError, match="id 15 is not in the vocabulary; the tokenizer has ids"):
        tokenizer.decode([3, 15])
    with pytest.raises(ConfigError, match="has no tokenizer, so no text can be read; call its gra"):
        Tokenizer(made / "run-onnx", manifest | {"tokenizer": None})


def test_absent_packages_are_reported(made, monkeypatch):
    manifest = read(made / "run-onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match="running an ONNX export needs onnxruntime, which is"):
        Session(made / "run-onnx", manifest)


def test_a_torch_export_is_not_opened_here(made, tmp_path, suffice):
    path = copied(made, tmp_path)
    listed(path, format="torch")
    result = suffice("run", "x", "--prompt", PROMPT)
    assert result.exit_code == 2
    assert "torch.export.load('model.onnx')" in result.message
    with pytest.raises(ConfigError, match="x is for torch"):
        run(path)


def test_bad_input_is_a_sentence(suffice, tmp_path):
    lm = language(depth=1, vocabulary_size=15)
    saved(tmp_path / "run", lm)
    for words, told in (
        (["export", "run", "--format", "gguff"], "'gguff'; did you mean 'gguf'? Legal: gguf, hf"),
        (["export", "none", "--format", "hf"], "no such file or folder: none"),
        (["export", "run", "--format", "hf", "--out", "run"], "--out run is the checkpoint itself"),
        (["run", "none"], "no such file or folder: none"),
    ):
        found = suffice(*words)
        assert (found.exit_code, found.stdout) == (2, "")
        assert told in found.message
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["run"]
    with pytest.raises(ConfigError, match="--out .*run is the checkpoint itself"):
        export(tmp_path / "run", "hf", tmp_path / "run")
    assert folder.load(tmp_path / "run")[0].config == lm.config


@pytest.mark.slow
def test_a_published_model_leaves_and_writes_the_same(suffice, tmp_path):
    """Efficient attention in place of shared heads, for transformers and for ONNX Runtime."""
    data = Path(DATA) / "models" / "stories260K" / "stories260K.bin"
    if not data.is_file():
        pytest.skip("there is no models/stories260K below $SUFFICE_DATA")
    transformers = pytest.importorskip("transformers")
    words = ("--to", "efficient", "--naive", "--out", "efficient", "--quiet")
    assert suffice("convert", data, *words).exit_code == 0
    for form in ("hf", "onnx"):
        assert suffice("export", "efficient", "--format", form).exit_code == 0
    lm, tokenizer, _ = folder.load("efficient")
    ids = torch.tensor([[tokenizer.begin, *tokenizer.encode("Once upon a time")]])
    theirs = transformers.AutoModelForCausalLM.from_pretrained("efficient-hf")
    with torch.no_grad():
        assert (theirs(ids).logits - lm(ids)).abs().max() < 1e-4
    result = suffice("run", "efficient-onnx", "--prompt", "Once upon a time")
    words = ("--prompt", "Once upon a time", "--temperature", 0, "--tokens", 32)
    assert result.stdout == suffice("generate", "efficient", *words).stdout
