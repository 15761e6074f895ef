"""Graphs in files: they compute what the model does, and tell nothing of where they were made."""

from __future__ import annotations

import getpass
import json
import platform
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

import suffice
from suffice import preset
from suffice.convert.certificate import Certificate
from suffice.convert.folder import save
from suffice.convert.sources import Source
from suffice.errors import CheckpointError, ConfigError
from suffice.export import export, graph, parity
from suffice.export.export import open_model
from suffice.export.graph import ClassifierGraph, DecoderGraph
from suffice.models import folder
from suffice.patterns import Causal, Pattern
from suffice.positions import Alibi
from suffice.quantise import quantise
from suffice.testing import assert_close
from suffice.text import Words

from .models import (
    NEAR,
    ROTARY,
    SPEC,
    STREAMING,
    TURNING,
    bert,
    classifier,
    language,
    modern,
    pictures,
    saved,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PASTS = (0, 1, 7, 63)
GROUPED = replace(TURNING, num_kv_heads=2, pattern=NEAR, bias=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A packed model as a graph for ONNX Runtime, and one with constants (ALiBi)."""
    path = tmp_path_factory.mktemp("graphs")
    lm = language(GROUPED, **ROTARY, depth=1, vocabulary_size=20)
    quantise(lm, 8)
    saved(path / "packed", lm)
    saved(path / "plain", language(replace(SPEC, position=Alibi()), depth=1, vocabulary_size=20))
    names = {"packed": "onnx", "plain": "alibi"}
    return path, {to: export(path / name, "onnx", path / to) for name, to in names.items()}


@pytest.mark.parametrize("form", ["onnx", "alibi"])
def test_any_past_chunk_batch_and_padding(form, made):
    path, manifests = made
    lm = open_model(path / {"onnx": "packed", "alibi": "plain"}[form])[0].model
    decoder = DecoderGraph(lm)
    file = path / form / manifests[form]["graph"]
    found = parity.check_graph(graph.call_onnx(file), decoder, lm, pasts=PASTS)
    assert found.cases == 16
    assert found.difference < 1e-4
    assert manifests[form]["checked"]["calls"] == 12


def test_the_manifest_says_how_to_call_it(made):
    path, manifests = made
    stored = json.loads((path / "onnx" / "manifest.json").read_text())
    assert stored == manifests["onnx"]
    assert stored["weights"] == "float32, unpacked from fewer bits"
    names = [port["name"] for port in stored["inputs"]]
    state = ["past.places", "past.0.keys", "past.0.values"]
    assert names == ["tokens", "valid", *state]
    differing = DecoderGraph(language([GROUPED, replace(SPEC, bias=False)], **ROTARY))
    assert [port.name for port in differing.inputs()] == [*names, "past.1.keys_and_values"]
    assert stored["inputs"][-1]["shape"] == ["batch", 2, "past", 8]
    assert stored["outputs"][0]["shape"] == ["batch", "chunk", 20]
    assert (stored["length"], stored["reach"]) == (None, 5)
    assert stored["tokenizer"]["file"] in stored["files"]
    assert "positions count the real tokens" in stored["positions"]
    assert manifests["alibi"]["weights"] == "float32"


def test_the_graph_has_the_names_and_sizes_of_the_manifest(made):
    path, manifests = made
    stored = onnx.load(path / "onnx" / "model.onnx").graph
    for ports, values in (("inputs", stored.input), ("outputs", stored.output)):
        for port, value in zip(manifests["onnx"][ports], values, strict=True):
            dims = value.type.tensor_type.shape.dim
            sizes = [dim.dim_param or dim.dim_value for dim in dims]
            assert (value.name, sizes) == (port["name"], port["shape"])


def secrets():
    own = Path(suffice.__file__).resolve()
    places = [
        own.parents[1],
        Path.home(),
        Path.cwd(),
        Path(sys.prefix),
        Path(torch.__file__).parent,
    ]
    names = {str(place) for place in places} | {platform.node(), f"/{getpass.getuser()}", ".py"}
    return [name.encode() for name in names if len(name) > 2]


def test_files_hold_no_traces_of_the_machine(made):
    path, _ = made
    model = onnx.load(path / "onnx" / "model.onnx")
    assert model.producer_name == "suffice"
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")  # numbers may spell anything
    contents = {"model.onnx": model.SerializeToString()}
    for form in ("onnx", "alibi"):
        for file in (path / form).iterdir():
            assert not file.stat().st_mode & stat.S_IXUSR
            if file.suffix == ".json":
                contents[f"{form}/{file.name}"] = file.read_bytes()
    for name, content in contents.items():
        found = [one for one in (*secrets(), str(path).encode()) if one in content]
        assert found == [], f"{name} holds {found}"
        assert not content.startswith(b"\x80"), f"{name} is pickled"
    assert all(not node.doc_string and not node.metadata_props for node in model.graph.node)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(bert(depth=1), marks=pytest.mark.slow),
        pictures(),
        pytest.param(modern(pooling="none"), marks=pytest.mark.slow),
        pytest.param(
            classifier(preset("super_attention", 32, 4, length=80), depth=1),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["text", "pictures", "modern tokens", "mixed text"],
)
def test_models_of_whole_inputs(model, tmp_path):
    save(tmp_path / "run", model, Source(model=model, kind="x"), Certificate(layers=()))
    manifest = export(tmp_path / "run", "onnx", tmp_path / "out")
    assert manifest["checked"]["difference"] < 1e-4
    assert manifest["tokenizer"] is None
    assert all("becomes" not in port for port in manifest["inputs"])


def test_a_graph_answers_texts_as_the_model(tmp_path):
    words = Words(("<pad>", "<start>", "<unknown>", "good", "bad"), 8)
    folder.save(tmp_path / "run", classifier(length=8, vocabulary_size=5), words)
    export(tmp_path / "run", "onnx", tmp_path / "out")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    model, call = suffice.load(tmp_path / "run"), graph.call_onnx(tmp_path / "out" / "model.onnx")
    texts = ["", "Good!", "good bad " * 3, "good " * 8, "bad " * 9]
    rows = read.encode_batch(texts)
    feeds = {"tokens": np.array([row.ids for row in rows])}
    feeds["valid"] = np.array([row.attention_mask for row in rows], dtype=bool)
    shares = torch.from_numpy(np.array(call(feeds)[0])).softmax(dim=-1)
    wanted = [list(answer.probabilities.values()) for answer in model.predict(texts)]
    assert_close(shares, torch.tensor(wanted), "same_math")


def test_a_refused_export_leaves_nothing(tmp_path):
    saved(tmp_path / "run", language(preset("infini", 32, 4, segment=8), vocabulary_size=20))
    with pytest.raises(ConfigError, match="layer 0: Infini"):
        export(tmp_path / "run", "onnx", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_models_that_cannot_be_traced_or_translated_are_refused(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Looking(Pattern):
        causal = True

        def allowed(self, q_positions, k_positions):
            return (k_positions <= q_positions) & bool(q_positions.max() >= 0)

    try:
        decoder = DecoderGraph(language(replace(SPEC, pattern=Looking()), depth=1))
        with pytest.raises(ConfigError, match="torch cannot trace this model for every length"):
            graph.trace(decoder)
    finally:
        del Pattern.table["Looking"]

    def failing(*_, **__):
        raise torch.onnx.errors.OnnxExporterError("nothing") from ValueError("no operator for x")

    monkeypatch.setattr(torch.onnx, "export", failing)
    monkeypatch.setattr(graph, "trace", lambda module: module)
    monkeypatch.setattr(graph, "with_linear_attention", lambda traced: traced)
    decoder = DecoderGraph(language(depth=1))
    with pytest.raises(ConfigError, match=r"ONNX has no operators for this model \(no operator fo"):
        graph.write_onnx(decoder, tmp_path / "x.onnx")
    monkeypatch.setattr(graph, "MAX_WEIGHTS", 1000)
    with pytest.raises(CheckpointError, match="bytes, and one ONNX file holds at most 1,000"):
        graph.write_onnx(decoder, tmp_path / "x.onnx")


def test_an_absent_package_is_named_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match="exporting to onnx needs onnxruntime, which is not inst"):
        export(tmp_path / "nothing", "onnx", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMING)
def test_every_mechanism_that_streams(name, tmp_path):
    spec, sizes = STREAMING[name]
    lm = language(spec, **sizes)
    decoder = DecoderGraph(lm)
    graph.write_onnx(decoder, tmp_path / "x")
    call = graph.call_onnx(tmp_path / "x")
    assert parity.check_graph(call, decoder, lm, pasts=PASTS).difference < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        p
        for one in Pattern.table.values()
        if one.__module__.startswith("suffice.")
        for p in one.samples()
    ],
)
def test_every_pattern(pattern, tmp_path):
    seen = pattern & Causal()
    if seen.heads not in (None, 4):
        pytest.skip("made for another number of heads")
    lm = language(replace(SPEC, pattern=seen), depth=1)
    decoder = DecoderGraph(lm)
    graph.write_onnx(decoder, tmp_path / "x")
    found = parity.check_graph(graph.call_onnx(tmp_path / "x"), decoder, lm, pasts=PASTS)
    assert found.difference < 1e-4


@pytest.mark.slow
def test_every_mechanism_of_whole_inputs(tmp_path):
    for number, name in enumerate(("super_attention", "linformer")):
        model = bert(preset(name, 32, 4, length=80))
        module = ClassifierGraph(model)
        graph.write_onnx(module, tmp_path / str(number))
        call = graph.call_onnx(tmp_path / str(number))
        assert parity.check_graph(call, module, model).difference < 1e-4
